"""`/backup`: the embedded store as one file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import iterate_in_threadpool

from collector.api.parameters import NoQuery
from collector.api.problems import Problem, responses
from collector.keep.archive import BackupError
from collector.keep.cut import Backups, Stream
from tokentrail.shared.http_protocol import CUT_AT_SHUTDOWN


def router(backups: Backups) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["storage"])

    refusal = responses(HTTPStatus.CONFLICT)
    tar: Any = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}

    @routes.post("/backup", response_class=StreamingResponse, responses=refusal | {HTTPStatus.OK: tar})
    def make_backup(_: Annotated[NoQuery, Query()], request: Request) -> StreamingResponse:
        """A tar of the embedded store at this moment; `tokentrail backup` writes and checks it."""
        try:
            stream = backups.make()
        except BackupError as error:
            raise Problem(HTTPStatus.CONFLICT, str(error)) from error
        setattr(request.state, CUT_AT_SHUTDOWN, True)
        return StreamingResponse(_closing(stream), media_type="application/x-tar")

    return routes


async def _closing(stream: Stream) -> AsyncIterator[bytes]:
    """Read on other threads, and end the backup also when the client goes away."""
    try:
        async for chunk in iterate_in_threadpool(stream):
            yield chunk
    finally:
        stream.close()
