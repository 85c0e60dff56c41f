"""The schema on a cluster: its statements, and two collectors on a node whose Distributed tables are real."""

import json
import re
import shutil
from contextlib import contextmanager
from unittest.mock import Mock

import chdb
import pytest
from fastapi.testclient import TestClient

from collector.access.caller import Caller, Role
from collector.api.session import QueryLimits, Session
from collector.exposition.filled import FilledTables
from collector.service import build_api
from collector.settings import Settings
from collector.status import IngestStatus
from collector.store.claims import Claims
from collector.store.definitions import Schema, read_migrations, read_schema
from collector.store.expiry import Expiry
from collector.store.layout import Layout
from collector.store.opener import StoreOpener
from collector.store.retention import parse_retention
from collector.store.schema import TIME_COLUMNS, apply_schema
from collector.store.store import Store, StoreError
from collector.wal.frame import Frame, digest_of
from tests.collector.migrating import NEXT, created_tables, few_engines, later_sql
from tests.collector.rows import NOW, SECOND, Rows
from tests.support.clickhouse_server import Server
from tests.support.collector import Collector
from tests.support.otlp import T0, Request
from tests.support.stores import LazyStore
from tokentrail import semconv

DAY = 86400 * SECOND
PROD = Layout("prod")
ONE = Layout()
WHOLE = {"schema_version", "payload_claims", "early_claims", "joined_segments"}
"""Tables without a trace or a service: not sharded, and whole on every node."""


@pytest.fixture(scope="module")
def tables():
    return PROD.tables(read_schema(), "trail")


@pytest.fixture(scope="module")
def views():
    return PROD.views(read_schema())


def engine(statement):
    return re.search(r"ENGINE = (.*)", statement)[1]


def test_without_a_cluster_nothing_changes():
    schema = read_schema()
    assert (ONE.tables(schema, "x"), ONE.views(schema), ONE.exchanges(schema)) == (schema.tables, schema.views, ())
    assert (ONE.settings, ONE.on_cluster, ONE.stored("requests"), ONE.migration("TRUNCATE TABLE requests", schema)) == (
        {}, "", "requests", "TRUNCATE TABLE requests"
    )  # fmt: skip
    assert (ONE.system("parts"), ONE.every_node("processes")) == ("system.parts", "system.processes")


def test_every_statement_is_sql_that_clickhouse_parses(tables, views):
    connection = chdb.connect(":memory:")
    try:
        for name, statement in {**tables, **views}.items():
            assert " ON CLUSTER `prod`" in statement, name
            connection.query(f"EXPLAIN AST {statement}")
        more = [
            *PROD.distributed(tables),
            *(PROD.migration(s, read_schema()) for migration in read_migrations() for s in migration.statements),
            f"ALTER TABLE {PROD.stored('tokens')}{PROD.on_cluster} DROP PARTITION ID '20261121'",
            f"DELETE FROM {PROD.stored('tokens')}{PROD.on_cluster} IN PARTITION ID '20261121' WHERE step = 1",
            f"CREATE TABLE schema_lock_1{PROD.on_cluster} (nothing UInt8) ENGINE = Null COMMENT 'x'",
            f"ALTER TABLE schema_lock_1{PROD.on_cluster} MODIFY COMMENT 'x'",
            f"DROP TABLE IF EXISTS schema_lock_1{PROD.on_cluster}",
            f"DROP VIEW IF EXISTS v{PROD.on_cluster} SYNC",
            "SYSTEM SYNC REPLICA schema_version",
            f"SELECT count() FROM {PROD.system('parts')}, {PROD.every_node('processes')}",
        ]
        for statement in more:
            connection.query(f"EXPLAIN AST {statement}")
    finally:
        connection.close()


def test_a_stored_table_is_a_replicated_and_a_distributed_one(tables):
    stored = {name for name, statement in read_schema().tables.items() if "MergeTree" in statement} - WHOLE
    assert stored >= TIME_COLUMNS.keys()
    for name in stored:
        local = engine(tables[f"{name}_local"])
        assert re.match(
            rf"Replicated\w*MergeTree\('/clickhouse/tables/{{shard}}/trail/{name}_local', '{{replica}}'", local
        )
        assert engine(tables[name]).startswith(f"Distributed('prod', 'trail', '{name}_local', cityHash64(")
        assert list(tables).index(f"{name}_local") < list(tables).index(name)


def test_all_spans_of_a_trace_are_on_one_shard(tables):
    keys = {name: match[1] for name, sql in tables.items() if (match := re.search(r"cityHash64\((\w+)\)", sql))}
    assert set(keys) - {"steps", "samples"} >= {"requests", "tokens", "phases", "open_requests", "flat_spans", "spans"}
    assert {name: key for name, key in keys.items() if key != "trace_id"} == {"steps": "service", "samples": "service"}


def test_arguments_of_an_engine_stay_and_a_table_without_traces_is_whole_everywhere(tables):
    assert engine(tables["open_requests_local"]).endswith("open_requests_local', '{replica}', seen, ended)")
    for name in WHOLE:
        assert (
            engine(tables[name]) == f"ReplicatedMergeTree('/clickhouse/tables/trail/{name}', '{{shard}}-{{replica}}')"
        )
        assert f"{name}_local" not in tables
    window = "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800"
    assert window in tables["payload_claims"]


def test_replicas_remember_inserts_for_a_week(tables):
    assert not [name for name, sql in tables.items() if "non_replicated" in sql]
    for name in TIME_COLUMNS:
        assert (
            "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800"
            in (tables[f"{name}_local"])
        )


def test_views_of_a_landing_table_write_to_all_shards_and_the_others_to_their_own(views):
    ways = {
        name: (re.search(r" TO (\w+)", sql)[1], re.findall(r"\bFROM (\w+)", sql)[-1]) for name, sql in views.items()
    }
    assert ways["flatten_spans"] == ("flat_spans", "otlp_traces")
    assert ways["tokentrail_tokens"] == ("tokens", "otlp_traces")
    assert ways["tokentrail_route"] == ("tokentrail_spans", "flat_spans_local")
    assert ways["tokentrail_requests"] == ("requests_local", "tokentrail_spans")
    assert ways["litellm_route"] == ("litellm_spans", "rare_spans")
    assert ways["route_unclaimed"] == ("unclaimed_spans", "flat_spans_local")
    assert ways["keep_unclaimed"] == ("spans_local", "unclaimed_spans")
    assert ways["vllm_requests"] == ("requests_local", "vllm_spans")
    for name, (target, source) in ways.items():
        general = (
            "otlp_traces",
            "otlp_metrics",
            "otlp_logs",
            "joins",
            "flat_spans_local",
            "rare_spans",
            "joined_spans_local",
            "spans_to_hold",
            "unclaimed_spans",
        )
        assert source in general or source.split("_")[0] in name
        assert (source in ("otlp_traces", "otlp_metrics", "otlp_logs", "joins")) == (
            target in ("flat_spans", "tokens", "samples", "joined_spans", "dynamo_logs")
        )
    assert ways["route_joins"] == ("joined_spans", "joins")
    assert ways["sglang_route_joined"] == ("sglang_joined", "joined_spans_local")
    assert set(PROD.exchanges(read_schema())) == {"flat_spans_local", "joined_spans_local", "dynamo_logs_local"}


def test_two_views_that_write_to_the_same_shards_would_lose_rows():
    """A shard takes a token once for each table, and the second view's insert would have the first one's token."""
    tables = {
        "landing": "CREATE TABLE IF NOT EXISTS landing (x Int8) ENGINE = Null",
        "kept": "CREATE TABLE IF NOT EXISTS kept (trace_id String) ENGINE = MergeTree ORDER BY trace_id",
    }
    view = "CREATE OR REPLACE MATERIALIZED VIEW {} TO kept AS SELECT x FROM landing"
    schema = Schema(tables, {name: view.format(name) for name in ("a", "b")})
    with pytest.raises(ValueError, match="two views"):
        PROD.views(schema)
    del schema.views["b"]
    assert " TO kept AS" in PROD.views(schema)["a"]


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("ALTER TABLE requests ADD COLUMN x Int8", "ALTER TABLE requests_local ON CLUSTER `prod` ADD COLUMN x Int8"),
        ("TRUNCATE TABLE steps", "TRUNCATE TABLE steps_local ON CLUSTER `prod`"),
        ("TRUNCATE TABLE totals", "TRUNCATE TABLE totals ON CLUSTER `prod`"),
        ("INSERT INTO totals SELECT 1 FROM requests", "INSERT INTO totals SELECT 1 FROM requests"),
    ],
)
def test_a_migration_changes_the_local_tables(statement, changed):
    assert PROD.migration(statement, read_schema()) == changed


@pytest.mark.parametrize(("query", "on_cluster"), [("", ""), ("?cluster=prod", " ON CLUSTER `prod`")])
def test_a_query_is_cancelled_on_every_node(monkeypatch, query, on_cluster):
    store, client = Store(f"http://host/db{query}"), Mock()
    monkeypatch.setattr(store, "client", lambda: client)
    store.cancel("query 7")
    (sql,) = client.command.call_args.args
    assert sql == f"KILL QUERY{on_cluster} WHERE Settings['log_comment'] = 'query 7' ASYNC"
    assert (client.command.call_args.kwargs["settings"] or {}) == (
        {"distributed_ddl_task_timeout": 0} if on_cluster else {}
    )


def test_the_address_names_the_cluster():
    assert Layout.of("http://u:p@h:8123/d?cluster=prod&insert_quorum=2") == (
        "http://u:p@h:8123/d?insert_quorum=2", PROD
    )  # fmt: skip
    assert Layout.of("http://h:8123/d") == ("http://h:8123/d", ONE)
    assert Layout.of("chdb:///x?y=1") == ("chdb:///x?y=1", ONE)
    for wrong in ("http://h/d?cluster=", "http://h/d?cluster=a'b", "http://h/d?cluster=a`b", "chdb:///x?cluster=a"):
        with pytest.raises(ValueError, match="is no cluster"):
            Layout.of(wrong)
        with pytest.raises(ValueError, match="is no cluster"):
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
def made(tmp_path_factory):
    """A node's folder with the tables of a cluster, which cost 3 s of CPU. The other nodes begin with a copy."""
    folder = tmp_path_factory.mktemp("made")
    with running_node(folder) as node:
        store = Store.open(f"{node.url}/default?cluster=prod")
        apply_schema(store)
        store.close()
    return folder / "db"


@pytest.fixture
def node(made, tmp_path):
    shutil.copytree(made, tmp_path / "db", symlinks=True)
    with running_node(tmp_path) as node:
        yield node


@pytest.fixture(scope="module")
def cluster(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    shutil.copytree(made, folder / "db", symlinks=True)
    with running_node(folder) as node:
        store = LazyStore.open(f"{node.url}/default?cluster=prod")
        yield store
        store.close()


@pytest.fixture
def store(cluster):
    for table in TIME_COLUMNS:
        cluster.client().command(f"TRUNCATE TABLE {PROD.stored(table)}{PROD.on_cluster}")
    return cluster


def request_body(trace):
    request = Request()
    attributes = {semconv.OPERATION_NAME: "chat", "gen_ai.request.model": "m"}
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

    send(first, 5)
    send(second, 5)
    first.wait_until(lambda: node.tokens() == (10, 30))
    node.kill()
    send(first, 5)
    send(second, 5)
    first.kill()
    node.start()
    second.wait_until(lambda: node.tokens() == (15, 45))
    node.kill()
    first.start(ready=False)
    node.start()
    send(first, 5)
    expected = {
        "requests": 25,
        "requests_local": 25,
        "tokens": 75,
        "tokens_local": 75,
        "open_requests": 25,
        "spans": 25,
    }

    def rows():
        return {t: int(node.http.post(node.url, content=f"SELECT count() FROM {t}").text) for t in expected}

    first.wait_until(lambda: rows() == expected)
    first.wait_until(lambda: first.get("/readyz").status_code == 200)
    window = f"start={T0 // SECOND}&end={T0 // SECOND + 10}"
    totals = [c.get(f"/api/v1/summary?{window}").json()["requests"]["total"] for c in (first, second)]
    assert totals == [25, 25]
    assert [collector.stop() for collector in (first, second)] == [0, 0]
    assert rows() == expected


def fill(store):
    rows = Rows(store)
    made = []
    for ago in range(1, 30):
        request = rows.request(ended=NOW - ago * SECOND, tenant="ab"[ago % 2], e2e=SECOND + ago, trace_id=f"{ago:032x}")
        rows.tokens(request, [300_000, 200_000, 500_000])
        rows.phases(request, [("queued", SECOND // 2), ("decode", SECOND // 2)])
        made.append(request)
    rows.open(start=NOW - 10 * SECOND, seen=NOW - SECOND, trace_id=f"{99:032x}")
    rows.step(start=NOW - 20 * SECOND, kv_blocks_total=64, kv_blocks_used=3)
    rows.kv_event(start=NOW - 20 * SECOND, trace_id=made[5]["trace_id"])
    rows.cold_start(start=NOW - 25 * SECOND, duration=SECOND, trace_id=f"{77:032x}")


def test_every_endpoint_answers_as_on_one_server(store, rows, clock):
    found = []
    for one in (rows.store, store):
        fill(one)
        app, _ = build_api(one, (), IngestStatus(), lost_after_s=30.0, clock=clock)
        client = TestClient(app)
        asked = {}
        for path, operations in app.openapi()["paths"].items():
            parameters = {parameter["name"] for parameter in operations.get("get", {}).get("parameters", ())}
            if {"start", "end"} <= parameters and "{" not in path:
                more = {"/api/v1/timeseries": {"metric": "ttft"}, "/api/v1/goodput": {"ttft": "1s", "surface": 1}}
                answer = client.get(path, params=more.get(path, {}))
                assert answer.status_code == 200, (path, answer.text)
                asked[path] = answer.json()
        asked["trail"] = client.get(f"/api/v1/requests/{5:032x}").json()
        assert client.get("/metrics").status_code == 200
        storage = client.get("/api/v1/storage").json()["tables"]
        asked["rows"] = {table["name"]: (table["rows"], table["oldest"]) for table in storage}
        # The last digits of a mean depend on the order in which shards and threads add.
        found.append(json.loads(json.dumps(asked), parse_float=lambda text: float(f"{float(text):.12g}")))
    assert {path: answer for path, answer in found[1].items() if answer != found[0][path]} == {}
    assert found[1]["rows"]["tokens"][0] == 87


def test_other_parameters_of_the_address_are_settings_of_every_statement(node):
    address = f"{node.url}/default?cluster=prod&insert_quorum=2&max_threads=3&compress=false"
    store = Store.open(address)
    try:
        sql = "SELECT getSetting('insert_quorum'), getSetting('max_threads'), getSetting('skip_unavailable_shards')"
        assert [tuple(map(int, row)) for row in store.query(sql).result_rows] == [(2, 3, 0)]
        assert store.client().compression is None, "a parameter of the client"
        apply_schema(store)
    finally:
        store.close()
    with pytest.raises(StoreError, match=r"cannot use the store .*'no_such_setting'"):
        StoreOpener(f"{node.url}/default?no_such_setting=1", IngestStatus())


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
    assert first.own("a", frames[:2]) == frames[:2]
    assert second.own("b", frames[1:]) == frames[2:]
    first.withdraw("a", [frames[0].digest])
    assert second.own("c", frames) == frames[:1]
    assert PROD.decision_settings == {
        "insert_quorum": "auto", "insert_quorum_parallel": 0, "select_sequential_consistency": 1,
    }  # fmt: skip
    assert ONE.decision_settings == {}


def test_retention_drops_and_deletes_on_the_cluster(store, clock):
    rows = Rows(store)
    for days, tenant in ((9, ""), (5, "acme"), (5, "other"), (1, "acme")):
        rows.tokens(rows.request(ended=NOW - days * DAY, tenant=tenant), [1000] * 3)
    status = IngestStatus()
    Expiry(store, parse_retention("7d,acme/requests=3d"), status, clock=clock).run_once()
    assert dict(status.snapshot().rows_expired) == {"requests": 2, "tokens": 6, "open_requests": 2}
    for table, count in (("requests_local", 2), ("tokens", 6)):
        assert store.query(f"SELECT count() FROM {table}").result_rows == [(count,)]


def with_a_new_column(folder):
    """The migration adds a column to a table that is local and Distributed."""
    (migration,) = (folder / "migrations").glob(f"{NEXT:04}_*.sql")
    added = "\nALTER TABLE requests ADD COLUMN IF NOT EXISTS late UInt8 DEFAULT 3;\n"
    migration.write_text(migration.read_text() + added)
    tables = folder / "schema" / "10_tables.sql"
    head = "CREATE TABLE IF NOT EXISTS requests\n(\n"
    assert head in tables.read_text()
    tables.write_text(tables.read_text().replace(head, f"{head}    late UInt8 DEFAULT 3,\n"))
    return folder


def test_a_later_start_finds_the_cluster_as_it_is_and_an_address_without_the_cluster_is_refused(
    node, tables, tmp_path, monkeypatch
):
    store, other = (LazyStore.open(f"{node.url}/default{query}") for query in ("?cluster=prod", ""))
    created = created_tables(monkeypatch, store)
    apply_schema(store)
    assert set(created) == set(tables), "another node may lack a table that this one has"
    Rows(store).request(model="m", output_tokens=7)
    apply_schema(store, sql_dir=with_a_new_column(later_sql(tmp_path / "sql")))
    assert store.query("SELECT max(version) FROM schema_version").result_rows == [(NEXT,)]
    assert store.query("SELECT weight, output_tokens, late FROM requests").result_rows == [(1.0, 7, 3)]

    with pytest.raises(StoreError, match="has the tables of a cluster, and its address names no cluster"):
        apply_schema(other)
    for (table,) in other.query("SELECT name FROM system.tables WHERE database = 'default'").result_rows:
        other.client().command(f"DROP TABLE IF EXISTS {table} SYNC")
    apply_schema(other, sql_dir=few_engines(tmp_path / "few"))
    with pytest.raises(StoreError, match="has the tables of one server, and its address names a cluster"):
        apply_schema(store)
    store.close()
    other.close()
