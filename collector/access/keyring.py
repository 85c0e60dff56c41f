"""The keys of a running collector, read again when their file changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from collector.access.keys import Key, KeyFileError, Keys, read_keys

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 1.0


class Keyring:
    """Finds the key of a secret. A changed file counts after a second at the latest.

    A file that becomes unreadable leaves the keys as they were, with an error in the log: a mistake in it locks nobody
    out and lets nobody in. It is tried again each second, because the fault may be the process's: without an open file
    to spare, it would miss a revoked key for ever. A file that is removed has no keys.
    """

    def __init__(self, path: Path | None, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Read the file; raises `KeyFileError`. Without a path there are no keys."""
        self._path = path
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._looked_s = monotonic_s()
        self._version = self._file_version()
        self._keys = Keys(read_keys(path) if path else [])
        self._said = ""
        self._ever = len(self._keys) > 0

    @property
    def in_use(self) -> bool:
        """True once there was a key, revoked ones included: from then on every caller needs one."""
        self._read_again()
        return self._ever

    def find(self, secret: str) -> Key | None:
        """Find the key of a secret, also an expired or a revoked one."""
        self._read_again()
        return self._keys.find(secret)

    def _read_again(self) -> None:
        with self._lock:
            now_s = self._monotonic_s()
            if self._path is None or now_s - self._looked_s < _LOOK_AGAIN_S:
                return
            self._looked_s = now_s
            version = self._file_version()
            if version == self._version:
                return
            try:
                self._keys = Keys(read_keys(self._path))
            except KeyFileError as error:
                self._say(f"{error} (the keys stay as they were)")
                return
            self._version, self._said = version, ""
            self._ever = self._ever or len(self._keys) > 0
            logger.info("read %d keys from %s", len(self._keys), self._path)

    def _say(self, problem: str) -> None:
        """Log a problem once. The next look reads the file again, also when nobody changes it."""
        if problem != self._said:
            logger.error(problem)
        self._said = problem

    def _file_version(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat() if self._path else None
        except OSError:
            return None
        return (stat.st_ino, stat.st_ctime_ns) if stat else None  # ctime: chmod and chown may make it readable


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)
