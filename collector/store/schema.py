"""Tables and views of a store. They are applied at every start, so that a store decodes with this collector's SQL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from clickhouse_connect.driver.client import Client

from collector.base.store_errors import StoreError
from collector.otlp.signals import SIGNALS
from collector.store.definitions import PLAIN, SQL_DIR, Decoding, read_migrations, read_schema
from collector.store.lock import SchemaLock
from collector.store.migrate import migrate, pending_migrations
from collector.store.store import Store

TIME_COLUMNS: Final = {
    "requests": "end",
    "tokens": "minute",
    "phases": "minute",
    "steps": "start",
    "kv_events": "start",
    "cold_starts": "start",
    "open_requests": "start",
    "spans": "start",
    "samples": "time",
    "causes": "end",
    "step_models": "at",
}
"""The time by which each table's rows age."""
HELD_TABLES: Final = ("held_requests", "held_spans")
"""Spans that wait for the rest of their request, a day at most."""
OLDEST_SERVER: Final = (26, 2)
"""The first version of ClickHouse that knows all settings of `collector.store.insert`."""
LANDING_TABLES: Final = (*(signal.landing_table for signal in SIGNALS), "joins")
"""The tables that OTLP, and joined requests, are inserted into."""
_FAILS: Final = "throwIf(materialize(1), 'a collector changes the schema of this store')"
"""An expression of a closed table: every insert fails."""


def apply_schema(store: Store, *, sql_dir: Path = SQL_DIR, decoding: Decoding = PLAIN) -> None:
    """Create missing tables, migrate a store of an older version, replace views that differ.

    Raises `StoreError` for a store that this collector cannot use, before it changes anything in it.
    """
    client, layout = store.client(), store.layout
    schema, migrations = read_schema(sql_dir, decoding), read_migrations(sql_dir)
    database, version = client.query("SELECT currentDatabase(), version()").result_rows[0]
    check_version(store, version)
    tables, views = layout.tables(schema, database), layout.views(schema)
    closable = (*LANDING_TABLES, *layout.exchanges(schema))
    _check_layout(store)
    with SchemaLock(store) as lock:
        client.command(tables["schema_version"])
        if layout.cluster:
            client.command("SYSTEM SYNC REPLICA schema_version")
        pending = pending_migrations(store, migrations, store.safe_dsn)
        # A node of a cluster does not know which tables the others have.
        existing = () if layout.cluster else _existing_tables(client)
        for name, statement in tables.items():
            if name not in existing:
                client.command(statement if layout.cluster else _closed(name, statement))
        if pending:
            _set_views(store, {}, closable)
            migrate(store, pending, lock, schema)
            _make_again(store, {name: sql for name, sql in tables.items() if name not in closable})
            for statement in layout.distributed(tables):
                client.command(statement)
        _set_views(store, views, closable)
        _open_tables(store, closable)


def check_version(store: Store, version: str) -> None:
    """Raise `StoreError` for an older server, which lacks settings of each insert."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_SERVER:
        needed = ".".join(map(str, OLDEST_SERVER))
        msg = f"the server of the store {store.safe_dsn} is ClickHouse {version}; tokentrail needs {needed} or newer"
        raise StoreError(msg)


def _check_layout(store: Store) -> None:
    """A store does not become a cluster's, or the other way round: its rows would not be found."""
    sql = "SELECT engine = 'Distributed' FROM system.tables WHERE database = currentDatabase() AND name = 'requests'"
    rows = store.client().query(sql).result_rows
    if rows and bool(rows[0][0]) != bool(store.layout.cluster):
        has, says = ("a cluster", "no cluster") if rows[0][0] else ("one server", "a cluster")
        msg = f"the store {store.safe_dsn} has the tables of {has}, and its address names {says}: correct the address"
        raise StoreError(msg)


def _close_tables(store: Store, tables: Sequence[str]) -> None:
    """Make every insert fail, so that no span meets half of the views. Writers try again until the tables are open."""
    for table in tables:
        store.client().command(
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS {table}_closed{store.layout.on_cluster} ENGINE = Null AS"
            f" SELECT {_FAILS} FROM {table}"
        )


def _make_again(store: Store, tables: Mapping[str, str]) -> None:
    """Create the tables that hold no rows in the form of this version: views without a column's place would fail."""
    for name, statement in tables.items():
        if statement.rstrip().endswith("ENGINE = Null"):
            store.client().command(f"DROP TABLE IF EXISTS {name}{store.layout.on_cluster} SYNC")
            store.client().command(statement)


def _closed(name: str, statement: str) -> str:
    """Make the statement of a landing table create one that is closed.

    A server that comes back with an empty disk has collectors that insert at once. A Null table without its views would
    take their spans and keep none. A column can be created with its table, and a view cannot.
    """
    if name not in LANDING_TABLES:
        return statement
    return statement.replace("(", f"(closed UInt8 MATERIALIZED {_FAILS},", 1)


def _open_tables(store: Store, tables: Sequence[str]) -> None:
    client, layout = store.client(), store.layout
    for table in tables:
        client.command(f"DROP VIEW IF EXISTS {table}_closed{layout.on_cluster} SYNC")
    if not layout.cluster:
        sql = (
            "SELECT table FROM system.columns"
            " WHERE database = currentDatabase() AND name = 'closed' AND table IN {tables:Array(String)}"
        )
        for (table,) in client.query(sql, {"tables": list(tables)}).result_rows:
            client.command(f"ALTER TABLE {table} DROP COLUMN closed")


def _set_views(store: Store, statements: Mapping[str, str], closable: Sequence[str]) -> None:
    """Create the views that are missing or differ, and drop the others that a collector made.

    A view has a digest of its SQL as comment. If none differs, nothing happens, and other collectors go on inserting.
    SYNC waits until the inserts that go through a view have ended.
    """
    client = store.client()
    sql = "SELECT name, comment FROM system.tables WHERE database = currentDatabase() AND engine = 'MaterializedView'"
    existing = {str(name): str(comment) for name, comment in client.query(sql).result_rows}
    digests = {name: hashlib.sha256(statement.encode()).hexdigest()[:16] for name, statement in statements.items()}
    ours = {name for name, comment in existing.items() if re.fullmatch("[0-9a-f]{16}", comment)}
    changed = [name for name, digest in digests.items() if existing.get(name) != digest]
    gone = ours - statements.keys()
    if changed or gone:
        _close_tables(store, closable)
    for name in changed:
        client.command(f"{statements[name]} COMMENT '{digests[name]}'")
    for name in gone:
        client.command(f"DROP VIEW IF EXISTS {name}{store.layout.on_cluster} SYNC")


def _existing_tables(client: Client) -> set[str]:
    """Return the names of tables and views. `CREATE TABLE IF NOT EXISTS` of one of them would take 2 ms of CPU."""
    answer = client.query("SELECT name FROM system.tables WHERE database = currentDatabase()")
    return {str(name) for (name,) in answer.result_rows}
