"""Frames of a segment file: `magic | length u32 LE | blake2b-16 of the payload | payload`.

The magic is the tag and the length of a protobuf field that OTLP does not have (4095, 20 bytes), so a reader of
protobuf skips the headers: a segment file as it lies there is one OTLP message, all its payloads joined.

The digest is the frame's checksum and the payload's identity: a client that sends the same bytes again gets the same
digest. Reading never stops at damage: what cannot be read is reported with its place, and the next whole frame is
looked for.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

DIGEST_BYTES: Final = 16
MAGIC: Final = b"\xfa\xff\x01\x14"
_HEAD: Final = struct.Struct("<4sI16s")
HEADER_BYTES: Final = _HEAD.size


@dataclass(frozen=True)
class Frame:
    """One whole payload."""

    digest: bytes
    payload: bytes | memoryview


@dataclass(frozen=True)
class Torn:
    """The file ends in the middle of a frame, or in zeros: a write that a crash cut short. Nobody was promised it."""

    offset: int


@dataclass(frozen=True)
class Corrupt:
    """Bytes that were written whole and are not whole now."""

    offset: int
    data: bytes
    reason: str


def digest_of(payload: bytes | memoryview) -> bytes:
    """Identity and checksum of a payload, 16 bytes."""
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()


def header(frame: Frame) -> bytes:
    """The bytes before the payload."""
    return _HEAD.pack(MAGIC, len(frame.payload), frame.digest)


def read(data: bytes, *, verify: bool = True) -> Iterator[Frame | Torn | Corrupt]:
    """Everything in a segment file, in order; `Torn` comes last if at all. Payloads are views of `data`.

    `verify=False` takes the headers' word for it: for a file that this process wrote a moment ago.
    """
    offset = 0
    while offset < len(data):
        frame = _whole_frame(data, offset, verify=verify)
        if frame is not None:
            yield frame
            offset += HEADER_BYTES + len(frame.payload)
            continue
        following = _next_whole_frame(data, offset + 1)
        if following is None and _is_torn(data, offset):
            yield Torn(offset)
            return
        end = len(data) if following is None else following
        yield Corrupt(offset, data[offset:end], "frame damaged: its checksum or its header does not fit its bytes")
        offset = end


def _whole_frame(data: bytes, offset: int, *, verify: bool = True) -> Frame | None:
    if len(data) - offset < HEADER_BYTES:
        return None
    magic, length, digest = _HEAD.unpack_from(data, offset)
    start = offset + HEADER_BYTES
    if magic != MAGIC or len(data) - start < length:
        return None
    payload = memoryview(data)[start : start + length]
    return Frame(digest, payload) if not verify or digest_of(payload) == digest else None


def _next_whole_frame(data: bytes, offset: int) -> int | None:
    while (offset := data.find(MAGIC, offset)) >= 0:
        if _whole_frame(data, offset) is not None:
            return offset
        offset += 1
    return None


def _is_torn(data: bytes, offset: int) -> bool:
    if not data[offset:].strip(b"\0"):
        return True
    if len(data) - offset < HEADER_BYTES:
        return MAGIC.startswith(data[offset : offset + len(MAGIC)])
    magic, length, _ = _HEAD.unpack_from(data, offset)
    return bool(magic == MAGIC and len(data) - offset - HEADER_BYTES < length)
