"""The collector's data folder, which one process owns."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from collector.store.errors import StoreError


def of_a_collector(folder: Path) -> Path:
    """The data folder that is meant: `tokentrail up` has its collector's inside its own."""
    within = folder / "collector"
    return within if (within / "wal").is_dir() and not (folder / "wal").is_dir() else folder


def lock_folder(data_dir: Path) -> IO[str]:
    """Hold the data folder until the file is closed: two writers of one log would lose data. Raises `StoreError`."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = (data_dir / "lock").open("a")
    except OSError as error:
        msg = f"data folder {data_dir} cannot be used ({error.strerror}); set another --data-dir"
        raise StoreError(msg) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        msg = f"data folder {data_dir} is used by another collector; stop it or set another --data-dir"
        raise StoreError(msg) from error
    return lock
