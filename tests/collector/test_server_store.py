"""A ClickHouse server as the store: the same code over HTTP, and the server going away."""

import pytest

from tests.support.clickhouse_server import Server
from tests.support.collector import Collector
from tests.support.otlp import token_body


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
