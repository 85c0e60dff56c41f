"""A store on a cluster: its address, every endpoint, and two collectors on a node whose Distributed tables are real."""

import copy
import json
import shutil
import socket
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient

from collector.access.caller import Caller, Role
from collector.api.session import QueryLimits, Session
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.base.store_errors import StoreError, StoreUnavailableError
from collector.keep.expiry import Expiry
from collector.keep.usage import Usage
from collector.metrics.filled import FilledTables
from collector.pipeline.settings import Settings
from collector.slo.model import load_slos
from collector.store.claims import Claims
from collector.store.definitions import read_schema
from collector.store.layout import Layout
from collector.store.opener import StoreOpener
from collector.store.retention import parse_retention
from collector.store.schema import TIME_COLUMNS, apply_schema
from collector.store.store import Store
from collector.wal.frame import Frame, digest_of
from tests.collector.rows import NOW, SECOND, Rows
from tests.collector.store.migrating import NEXT, created_tables, later_sql
from tests.support.api import NEEDED, windowed
from tests.support.clickhouse_server import Server
from tests.support.collector import Collector
from tests.support.otlp import T0, Request
from tests.support.stores import LazyStore
from tokentrail import semconv

DAY = 86400 * SECOND
PROD = Layout("prod")
ONE = Layout()


def test_the_address_names_the_cluster():
    assert Layout.of("http://u:p@h:8123/d?cluster=prod&insert_quorum=2") == (
        "http://u:p@h:8123/d?insert_quorum=2", PROD
    )  # fmt: skip
    assert Layout.of("http://h:8123/d") == ("http://h:8123/d", ONE)
    assert Layout.of("chdb:///x?y=1") == ("chdb:///x?y=1", ONE)
    for wrong in ("http://h/d?cluster=", "http://h/d?cluster=a'b", "http://h/d?cluster=a`b", "chdb:///x?cluster=a"):
        with pytest.raises(ValueError, match="is not the name of a cluster"):
            Layout.of(wrong)
        with pytest.raises(ValueError, match="is not the name of a cluster"):
            Settings(store=wrong)


def test_a_replica_without_rows_keeps_nothing_out_of_metrics():
    """Another replica may have them."""
    replica = Mock(**{"rows.return_value": []})
    assert FilledTables(replica).look() == set()
    replica.remembers = False
    assert FilledTables(replica).look() >= {"requests", "open_requests", "steps", "kv_events", "cold_starts"}


@contextmanager
def running_node(folder):
    node = Server(folder, "clickhouse_cluster.py")
    node.start()
    yield node
    node.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(folder):
    """A node's store with the tables of a cluster, which cost 3 s of CPU. The other nodes begin with a copy."""
    with running_node(folder) as node:
        store = LazyStore.open(f"{node.url}/default?cluster=prod")
        apply_schema(store)
        store.close()
    # A running server goes on removing the files of tables that were dropped: the copy is of a stopped one.
    shutil.copytree(folder / "db", folder / "made", symlinks=True)
    with running_node(folder) as node:
        store = LazyStore.open(f"{node.url}/default?cluster=prod")
        yield store
        store.close()


@pytest.fixture
def node(cluster, folder, tmp_path):
    shutil.copytree(folder / "made", tmp_path / "db", symlinks=True)
    with running_node(tmp_path) as node:
        yield node


@pytest.fixture
def store(cluster):
    for table in TIME_COLUMNS:
        cluster.client().command(f"TRUNCATE TABLE {PROD.stored(table)}{PROD.on_cluster}")
    return cluster


def request_body(trace):
    request = Request()
    attributes = {semconv.OPERATION_NAME: "chat", "gen_ai.request.model": "m", "tokentrail.label.region": "eu"}
    request.span("chat m", trace=trace, span=1, ns=60 * 10**6, kind=2, attributes=attributes)
    request.span("other", trace=trace, span=2)
    return request.tokens(trace=trace).body()


def test_two_collectors_store_everything_once_although_the_node_and_one_of_them_are_killed(node, tmp_path):
    first, second = (Collector(tmp_path / name, store=f"{node.url}/default?cluster=prod").start() for name in "ab")
    sent = 0

    def send(collector, count):
        nonlocal sent
        for _ in range(count):
            sent += 1
            assert collector.post(request_body(sent)).status_code == 200

    send(first, 2)
    send(second, 2)
    first.wait_until(lambda: node.tokens() == (4, 12))
    node.kill()
    send(first, 2)
    send(second, 2)
    first.kill()
    node.start()
    second.wait_until(lambda: node.tokens() == (6, 18))
    node.kill()
    first.start(ready=False)
    node.start()
    send(first, 2)
    expected = {
        "requests": 10,
        "requests_local": 10,
        "tokens": 30,
        "tokens_local": 30,
        "open_requests": 10,
        "spans": 10,
    }

    def rows():
        return {t: int(node.http.post(node.url, content=f"SELECT count() FROM {t}").text) for t in expected}

    first.wait_until(lambda: rows() == expected)
    first.wait_until(lambda: first.get("/readyz").status_code == 200)
    window = f"start={T0 // SECOND}&end={T0 // SECOND + 10}"
    asked = f"/api/v1/summary?{window}&label.region=eu"
    totals = [c.get(asked).json()["requests"]["total"] for c in (first, second)]
    assert totals == [10, 10]
    assert [collector.stop() for collector in (first, second)] == [0, 0]
    assert rows() == expected


def fill(store):
    rows = Rows(store)
    made = []
    for ago in range(1, 30):
        request = rows.request(
            ended=NOW - ago * SECOND,
            tenant="ab"[ago % 2],
            e2e=SECOND + ago,
            trace_id=f"{ago:032x}",
            labels={"region": "cde"[ago % 3]},
        )
        rows.tokens(request, [300_000, 200_000, 500_000])
        rows.phases(request, [("queued", SECOND // 2), ("decode", SECOND // 2)])
        made.append(request)
    rows.open(start=NOW - 10 * SECOND, seen=NOW - SECOND, trace_id=f"{99:032x}")
    rows.step(start=NOW - 20 * SECOND, kv_blocks_total=64, kv_blocks_used=3)
    rows.kv_event(start=NOW - 20 * SECOND, trace_id=made[5]["trace_id"])
    rows.cold_start(start=NOW - 25 * SECOND, duration=SECOND, trace_id=f"{77:032x}")


def test_every_endpoint_answers_as_on_one_server(store, rows, clock, slos_file):
    found = []
    for one in (rows.store, store):
        fill(one)
        app, _ = build_api(one, load_slos(slos_file), IngestStatus(), lost_after_s=30.0, clock=clock)
        client = TestClient(app)
        asked = {}
        for path in windowed(app.openapi()):
            if path == "verdict":  # made of what the others are asked
                continue
            answer = client.get(f"/api/v1/{path}", params=NEEDED.get(path, {}))
            assert answer.status_code == 200, (path, answer.text)
            asked[path] = answer.json()
        for name, params in (("summary", {"label.region": "c"}), ("summary", {"group_by": "label.region"})):
            asked[str(params)] = client.get(f"/api/v1/{name}", params=params).json()
        asked["trail"] = client.get(f"/api/v1/requests/{5:032x}").json()
        assert client.get("/metrics").status_code == 200
        storage = client.get("/api/v1/storage").json()
        asked["rows"] = {table["name"]: (table["rows"], table["oldest"]) for table in storage["tables"]}
        assert {disk["host"] for disk in storage["disks"]} == {socket.gethostname() if one.layout.cluster else ""}
        # The last digits of a mean depend on the order in which shards and threads add.
        found.append(json.loads(json.dumps(asked), parse_float=lambda text: float(f"{float(text):.12g}")))
    assert {path: answer for path, answer in found[1].items() if answer != found[0][path]} == {}
    assert found[1]["rows"]["tokens"][0] == 87
    assert len(found[1]["labels"]["labels"]["label.region"]) == 3


def test_a_replica_that_is_away_keeps_nothing_from_metrics(store):
    lame = copy.copy(store)
    lame.layout = Layout("lame")
    with pytest.raises(StoreUnavailableError, match="All connection tries failed"):
        lame.query(f"SELECT count() FROM {lame.layout.every_node('disks')}")
    usage = Usage(lame, None)
    assert {disk["host"] for disk in usage.disks()} == {socket.gethostname()}
    assert usage.tables()["requests"]["broken_parts"] == 0


def test_other_parameters_of_the_address_are_settings_of_every_statement(cluster):
    address, _, _ = cluster.safe_dsn.partition("?")
    store = Store.open(f"{address}?cluster=prod&insert_quorum=2&max_threads=3&compress=false")
    try:
        sql = "SELECT getSetting('insert_quorum'), getSetting('max_threads'), getSetting('skip_unavailable_shards')"
        assert [tuple(map(int, row)) for row in store.query(sql).result_rows] == [(2, 3, 0)]
        assert store.client().compression is None, "a parameter of the client"
        apply_schema(store)
    finally:
        store.close()
    with pytest.raises(StoreError, match=r"cannot use the store .*'no_such_setting'"):
        StoreOpener(f"{address}?no_such_setting=1", IngestStatus())


def test_a_tenant_sees_its_own_rows_alone(store):
    rows = Rows(store)
    for tenant in ("acme", "globex"):
        rows.request(tenant=tenant)
        rows.open(tenant=tenant, start=NOW - SECOND, seen=NOW)
        rows.insert("spans", [{"start": NOW // 10**9, "resource": {"tokentrail.tenant": tenant}}])
    settings = Session(Caller("k", Role.READ, "acme"), QueryLimits()).query_settings()
    of_acme = {"requests": 1, "open_requests": 2, "spans": 1}

    def count(table, **given):
        return store.query(f"SELECT count() FROM {table}", **given).result_rows[0][0]

    assert {table: count(table) for table in of_acme} == {table: 2 * n for table, n in of_acme.items()}
    assert {table: count(table, settings=settings) for table in of_acme} == of_acme


def test_claims_are_decided_by_most_nodes(store):
    first, second = (Claims(store, "traces", retention_s=3600) for _ in range(2))
    frames = [Frame(digest_of(payload), payload) for payload in (b"1", b"2", b"3")]
    assert first.claimed("a", frames[:2]) == frames[:2]
    assert second.claimed("b", frames[1:]) == frames[2:]
    first.withdraw("a", [frames[0].digest])
    assert second.claimed("c", frames) == frames[:1]
    assert PROD.decision_settings == {
        "insert_quorum": "auto", "insert_quorum_parallel": 0, "select_sequential_consistency": 1,
    }  # fmt: skip
    assert ONE.decision_settings == {}


def test_retention_drops_and_deletes_on_the_cluster(store, clock):
    rows = Rows(store)
    for days, tenant in ((9, ""), (5, "acme"), (5, "other"), (1, "acme")):
        rows.tokens(rows.request(ended=NOW - days * DAY, tenant=tenant), [1000] * 3)
    rows.open(start=NOW - 9 * DAY, seen=NOW - 9 * DAY)
    status = IngestStatus()
    Expiry(store, parse_retention("7d,acme/requests=3d"), status, clock=clock).run_once()
    assert dict(status.snapshot().rows_expired) == {"requests": 2, "tokens": 6, "open_requests": 3}
    for table, count in (("requests_local", 2), ("tokens", 6)):
        assert store.query(f"SELECT count() FROM {table}").result_rows == [(count,)]


def test_a_later_start_finds_the_cluster_as_it_is_and_an_address_without_the_cluster_is_refused(
    node, tmp_path, monkeypatch
):
    store, other = (LazyStore.open(f"{node.url}/default{query}") for query in ("?cluster=prod", ""))
    created = created_tables(monkeypatch, store)
    apply_schema(store)
    assert set(created) == set(PROD.tables(read_schema(), "trail")), "another node may lack a table that this one has"
    Rows(store).request(model="m", output_tokens=7)
    apply_schema(store, sql_dir=later_sql(tmp_path / "sql"))
    assert store.query("SELECT max(version) FROM schema_version").result_rows == [(NEXT,)]
    assert store.query("SELECT weight, output_tokens, late FROM requests").result_rows == [(1.0, 7, 3)]

    with pytest.raises(StoreError, match="has the tables of a cluster, and its address names no cluster"):
        apply_schema(other)
    other.client().command("DROP TABLE requests SYNC")
    other.client().command("CREATE TABLE requests (n UInt8) ENGINE = MergeTree ORDER BY n")
    with pytest.raises(StoreError, match="has the tables of one server, and its address names a cluster"):
        apply_schema(store)
    store.close()
    other.close()
