"""Bodies of requests on their way through the proxy: bounded in memory, and in the time in which nothing moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import aiohttp
from aiohttp import web

BODIES_AT_LIMIT: Final = 16
LEAST: Final = 256 << 20
"""The bodies that are held may have as many bytes as 16 of the largest, and 256 MiB in any case."""
PIECE: Final = 64 << 10
"""A smaller body goes into an empty connection without waiting."""
_HELD: Final = web.RequestKey("held", int)


class TooManyBytes(Exception):
    """The bodies under way fill the memory that they may have."""


class Bodies:
    """The bodies of recorded requests, each of which is held until its request has ended."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._most = max(LEAST, BODIES_AT_LIMIT * largest)
        self._held = 0

    async def read(self, request: web.Request) -> bytes:
        """Read a body. Raises `HTTPRequestEntityTooLarge` and `TooManyBytes`."""
        parts, size = [], 0
        while part := await request.content.readany():
            parts.append(part)
            size += len(part)
            self._held += len(part)
            request[_HELD] = size
            if size > self._largest:
                raise web.HTTPRequestEntityTooLarge(max_size=self._largest, actual_size=size)
            if self._held > self._most:
                raise TooManyBytes
        return b"".join(parts)

    def let_go(self, request: web.Request) -> None:
        """The request has ended."""
        self._held -= request.get(_HELD, 0)


class Upload:
    """A body to send, piece by piece. `limit` ends the sending when nothing of it moved for `timeout_s`."""

    def __init__(self, body: bytes | aiohttp.StreamReader, limit: asyncio.Timeout, timeout_s: float) -> None:
        self._body = body
        self._limit = limit
        self._timeout_s = timeout_s
        self.waits_for_client = False
        """The next piece has not arrived yet."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces, each of which moves the limit on."""
        async for piece in self._pieces():
            yield piece
            with suppress(RuntimeError):  # the answer has begun, which ended the limit
                self._limit.reschedule(asyncio.get_running_loop().time() + self._timeout_s)

    async def _pieces(self) -> AsyncIterator[bytes]:
        if isinstance(self._body, bytes):
            for at in range(0, len(self._body), PIECE):
                yield self._body[at : at + PIECE]
            return
        self.waits_for_client = True
        async for piece in self._body.iter_any():
            self.waits_for_client = False
            yield piece
            self.waits_for_client = True
        self.waits_for_client = False
