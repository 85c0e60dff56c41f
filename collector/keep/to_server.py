"""Copies a backup of an embedded store to a ClickHouse server, or a cluster: into a database without tables of ours."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from clickhouse_connect.driver.exceptions import ClickHouseError

from collector.base.store_errors import StoreError
from collector.keep.archive import BackupError, Manifest, unpack
from collector.keep.restore import attach, in_one_line
from collector.keep.tables import VERSIONS
from collector.store.definitions import read_schema, stored_tables
from collector.store.lock import SchemaLock
from collector.store.schema import check_version
from collector.store.store import Store

_ROWS: Final = 1_000_000
"""Rows of one insert, all of one part and so of one partition: a server takes 100 partitions at once."""
_CONTENT: Final = "SELECT count(), sum(cityHash64(tuple(*))) FROM `{}` SETTINGS final = 1"
"""Number and content of a table's rows, in any order. `final`: of rows that replace each other, the last."""
_PARTS: Final = """
    SELECT name, rows FROM system.parts WHERE active AND database = currentDatabase() AND table = {name:String}
"""
_THERE: Final = """
    SELECT name FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)} ORDER BY name
"""


def to_server(archive: Path, dsn: str) -> Manifest:
    """Make the tables on the server and copy all rows of a backup; the collector that starts there next does the rest.

    Raises `BackupError` when the backup is not complete, when the database has tables of ours already, or when a table
    does not have the rows of the backup in the end. Then the tables are dropped again, unless a collector has taken
    them over, since this process stood still for a minute. The backup is unpacked into the
    folder of temporary files (`TMPDIR`).
    """
    try:
        server = Store.open(dsn)
    except StoreError as error:
        raise BackupError(str(error)) from error
    try:
        with tempfile.TemporaryDirectory(prefix="tokentrail-restore-") as folder:
            manifest = unpack(archive, Path(folder))
            embedded = attach(manifest, Path(folder))
            try:
                _copy(embedded, server, manifest)
            finally:
                embedded.close()
    except (ClickHouseError, StoreError, OSError) as error:
        msg = f"{archive} cannot be copied to {server.safe_dsn}: {in_one_line(error)}"
        raise BackupError(msg) from error
    finally:
        server.close()
    return manifest


def _copy(embedded: Store, server: Store, manifest: Manifest) -> None:
    client = server.client()
    database, version = client.query("SELECT currentDatabase(), version()").result_rows[0]
    check_version(server, version)
    schema = read_schema()
    stored = stored_tables(schema)
    statements = {
        name: sql
        for name, sql in server.layout.tables(schema, database).items()
        if name in stored or name.removesuffix("_local") in stored
    }
    with SchemaLock(server) as lock:  # a collector that starts meanwhile waits
        if there := [name for (name,) in server.query(_THERE, {"names": [*statements]}).result_rows]:
            msg = (
                f"{server.safe_dsn} has tables of tokentrail already ({', '.join(there[:3])}, …): stop its collectors,"
                " and name a new database (CREATE DATABASE …), or drop these tables"
            )
            raise BackupError(msg)
        try:
            for statement in statements.values():
                client.command(statement)
            for name in sorted(manifest.tables, key=lambda name: name == VERSIONS):  # last: with it, all is there
                for _ in _copied(embedded, server, name):
                    lock.renew()
                _compare(embedded, server, name)
        except BaseException:
            lock.renew()  # raises when a collector has taken over: it has stored rows in these tables
            _drop(server, [*statements])
            raise


def _copied(embedded: Store, server: Store, name: str) -> Iterator[None]:
    """Insert a table's rows, and yield after each insert."""
    for part, rows in embedded.query(_PARTS, {"name": name}).result_rows:
        for first in range(0, rows, _ROWS):
            last = first + _ROWS
            sql = f"SELECT * FROM `{name}` WHERE _part = '{part}' AND _part_offset >= {first} AND _part_offset < {last}"
            block = embedded.client().raw_query(sql, fmt="Native")
            if block:  # a lightweight delete may have masked all
                # Two parts may have equal rows, which the server would take for a repetition of one insert.
                token = {"insert_deduplication_token": f"restored {part} {first} {uuid.uuid4()}"}
                server.client().raw_insert(name, insert_block=block, fmt="Native", settings=token)
            yield


def _compare(embedded: Store, server: Store, name: str) -> None:
    had, has = (store.query(_CONTENT.format(name)).result_rows[0] for store in (embedded, server))
    if had != has:
        msg = f"the table {name} has {had[0]} rows in the backup and {has[0]} on {server.safe_dsn}"
        raise BackupError(msg + ("" if had[0] != has[0] else ", which are not the same"))


def _drop(server: Store, names: Sequence[str]) -> None:
    """Leave the database as it was, as far as the server answers."""
    for name in reversed(names):
        with suppress(ClickHouseError, StoreError, OSError):
            server.client().command(f"DROP TABLE IF EXISTS {name}{server.layout.on_cluster} SYNC")
