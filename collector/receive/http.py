"""OTLP/HTTP: a POST to each signal's path, Protobuf or JSON, compressed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from collector.access.access import OPEN, Access
from collector.access.asgi import BEARER, admit
from collector.access.caller import Role
from collector.otlp.decompress import decompress
from collector.otlp.errors import TooLargeError, UnsupportedContentTypeError
from collector.otlp.json_otlp import to_protobuf
from collector.receive import langfuse
from collector.receive.buffer import Buffer
from collector.receive.ingest import Ingest
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


def create_otlp_app(
    ingests: Sequence[Ingest], limits: BodyLimits, access: Access = OPEN, buffer: Buffer | None = None
) -> ASGIApp:
    """Build the receiver as an ASGI application with a path for each signal. It may share the room for its bodies.

    It has no framework: routes, middleware and request objects of one took half the CPU of receiving a body.
    """
    buffer = buffer or Buffer(limits.under_way)
    endpoints: dict[str, ASGIApp] = {}
    for ingest in ingests:
        endpoints[ingest.signal.http_path] = endpoint = _endpoint(ingest, limits, buffer, access)
        if ingest.signal.name == "traces":
            endpoints[langfuse.PATH] = langfuse.SecretKeyAsBearer(endpoint, access)
    received = "; ".join(
        f"{i.signal.name}: POST an OTLP {i.signal.request.DESCRIPTOR.name} to {i.signal.http_path}" for i in ingests
    )

    async def receiver(scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = endpoints.get(scope["path"].rstrip("/"))
        if endpoint and scope["method"] == "POST":
            await endpoint(scope, receive, send)
            return
        unknown = Status(code=Code.UNIMPLEMENTED, message=f"this collector receives {received}")
        answer = _answer(unknown, JSON, HTTPStatus.METHOD_NOT_ALLOWED if endpoint else HTTPStatus.NOT_FOUND)
        if endpoint:
            answer.headers["Allow"] = "POST"
        await answer(scope, receive, send)

    return receiver


def _endpoint(ingest: Ingest, limits: BodyLimits, buffer: Buffer, access: Access) -> ASGIApp:
    async def export(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        content_type = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        answer_type = PROTOBUF if content_type == PROTOBUF else JSON
        try:
            tenant = admit(access, Role.INGEST, scope).tenant
            ingest.check_rate(tenant)
            with buffer.share() as take:
                _check_content_type(content_type)
                sent = await _read_body(receive, limits.sent, take)
                encoding = headers.get(b"content-encoding", "identity")
                message = await _accept(ingest, sent, (content_type, encoding), limits, take, tenant)
            answer = _answer(message, answer_type, HTTPStatus.OK)
        except REFUSED as error:
            refusal = REFUSALS[type(error)]
            ingest.status.refused(refusal.reason)
            answer = _answer(refusal.status(error), answer_type, refusal.http_status, refusal.retry_after(error))
        await answer(scope, receive, send)

    return export


def _check_content_type(content_type: str) -> None:
    if content_type not in (PROTOBUF, JSON):
        msg = f"content type {content_type!r} is not supported; send {PROTOBUF} or {JSON}"
        raise UnsupportedContentTypeError(msg)


async def _accept(
    ingest: Ingest, sent: bytes, form: tuple[str, str], limits: BodyLimits, take: Callable[[int], None], tenant: str
) -> Message:
    """Give a body of this content type and encoding to the log, and return the answer when it is durable."""
    content_type, encoding = form

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


async def _read_body(receive: Receive, limit: int, take: Callable[[int], None]) -> bytes:
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            msg = f"the body is larger than {limit} bytes; send smaller batches or raise TOKENTRAIL_MAX_BODY_BYTES"
            raise TooLargeError(msg)
        take(len(chunk))
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _answer(message: Message, content_type: str, http_status: int, retry_after_s: int | None = None) -> Response:
    content = json_format.MessageToJson(message, indent=None) if content_type == JSON else message.SerializeToString()
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    if http_status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = BEARER
    return Response(content, http_status, headers, media_type=content_type)
