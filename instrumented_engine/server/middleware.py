"""Middleware: stamps the arrival of a request and limits its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instrumented_engine.server.errors import ApiError, body_too_large
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


class BodyLimit:
    """Refuses a body of more than `limit` bytes before it is held in memory, with or without a Content-Length."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the received bytes; the error is raised where the body is read."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise self._error
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)

    @property
    def _error(self) -> ApiError:
        return body_too_large(self._limit)
