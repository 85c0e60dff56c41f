"""Restores a backup into a data folder that does not exist yet, or has nothing in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clickhouse_connect.driver.exceptions import ClickHouseError

from collector.base.durable import sync_folder
from collector.base.store_errors import StoreError
from collector.keep.archive import BackupError, Manifest, Table, unpack
from collector.keep.tables import VERSIONS, check_part, check_tables, make_tables
from collector.store.definitions import read_migrations
from collector.store.migrate import pending_migrations
from collector.store.store import Store

_WORK: Final = ".restoring"
"""Folder inside the data folder, which may be a volume: that has no other place, and cannot be replaced by a folder."""
_LONGEST: Final = 1000
_OF_NOBODY: Final = frozenset({_WORK, "lost+found"})
"""An empty folder may have these: the rest of an attempt that was killed, and the folder of a new file system."""


def restore(archive: Path, data_dir: Path) -> Manifest:
    """Make `data_dir` from a backup: its store, and the settings' files in `settings`. All is on the disk in the end.

    Raises `BackupError`, and leaves nothing behind, when the folder has files already, the backup is not complete, or a
    table does not have the rows that it had. The collector that starts next brings an older store forward.
    """
    work = data_dir / _WORK
    try:
        is_new = not data_dir.exists()
        if not is_new and {path.name for path in data_dir.iterdir()} - _OF_NOBODY:
            msg = f"{data_dir} is not empty: restore into a new folder, and start the collector with it as --data-dir"
            raise BackupError(msg)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
    except OSError as error:
        msg = f"{data_dir} cannot be made ({error.strerror}): restore into a new folder, where you may write"
        raise BackupError(msg) from error
    restored = False
    try:
        manifest = unpack(archive, work)
        attach(manifest, work).close()
        os.sync()  # the files of the archive, and those that ClickHouse wrote and moved
        for name in ("settings", "store"):  # the store last: with it, all is there
            if (work / name).exists():
                (work / name).replace(data_dir / name)
        sync_folder(data_dir)
        restored = True
    except (ClickHouseError, StoreError, OSError) as error:
        msg = f"{archive} cannot be restored: {in_one_line(error)}"
        raise BackupError(msg) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if is_new and not restored:
            data_dir.rmdir()
    return manifest


def attach(manifest: Manifest, work: Path) -> Store:
    """Make the store of an unpacked backup, in its folder `store`, and return it open."""
    check_tables(manifest)
    store = Store.open(f"chdb://{(work / 'store').resolve()}")
    try:
        columns = make_tables(store, manifest)
        for name in sorted(manifest.tables, key=lambda name: name != VERSIONS):
            _attach_table(store, name, manifest.tables[name], work / "tables" / name, columns[name])
            if name == VERSIONS:  # first, so that no part of a newer version is read
                pending_migrations(store, read_migrations(), "in the backup")
    except BaseException:
        store.close()
        raise
    return store


def _attach_table(store: Store, name: str, table: Table, folder: Path, columns: Mapping[str, str]) -> None:
    client, detached = store.client(), store.table_folder(name) / "detached"
    for part in table.parts:
        check_part(folder / part, columns)
        shutil.move(folder / part, detached / part)
        client.command(f"ALTER TABLE `{name}` ATTACH PART '{part}'")
    sql = "SELECT sum(rows) FROM system.parts WHERE active AND database = currentDatabase() AND table = {name:String}"
    rows = client.query(sql, {"name": name}).result_rows[0][0]
    (sound,) = client.query(f"CHECK TABLE `{name}` SETTINGS check_query_single_value_result = 1").result_rows[0]
    if rows != table.rows or not sound:
        msg = f"the table {name} had {table.rows} rows and has {rows}" + ("" if sound else ", some of them damaged")
        raise BackupError(msg)


def in_one_line(error: BaseException) -> str:
    """ClickHouse's messages have several lines, with bytes of the files that it could not read."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())[:_LONGEST]
