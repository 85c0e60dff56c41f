"""Frames of a segment file: `magic | length u32 LE | blake2b-16 of the payload | payload`.

The magic is the tag and the length of a Protobuf field that OTLP does not have (4095, 20 bytes), so a reader of
Protobuf skips the headers: a segment file as it is on disk is one OTLP message, all its payloads joined.

The digest is the frame's checksum and the payload's identity: a client that sends the same bytes again gets the same
digest. Reading never stops at damage: a damaged part is reported with its place, and reading goes on at the next
complete frame.
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
    """One complete payload."""

    digest: bytes
    payload: bytes | memoryview


@dataclass(frozen=True)
class Torn:
    """The file ends inside a frame, or in zeros: a crash cut a write short before its acknowledgement."""

    offset: int


@dataclass(frozen=True)
class Corrupt:
    """Bytes that were written completely and damaged afterwards."""

    offset: int
    data: bytes
    reason: str


def digest_of(payload: bytes | memoryview) -> bytes:
    """Compute the identity and checksum of a payload, 16 bytes."""
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()


def header(frame: Frame) -> bytes:
    """Pack the bytes that stand before the payload."""
    return _HEAD.pack(MAGIC, len(frame.payload), frame.digest)


def read(data: bytes, *, verify: bool = True) -> Iterator[Frame | Torn | Corrupt]:
    """Yield the frames and damages of a segment file in order; `Torn` comes last. Payloads are views of `data`.

    `verify=False` does not compare digests: for a file that this process wrote a moment ago.
    """
    offset = 0
    while offset < len(data):
        frame = _complete_frame(data, offset, verify=verify)
        if frame is not None:
            yield frame
            offset += HEADER_BYTES + len(frame.payload)
            continue
        following = _next_complete_frame(data, offset + 1)
        if following is None and _is_torn(data, offset):
            yield Torn(offset)
            return
        end = len(data) if following is None else following
        yield Corrupt(offset, data[offset:end], "frame damaged: its checksum or its header does not fit its bytes")
        offset = end


def _complete_frame(data: bytes, offset: int, *, verify: bool = True) -> Frame | None:
    if len(data) - offset < HEADER_BYTES:
        return None
    magic, length, digest = _HEAD.unpack_from(data, offset)
    start = offset + HEADER_BYTES
    if magic != MAGIC or len(data) - start < length:
        return None
    payload = memoryview(data)[start : start + length]
    return Frame(digest, payload) if not verify or digest_of(payload) == digest else None


def _next_complete_frame(data: bytes, offset: int) -> int | None:
    while (offset := data.find(MAGIC, offset)) >= 0:
        if _complete_frame(data, offset) is not None:
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
