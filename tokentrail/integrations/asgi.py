"""ASGI middleware for the server of an engine that is recorded from inside.

It adds to a request the facts that an engine does not hand on: its arrival before its body is parsed, all its headers,
its tenant and its SLO class. It also records requests that the engine never gets: those that the server refuses before
(400, 503), and those whose client leaves before.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from tokentrail import now_ns
from tokentrail.integrations.recorder import Incoming, active, incoming

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/generate": "generate_content",
}
"""Ends of the paths that carry requests of a model. Others are not looked at."""
TENANT_HEADER: Final = b"x-tokentrail-tenant"
SLO_CLASS_HEADER: Final = b"x-tokentrail-slo-class"


class RequestMiddleware:
    """For `vllm serve --middleware tokentrail.integrations.asgi.RequestMiddleware`. It needs the engine's recorder."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        seen = _incoming(scope) if active() is not None else None
        if seen is None:
            await self._app(scope, receive, send)
            return
        answered, over, left = 0, False, False

        async def hear() -> MutableMapping[str, Any]:
            nonlocal left
            message = await receive()
            left = left or (message["type"] == "http.disconnect" and not over)
            return message

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal answered, over
            if message["type"] == "http.response.start":
                answered = message["status"]
            over = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        token = incoming.set(seen)
        try:
            await self._app(scope, hear, watch)
        except CancelledError:
            left = True
            raise
        except Exception:
            answered = answered or 500  # the server answers so in its place
            raise
        finally:
            incoming.reset(token)
            if not seen.recorded and (left or answered >= 400):
                _never_taken(seen, answered, left=left)


def _incoming(scope: Scope) -> Incoming | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    path = scope["path"]
    operation = next((operation for end, operation in OPERATIONS.items() if path.endswith(end)), "")
    if not operation:
        return None
    headers = list(scope["headers"])
    known = dict(headers)
    tenant, slo_class = (known.get(name, b"").decode("latin-1") for name in (TENANT_HEADER, SLO_CLASS_HEADER))
    return Incoming(now_ns(), operation, headers, tenant, slo_class)


def _never_taken(seen: Incoming, status_code: int, *, left: bool) -> None:
    recorder = active()
    if recorder is None:
        return
    try:
        if left:  # the server may have refused the half of a body that it got
            recorder.left(seen)
        else:
            recorder.refused(seen, status_code)
    except Exception:
        recorder.fault()
