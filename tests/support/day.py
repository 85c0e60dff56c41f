"""The day of `tokentrail demo --day` in a store, explained: the first test that needs it makes it, others copy it."""

import contextlib
import fcntl
import hashlib
import pickle
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from collector.app.history import fill
from tests.support.collector import Collector
from tests.support.stores import ROOT, new_store
from tokentrail._send.transport import SendResult, SendStatus
from tokentrail.cli.day.plan import Day
from tokentrail.cli.day.play import Outlet, play

SLOS = ROOT / "alerts" / "slos.day.yaml"
SCALE = 0.2
"""3,000 requests. Each fault is there: cold start, burst, KV storm, deploy, hang."""
FRESH_S = 600
"""A day that ended longer ago is made anew, so that what happens at its end still happens."""
DAYS = ROOT / ".pytest_cache" / "days"


def new_day(folder, *, scale=SCALE, fresh_s=FRESH_S):
    """Copy the store of a day that ended `fresh_s` ago at most to `folder`, a new one; return its `Day`."""
    DAYS.mkdir(parents=True, exist_ok=True)
    made = DAYS / f"{_digest()}-{scale}"
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        day = _read(made)
        # A day of the future was made under a clock that was ahead (tests/clocks.py).
        if day is None or abs(time.time() - day.end / 1e9) > fresh_s:
            shutil.rmtree(made, ignore_errors=True)
            command = [sys.executable, "-m", "tests.support.day", str(made), str(scale)]
            subprocess.run(command, cwd=ROOT, check=True, timeout=900)
            day = _read(made)
        shutil.copytree(made / "store", folder, symlinks=True)
    return day


@contextlib.contextmanager
def day_collector(folder, *arguments, scale=SCALE, fresh_s=FRESH_S):
    """A collector with a day, and the `Day`. Its last fault goes on: the process that hangs announces its requests."""
    folder = Path(folder)
    day = new_day(folder / "store", scale=scale, fresh_s=fresh_s)
    over = threading.Event()
    with Collector(folder, "--slos", str(SLOS), *arguments) as running:
        outlet = Outlet()
        trails = play(day, outlet, all_processes=False)
        outlet.to_collector(running.urls["otlp-http"])

        def announce():
            while True:
                for trail in trails:
                    trail.flush(0)
                if over.wait(5):
                    return

        thread = threading.Thread(target=announce)
        thread.start()
        try:
            running.wait_until(lambda: running.get("/api/v1/summary").json()["requests"]["in_flight"])
            yield running, day
        finally:
            over.set()
            thread.join()


def make(folder, scale):
    """Make the day's store in a folder, by OTLP and by the collector's own explainer."""
    day, bodies = Day(time.time_ns() // 1000 * 1000, scale=scale), []

    def keep(body):
        bodies.append(body)
        return SendResult(SendStatus.DELIVERED)

    play(day, keep)
    new_store(folder / "store")
    fill(folder, bodies)
    (folder / "day.pickle").write_bytes(pickle.dumps(day))


def _read(folder):
    file = folder / "day.pickle"
    return pickle.loads(file.read_bytes()) if file.exists() else None


def _digest():
    """Of the code that makes a day."""
    rooms = ("tokentrail/cli/day/*.py", "collector/app/history.py", "collector/sql/**/*.sql", "collector/causes/*.py")
    code = [Path(__file__)] + [file for room in (*rooms, "collector/causes/stage/*.py") for file in ROOT.glob(room)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(code))).hexdigest()[:16]


if __name__ == "__main__":
    make(Path(sys.argv[1]), float(sys.argv[2]))
