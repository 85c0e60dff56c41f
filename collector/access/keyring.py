"""The keys of a running collector, read again when their file changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from collector.access.keys import Key, KeyFileError, Keys, read_keys
from collector.base.watched_file import WatchedFile


class Keyring:
    """Finds the key of a secret. A mistake in the file locks nobody out and lets nobody in (`WatchedFile`).

    A file that is removed has no keys.
    """

    def __init__(self, path: Path | None, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Read the file; raises `KeyFileError`. Without a path there are no keys."""
        self._ever = False
        self._file = None
        if path:
            try:
                self._file = WatchedFile(path, _read, what="the keys", told=_told, monotonic_s=monotonic_s)
            except ValueError as error:
                raise KeyFileError(str(error)) from error
        self._keys()

    @property
    def in_use(self) -> bool:
        """True once there was a key, revoked ones included: from then on every caller needs one."""
        self._keys()
        return self._ever

    def find(self, secret: str) -> Key | None:
        """Find the key of a secret, also an expired or a revoked one."""
        return self._keys().find(secret)

    def _keys(self) -> Keys:
        keys = self._file.get() if self._file else Keys([])
        self._ever = self._ever or len(keys) > 0
        return keys


def _read(path: Path) -> Keys:
    return Keys(read_keys(path))


def _told(keys: Keys) -> str:
    return f"{len(keys)} keys"


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)
