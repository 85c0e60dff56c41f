"""The version. The wheel's metadata and `tokentrail --version` both come from this line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"


def told() -> str:
    """The version, and while it runs from a clone the commit: `0.1.0 (commit 0100ea8f)`."""
    from pathlib import Path  # no other import of the SDK needs it

    git = Path(__file__).parents[1] / ".git"
    try:
        if git.is_file():  # of a work tree
            git = Path(git.read_text(encoding="utf-8").partition(": ")[2].strip())
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: "):
            shared = git / "commondir"
            folders = [git, git / shared.read_text(encoding="utf-8").strip()] if shared.exists() else [git]
            head = _commit(folders, head.removeprefix("ref: "))
    except OSError:
        head = ""
    return f"{__version__} (commit {head[:8]})" if head else __version__


def _commit(folders: list[Path], ref: str) -> str:
    for folder in folders:
        if (folder / ref).exists():
            return (folder / ref).read_text(encoding="utf-8").strip()
        packed = folder / "packed-refs"
        lines = packed.read_text(encoding="utf-8").splitlines() if packed.exists() else []
        for line in lines:
            if line.endswith(f" {ref}"):
                return line.split()[0]
    return ""
