"""OTLP/HTTP: a POST to each signal's path, Protobuf or JSON, compressed or not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from collector.access.access import OPEN, Access
from collector.access.asgi import BEARER, admit
from collector.access.caller import Role
from collector.receive import langfuse
from collector.receive.decompress import decompress
from collector.receive.errors import BusyError, TooLargeError, UnsupportedContentTypeError
from collector.receive.ingest import Ingest
from collector.receive.json_otlp import to_protobuf
from collector.receive.refusals import REFUSALS, REFUSED

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_INLINE_BYTES: Final = {PROTOBUF: 1024 * 1024, JSON: 64 * 1024}
"""Largest decompressed body that the event loop checks itself. Larger ones go to another thread, so that they do not
hold up the small ones."""


@dataclass(frozen=True)
class BodyLimits:
    """Largest body in bytes, as sent and decompressed, and the bytes of all bodies under way."""

    sent: int
    decompressed: int
    under_way: int = 256 * 1024 * 1024


class _Buffer:
    """The bytes of all requests under way. A request that is alone may be as large as a single body may be."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._used = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Give a function that takes bytes for one request, and take them back at its end.

        The function raises `BusyError` when the requests under way have too many.
        """
        own = 0

        def take(size: int) -> None:
            nonlocal own
            with self._lock:
                if self._used > own and self._used + size > self._limit:
                    msg = f"the requests under way have more than {self._limit} bytes; try again"
                    raise BusyError(msg)
                self._used += size
                own += size

        try:
            yield take
        finally:
            with self._lock:
                self._used -= own


def create_otlp_app(ingests: Sequence[Ingest], limits: BodyLimits, access: Access = OPEN) -> Starlette:
    """Build the receiver as an ASGI application with a route for each signal."""
    buffer = _Buffer(limits.under_way)
    received = "; ".join(
        f"{i.signal.name}: POST an OTLP {i.signal.request.DESCRIPTOR.name} to {i.signal.http_path}" for i in ingests
    )

    async def not_found(_: Request, error: Exception) -> Response:
        http_status = error.status_code if isinstance(error, HTTPException) else 404
        answer = _answer(
            Status(code=Code.UNIMPLEMENTED, message=f"this collector receives {received}"), JSON, http_status
        )
        answer.headers.update(getattr(error, "headers", None) or {})
        return answer

    routes = [
        Route(ingest.signal.http_path, _endpoint(ingest, limits, buffer, access), methods=["POST"])
        for ingest in ingests
    ]
    routes += [
        Route(
            langfuse.PATH,
            _endpoint(ingest, limits, buffer, access),
            methods=["POST"],
            middleware=[Middleware(langfuse.SecretKeyAsBearer, access=access)],
        )
        for ingest in ingests
        if ingest.signal.name == "traces"
    ]
    return Starlette(
        routes=routes,
        exception_handlers={404: not_found, 405: not_found},
    )


def _endpoint(
    ingest: Ingest, limits: BodyLimits, buffer: _Buffer, access: Access
) -> Callable[[Request], Awaitable[Response]]:
    async def export(request: Request) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        answer_type = PROTOBUF if content_type == PROTOBUF else JSON
        try:
            tenant = admit(access, Role.INGEST, request.scope).tenant
            ingest.check_rate(tenant)
            with buffer.share() as take:
                message = await _accept(ingest, request, content_type, limits, take, tenant)
            return _answer(message, answer_type, 200)
        except REFUSED as error:
            refusal = REFUSALS[type(error)]
            ingest.status.refused(refusal.reason)
            return _answer(refusal.status(error), answer_type, refusal.http_status, refusal.retry_after(error))

    return export


async def _accept(
    ingest: Ingest, request: Request, content_type: str, limits: BodyLimits, take: Callable[[int], None], tenant: str
) -> Message:
    if content_type not in (PROTOBUF, JSON):
        msg = f"content type {content_type!r} is not supported; send {PROTOBUF} or {JSON}"
        raise UnsupportedContentTypeError(msg)
    sent = await _read_body(request, limits.sent, take)
    encoding = request.headers.get("content-encoding", "identity")

    def accept(most: int) -> Future[Message]:
        body = decompress(sent, encoding, most)
        if body is not sent:
            take(len(body))
        return ingest.accept(body if content_type == PROTOBUF else to_protobuf(body, ingest.signal.request), tenant)

    inline = min(_INLINE_BYTES[content_type], limits.decompressed)
    durable = _unless_larger(accept, inline) if len(sent) <= inline else None
    if durable is None:
        durable = await asyncio.to_thread(accept, limits.decompressed)
    return await asyncio.wrap_future(durable)


def _unless_larger(accept: Callable[[int], Future[Message]], limit: int) -> Future[Message] | None:
    """Accept a body that is at most `limit` bytes after decompression; a few of its bytes may be gigabytes."""
    try:
        return accept(limit)
    except TooLargeError:
        return None


async def _read_body(request: Request, limit: int, take: Callable[[int], None]) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            msg = f"the body is larger than {limit} bytes; send smaller batches or raise TOKENTRAIL_MAX_BODY_BYTES"
            raise TooLargeError(msg)
        take(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


def _answer(message: Message, content_type: str, http_status: int, retry_after_s: int | None = None) -> Response:
    content = json_format.MessageToJson(message, indent=None) if content_type == JSON else message.SerializeToString()
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    if http_status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = BEARER
    return Response(content, http_status, headers, media_type=content_type)
