"""Answers of the proxy's own: RFC 9457, with the member `error` that the clients of both APIs show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

BROKEN: Final = "broken_request"
"""A request that is no HTTP, or that HTTP alone refuses: an unknown `Expect`, `OPTIONS *`, `CONNECT`."""
FAULT: Final = "fault"
"""The proxy has failed."""
MAX_DETAIL: Final = 200


def problem(status: int, kind: str, detail: str) -> web.Response:
    """An answer in place of the upstream's."""
    title = f"tokentrail proxy: {kind}"
    body = {"title": title, "status": status, "detail": detail, "error": {"type": kind, "message": detail}}
    return web.Response(body=json.dumps(body).encode(), status=status, content_type="application/problem+json")


class Connection(web.RequestHandler):
    """A client's connection. aiohttp answers some requests before any handler sees them, in plain text: here they are
    problems too. `refused` gets the reason of each.
    """

    __slots__ = ("_refused",)

    def __init__(self, manager: web.Server, *, refused: Callable[[str], object], **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._refused = refused

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are no HTTP, or a request after its handler has failed. The connection is closed.

        Raises `ConnectionError` when an answer has begun.
        """
        super().handle_error(request, status, exc, message)
        broken = status == 400
        answer = self._problem(status, BROKEN if broken else FAULT, message if broken else None)
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer. An error of HTTP is one that aiohttp found; the proxy's handler returns its own."""
        if isinstance(resp, web.HTTPException):
            resp = self._problem(resp.status, BROKEN, resp.text)
        return await super().finish_response(request, resp, start_time)

    def _problem(self, status: int, kind: str, said: str | None) -> web.Response:
        self._refused(kind)
        return problem(status, kind, (said or "The proxy failed.").partition("\n")[0].rstrip(":")[:MAX_DETAIL])
