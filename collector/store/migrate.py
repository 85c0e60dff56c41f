"""Brings a store of an older version forward; `sql/migrations/README.md` has the rules for the files."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from collector.base.store_errors import StoreError
from collector.store.definitions import Migration, Schema
from collector.store.lock import STATEMENT_SETTINGS, SchemaLock
from collector.store.part_folders import PartFolders
from collector.store.store import Store

logger = logging.getLogger(__name__)

_LONGEST_STATEMENT_S: Final = 24 * 3600.0
_RECORD: Final = """
    INSERT INTO schema_version (version, name, digest, applied_at)
    SELECT migration.1, migration.2, migration.3, now64(3)
    FROM (SELECT arrayJoin({migrations:Array(Tuple(UInt32, String, String))}) AS migration)
"""


_UNFINISHED: Final = """
    SELECT table, command, parts_to_do, latest_fail_reason
    FROM system.mutations WHERE database = currentDatabase() AND NOT is_done LIMIT 10
"""
_POLL_S: Final = 0.2


def pending_migrations(store: Store, migrations: Sequence[Migration], where: str) -> Sequence[Migration]:
    """Return the migrations that the store lacks; a store without tables is new and is recorded as current.

    Raises `StoreError` for a store that is newer, of an unknown version, or had other statements under a number, as one
    of a version that was never released.
    """
    client, last = store.client(), migrations[-1].version
    applied = list(client.query("SELECT * FROM schema_version").named_results())
    if not applied:
        if client.query("EXISTS TABLE requests").result_rows[0][0]:
            msg = (
                f"the store {where} has tables and no row in schema_version, so their version is not known: "
                "restore a backup, or give this collector another store. If this version of the collector wrote it "
                f"last, run in it: INSERT INTO schema_version (version) VALUES ({last})"
            )
            raise StoreError(msg)
        _record(store, client, migrations)
        return ()
    _check_digests(applied, migrations, where)
    version = max(int(row["version"]) for row in applied)
    if version > last:
        msg = (
            f"the store {where} has tables of version {version}, newer than this collector's version {last}: "
            f"start a collector of that version, or give this one another store"
        )
        raise StoreError(msg)
    return [migration for migration in migrations if migration.version > version]


def migrate(store: Store, pending: Sequence[Migration], lock: SchemaLock, schema: Schema) -> None:
    """Run and record each migration; raises `StoreError` that names the file and the statement that failed."""
    patient = store.with_timeout(_LONGEST_STATEMENT_S)
    client = patient.client()
    try:
        for migration in pending:
            logger.info("migration %s of the store %s begins", migration.name, store.safe_dsn)
            for number, statement in enumerate(migration.statements, start=1):
                try:
                    _wait_for_mutations(client, lock)
                    client.command(store.layout.migration(statement, schema), settings=STATEMENT_SETTINGS)
                except ClickHouseError as error:
                    msg = f"migration {migration.name} failed at statement {number}; the next start repeats it: {error}"
                    raise StoreError(msg) from error
            lock.renew()
            _record(store, client, [migration])
    finally:
        patient.close()


def _wait_for_mutations(client: Client, lock: SchemaLock) -> None:
    """Wait until the changes to rows that a statement began have ended. One whose collector died goes on by itself.

    ClickHouse refuses to change a column that such a change is about.
    """
    told = False
    end = time.monotonic() + _LONGEST_STATEMENT_S
    while True:
        lock.renew()
        unfinished = client.query(_UNFINISHED).result_rows
        if not unfinished or time.monotonic() > end:
            return
        if not told:
            logger.info("the migration waits for changes of an earlier start: %s", unfinished)
            told = True
        time.sleep(_POLL_S)


def _check_digests(applied: Sequence[Mapping[str, Any]], migrations: Sequence[Migration], where: str) -> None:
    """A version that was never released may have had other tables, and a branch other statements under a number.

    A row that somebody inserted by hand, because the others were lost, has no digest.
    """
    earliest = min(applied, key=lambda row: int(row["version"]))
    if earliest.get("digest") not in ("", migrations[0].digest):
        msg = (
            f"the store {where} has the tables of a version of tokentrail that was never released, which no other "
            "version reads: give this collector another --data-dir or --store, or start the version that wrote it"
        )
        raise StoreError(msg)
    known = {migration.version: migration for migration in migrations}
    for row in applied:
        if (ours := known.get(row["version"])) and row["digest"] not in ("", ours.digest):
            msg = (
                f"the store {where} had migration {row['name']} with other statements than this collector's "
                f"{ours.name}: start the collector that migrated it, or give this one another store"
            )
            raise StoreError(msg)


def _record(store: Store, client: Client, migrations: Sequence[Migration]) -> None:
    """Write down that the store has had these migrations, when their effect is on the disk."""
    rows = [(migration.version, migration.name, migration.digest) for migration in migrations]
    folders = PartFolders(store.folder)
    folders.sync()
    client.command(_RECORD, parameters={"migrations": rows})
    folders.sync()
