"""Tables and views: applied at every start, so that a store always decodes with this collector's SQL."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from clickhouse_connect.driver.client import Client

from collector.store.store import Store, StoreError

SQL_DIR: Final = Path(__file__).resolve().parent.parent / "sql"
SCHEMA_VERSION: Final = 2
"""Raised with every change of the tables in sql/schema/ that an existing store does not have."""
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

_VIEW = re.compile(r"CREATE OR REPLACE MATERIALIZED VIEW (\w+) ")


def apply_schema(store: Store, *, retention_days: int = 0) -> None:
    """Create what is missing, refuse a store of another version, replace views whose SQL changed, set the TTL."""
    client = store.client()
    _check_version(client, store.safe_dsn)
    for file in [*sorted((SQL_DIR / "schema").glob("*.sql")), *sorted((SQL_DIR / "engines").glob("*.sql"))]:
        for statement in statements(file.read_text()):
            view = _VIEW.search(statement)
            if view is None:
                client.command(statement)
            else:
                _replace_view(client, view[1], statement)
    _set_retention(client, retention_days)


def statements(sql: str) -> list[str]:
    """The statements of a file: each ends with a semicolon at the end of a line."""
    return [text for part in re.split(r";\s*(?:\n|$)", sql) if (text := part.strip())]


def _check_version(client: Client, where: str) -> None:
    client.command("CREATE TABLE IF NOT EXISTS schema_version (version UInt32) ENGINE = MergeTree ORDER BY version")
    found = client.query("SELECT max(version), count() FROM schema_version").result_rows[0]
    if found[1] == 0:
        client.command(f"INSERT INTO schema_version VALUES ({SCHEMA_VERSION})")
    elif found[0] != SCHEMA_VERSION:
        msg = (
            f"the store {where} has tables of version {found[0]}, this collector writes version {SCHEMA_VERSION}: "
            f"start the collector that wrote it, or give this one another store"
        )
        raise StoreError(msg)


def _replace_view(client: Client, name: str, statement: str) -> None:
    """Views hold no data. An unchanged one is left alone: other collectors may be inserting through it."""
    digest = hashlib.sha256(statement.encode()).hexdigest()[:16]
    existing = client.query(
        "SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = {name:String}",
        parameters={"name": name},
    ).result_rows
    if existing != [(digest,)]:
        client.command(statement)
        client.command(f"ALTER TABLE {name} MODIFY COMMENT '{digest}'")


def _set_retention(client: Client, days: int) -> None:
    found = client.query("SELECT name, create_table_query FROM system.tables WHERE database = currentDatabase()")
    definitions = {str(name): str(sql) for name, sql in found.result_rows}
    for table, column in TIME_COLUMNS.items():
        current = re.search(r"toIntervalDay\((\d+)\)", definitions[table])
        if days and (current is None or int(current[1]) != days):
            client.command(f"ALTER TABLE {table} MODIFY TTL toDateTime({column}) + toIntervalDay({days})")
        elif not days and current:
            client.command(f"ALTER TABLE {table} REMOVE TTL")
