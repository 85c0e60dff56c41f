"""Runs tests with the wall clock at moments that tests forget, and with fixtures that were made a while ago.

`python -m tests.clocks` (`make test-clocks`) runs the tests that read a clock once for each of PHASES: each file of
tests begins at that time. It runs them once for each of AGES: before a file's first test, when its fixtures are made,
the clock goes forward. The clock of the tests' processes moves (tests/support/clock.c, compiled by `cc`), and that of
the machine does not.

    python -m tests.clocks --only midnight tests/collector/api/test_goodput.py  # one phase, one file
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from tokentrail._host import clock as trail_clock

ROOT: Final = Path(__file__).parent.parent
CLOCK: Final = ROOT / "tests" / "support" / "clock.c"
FOLDERS: Final = (
    "tests/dashboard",
    "tests/alerts",
    "tests/collector/api",
    "tests/collector/metrics",
    "tests/tokentrail/mcp",
)
"""Folders whose tests ask for times that end now, for hours and days, or for a store that was made before."""


@dataclass(frozen=True)
class Phase:
    """A time of the UTC clock."""

    minute: int
    second: int = 0
    hour: int | None = None
    """None: of each hour."""
    last_of_month: bool = False

    def after(self, now: datetime) -> datetime:
        """The first such time after `now`."""
        at = now.replace(minute=self.minute, second=self.second, microsecond=0)
        while (
            at <= now or self.hour not in (None, at.hour) or (self.last_of_month and (at + timedelta(days=1)).day != 1)
        ):
            at += timedelta(hours=1)
        return at


PHASES: Final = {
    "before-hour": Phase(59),
    "after-hour": Phase(1),
    "hour-changes": Phase(59, 57),
    "midnight": Phase(59, 57, hour=23),
    "after-midnight": Phase(1, hour=0),
    "month-ends": Phase(58, hour=23, last_of_month=True),
}
AGES: Final = {"aged-10": 600, "aged-40": 2400}
"""Seconds by which a file's fixtures are older than they would be."""


class Clock:
    """The offset of the wall clock of this process and its children."""

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), 8)

    def forward(self, seconds: float) -> None:
        """Moves the clock, and with it that of the trails of this process."""
        (ahead,) = struct.unpack("q", self._page)
        self._page[:] = struct.pack("q", ahead + round(seconds))
        trail_clock._ANCHOR_NS += round(seconds) * 10**9  # it is anchored when it is imported


class Moves:
    """The plugin of a run: moves the clock at a file's first test, or once where files share their fixtures."""

    def __init__(self, clock: Clock, name: str, *, once: bool) -> None:
        self._clock, self._name, self._once = clock, name, once
        self._begun: set[object] = set()
        self._aged: set[object] = set()

    def _is_first(self, item: pytest.Item, seen: set[object]) -> bool:
        key = None if self._once else item.path
        first = key not in seen
        seen.add(key)
        return first

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before a file's fixtures are made, the clock goes to the phase."""
        if self._name in PHASES and self._is_first(item, self._begun):
            now = datetime.now(UTC)
            self._clock.forward((PHASES[self._name].after(now) - now).total_seconds())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """After they are made, they get older."""
        if self._name in AGES and self._is_first(item, self._aged):
            self._clock.forward(AGES[self._name])


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin in a run that `main` has started."""
    told = json.loads(os.environ["TEST_CLOCKS"])
    config.pluginmanager.register(Moves(Clock(Path(os.environ["CLOCK_OFFSET"])), told["name"], once=told["once"]))


def groups(names: Sequence[str]) -> Iterator[list[str]]:
    """Files and folders as runs of their own: those that share a browser and a day are one."""
    from tests.conftest import BROWSER  # late: it changes the environment of pytest

    shared = [f"tests/{file}" for file in BROWSER]
    for name in names:
        files = [str(file.relative_to(ROOT)) for file in sorted((ROOT / name).rglob("test_*.py"))] or [name]
        if together := [file for file in shared if file in files]:
            yield together
        if rest := [file for file in files if file not in shared]:
            yield rest


def run(name: str, files: Sequence[str], library: Path, *, once: bool) -> bool:
    """Runs files in a phase or at an age, and prints what pytest said where a test failed; whether all passed."""
    with tempfile.NamedTemporaryFile() as offset:
        offset.write(struct.pack("q", 0))
        offset.flush()
        environment = os.environ | {
            "LD_PRELOAD": str(library),
            "CLOCK_OFFSET": offset.name,
            "TEST_CLOCKS": json.dumps({"name": name, "once": once}),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.clocks", *files]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    last = done.stdout.strip().rpartition("\n")[2]
    print(f"{name:15} {time.monotonic() - began:5.0f} s  {files[0]}{' …' if files[1:] else ''}: {last}", flush=True)
    if done.returncode:
        print(done.stdout + done.stderr, flush=True)
    return done.returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 when every test passed in every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*PHASES, *AGES], help="one of them; may be repeated")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("names", nargs="*", default=FOLDERS, help="files and folders of tests")
    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(told.workers) as pool:
        library = Path(folder) / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, CLOCK, "-ldl"], check=True)
        runs = [
            pool.submit(run, name, files, library, once="test_brush" in "".join(files))
            for name in told.only or [*PHASES, *AGES]
            for files in groups(told.names)
        ]
        passed = [one.result() for one in runs]
    print(f"every test passed in {sum(passed)} of {len(passed)} runs")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
