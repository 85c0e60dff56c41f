"""ASGI middleware for the server of an engine that is recorded from inside.

It adds to a request the facts that an engine does not hand on: its arrival before its body is parsed, all its headers,
its tenant and its SLO class. It also records requests that the server refuses before the engine has them (400, 503).
"""

from __future__ import annotations

import logging
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
        answered = 0

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = message["status"]
            await send(message)

        token = incoming.set(seen)
        try:
            await self._app(scope, receive, watch)
        except Exception:
            answered = answered or 500  # the server answers so in its place
            raise
        finally:
            incoming.reset(token)
            if answered >= 400 and not seen.recorded:
                _refused(seen, answered)


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


def _refused(seen: Incoming, status_code: int) -> None:
    recorder = active()
    if recorder is None:
        return
    try:
        recorder.refused(seen, status_code)
    except Exception:
        recorder.fault()
