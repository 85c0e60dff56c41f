"""Frames and commit records of a segment file.

    frame            magic fa ff 01 14 | length u32 LE | blake2b-16 of the payload | payload
    commit record    magic f2 ff 01 0c | the record's own offset in the file u64 LE | crc32 of the twelve bytes before

The magics are the tag and the length of Protobuf fields that OTLP does not have (4095 with 20 bytes, 4094 with 12), so
a reader of Protobuf skips them: a segment file as it is on disk is one OTLP message, all its payloads joined.

The digest is the frame's checksum and the payload's identity: a client that sends the same bytes again gets the same
digest. A commit record follows the frames that were written together: bytes before it were complete, so a frame there
that is cut short has been damaged. Bytes behind the last record may be a write that a crash cut short.

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
MAGIC: Final = b"\xfa\xff\x01\x14"
_HEAD: Final = struct.Struct("<4sI16s")
HEADER_BYTES: Final = _HEAD.size
COMMIT_MAGIC: Final = b"\xf2\xff\x01\x0c"
_COMMIT: Final = struct.Struct("<4sQI")
COMMIT_BYTES: Final = _COMMIT.size
_MAGICS: Final = re.compile(re.escape(MAGIC) + b"|" + re.escape(COMMIT_MAGIC))


@dataclass(frozen=True)
class Frame:
    """One complete payload."""

    digest: bytes
    payload: bytes | memoryview


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
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()


def header(frame: Frame) -> bytes:
    """Pack the bytes that stand before the payload."""
    return _HEAD.pack(MAGIC, len(frame.payload), frame.digest)


def commit_record(offset: int) -> bytes:
    """Make the commit record that will stand at this offset of its file."""
    checked = COMMIT_MAGIC + offset.to_bytes(8, "little")
    return checked + zlib.crc32(checked).to_bytes(4, "little")


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
    if len(data) - offset < HEADER_BYTES:
        return None
    magic, length, digest = _HEAD.unpack_from(data, offset)
    start = offset + HEADER_BYTES
    if magic != MAGIC or len(data) - start < length:
        return None
    payload = memoryview(data)[start : start + length]
    return Frame(digest, payload) if not verify or digest_of(payload) == digest else None


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
    start = data[offset : offset + len(MAGIC)]
    if len(data) - offset < COMMIT_BYTES and COMMIT_MAGIC.startswith(start):
        return True
    if len(data) - offset < HEADER_BYTES:
        return MAGIC.startswith(start)
    magic, length, _ = _HEAD.unpack_from(data, offset)
    return bool(magic == MAGIC and len(data) - offset - HEADER_BYTES < length)
