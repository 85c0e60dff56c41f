"""A file that is read again when it changes while the collector runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 1.0
_PATIENCE_S: Final = 1.0
_START_S: Final = 10.0

T = TypeVar("T")
Version = tuple[int, ...] | None
"""It changes with the file's content, owner and mode; None for a missing file."""


def file_version(path: Path) -> Version:
    """The version of a file."""
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_ctime_ns, info.st_size  # ctime: chmod and chown may make it readable


class WatchedFile(Generic[T]):
    """What is read from a file. A changed file counts after a second at the latest.

    A file that becomes unreadable leaves things as they were, with an error in the log. It is tried again each second,
    because the fault may be the process's: without an open file to spare, it would miss a change for ever.

    Threads of their own look at the file: one on a file system that hangs holds a caller up for a second, once.
    """

    problem = ""
    """Why the newest file is not in use; empty while it is."""
    refused = 0
    """How often there was a new problem."""

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], T],
        *,
        what: str,
        told: Callable[[T], str],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file; raises the ValueError of `read`, and one of its own when the file system does not answer.

        `what` names the content in errors (`the keys`), and `told` in the line of the log that says that it was read.
        """
        self._path, self._read, self._what, self._told = path, read, what, told
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._looked_s = monotonic_s()
        look = _Look(path, read, ())
        if not look.ended.wait(_START_S):
            msg = f"{what} in {path} cannot be read: it has taken {_START_S:.0f} s, so the file system does not answer"
            raise ValueError(msg)
        if look.error:
            raise look.error
        self._look: _Look[T] | None = None
        """The look that is under way."""
        self._version: Version = look.version
        (self._content,) = look.found

    def get(self) -> T:
        """The content of the newest file that could be read."""
        with self._lock:
            now_s, patience_s = self._monotonic_s(), 0.0
            if self._look is None:
                if now_s - self._looked_s < _LOOK_AGAIN_S:
                    return self._content
                self._looked_s, patience_s = now_s, _PATIENCE_S
                self._look = _Look(self._path, self._read, self._version)
            if not self._look.ended.wait(patience_s):
                why = "the file system does not answer, or the machine is busy"
                self._say(f"{self._what} in {self._path} cannot be read yet: {why}")
                return self._content
            look, self._look = self._look, None
            if look.error:
                self._say(str(look.error))
                return self._content
            self.problem = ""
            if look.found:
                (self._content,), self._version = look.found, look.version
                logger.info("read %s from %s", self._told(self._content), self._path)
            return self._content

    def _say(self, problem: str) -> None:
        """Log a problem once. The next look reads the file again, also when nobody changes it."""
        if problem != self.problem:
            logger.error("%s (%s stay as they were)", problem, self._what)
            self.refused += 1
        self.problem = problem


class _Look(Generic[T]):
    """One look at the file, by a thread that may hang with it for ever."""

    def __init__(self, path: Path, read: Callable[[Path], T], known: Version) -> None:
        self.ended = threading.Event()
        self.version: Version = known
        self.found: tuple[T, ...] = ()
        """The content; empty when the file has the version that is known, or cannot be read."""
        self.error: ValueError | None = None
        threading.Thread(target=self._run, args=(path, read), name="watched-file", daemon=True).start()

    def _run(self, path: Path, read: Callable[[Path], T]) -> None:
        try:
            version = file_version(path)
            if version != self.version:
                self.found, self.version = (read(path),), version
        except ValueError as error:
            self.error = error
        finally:
            self.ended.set()
