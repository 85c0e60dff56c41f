"""tests/support/clickhouse_http.py as a process on a fixed port, so that it can come back where it was."""

import socket
import subprocess
import sys

import httpx

from tests.support.collector import ROOT


class Server:
    def __init__(self, folder, script="clickhouse_http.py"):
        self.folder = folder
        self._script = ROOT / "tests" / "support" / script
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(timeout=120)

    def start(self):
        command = [sys.executable, str(self._script), str(self.folder / "db"), str(self.port)]
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline(), "the test server did not start"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def tokens(self):
        sql = "SELECT uniqExact(trace_id), count() FROM tokens"
        return tuple(map(int, self.http.post(self.url, content=sql).text.split()))
