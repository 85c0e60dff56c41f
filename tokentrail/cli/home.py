"""The folder of a demo or of `up`: only one process uses it, and only a folder of an earlier demo is emptied."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tokentrail.cli.processes import ProcessFailed
from tokentrail.shared import private_files

MARKER = "tokentrail-folder"
"""File in each folder that a command owns. It names the owner and the command that uses the folder, which locks it."""


@contextlib.contextmanager
def owned(folder: Path, *, command: str, empty: bool) -> Iterator[Path]:
    """Hold `folder` for `command` until the block ends; what the block makes is its user's alone.

    `empty` deletes an earlier recording of the same command first.
    Raises ProcessFailed when another process uses the folder, or when `empty` would delete files of somebody else.
    """
    folder = folder.absolute()
    marker = folder / MARKER
    try:
        if empty and folder.is_dir() and not marker.exists() and any(folder.iterdir()):
            raise ProcessFailed(
                f"{folder} holds files that `tokentrail {command}` did not make, and it would delete them: "
                f"choose an empty or a new folder, or remove this one yourself"
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = private_files.lock(marker)
    except BlockingIOError:
        raise ProcessFailed(
            f"{folder} is in use by `tokentrail {_lines(marker)[1]}`: stop that process, or choose another folder"
        ) from None
    except (FileExistsError, NotADirectoryError) as error:
        file = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
        raise ProcessFailed(f"{file} is a file and no folder: choose another folder") from error
    except OSError as error:
        raise ProcessFailed(
            f"{folder} cannot be used ({error.strerror}): choose a folder where you may write"
        ) from error
    with lock:
        owner = _lines(marker)[0] or command
        if empty and owner != command:
            raise ProcessFailed(
                f"{folder} holds the recordings of `tokentrail {owner}`, and `tokentrail {command}` would delete them: "
                f"choose another folder, or remove this one yourself"
            )
        if empty:
            _clear(folder)
        lock.truncate(0)
        lock.write(f"{owner}\n{command} (process {os.getpid()})\n")
        lock.flush()
        before = os.umask(private_files.UMASK)  # also of the processes that the command starts
        try:
            yield folder
        finally:
            os.umask(before)


def _lines(marker: Path) -> tuple[str, str]:
    """The command that owns the folder, and the one that uses it; '' for a new marker."""
    owner, user, *_ = [*marker.read_text().splitlines(), "", ""]
    return owner, user


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.name == MARKER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
