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
_PATIENCE_S: Final = 1.0
_START_S: Final = 10.0

_Version = tuple[int, ...] | None
"""It changes with the file's content, owner and mode; None for a missing file."""


class Keyring:
    """Finds the key of a secret. A changed file counts after a second at the latest.

    A file that becomes unreadable leaves the keys as they were, with an error in the log: a mistake in it locks nobody
    out and lets nobody in. It is tried again each second, because the fault may be the process's: without an open file
    to spare, it would miss a revoked key for ever. A file that is removed has no keys.

    Threads of their own look at the file: one on a file system that hangs holds a caller up for a second, once.
    """

    def __init__(self, path: Path | None, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Read the file; raises `KeyFileError`. Without a path there are no keys."""
        self._path = path
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._looked_s = monotonic_s()
        self._look: _Look | None = None
        """The look that is under way."""
        self._version: _Version = None
        self._keys = Keys([])
        self._said = ""
        if path:
            look = _Look(path, ())
            if not look.ended.wait(_START_S):
                msg = f"the keys in {path} cannot be read: the file system has not answered for {_START_S:.0f} s"
                raise KeyFileError(msg)
            if look.error:
                raise look.error
            self._take(look)
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
            now_s, patience_s = self._monotonic_s(), 0.0
            if self._path is None or (self._look is None and now_s - self._looked_s < _LOOK_AGAIN_S):
                return
            if self._look is None:
                self._looked_s, patience_s = now_s, _PATIENCE_S
                self._look = _Look(self._path, self._version)
            if not self._look.ended.wait(patience_s):
                self._say(f"the keys in {self._path} cannot be read: the file system does not answer")
                return
            look, self._look = self._look, None
            if look.error:
                self._say(str(look.error))
                return
            self._said = ""
            if look.keys is not None:
                self._take(look)
                self._ever = self._ever or len(self._keys) > 0
                logger.info("read %d keys from %s", len(self._keys), self._path)

    def _take(self, look: _Look) -> None:
        self._keys, self._version = look.keys or Keys([]), look.version

    def _say(self, problem: str) -> None:
        """Log a problem once. The next look reads the file again, also when nobody changes it."""
        if problem != self._said:
            logger.error("%s (the keys stay as they were)", problem)
        self._said = problem


class _Look:
    """One look at the file, by a thread that may hang with it for ever."""

    def __init__(self, path: Path, known: _Version) -> None:
        self.ended = threading.Event()
        self.version: _Version = known
        self.keys: Keys | None = None
        """None when the file has the version that is known, or cannot be read."""
        self.error: KeyFileError | None = None
        threading.Thread(target=self._run, args=(path,), name="keys", daemon=True).start()

    def _run(self, path: Path) -> None:
        try:
            version = _file_version(path)
            if version != self.version:
                self.keys, self.version = Keys(read_keys(path)), version
        except KeyFileError as error:
            self.error = error
        finally:
            self.ended.set()


def _file_version(path: Path) -> _Version:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns  # ctime: chmod and chown may make it readable


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)
