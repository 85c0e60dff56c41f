"""The collector's data folder, which one process owns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO, Final

from collector.base.store_errors import StoreError
from tokentrail.shared import private_files

_OURS: Final = re.compile(
    r"(wal|wal_\w+|store|lock|keys|audit|counters|dead_letters|damaged_parts|retention_clock|slo_history|settings|lost\+found"
    r"|logs|up-slos|tokentrail-folder)(\..*)?"
)
"""Names of what the collector, `restore` and `up` put there, and of the folder of a new file system."""


def lock_folder(data_dir: Path) -> IO[str]:
    """Hold the data folder until the file is closed: two writers of one log would lose data. Raises `StoreError`."""
    lock = data_dir / "lock"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close(data_dir)
        return private_files.lock(lock)
    except BlockingIOError as error:
        msg = (
            f"data folder {data_dir} is used by another collector; stop it or set another --data-dir"
            f" (`fuser {lock}` has its process id)"
        )
        raise StoreError(msg) from error
    except OSError as error:
        msg = f"data folder {data_dir} cannot be used ({error.strerror}); set another --data-dir"
        raise StoreError(msg) from error


def _close(data_dir: Path) -> None:
    """Keep other users out of the folder; where it holds other files too, such as a home, out of our folders in it."""
    entries = [*data_dir.iterdir()]
    ours = [entry for entry in entries if _OURS.fullmatch(entry.name)]
    for folder in [data_dir] if len(ours) == len(entries) else ours:
        if folder.is_dir() and not (folder.is_symlink() and folder != data_dir):
            private_files.close_folder(folder)
