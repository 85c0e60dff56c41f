"""The statements of a store on a cluster."""

import re
from unittest.mock import Mock

import chdb
import pytest

from collector.store.definitions import Schema, read_schema
from collector.store.layout import Layout
from collector.store.schema import TIME_COLUMNS
from collector.store.store import Store

PROD = Layout("prod")
ONE = Layout()
WHOLE = {"schema_version", "payload_claims", "early_claims", "joined_segments", "explained_segments"}
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
    by_service = {"steps", "samples", "causes", "step_models"}
    assert {name: key for name, key in keys.items() if key != "trace_id"} == dict.fromkeys(by_service, "service")


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
    assert ways["tokentrail_tokens"] == ("new_tokens", "otlp_traces")
    assert ways["store_tokens"] == ("tokens_local", "new_tokens_local")
    assert ways["tokentrail_route"] == ("tokentrail_spans", "flat_spans_local")
    assert ways["tokentrail_requests"] == ("new_requests", "tokentrail_spans")
    assert ways["store_requests"] == ("requests_local", "new_requests")
    assert ways["litellm_route"] == ("litellm_spans", "rare_spans")
    assert ways["route_unclaimed"] == ("unclaimed_spans", "flat_spans_local")
    assert ways["keep_unclaimed"] == ("spans_local", "unclaimed_spans")
    assert ways["vllm_requests"] == ("new_requests", "vllm_spans")
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
            "new_requests",
            "new_tokens_local",
        )
        assert source in general or source.split("_")[0] in name
        assert (source in ("otlp_traces", "otlp_metrics", "otlp_logs", "joins")) == (
            target in ("flat_spans", "new_tokens", "samples", "joined_spans", "dynamo_logs")
        )
    assert ways["route_joins"] == ("joined_spans", "joins")
    assert ways["sglang_route_joined"] == ("sglang_joined", "joined_spans_local")
    assert set(PROD.exchanges(read_schema())) == {
        "flat_spans_local",
        "joined_spans_local",
        "dynamo_logs_local",
        "new_tokens_local",
    }


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
