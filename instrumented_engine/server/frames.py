"""The protocol between a decode engine and a prefill engine: one question and one answer for each connection, over TCP.

A frame is 18 bytes (`TTKV`, version, length of the header, length of the payload; big-endian), the header as JSON, and
the payload. The payload of a question has token ids of 32 bits, that of an answer has KV blocks, both in the byte order
of the machines, which their fingerprints name.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAGIC = b"TTKV"
VERSION = 1
MAX_HEADER_BYTES = 16_384

_PREFIX = struct.Struct("!4sHIQ")

Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class Question(BaseModel):
    """The header of a question. `handle` names the request in the trace."""

    model_config = ConfigDict(strict=True)

    fingerprint: str = Field(max_length=64)
    handle: str = Field(max_length=1024)


class Answer(BaseModel):
    """The header of an answer: a refusal's `error`, or the stamps (unix ns) of the computation."""

    model_config = ConfigDict(strict=True)

    error: str = ""
    started_ns: Count = 0
    computed_ns: Count = 0
    cached_tokens: Count | None = None


Header = TypeVar("Header", Question, Answer)


class FrameError(Exception):
    """A frame that this engine cannot use."""


async def write_frame(writer: asyncio.StreamWriter, header: BaseModel, payload: bytes) -> None:
    """Send a frame, and wait until the operating system has taken all of it."""
    writer.transport.set_write_buffer_limits(0)
    said = header.model_dump_json().encode()
    writer.write(_PREFIX.pack(MAGIC, VERSION, len(said), len(payload)) + said)
    writer.write(payload)
    await writer.drain()


async def read_frame(
    reader: asyncio.StreamReader,
    kind: type[Header],
    max_payload_bytes: int,
    *,
    admit: Callable[[int], None] = lambda _: None,
) -> tuple[Header, bytes]:
    """Receive a frame. Raises FrameError for one that is broken or too large, and OSError or EOFError for none.

    `admit` is called with the bytes that are about to come, and may raise FrameError.
    """
    magic, version, header_bytes, payload_bytes = _PREFIX.unpack(await reader.readexactly(_PREFIX.size))
    if magic != MAGIC:
        raise FrameError("the peer does not speak this protocol")
    if version != VERSION:
        raise FrameError(f"the peer speaks version {version} of the protocol, and this engine {VERSION}")
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > max_payload_bytes:
        raise FrameError(f"a frame of {header_bytes} and {payload_bytes} bytes is too large")
    admit(header_bytes + payload_bytes)
    try:
        header = kind.model_validate_json(await reader.readexactly(header_bytes))
    except ValidationError as error:
        raise FrameError(f"a header is not valid: {error.errors()[0]['msg']}") from error
    return header, await reader.readexactly(payload_bytes)
