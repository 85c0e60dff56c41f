"""Frames and commit records of a segment file.

    frame            magic ea ff 01 1c | length u32 | digest, 16 bytes | days, 2 × u16 | crc32 of the header | payload
    commit record    magic f2 ff 01 0c | the record's own offset in the file u64 | crc32 of the twelve bytes before

Integers are little-endian. The magics are the tag and the length of Protobuf fields that OTLP does not have (4093 with
28 bytes, 4094 with 12), so a reader of Protobuf skips them: a segment file as it is on disk is one OTLP
message, all its payloads joined.

The digest is the frame's checksum and the payload's identity: a client that sends the same bytes again gets the same
digest. It is the first half of the payload's SHA-256, which processors compute three times as fast as BLAKE2b. The days
are the first and the last of the payload's spans, counted from 1970-01-01.

A commit record follows the frames that were written together: bytes before it were complete, so a frame there that is
cut short has been damaged. Bytes behind the last record may be a write that a crash cut short.

    frame 1, record, frame 2, record           two acknowledged payloads
    frame 1, record, half of frame 2           torn: frame 2 was not acknowledged
    frame 1, record, half of frame 2, record   corrupt: frame 2's length has changed

Reading never stops at damage: a damaged part is reported with its place, and reading goes on at the next complete frame
or commit record.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

DIGEST_BYTES: Final = 16
MAGIC: Final = b"\xea\xff\x01\x1c"
_HEAD: Final = struct.Struct("<4sI16sHH")
_CRC_BYTES: Final = 4
HEADER_BYTES: Final = _HEAD.size + _CRC_BYTES
COMMIT_MAGIC: Final = b"\xf2\xff\x01\x0c"
_COMMIT: Final = struct.Struct("<4sQI")
COMMIT_BYTES: Final = _COMMIT.size
_MAGICS: Final = re.compile(b"|".join(map(re.escape, (MAGIC, COMMIT_MAGIC))))


@dataclass(frozen=True)
class Frame:
    """One complete payload."""

    digest: bytes
    payload: bytes | memoryview
    days: tuple[int, int] = (0, 0)
    """The first and the last day on which a span starts or ends."""


@dataclass(frozen=True)
class Torn:
    """The file ends inside a frame or a commit record, or in zeros, behind its last commit record: a crash cut a write
    short before its acknowledgement."""

    offset: int


@dataclass(frozen=True)
class Corrupt:
    """Bytes that were written completely and damaged afterwards."""

    offset: int
    data: bytes
    reason: str


def digest_of(payload: bytes | memoryview) -> bytes:
    """Compute the identity and checksum of a payload, 16 bytes."""
    return hashlib.sha256(payload).digest()[:DIGEST_BYTES]


def header(frame: Frame) -> bytes:
    """Pack the bytes that stand before the payload."""
    head = _HEAD.pack(MAGIC, len(frame.payload), frame.digest, *frame.days)
    return head + _crc(head)


def _crc(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CRC_BYTES, "little")


def commit_record(offset: int) -> bytes:
    """Make the commit record that will stand at this offset of its file."""
    checked = COMMIT_MAGIC + offset.to_bytes(8, "little")
    return checked + _crc(checked)


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
        if _is_commit_record(data, offset):
            offset += COMMIT_BYTES
            continue
        following = _next_frame_or_record(data, offset + 1)
        if following is None and _is_torn(data, offset):
            yield Torn(offset)
            return
        end = len(data) if following is None else following
        yield Corrupt(offset, data[offset:end], "frame damaged: its checksum or its header does not fit its bytes")
        offset = end


def _complete_frame(data: bytes, offset: int, *, verify: bool = True) -> Frame | None:
    start = offset + HEADER_BYTES
    if len(data) < start:
        return None
    magic, length, digest, first_day, last_day = _HEAD.unpack_from(data, offset)
    if (
        magic != MAGIC
        or len(data) - start < length
        or data[start - _CRC_BYTES : start] != _crc(data[offset : start - _CRC_BYTES])
    ):
        return None
    payload = memoryview(data)[start : start + length]
    return Frame(digest, payload, (first_day, last_day)) if not verify or digest_of(payload) == digest else None


def _is_commit_record(data: bytes, offset: int) -> bool:
    return data[offset : offset + COMMIT_BYTES] == commit_record(offset)


def _next_frame_or_record(data: bytes, offset: int) -> int | None:
    for found in _MAGICS.finditer(data, offset):
        if _complete_frame(data, found.start()) is not None or _is_commit_record(data, found.start()):
            return found.start()
    return None


def _is_torn(data: bytes, offset: int) -> bool:
    if not data[offset:].strip(b"\0"):
        return True
    left = len(data) - offset
    if left < HEADER_BYTES and MAGIC.startswith(data[offset : offset + len(MAGIC)]):
        return True
    if left >= HEADER_BYTES and data.startswith(MAGIC, offset):
        return left - HEADER_BYTES < int(_HEAD.unpack_from(data, offset)[1])
    return left < COMMIT_BYTES and COMMIT_MAGIC.startswith(data[offset : offset + len(COMMIT_MAGIC)])
