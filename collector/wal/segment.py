"""Segment files: their names, their contents, and the digests that stay of a stored one."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collector.base.durable import sync_folder, write_durably
from collector.wal import frame
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import DIGEST_BYTES, Frame, Torn

logger = logging.getLogger(__name__)

SEGMENT_SUFFIX: Final = ".wal"
INSERTED_SUFFIX: Final = ".inserted"
GROUP_SUFFIX: Final = ".group"
_OURS: Final = re.compile(r"\d{20}-[0-9a-f]{8}(\.g\d+)?\.(wal|group|inserted)")


@dataclass(frozen=True)
class Segment:
    """A sealed file of frames, or a group of such files that are inserted together.

    `id` is unique over all collectors and sorts by age; it is the insert's token.
    """

    path: Path
    """For a group, the file that names its members."""
    size: int
    members: tuple[Segment, ...] = ()
    """The segments of a group, oldest first; empty for a single segment."""

    @property
    def id(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem


def is_ours(path: Path) -> bool:
    """Tell whether a file of the log's folder is the log's. A disk that is mounted there has `lost+found`."""
    return _OURS.fullmatch(path.name) is not None


def new_segment_id(now_ns: int, after: str) -> str:
    """Make an id of nanoseconds and 32 random bits. It sorts behind `after` even when the clock went back."""
    previous_ns = int(after.split("-")[0]) if after else 0
    return f"{max(now_ns, previous_ns + 1):020d}-{secrets.token_hex(4)}"


def make_group(members: Sequence[Segment]) -> Segment | None:
    """Write down that these segments are one insert, so that it has the same token and rows after a crash.

    None when the disk fails: the segments stay alone. Raises OSError when it may hold half of a group.
    """
    first = members[0]
    path = first.path.with_name(f"{first.id}.g{len(members)}{GROUP_SUFFIX}")
    try:
        write_durably(path, "\n".join(member.id for member in members).encode())
    except OSError:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
        return None
    return Segment(path, sum(member.size for member in members), tuple(members))


def list_segments(folder: Path) -> list[Segment]:
    """List the segments and groups that wait for the store, oldest first; ends the release of stored ones."""
    files = sorted(filter(is_ours, folder.iterdir()))
    waiting = {path.stem: Segment(path, path.stat().st_size) for path in files if path.suffix == SEGMENT_SUFFIX}
    for path in (path for path in files if path.suffix == GROUP_SUFFIX):
        # A name that the disk has damaged is that of no segment.
        names = path.read_text(errors="replace").split()
        members = tuple(waiting.pop(name) for name in names if name in waiting)
        waiting[path.stem] = Segment(path, sum(member.size for member in members), members)
    stored = {path.stem for path in files if path.suffix == INSERTED_SUFFIX}
    for segment in list(waiting.values()):
        is_empty_group = segment.path.suffix == GROUP_SUFFIX and not segment.members
        if is_empty_group or segment.id in stored:
            _remove(waiting.pop(segment.id))
    return [waiting[name] for name in sorted(waiting)]


@dataclass(frozen=True)
class Contents:
    """The payloads of a segment file."""

    frames: list[Frame]
    undamaged: bool
    """The one file holds these frames and nothing else, so that it can be read as one OTLP message."""


def read_segment(segment: Segment, dead_letters: DeadLetters, *, verify: bool) -> Contents:
    """Read a single segment's complete frames. Damaged ones become dead letters."""
    frames, undamaged = [], True
    for item in frame.read(segment.path.read_bytes(), verify=verify):
        if isinstance(item, Frame):
            frames.append(item)
            continue
        undamaged = False
        if isinstance(item, Torn):
            logger.warning("segment %s ends at byte %d in a write that was not acknowledged", segment.id, item.offset)
        else:
            dead_letters.keep(f"{segment.id}-{item.offset}", item.data, item.reason, damaged=True)
    return Contents(frames, undamaged)


def mark_inserted(segment: Segment, digests: list[bytes]) -> Path:
    """Replace a stored segment or group by a file with the digests of its payloads.

    The file of digests says that the store has everything. Should a crash leave files of the segment beside it, the
    next start removes them.
    """
    path = segment.path.with_suffix(INSERTED_SUFFIX)
    write_durably(path, b"".join(digests))
    _remove(segment)
    return path


def _remove(segment: Segment) -> None:
    """Remove the files of a stored segment. Those of a group go before the file that names them."""
    for member in segment.members:
        member.path.unlink(missing_ok=True)
    if segment.members:
        sync_folder(segment.path.parent)
    segment.path.unlink(missing_ok=True)


def read_inserted(path: Path) -> list[bytes]:
    """Read the digests of a stored segment; a torn tail is left out."""
    data = path.read_bytes()
    return [data[i : i + DIGEST_BYTES] for i in range(0, len(data) - DIGEST_BYTES + 1, DIGEST_BYTES)]
