"""Tables and views of a store. They are applied at every start, so that a store decodes with this collector's SQL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clickhouse_connect.driver.client import Client

from collector.signals import SIGNALS
from collector.store.definitions import SQL_DIR, read_migrations, read_schema
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
}
"""The time by which each table's rows age."""
LANDING_TABLES: Final = tuple(signal.landing_table for signal in SIGNALS)
"""The tables that OTLP is inserted into."""


def apply_schema(store: Store, *, retention_days: int = 0, sql_dir: Path = SQL_DIR) -> None:
    """Create missing tables, migrate a store of an older version, replace views that differ, set the retention.

    Raises `StoreError` for a store that this collector cannot use, before it changes anything in it.
    """
    client = store.client()
    schema, migrations = read_schema(sql_dir), read_migrations(sql_dir)
    with SchemaLock(store) as lock:
        client.command(schema.tables["schema_version"])
        pending = pending_migrations(client, migrations, store.safe_dsn)
        for statement in schema.tables.values():
            client.command(statement)
        if pending:
            _set_views(client, {})
            migrate(store, pending, lock)
        _set_views(client, schema.views)
        _open_landing_tables(client)
        _set_retention(client, retention_days)


def _close_landing_tables(client: Client) -> None:
    """Make every insert fail, so that no span meets half of the views. Writers try again until the tables are open."""
    for table in LANDING_TABLES:
        client.command(
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS {table}_closed ENGINE = Null AS"
            f" SELECT throwIf(materialize(1), 'a collector changes the schema of this store') FROM {table}"
        )


def _open_landing_tables(client: Client) -> None:
    for table in LANDING_TABLES:
        client.command(f"DROP VIEW IF EXISTS {table}_closed SYNC")


def _set_views(client: Client, statements: Mapping[str, str]) -> None:
    """Create the views that are missing or differ, and drop the others that a collector made.

    A view has a digest of its SQL as comment. If none differs, nothing happens, and other collectors go on inserting.
    SYNC waits until the inserts that go through a view have ended.
    """
    sql = "SELECT name, comment FROM system.tables WHERE database = currentDatabase() AND engine = 'MaterializedView'"
    existing = {str(name): str(comment) for name, comment in client.query(sql).result_rows}
    digests = {name: hashlib.sha256(statement.encode()).hexdigest()[:16] for name, statement in statements.items()}
    ours = {name for name, comment in existing.items() if re.fullmatch("[0-9a-f]{16}", comment)}
    changed = [name for name, digest in digests.items() if existing.get(name) != digest]
    gone = ours - statements.keys()
    if changed or gone:
        _close_landing_tables(client)
    for name in changed:
        client.command(f"{statements[name]} COMMENT '{digests[name]}'")
    for name in gone:
        client.command(f"DROP VIEW IF EXISTS {name} SYNC")


def _set_retention(client: Client, days: int) -> None:
    """Set, change or remove (0 days) each table's TTL. An unchanged TTL is left alone."""
    found = client.query("SELECT name, create_table_query FROM system.tables WHERE database = currentDatabase()")
    definitions = {str(name): str(sql) for name, sql in found.result_rows}
    for table, column in TIME_COLUMNS.items():
        current = re.search(r"toIntervalDay\((\d+)\)", definitions[table])
        if days and (current is None or int(current[1]) != days):
            client.command(f"ALTER TABLE {table} MODIFY TTL toDateTime({column}) + toIntervalDay({days})")
        elif not days and current:
            client.command(f"ALTER TABLE {table} REMOVE TTL")
