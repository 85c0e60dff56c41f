"""Names of folders and files that a person writes, an option or a variable, and why one cannot be used."""

from __future__ import annotations

import os
from pathlib import Path


def folder(name: str | Path) -> Path:
    """The folder with this name, which need not exist yet.

    Raises ValueError when the name is empty, which would mean the current folder, is a file's, or cannot be looked up.
    """
    if not str(name):
        raise ValueError("'' is not a folder: name one, or write . for the current one")
    path = Path(name)
    try:
        is_other = path.exists() and not path.is_dir()
    except OSError as error:  # a name that is too long, a folder above it that this user may not read
        raise ValueError(f"{str(path)!r} is not a folder: {error.strerror}") from error
    if is_other:
        raise ValueError(f"{str(path)!r} is not a folder")
    return path


def of_a_collector(path: Path) -> Path:
    """The collector's data folder that is meant: `tokentrail up` has its collector's inside its own."""
    within = path / "collector"
    return within if has_data(within) and not has_data(path) else path


def has_data(path: Path) -> bool:
    """Tell whether a folder is that of a collector, or of a restored backup, which has no log yet."""
    return any((path / name).is_dir() for name in ("wal", "store"))


def beside(path: Path) -> list[Path]:
    """The data folders of collectors that lie where this one would; none if there is a folder of this name."""
    if path.exists():
        return []
    try:
        there = sorted(one for one in path.absolute().parent.iterdir() if one.is_dir())
        return [one for one in there if has_data(of_a_collector(one))]
    except OSError:
        return []


def file(name: str | Path) -> Path:
    """The file with this name, which need not exist yet.

    Raises ValueError when the name is empty, which would mean the current folder, or is a folder's.
    """
    if not str(name) or os.path.isdir(name):  # noqa: PTH112  # Path.is_dir raises for a name that is too long
        raise ValueError(f"{str(name)!r} is not a file: name one, or leave the setting out")
    return Path(name)


def words_of(error: BaseException) -> str:
    """The operating system's words for an error, without its number and file; those of other errors as they are.

    [Errno 2] No such file or directory: 'slos.yaml' → No such file or directory
    """
    return str(getattr(error, "strerror", None) or error)
