"""Segment files: their names, and writing them so that they are still there after a power cut."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collector.wal import frame
from collector.wal.frame import DIGEST_BYTES, Corrupt, Frame

SEGMENT_SUFFIX: Final = ".wal"
INSERTED_SUFFIX: Final = ".inserted"


@dataclass(frozen=True)
class Segment:
    """A sealed file of frames. `id` is unique over all collectors and sorts by age: it is the insert's token."""

    path: Path
    size: int

    @property
    def id(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem


def new_segment_id(now_ns: int, after: str) -> str:
    """Nanoseconds and 32 random bits; sorts behind `after` even when the clock went back."""
    previous_ns = int(after.split("-")[0]) if after else 0
    return f"{max(now_ns, previous_ns + 1):020d}-{secrets.token_hex(4)}"


def list_segments(folder: Path) -> list[Segment]:
    """Segments that wait for the store, oldest first."""
    return [Segment(path, path.stat().st_size) for path in sorted(folder.glob(f"*{SEGMENT_SUFFIX}"))]


@dataclass(frozen=True)
class Contents:
    """What is in a segment file."""

    frames: list[Frame]
    whole: bool
    """The file is these frames and nothing else, so that it can be read as one OTLP message."""


def read_segment(segment: Segment, quarantine: Path, *, verify: bool) -> Contents:
    """The segment's whole frames. Damaged ones are copied to the quarantine folder with the reason."""
    frames, whole = [], True
    for item in frame.read(segment.path.read_bytes(), verify=verify):
        if isinstance(item, Frame):
            frames.append(item)
            continue
        whole = False
        if isinstance(item, Corrupt):
            set_aside(quarantine, f"{segment.id}-{item.offset}", item.data, item.reason)
    return Contents(frames, whole)


def set_aside(folder: Path, name: str, data: bytes | memoryview, reason: str) -> None:
    """Keep bytes that cannot be stored: `NAME.bin` as they were and `NAME.json` saying why."""
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / f"{name}.bin", data)
    write_durably(
        folder / f"{name}.json", json.dumps({"name": name, "bytes": len(data), "reason": reason}, indent=2).encode()
    )


def mark_inserted(segment: Segment, digests: list[bytes]) -> Path:
    """Replace a stored segment by the digests of its payloads, by which repetitions are recognised.

    Should a crash bring the segment back, it is inserted again under its id, which the store recognises.
    """
    path = segment.path.with_suffix(INSERTED_SUFFIX)
    write_durably(path, b"".join(digests))
    segment.path.unlink(missing_ok=True)
    return path


def read_inserted(path: Path) -> list[bytes]:
    """The digests of a stored segment; a torn tail is left out."""
    data = path.read_bytes()
    return [data[i : i + DIGEST_BYTES] for i in range(0, len(data) - DIGEST_BYTES + 1, DIGEST_BYTES)]


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Write a file that is whole or absent after a crash."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's own entries (created, renamed, removed files) durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
