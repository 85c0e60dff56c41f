"""Middleware: stamps the arrival of a request and limits its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instrumented_engine.server.errors import body_too_large, too_many_bytes
from tokentrail import now_ns


class Arrival:
    """Stamps `scope["state"]["arrival_ns"]`, from which latency counts. Must be the outermost middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stamp and pass on."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["arrival_ns"] = now_ns()
        await self._app(scope, receive, send)


BODIES_AT_LIMIT = 16
LEAST = 64 << 20
"""The bodies of all requests under way may have as many bytes as 16 of the largest, and 64 MiB in any case."""


class BodyLimit:
    """Refuses a body of more than `limit` bytes before it is held in memory, with or without a Content-Length.

    It also refuses one while all bodies under way have too many bytes.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._most = max(LEAST, limit * BODIES_AT_LIMIT)
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the received bytes; the error is raised where the body is read."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            self._under_way += size
            if received > self._limit:
                raise body_too_large(self._limit)
            if size and self._under_way > self._most:
                raise too_many_bytes(self._most)
            return message

        try:
            await self._app(scope, counted if scope["type"] == "http" else receive, send)
        finally:
            self._under_way -= received
