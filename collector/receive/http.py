"""OTLP/HTTP: `POST /v1/traces`, protobuf or JSON, compressed or not."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from collector.receive.decompress import BrokenEncodingError, TooLargeError, UnsupportedEncodingError, decompress
from collector.receive.ingest import Ingest
from collector.receive.json_otlp import parse_json
from collector.receive.validate import MalformedError
from collector.wal.commit import LogUnavailableError

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
RETRY_AFTER_S: Final = 2
_INLINE_BYTES: Final = 1024 * 1024
"""Larger bodies are parsed on another thread, so that they do not hold up the small ones."""


@dataclass(frozen=True)
class _Refusal:
    """How an error is answered and counted."""

    http_status: int
    code: Code.ValueType
    reason: str


_REFUSALS: Final[dict[type[Exception], _Refusal]] = {
    TooLargeError: _Refusal(413, Code.INVALID_ARGUMENT, "too_large"),
    UnsupportedEncodingError: _Refusal(415, Code.INVALID_ARGUMENT, "encoding"),
    BrokenEncodingError: _Refusal(400, Code.INVALID_ARGUMENT, "encoding"),
    MalformedError: _Refusal(400, Code.INVALID_ARGUMENT, "malformed"),
    LogUnavailableError: _Refusal(503, Code.UNAVAILABLE, "overloaded"),
}


@dataclass(frozen=True)
class BodyLimits:
    """Largest body in bytes, as sent and decompressed."""

    sent: int
    decompressed: int


def create_otlp_app(ingest: Ingest, limits: BodyLimits) -> Starlette:
    """The receiver as an ASGI application."""

    async def traces(request: Request) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in (PROTOBUF, JSON):
            ingest.status.refused("content_type")
            text = f"content type {content_type!r} is not supported; send {PROTOBUF} or {JSON}"
            return _answer(Status(code=Code.INVALID_ARGUMENT, message=text), JSON, 415)
        try:
            acknowledged = await _export(ingest, request, content_type, limits)
        except tuple(_REFUSALS) as error:
            refusal = _REFUSALS[type(error)]
            ingest.status.refused(refusal.reason)
            return _answer(Status(code=refusal.code, message=str(error)), content_type, refusal.http_status)
        except ClientDisconnect:
            ingest.status.refused("disconnected")
            return Response(status_code=400)
        return _answer(acknowledged, content_type, 200)

    async def not_found(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        text = "this collector receives traces: POST an OTLP ExportTraceServiceRequest to /v1/traces"
        return _answer(Status(code=Code.UNIMPLEMENTED, message=text), JSON, status)

    return Starlette(
        routes=[Route("/v1/traces", traces, methods=["POST"])], exception_handlers={404: not_found, 405: not_found}
    )


async def _export(
    ingest: Ingest, request: Request, content_type: str, limits: BodyLimits
) -> ExportTraceServiceResponse:
    sent = await _read_body(request, limits.sent)
    encoding = request.headers.get("content-encoding", "identity")

    def accept() -> Future[ExportTraceServiceResponse]:
        body = decompress(sent, encoding, limits.decompressed)
        return ingest.accept(body) if content_type == PROTOBUF else ingest.accept_parsed(parse_json(body))

    durable = accept() if len(sent) <= _INLINE_BYTES else await asyncio.to_thread(accept)
    return await asyncio.wrap_future(durable)


async def _read_body(request: Request, limit: int) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            msg = f"the body is larger than {limit} bytes; send smaller batches or raise TOKENTRAIL_MAX_BODY_BYTES"
            raise TooLargeError(msg)
        chunks.append(chunk)
    return b"".join(chunks)


def _answer(message: Message, content_type: str, http_status: int) -> Response:
    content = json_format.MessageToJson(message, indent=None) if content_type == JSON else message.SerializeToString()
    headers = {"Retry-After": str(RETRY_AFTER_S)} if http_status == 503 else None
    return Response(content, http_status, headers, media_type=content_type)
