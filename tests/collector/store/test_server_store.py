"""A ClickHouse server as the store: the same code over HTTP, and the server going away."""

import re
import shutil
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError
from clickhouse_connect.driver.httpclient import HttpClient
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from collector.base.status import IngestStatus
from collector.base.store_errors import StoreError, StoreUnavailableError, is_unavailable
from collector.keep.expiry import Expiry
from collector.otlp.signals import LOGS, TRACES
from collector.store import opener
from collector.store.insert import insert_otlp
from collector.store.joiner import Joiner
from collector.store.retention import parse_retention
from collector.store.store import Store
from tests.collector.otlp.test_logs import dynamo
from tests.support.clickhouse_server import Server
from tests.support.collector import Collector
from tests.support.otlp import token_body
from tests.support.stores import new_store

DAY_NS = 86400 * 10**9


def wait_until(condition):
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    new_store(folder / "db")
    server = Server(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(kept):
    """One server for all tests, without rows. A test that kills it starts it again, and none sends another's traces."""
    store = Store.open(f"{kept.url}/default")
    for table in ("requests", "tokens", "joined_segments"):
        store.client().command(f"TRUNCATE TABLE {table}")
    store.close()
    yield kept
    if kept.process.poll() is not None:
        kept.start()


@pytest.fixture(scope="module")
def collector(kept, tmp_path_factory):
    """One collector for tests in which the server goes away."""
    folder = tmp_path_factory.mktemp("collector") / "data"
    with Collector(folder, "--query-timeout-s", "1", store=f"{kept.url}/default") as collector:
        yield collector


def test_a_server_that_takes_questions_and_answers_none_holds_up_the_api_for_the_time_of_a_query(server, collector):
    assert collector.get("/api/v1/summary").status_code == 200
    server.process.send_signal(signal.SIGSTOP)
    answer = collector.get("/api/v1/summary")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "does not answer" in answer.json()["detail"]
    assert collector.post(token_body(trace=31)).status_code == 200
    server.process.send_signal(signal.SIGCONT)
    collector.wait_until(lambda: server.tokens() == (1, 3))


def test_a_server_that_goes_away_and_comes_back_gets_everything_once(server, collector):
    for trace in range(1, 11):
        assert collector.post(token_body(trace=trace)).status_code == 200
    collector.wait_until(lambda: server.tokens() == (10, 30))
    received = re.compile(r"^tokentrail_collector_payloads_received_total (\S+)$", re.MULTILINE)
    before = float(received.search(collector.get("/metrics").text)[1])

    server.kill()
    for trace in range(11, 21):
        assert collector.post(token_body(trace=trace)).status_code == 200
    collector.wait_until(lambda: collector.get("/readyz").status_code == 503)
    answers = collector.get("/api/v1/summary"), collector.get("/metrics")
    assert [answer.status_code for answer in answers] == [503, 200]
    assert "does not answer" in answers[0].json()["detail"]
    assert float(received.search(answers[1].text)[1]) == before + 10
    collector.wait_until(lambda: "tokentrail_collector_store_up 0.0" in collector.get("/metrics").text)
    assert "does not take data" in collector.get("/readyz").json()["reason"]

    server.start()
    collector.wait_until(lambda: server.tokens() == (20, 60))
    collector.wait_until(lambda: collector.get("/readyz").status_code == 200)
    log = Path(collector.log.name).read_text()
    assert not [library for library in ("clickhouse_connect", "urllib3") if library in log], "callers say so"


def test_a_server_that_comes_back_with_an_empty_disk_gets_its_tables_and_what_waits(server, collector):
    server.kill()
    shutil.rmtree(server.folder / "db")
    for trace in range(41, 51):
        assert collector.post(token_body(trace=trace)).status_code == 200
    server.start()
    collector.wait_until_stored()
    assert server.tokens() == (10, 30)
    collector.wait_until(lambda: collector.get("/readyz").status_code == 200)
    assert collector.get("/api/v1/summary").status_code == 200
    assert collector.stop() == 0


def test_a_long_insert_is_waited_for_and_a_statement_that_hangs_holds_up_no_other(server):
    """The server refuses a statement of a session in which another one still runs."""
    store = Store.open(f"{server.url}/default", connect_timeout_s=2.0)
    client = store.client()
    assert isinstance(client, HttpClient)
    assert (client.timeout.connect_timeout, client.timeout.read_timeout) == (2.0, 300.0)
    assert client.get_client_setting("session_id") is None
    store.close()


class Stranger(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_stranger_that_answers_200_at_the_address_of_the_server_has_stored_nothing(server):
    store = Store.open(f"{server.url}/default")
    insert_otlp(store, TRACES, token_body(trace=1), "first")
    server.kill()
    with ThreadingHTTPServer(("127.0.0.1", server.port), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever).start()
        try:
            with pytest.raises(OperationalError, match="not a ClickHouse server") as failed:
                insert_otlp(store, TRACES, token_body(trace=2), "second")
            assert is_unavailable(failed.value)
            with pytest.raises(StoreUnavailableError, match="not a ClickHouse server"):
                store.query("SELECT count() FROM tokens")
        finally:
            stranger.shutdown()
    server.start()
    insert_otlp(store, TRACES, token_body(trace=2), "second")
    assert server.tokens() == (2, 6)
    store.close()


class Failing(Stranger):
    code = 0

    def do_POST(self):
        text = f"Code: {self.code}. DB::Exception: as the test wants it".encode()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(500)
        self.send_header("X-ClickHouse-Exception-Code", str(self.code))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.mark.parametrize(
    ("code", "waits"),
    [(241, True), (243, True), (75, True), (159, True), (202, True), (164, False), (497, False), (516, False)],
)
def test_a_collector_starts_while_its_server_has_no_room_and_not_when_it_may_not_write(code, waits, monkeypatch):
    monkeypatch.setattr(Failing, "code", code)
    status = IngestStatus()
    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as failing:
        threading.Thread(target=failing.serve_forever).start()
        try:
            dsn = f"http://127.0.0.1:{failing.server_port}/default"
            if waits:
                assert not opener.StoreOpener(dsn, status).store.is_open
                assert "is not open yet" in status.snapshot().reason
                assert f"Code: {code}." in status.snapshot().reason
            else:
                with pytest.raises(StoreError, match=f"Code: {code}."):
                    opener.StoreOpener(dsn, status)
        finally:
            failing.shutdown()


def test_a_collector_starts_while_its_server_has_no_room_for_the_schema(server, monkeypatch):
    def full(*_, **__):
        raise DatabaseError("Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space", code=243)

    status = IngestStatus()
    with monkeypatch.context() as patched:
        patched.setattr(opener, "apply_schema", full)
        stage = opener.StoreOpener(f"{server.url}/default", status, retry_s=0.01)
    assert "not enough space" in status.snapshot().reason
    stage.start()
    wait_until(lambda: stage.store.is_open)
    assert stage.stop(120.0)
    stage.store.close()


def test_a_server_that_answers_nothing_makes_the_collector_not_ready_until_it_answers(server, monkeypatch):
    monkeypatch.setattr(opener, "_ASKED_EVERY_S", 0.0)
    monkeypatch.setattr(opener, "_ANSWERED_WITHIN", {"max_execution_time": -4})  # five seconds more are one
    status = IngestStatus()
    status.set_ready("start")
    stage = opener.StoreOpener(f"{server.url}/default", status, retry_s=0.01)
    stage.start()
    try:
        server.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: "does not answer" in status.snapshot().reason)
        assert stage.store.is_open, "inserts that wait for an answer go on"
        server.process.send_signal(signal.SIGCONT)
        wait_until(lambda: status.snapshot().ready)
    finally:
        server.process.send_signal(signal.SIGCONT)
        assert stage.stop(120.0)
        stage.store.close()


@pytest.mark.parametrize(("days_ahead", "left"), [(-400, (2, 6)), (0, (1, 3)), (400, (1, 3))])
def test_a_clock_that_is_ahead_of_the_servers_takes_no_rows_that_are_not_due(days_ahead, left, server):
    now_ns = time.time_ns()
    store = Store.open(f"{server.url}/default")
    insert_otlp(store, TRACES, token_body(trace=1, start=now_ns), f"new, {days_ahead}")
    insert_otlp(store, TRACES, token_body(trace=2, start=now_ns - 30 * DAY_NS), f"old, {days_ahead}")
    retention = parse_retention("7d")
    Expiry(store, retention, IngestStatus(), clock=lambda: now_ns + days_ahead * DAY_NS).run_once()
    assert server.tokens() == left
    store.close()


def test_lists_of_any_length_reach_a_server_which_takes_no_long_parameters(server):
    store = Store.open(f"{server.url}/default")
    words = [f"it's {number} of {{words:Array(String)}}\\" for number in range(10_000)]
    sql = "SELECT count(), countIf(word LIKE {like:String}) FROM (SELECT arrayJoin({words:Array(String)}) AS word)"
    assert store.query(sql, {"words": words, "like": "it_s 9999 of {words:Array(String)}%"}).result_rows == [
        (10_000, 1)
    ]
    pairs = [(word, number) for number, word in enumerate(words)]
    sql = "SELECT sum(pair.2) AS sum FROM (SELECT arrayJoin({pairs:Array(Tuple(String, UInt64))}) AS pair)"
    assert store.query(sql, {"pairs": pairs}).result_rows == [(sum(range(10_000)),)]
    assert len(store.binary("SELECT arrayJoin({words:Array(String)})", {"words": words}, {})) > 300_000
    store.close()


def test_a_large_segment_of_requests_is_joined_in_a_server(server):
    store = Store.open(f"{server.url}/default")
    records = ExportLogsServiceRequest()
    for number in range(1, 2001):
        records.MergeFrom(dynamo(number))
    insert_otlp(store, LOGS, records.SerializeToString(), "large")
    joiner = Joiner(store, IngestStatus(), after_s=0)
    wait_until(joiner.run_once)
    assert store.query("SELECT count(), uniqExact(input_tokens) FROM requests").result_rows == [(2000, 2000)]
    assert store.query("SELECT sum(length(links)) FROM joined_segments").result_rows == [(2000,)]
    store.close()


def test_what_a_lost_server_did_not_get_waits_for_a_start_that_needs_no_server(server, tmp_path):
    collector = Collector(tmp_path / "data", "--drain-timeout-s", "2", store=f"{server.url}/default").start()
    server.kill()
    assert collector.post(token_body(trace=61)).status_code == 200
    assert collector.stop() == 0
    assert len(list((tmp_path / "data" / "wal").glob("*.wal"))) == 1

    collector.start(ready=False)
    assert collector.post(token_body(trace=62)).status_code == 200
    ready, summary, metrics = (collector.get(path) for path in ("/readyz", "/api/v1/summary", "/metrics"))
    assert (ready.status_code, summary.status_code, metrics.status_code) == (503, 503, 200)
    assert "is not open yet" in ready.json()["reason"]
    assert "is not open yet" in summary.json()["detail"]
    log = Path(collector.log.name).read_text()
    assert "is not open yet" in log
    assert "urllib3" not in log
    assert "tokentrail_collector_payloads_received_total 1.0" in metrics.text

    server.start()
    collector.wait_until(lambda: collector.get("/readyz").status_code == 200)
    collector.wait_until(lambda: server.tokens() == (2, 6))
    assert collector.get("/api/v1/summary").status_code == 200
    assert collector.stop() == 0


def test_a_collector_stops_while_the_server_is_away(tmp_path):
    collector = Collector(tmp_path / "data", store=f"{Server(tmp_path).url}/default").start(ready=False)
    assert collector.stop() == 0
