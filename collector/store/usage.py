"""Disk use: of the store's tables, of the logs and the dead letters, and the room on the disks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.sql.fragment import Fragment
from collector.sql.queries import Queries
from collector.store.schema import TIME_COLUMNS
from collector.store.store import Store


@dataclass(frozen=True)
class Folder:
    """The number of a folder's files, and the bytes that they take."""

    files: int
    size: int


class Usage:
    """Reads disk use; `data_dir` is the collector's data folder, None where there is none."""

    def __init__(self, store: Store, data_dir: Path | None) -> None:
        self._store = store
        self._queries = Queries(store)
        self._data_dir = data_dir

    def tables(self) -> dict[str, dict[str, Any]]:
        """Rows, parts and bytes by table; on a cluster over one replica of each shard. Empty tables have zeros."""
        layout = self._store.layout
        found = self._queries.rows(
            "storage",
            {"stored_parts": Fragment(f"SELECT * FROM {layout.system('parts')}")},
            tables=[layout.stored(table) for table in TIME_COLUMNS],
        )
        by_name = {row.pop("name"): row for row in found}
        empty = {"total_rows": 0, "parts": 0, "disk_bytes": 0, "uncompressed_bytes": 0}
        return {table: by_name.get(layout.stored(table), empty) for table in TIME_COLUMNS}

    def broken_parts(self) -> dict[str, int]:
        """Damaged parts by table that ClickHouse has set aside; on a cluster over all nodes."""
        layout = self._store.layout
        found = self._queries.rows(
            "storage_broken",
            {"detached_parts": Fragment(f"SELECT * FROM {layout.every_node('detached_parts')}")},
            tables=[layout.stored(table) for table in TIME_COLUMNS],
        )
        by_name = {row["name"]: row["broken_parts"] for row in found}
        return {table: by_name.get(layout.stored(table), 0) for table in TIME_COLUMNS}

    def oldest_ns(self) -> dict[str, int | None]:
        """Unix nanoseconds of each table's oldest row; None for an empty table."""
        oldest = "if(count() = 0, NULL, toUnixTimestamp64Nano(toDateTime64(min({column}), 9)))"
        selects = (f"SELECT '{t}', {oldest.format(column=c)} FROM {t}" for t, c in TIME_COLUMNS.items())
        return {str(table): ns for table, ns in self._store.query(" UNION ALL ".join(selects)).result_rows}

    def disks(self) -> list[dict[str, Any]]:
        """Name, path and bytes of the store's disks."""
        disks = Fragment(f"SELECT * FROM {self._store.layout.system('disks')}")
        return self._queries.rows("storage_disks", {"stored_disks": disks})

    def dead_letters(self) -> Folder | None:
        """The dead letters; None without a data folder."""
        if self._data_dir is None:
            return None
        sizes = [*_sizes(self._data_dir / "dead_letters")]
        return Folder(len(sizes), sum(sizes))

    def data_dir_free(self) -> int | None:
        """Free bytes on the disk of the logs; None without a data folder."""
        return shutil.disk_usage(self._data_dir).free if self._data_dir else None


def _sizes(folder: Path) -> Iterator[int]:
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            yield entry.stat().st_size
