"""Files and folders that nobody but their owner may read: data, keys, locks, backups."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import IO, Final

UMASK: Final = 0o077
"""For `os.umask`: what a process makes from then on is its user's alone."""
LOCK: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT
_AGAIN_S: Final = 0.05


def lock(path: Path) -> IO[str]:
    """Open a file to read and append, and hold it until it is closed. Only its owner can open, and so hold, it.

    A link is not followed. Raises BlockingIOError when another process holds the file, and OSError when it cannot be
    opened.
    """
    return held(os.open(path, LOCK | os.O_NOFOLLOW, 0o600))


def held(descriptor: int, *, wait_s: float = 0.0) -> IO[str]:
    """Hold a file that is open as `lock` does; wait as long for another process that holds it."""
    file = os.fdopen(descriptor, "a+")
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)  # everybody could read those of older versions
        end_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end_s:
                    raise
                time.sleep(_AGAIN_S)
            else:
                return file
    except BaseException:
        file.close()
        raise


def create(path: Path) -> IO[bytes]:
    """Open a new file to write, in place of one that is there: a link is removed, and what it leads to stays."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def close_folder(folder: Path) -> None:
    """Take the rights of group and others from a folder that others may enter, if it is this user's own.

    A mode such as 0750 is kept: somebody has chosen it. So is a folder for everybody's temporary files.
    """
    with contextlib.suppress(PermissionError):
        info = folder.stat()
        if info.st_uid == os.geteuid() and info.st_mode & 0o007 and not info.st_mode & stat.S_ISVTX:
            folder.chmod(0o700)
