"""The folders of an embedded store's tables: new parts, and the tokens of their inserts, must survive a power cut."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from collector.base.durable import sync_folder
from collector.store.deduplication import write_through

_TICK_S: Final = 0.1
"""Two changes of a folder within one tick of the kernel's clock leave the same time on it. A tick is 1 to 10 ms."""


class PartFolders:
    """Syncs the folders that an insert has changed.

    ClickHouse syncs the files of a part, and then renames the part's folder from tmp_insert_all_3_3_0 to all_3_3_0
    without a sync of the table's folder. ext4 and XFS write the rename down with the next sync of any file. Btrfs need
    not for half a minute, in which the log would already have given up the segment.
    """

    def __init__(self, folder: Path | None) -> None:
        """Take the store's folder; None for a server, which looks after its own disk."""
        self._folder = folder
        self._synced: dict[Path, int] = {}
        self.writes_through = True
        """False when the file system cannot have a token on the disk before its rows (`write_through`)."""

    def sync(self) -> None:
        """Make all parts durable that were stored before; raises OSError."""
        for table in self._folder.glob("store/*/*") if self._folder else ():
            changed_ns = table.stat().st_mtime_ns
            if self._synced.get(table) == changed_ns:
                continue
            logs = table / "deduplication_logs"
            self.writes_through &= not logs.is_dir() or write_through(logs)
            sync_folder(table)
            if time.time_ns() - changed_ns > _TICK_S * 1e9:
                self._synced[table] = changed_ns
