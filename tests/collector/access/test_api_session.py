"""One request to the API: the limits of its queries, its key, and the host that it names."""

import json
import threading
from unittest.mock import MagicMock, Mock

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from fastapi.testclient import TestClient

from collector.access.caller import ANYBODY, Caller, Role
from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.api.session import (
    CURRENT,
    QueryLimits,
    Session,
    TooLongError,
    query_settings,
)
from collector.app.service import build_api
from collector.count.reader import Reader
from collector.slo.model import load_slos
from collector.store.insert import INSERT_SETTINGS
from tests.collector.rows import NOW
from tests.support.keys import access_to, add_key

WAIT_S = 120


class TestSession:
    def test_the_time_counts_from_the_start_of_the_work(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("collector.api.session.time.monotonic", lambda: now[0])
        session = Session(ANYBODY, QueryLimits(timeout_s=30))
        now[0] = 150.0
        session.start()
        now[0] = 160.0
        assert session.query_settings()["max_execution_time"] == 20
        now[0] = 180.0
        with pytest.raises(TooLongError):
            session.query_settings()

    def test_limits_of_a_query_and_the_comment_by_which_it_is_stopped(self):
        session = Session(ANYBODY, QueryLimits(memory_bytes=7))
        settings = session.query_settings()
        assert settings["log_comment"] == session.comment
        assert settings["max_memory_usage"] == 7
        assert "additional_table_filters" not in settings

    def test_inserts_come_before_queries(self):
        """ClickHouse's smaller number comes first, and 0 has no place in the order."""
        assert 0 < INSERT_SETTINGS["priority"] < Session(ANYBODY, QueryLimits()).query_settings()["priority"]

    def test_a_query_does_not_wait_for_the_end_of_a_long_insert(self):
        """It waits at each block. By ClickHouse's default that is a second, and a query of 30 blocks has 30 seconds."""
        assert Session(ANYBODY, QueryLimits()).query_settings()["low_priority_query_wait_time_ms"] == 50

    def test_sessions_have_comments_of_their_own(self):
        assert Session(ANYBODY, QueryLimits()).comment != Session(ANYBODY, QueryLimits()).comment

    def test_the_windows_of_a_tenant_select_its_requests(self):
        """The store hides the rows of others, too: a server's settings must not be all that does."""
        reader = Reader(MagicMock(clock=lambda: NOW), "acme")
        assert ["acme"] in WindowQuery().window(reader).filter.parameters.values()
        assert ["acme"] in reader.tenant_filter.parameters.values()

    def test_an_answer_is_to_the_tenant_of_its_session(self):
        context = Context(Mock(), Mock())
        current = CURRENT.set(Session(Caller("k", Role.READ, "acme"), QueryLimits()))
        try:
            assert context.reader().tenant == "acme"
        finally:
            CURRENT.reset(current)

    def test_outside_of_a_request_there_is_no_query(self):
        with pytest.raises(LookupError):
            query_settings()
        with pytest.raises(LookupError):
            Context(Mock(), Mock()).reader()


@pytest.fixture
def limited(rows, clock, ingest_status):
    def build(**limits):
        app, _ = build_api(rows.store, (), ingest_status, lost_after_s=30.0, clock=clock, limits=QueryLimits(**limits))
        return TestClient(app)

    return build


def test_the_queries_of_a_refresh_have_limits_too(rows, slos_file, clock, ingest_status, monkeypatch):
    settings = []
    query = rows.store.query

    def recorded(sql, parameters=None, settings_=None):
        if "system." not in sql:
            settings.append(dict(settings_ or {}))
        return query(sql, parameters, settings_)

    monkeypatch.setattr(rows.store, "query", recorded)
    limits = QueryLimits(timeout_s=7.0, memory_bytes=2**30)
    live = build_api(rows.store, load_slos(slos_file), ingest_status, lost_after_s=30.0, clock=clock, limits=limits)[1]
    rows.request(segment="s-1", ingested_at=NOW)
    live.counters.on_segment("s-1")
    live.refresh()
    of_refresh = {
        "max_execution_time": 7.0,
        "max_memory_usage": 2**30,
        "priority": 5,
        "low_priority_query_wait_time_ms": 50,
    }
    assert settings
    assert all(of_refresh.items() <= of_query.items() for of_query in settings)


@pytest.mark.parametrize(
    ("limits", "reason", "text"),
    [
        ({"timeout_s": 0.0005}, "too_long", "longer than 0.0005 s"),
        ({"memory_bytes": 2**20}, "too_large", "more memory than 1 MiB"),
    ],
)
def test_an_answer_that_takes_too_much_says_so(limited, rows, ingest_status, limits, reason, text):
    rows.request(e2e=1_000_000)
    rows.store.client().command(  # about 10 MiB of percentiles
        "INSERT INTO requests SELECT r.* REPLACE (e2e_ns + n.number AS e2e_ns) FROM requests AS r, numbers(300000) AS n"
    )
    answer = limited(**limits).get("/api/v1/summary")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert text in answer.json()["detail"]
    assert "shorter window" in answer.json()["detail"]
    assert ingest_status.snapshot().api_refused == {reason: 1}
    assert limited().get("/api/v1/summary").status_code == 200


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (516, "tokentrail: Authentication failed: password is incorrect"),
        (164, "Cannot modify 'max_execution_time' setting in readonly mode"),
        (201, "Quota for user `tokentrail` for 3600s has been exceeded"),
    ],
)
def test_a_store_that_locks_the_collector_out_is_named(code, reason, limited, rows, monkeypatch):
    def locked_out(*_, **__):
        raise DatabaseError(reason, code=code)

    monkeypatch.setattr(rows.store, "query", locked_out)
    answer = limited().get("/api/v1/summary")
    assert (answer.status_code, reason in answer.json()["detail"]) == (503, True)


def test_a_running_query_is_stopped_by_its_comment(module_store):
    failed = []

    def query():
        sql = "SELECT count() FROM numbers(1000000000000) WHERE sipHash64(number) = 1"
        try:
            module_store.query(sql, settings={"log_comment": "tokentrail query x", "max_execution_time": 60})
        except DatabaseError as error:
            failed.append(error.code)

    thread = threading.Thread(target=query)
    thread.start()
    running = "SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'tokentrail query x'"
    while module_store.query(running).result_rows == [(0,)]:
        assert thread.is_alive()
    module_store.cancel("tokentrail query another")
    module_store.cancel("tokentrail query x")
    thread.join(WAIT_S)
    assert failed == [394]


def test_changes_need_an_admin_and_are_in_the_audit_log(rows, clock, ingest_status, tmp_path):
    path = tmp_path / "keys.json"
    reader, admin = add_key(path, "read"), add_key(path, "admin")
    app, _ = build_api(rows.store, (), ingest_status, lost_after_s=30.0, clock=clock, access=access_to(path))
    client = TestClient(app)
    assert client.post("/api/v1/summary", headers=reader).status_code == 403
    assert client.post("/api/v1/summary", headers=admin).status_code == 405
    for name, event in (("audit.jsonl", "changed"), ("audit.denied.jsonl", "denied")):
        (line,) = path.with_name(name).read_text().splitlines()
        assert json.loads(line)["event"] == event
    assert ingest_status.snapshot().api_refused == {"forbidden": 1}
    assert client.get("/metrics", headers=add_key(path, "read", "acme")).status_code == 403
    _, of_metrics = path.with_name("audit.denied.jsonl").read_text().splitlines()
    assert json.loads(of_metrics)["route"] == "GET /metrics"


def test_metrics_may_be_open_by_a_setting(rows, clock, ingest_status, tmp_path):
    path = tmp_path / "keys.json"
    add_key(path, "admin")
    reader, tenant = add_key(path, "read"), add_key(path, "read", "acme")
    for is_open, expected in ((False, [401, 403, 200]), (True, [200, 200, 200])):
        settings = {"access": access_to(path), "metrics_without_key": is_open}
        app, _ = build_api(rows.store, (), ingest_status, lost_after_s=30.0, clock=clock, **settings)
        client = TestClient(app)
        assert [client.get("/metrics", headers=h).status_code for h in ({}, tenant, reader)] == expected
        assert client.get("/api/v1/summary").status_code == 401


def test_the_api_refuses_a_name_of_another_host(rows, clock, ingest_status, tmp_path):
    access = access_to(tmp_path / "keys.json", allowed_hosts=frozenset())
    app, _ = build_api(rows.store, (), ingest_status, lost_after_s=30.0, clock=clock, access=access)
    client = TestClient(app)
    assert client.get("/api/v1/summary", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/api/v1/summary", headers={"host": "localhost:8080"}).status_code == 200
    assert client.get("/healthz", headers={"host": "evil.example"}).status_code == 200


def test_a_page_of_another_origin_changes_nothing(rows, clock, ingest_status, tmp_path):
    keys = tmp_path / "keys.json"
    app, _ = build_api(rows.store, (), ingest_status, lost_after_s=30.0, clock=clock, access=access_to(keys))
    client = TestClient(app)
    for headers in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
    ):
        assert client.post("/api/v1/backup", headers=headers).status_code == 403
        assert client.get("/api/v1/summary", headers=headers).status_code == 200
    denied = [json.loads(line) for line in keys.with_name("audit.denied.jsonl").read_text().splitlines()]
    assert [line["route"] for line in denied] == ["POST /api/v1/backup"] * 3
    assert "https://evil.example" in denied[-1]["reason"]
    for headers in ({}, {"origin": "http://testserver"}, {"sec-fetch-site": "same-origin", "origin": "https://x"}):
        assert client.post("/api/v1/backup", headers=headers).status_code not in (403, 421)
    admin = add_key(keys, "admin")
    assert client.post("/api/v1/backup", headers=admin | {"sec-fetch-site": "cross-site"}).status_code != 403
