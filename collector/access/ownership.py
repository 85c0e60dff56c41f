"""Owners of the files that a command makes for a collector, which may run as another user."""

from __future__ import annotations

import os
from pathlib import Path


def owner(path: Path) -> tuple[int, int] | None:
    """User and group that a file has, or that a new one gets from its folder. None unless root asks: only root may
    give files away.
    """
    if os.geteuid() != 0:
        return None
    stat = path.stat() if path.exists() else path.parent.stat()
    return stat.st_uid, stat.st_gid


def give(descriptor: int, to: tuple[int, int] | None) -> None:
    """Give an open file to its owner; None leaves it as it is."""
    if to is not None:
        os.fchown(descriptor, *to)
