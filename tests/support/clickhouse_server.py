"""tests/support/clickhouse_http.py as a process on a fixed port, so that it can come back where it was."""

import random
import socket
import subprocess
import sys

import httpx

from tests.support.collector import ROOT


class Server:
    def __init__(self, folder, script="clickhouse_http.py"):
        self.folder = folder
        self._script = ROOT / "tests" / "support" / script
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(timeout=120)
        self.process = None

    def start(self):
        command = [sys.executable, str(self._script), str(self.folder / "db"), str(self.port)]
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline(), "the test server did not start"

    def kill(self):
        if not self.process:
            return
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def tokens(self):
        sql = "SELECT uniqExact(trace_id), count() FROM tokens"
        return tuple(map(int, self.http.post(self.url, content=sql).text.split()))


def _free_port():
    """A port below those that Linux gives to sockets without one, so that nobody has it when the server comes back."""
    while True:
        port = random.randrange(15_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
