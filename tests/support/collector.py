"""A real collector process on free ports."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.support.forked import Forked
from tests.support.stores import new_store

ROOT = Path(__file__).resolve().parents[2]
PROTOBUF = {"content-type": "application/x-protobuf"}
LOG_LINES = 30


class Collector:
    """`python -m collector` on a data folder; `start` again after `stop` or `kill` continues where it was.

    With `command`, the operating system starts the command. Otherwise the process is forked, without the imports, and
    each scrape makes it refresh its /metrics.
    """

    def __init__(self, data_dir, *arguments, store="chdb://", command=False):
        self.data_dir = Path(data_dir)
        self._command = command
        self._embedded = store == "chdb://"
        self._arguments = ["--data-dir", str(data_dir), "--store", store, "--segment-age-s", "0.1", *arguments]
        self.process = None
        self.urls = {}
        # A server closes idle connections after five seconds: one that is taken up at that moment would be reset.
        self.http = httpx.Client(timeout=120, limits=httpx.Limits(keepalive_expiry=2.0))

    def start(self, *, ready=True):
        if self._embedded and not (self.data_dir / "store").exists():
            new_store(self.data_dir / "store")
        address = "127.0.0.1:0"
        listen = ["--otlp-http", address, "--otlp-grpc", address, "--api", address]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TOKENTRAIL_")}
        self.log = self.data_dir.with_name(self.data_dir.name + ".log").open("ab")
        arguments = [*self._arguments, *listen]
        if self._command:
            command = [sys.executable, "-m", "collector", *arguments]
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=self.log, text=True
            )
        else:
            self.process = Forked("collector.__main__", arguments, environment=environment, cwd=ROOT, stderr=self.log)
        self.urls = {}
        while len(self.urls) < 3:
            line = self.process.stdout.readline()
            assert line, f"the collector did not start:\n{Path(self.log.name).read_text()[-3000:]}"
            name, _, url = line.strip().partition(" listening on ")
            self.urls[name] = url
        if ready:
            self.wait_until(lambda: self.get("/readyz").status_code == 200)
        return self

    def get(self, path):
        return self.http.get(self.urls["api"] + path)

    def post(self, body, **headers):
        return self.http.post(self.urls["otlp-http"] + "/v1/traces", content=body, headers=PROTOBUF | headers)

    def wait_until(self, condition, timeout_s=120.0):
        began = asked = time.monotonic()
        while not condition():
            now = time.monotonic()
            assert now < began + timeout_s, f"{condition} did not come true in {timeout_s} s\n{self.state()}"
            # Questions take a third of the time at most, and those of a long wait are rare.
            time.sleep(max(0.05, 2 * (now - asked), (now - began) / 8))
            asked = time.monotonic()

    def wait_until_stored(self):
        """Wait until the logs are empty. To ask /metrics again and again makes a forked collector refresh each time."""
        self.wait_until(lambda: not list(self.data_dir.glob("wal*/*.wal")))

    def state(self):
        """What a failed wait shows: the answer of /readyz, or why there is none, and the end of the collector's log."""
        try:
            answer = self.http.get(self.urls["api"] + "/readyz", timeout=10)
            ready = f"{answer.status_code} {answer.text}"
        except httpx.HTTPError as error:
            ready = f"{error!r}; exit status {self.process.poll()}"
        lines = Path(self.log.name).read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"/readyz: {ready}", f"{self.log.name}:", *lines])

    def kill(self):
        self.process.kill()
        self._ended()

    def stop(self, timeout_s=90):
        """SIGTERM and wait; the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        finally:
            self._ended()

    def _ended(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
