"""Disk use: of the store's tables, of the logs and the dead letters, and the room on the disks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.ask.queries import Queries
from collector.sql.fragment import Fragment
from collector.store.schema import TIME_COLUMNS
from collector.store.store import Store


@dataclass(frozen=True)
class Folder:
    """The number of a folder's files, and the bytes that they take."""

    files: int
    size: int


@dataclass(frozen=True)
class Disk:
    """The room of a file system. What only root may use is not free."""

    free: int
    total: int


class Usage:
    """Reads disk use; `data_dir` is the collector's data folder, None where there is none.

    `settings` is called for the store's settings of each query.
    """

    def __init__(self, store: Store, data_dir: Path | None, settings: Callable[[], Mapping[str, Any]] = dict) -> None:
        self._store = store
        self._settings = settings
        self._queries = Queries(store, settings)
        self._data_dir = data_dir

    def tables(self) -> dict[str, dict[str, Any]]:
        """Rows, parts and bytes by table, and the damaged parts that ClickHouse has set aside. Empty tables have zeros.

        On a cluster over one replica of each shard, but the damaged parts over all nodes.
        """
        layout = self._store.layout
        tables = [layout.stored(table) for table in TIME_COLUMNS]
        parts = {"stored_parts": Fragment(f"SELECT * FROM {layout.system('parts')}")}
        detached = {"detached_parts": Fragment(f"SELECT * FROM {layout.every_node('detached_parts')}")}
        empty = {"total_rows": 0, "parts": 0, "disk_bytes": 0, "broken_parts": 0}
        by_name = {name: dict(empty) for name in tables}
        for row in (
            *self._queries.rows("storage", parts, tables=tables),
            *self._queries.rows("storage_broken", detached, tables=tables),
        ):
            by_name[row.pop("name")] |= row
        return {table: by_name[layout.stored(table)] for table in TIME_COLUMNS}

    def oldest_ns(self) -> dict[str, int | None]:
        """Unix nanoseconds of each table's oldest row; None for an empty table."""
        oldest = "if(count() = 0, NULL, toUnixTimestamp64Nano(toDateTime64(min({column}), 9)))"
        selects = (f"SELECT '{t}', {oldest.format(column=c)} FROM {t}" for t, c in TIME_COLUMNS.items())
        rows = self._store.query(" UNION ALL ".join(selects), settings=self._settings()).result_rows
        return {str(table): ns for table, ns in rows}

    def disks(self) -> list[dict[str, Any]]:
        """Host, name, path and bytes of the store's disks. On a cluster of all nodes; without one, `host` is empty."""
        layout = self._store.layout
        host = "hostName()" if layout.cluster else "''"  # a container's name is new when it is made again
        disks = Fragment(f"SELECT *, {host} AS host FROM {layout.every_node('disks')}")
        return self._queries.rows("storage_disks", {"stored_disks": disks})

    def dead_letters(self) -> Folder | None:
        """The dead letters; None without a data folder, and when it cannot be read."""
        if self._data_dir is None:
            return None
        try:
            sizes = [*_sizes(self._data_dir / "dead_letters")]
        except OSError:
            return None
        return Folder(len(sizes), sum(sizes))

    def data_disk(self) -> Disk | None:
        """The disk of the logs and the dead letters, of several the one with the least room.

        None without a data folder, and when the disk does not answer.
        """
        if self._data_dir is None:
            return None
        try:
            disks = [shutil.disk_usage(folder) for folder in (self._data_dir, *self._data_dir.glob("*/"))]
        except OSError:
            return None
        return Disk(*min((disk.free, disk.total) for disk in disks))


def _sizes(folder: Path) -> Iterator[int]:
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # it was removed meanwhile
                yield entry.stat().st_size
