"""Segment files: their names, their contents, and the digests that stay of a stored one."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collector.wal import frame
from collector.wal.dead_letters import DeadLetters
from collector.wal.durable import write_durably
from collector.wal.frame import DIGEST_BYTES, Frame, Torn

logger = logging.getLogger(__name__)

SEGMENT_SUFFIX: Final = ".wal"
INSERTED_SUFFIX: Final = ".inserted"


@dataclass(frozen=True)
class Segment:
    """A sealed file of frames. `id` is unique over all collectors and sorts by age; it is the insert's token."""

    path: Path
    size: int

    @property
    def id(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem


def new_segment_id(now_ns: int, after: str) -> str:
    """Make an id of nanoseconds and 32 random bits. It sorts behind `after` even when the clock went back."""
    previous_ns = int(after.split("-")[0]) if after else 0
    return f"{max(now_ns, previous_ns + 1):020d}-{secrets.token_hex(4)}"


def list_segments(folder: Path) -> list[Segment]:
    """List the segments that wait for the store, oldest first."""
    return [Segment(path, path.stat().st_size) for path in sorted(folder.glob(f"*{SEGMENT_SUFFIX}"))]


@dataclass(frozen=True)
class Contents:
    """The payloads of a segment file."""

    frames: list[Frame]
    undamaged: bool
    """The file holds these frames and nothing else, so that it can be read as one OTLP message."""


def read_segment(segment: Segment, dead_letters: DeadLetters, *, verify: bool) -> Contents:
    """Read the segment's complete frames. Damaged ones become dead letters."""
    frames, undamaged = [], True
    for item in frame.read(segment.path.read_bytes(), verify=verify):
        if isinstance(item, Frame):
            frames.append(item)
            continue
        undamaged = False
        if isinstance(item, Torn):
            logger.warning("segment %s ends at byte %d in a write that was not acknowledged", segment.id, item.offset)
        else:
            dead_letters.keep(f"{segment.id}-{item.offset}", item.data, item.reason)
    return Contents(frames, undamaged)


def mark_inserted(segment: Segment, digests: list[bytes]) -> Path:
    """Replace a stored segment by a file with the digests of its payloads.

    Should a crash leave the segment there, it is inserted again under its id, which the store recognises.
    """
    path = segment.path.with_suffix(INSERTED_SUFFIX)
    write_durably(path, b"".join(digests))
    segment.path.unlink(missing_ok=True)
    return path


def read_inserted(path: Path) -> list[bytes]:
    """Read the digests of a stored segment; a torn tail is left out."""
    data = path.read_bytes()
    return [data[i : i + DIGEST_BYTES] for i in range(0, len(data) - DIGEST_BYTES + 1, DIGEST_BYTES)]
