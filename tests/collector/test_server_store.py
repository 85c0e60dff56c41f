"""A ClickHouse server as the store: the same code over HTTP, and the server going away."""

import socket
import subprocess
import sys

import httpx
import pytest

from tests.support.collector import ROOT, Collector
from tests.support.otlp import token_body


class Server:
    """tests/support/clickhouse_http.py on a fixed port, so that it can come back where it was."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(timeout=30)

    def start(self):
        script = ROOT / "tests" / "support" / "clickhouse_http.py"
        command = [sys.executable, str(script), str(self.folder / "db"), str(self.port)]
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline(), "the test server did not start"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def tokens(self):
        sql = "SELECT uniqExact(trace_id), count() FROM tokens"
        return tuple(map(int, self.http.post(self.url, content=sql).text.split()))


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


def test_a_server_that_goes_away_and_comes_back_gets_everything_once(server, tmp_path):
    collector = Collector(tmp_path / "data", store=f"{server.url}/default").start()
    for trace in range(1, 11):
        assert collector.post(token_body(trace=trace)).status_code == 200
    collector.wait_until(lambda: server.tokens() == (10, 30))

    server.kill()
    for trace in range(11, 21):
        assert collector.post(token_body(trace=trace)).status_code == 200
    collector.wait_until(lambda: collector.get("/readyz").status_code == 503)
    assert "does not take data" in collector.get("/readyz").json()["reason"]

    server.start()
    collector.wait_until(lambda: server.tokens() == (20, 60))
    collector.wait_until(lambda: collector.get("/readyz").status_code == 200)
    assert collector.stop() == 0


def test_what_a_lost_server_did_not_get_waits_for_the_next_start(server, tmp_path):
    collector = Collector(tmp_path / "data", "--drain-timeout-s", "2", store=f"{server.url}/default").start()
    server.kill()
    assert collector.post(token_body(trace=1)).status_code == 200
    assert collector.stop() == 0
    assert len(list((tmp_path / "data" / "wal").glob("*.wal"))) == 1

    server.start()
    collector.start()
    collector.wait_until(lambda: server.tokens() == (1, 3))
    assert collector.stop() == 0
