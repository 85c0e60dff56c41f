"""The segment that is being written."""

from __future__ import annotations

import os
from pathlib import Path

from collector.base.durable import sync_folder
from collector.wal.policy import Fsync
from collector.wal.segment import Segment


class ActiveSegment:
    """An open segment file. A failed append leaves no trace: the next call rolls it back first.

    `opened_at_s` is a time of the monotonic clock.
    """

    def __init__(self, path: Path, *, fsync: Fsync, opened_at_s: float) -> None:
        self._path = path
        self._fsync = fsync
        self.opened_at_s = opened_at_s
        self.size = 0
        self._file = path.open("xb", buffering=0)
        try:
            sync_folder(path.parent)
        except OSError:  # each attempt opens a new file
            self._file.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, data: bytes) -> None:
        """Write bytes and make them durable as the policy says. After an OSError the file ends where it did before."""
        self._roll_back()
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        if self._fsync is Fsync.ACK:
            os.fsync(self._file.fileno())
        self.size += len(data)

    def seal(self) -> Segment:
        """Close the file for good."""
        self._roll_back()
        self._file.close()
        return Segment(self._path, self.size)

    def _roll_back(self) -> None:
        if self._file.tell() != self.size:
            self._file.truncate(self.size)
            self._file.seek(self.size)
