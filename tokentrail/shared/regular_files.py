"""Read a file that somebody else may replace while this process runs: settings, keys, certificates."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 1024 * 1024
OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""For `os.open`: a pipe is not waited for."""


def read(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """All of a regular file. Raises OSError, also for one that is larger, and for what could be waited for: a pipe."""
    return content(os.open(path, OPEN), most_bytes)


def content(descriptor: int, most_bytes: int = MOST_BYTES) -> bytes:
    """As `read`, of a file that was opened with `OPEN`. Closes it."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        with open(descriptor, "rb", closefd=False) as file:  # a descriptor has no path
            found = file.read(most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(found) > most_bytes:
        raise OSError(f"it has more than {most_bytes:,} bytes")
    return found
