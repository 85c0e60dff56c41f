"""Files in a folder of another user, for a command that root runs: it follows no link, and gives away what it makes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_MOST_LINKS: Final = 40


class OwnershipError(OSError):
    """A file that root leaves alone; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ELOOP, message)

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True)
class Place:
    """A file's name in its folder, which is open: nobody can put another folder there."""

    path: Path
    name: str
    folder: int
    owner: tuple[int, int] | None
    """User and group of the folder, if root asks: it gives them what it makes."""
    is_foreign: bool
    """Somebody else may change the way to the file."""

    def open(self, flags: int, name: str = "") -> int:
        """Open the file, or one beside it; with O_CREAT it is made, for its owner alone, if it is not there.

        Raises `OwnershipError` for a link and for a second name of a file, when they may be somebody else's trap.
        """
        try:
            return self._open(name or self.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if (self.path.parent / (name or self.name)).is_symlink():
                raise _trap(self.path.parent / (name or self.name)) from error
            raise

    def _open(self, name: str, flags: int) -> int:
        if flags & os.O_CREAT:
            try:
                made = os.open(name, flags | os.O_EXCL, 0o600, dir_fd=self.folder)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
            else:
                if self.owner:
                    os.fchown(made, *self.owner)
                return made
        opened = os.open(name, flags & ~os.O_CREAT, dir_fd=self.folder)
        if self.is_foreign and os.fstat(opened).st_nlink > 1:
            os.close(opened)
            raise _trap(self.path.parent / name)
        return opened


@contextmanager
def placed(path: Path) -> Iterator[Place]:
    """Open the folder of a file, which is made if it is missing. Links lead on, but for root those of root alone.

    Raises `OwnershipError` for another link, OSError, and RuntimeError for links that lead to each other.
    """
    if os.geteuid() == 0:
        place = _walked(path)
    else:
        path = path.resolve()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = Place(path, path.name, os.open(path.parent, _FOLDER), None, is_foreign=False)
    try:
        yield place
    finally:
        os.close(place.folder)


#   /srv              root's
#   /srv/tokentrail   a link of root to /home/ann/data, which is taken: the way goes on at /
#   /home/ann         of Ann, who may put a link in place of all below: none of them is followed
#   keys.json         is opened in the folder that is open by then, whatever its name is
def _walked(path: Path) -> Place:
    todo, at, folder, is_foreign, links = [*reversed(path.absolute().parts)], Path("/"), -1, False, 0
    try:
        while True:
            name = todo.pop()
            if name == "/":
                at, folder, is_foreign = Path("/"), _entered(folder, "/"), False
                continue
            try:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                if todo:
                    _make(name, folder)
            else:
                if stat.S_ISLNK(info.st_mode):
                    if is_foreign or info.st_uid != 0:
                        raise _trap(at / name)
                    if (links := links + 1) > _MOST_LINKS:
                        msg = f"links lead to each other in {path}"
                        raise RuntimeError(msg)
                    todo += reversed(Path(os.readlink(name, dir_fd=folder)).parts)
                    continue
            if not todo:
                of = os.fstat(folder)
                return Place(at / name, name, folder, (of.st_uid, of.st_gid), is_foreign)
            at, folder = at / name, _entered(folder, name)
            of = os.fstat(folder)
            is_foreign |= of.st_uid != 0 or bool(of.st_mode & 0o022 and not of.st_mode & stat.S_ISVTX)
    except BaseException:
        if folder >= 0:
            os.close(folder)
        raise


def _entered(folder: int, name: str) -> int:
    """Open a folder in another one, which is closed."""
    entered = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=None if name == "/" else folder)
    if folder >= 0:
        os.close(folder)
    return entered


def _make(name: str, folder: int) -> None:
    """Make a folder that belongs to the owner of the one that it is in."""
    os.mkdir(name, 0o700, dir_fd=folder)
    made, of = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder), os.fstat(folder)
    os.fchown(made, of.st_uid, of.st_gid)
    os.close(made)


def _trap(path: Path) -> OwnershipError:
    return OwnershipError(
        f"{path} is a link, where another user than root may set links: name what it leads to, or run the command as"
        " that user"
    )
