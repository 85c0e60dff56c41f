"""The collector's HTTP side: `/api/v1`, `/metrics`, `/healthz` and `/readyz` as one ASGI application."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import Receive, Scope, Send

from collector import metrics as exposition
from collector.access.access import OPEN, Access
from collector.api import (
    admission,
    backup,
    check,
    collector,
    compare,
    differences,
    engines,
    explain,
    goodput,
    problems,
    request,
    requests,
    samples,
    spans,
    storage,
    timeouts,
    timeseries,
    windows,
)
from collector.api.context import Context
from collector.api.parameters import given_once
from collector.api.session import QueryLimits
from collector.base.status import IngestStatus
from collector.keep.cut import Backups
from collector.keep.usage import Usage
from collector.metrics import MetricsPage
from collector.store.retention import Retention
from tokentrail.version import __version__

_LEAST_BYTES: Final = 1024
_GZIP_LEVEL: Final = 3
"""Level 9 makes an answer 8 % smaller, and takes three times the CPU."""
_AS_IT_IS: Final = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/x-tar")
"""Content types that are compressed already, and backups, which are large."""
_NO_GZIP: Final = re.compile(rb"\bgzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)


class _Gzip(GZipMiddleware):
    """Starlette's takes `gzip;q=0` for a wish, though it says that the client does not take gzip."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = scope.get("headers", [])
        if any(name == b"accept-encoding" and _NO_GZIP.search(value) for name, value in headers):
            scope = {**scope, "headers": [header for header in headers if header[0] != b"accept-encoding"]}
        await super().__call__(scope, receive, send)


def create_app(
    context: Context,
    metrics_page: MetricsPage,
    status: IngestStatus,
    usage: Usage,
    retention: Retention,
    backups: Backups,
    *,
    cancel: Callable[[str], None],
    access: Access = OPEN,
    limits: QueryLimits | None = None,
    metrics_without_key: bool = False,
) -> FastAPI:
    """Build the application: `/api/v1` reads `context`, `/metrics` exposes `metrics_page`, `/readyz` reads `status`.

    `cancel` stops the store's queries that have a given `log_comment`.
    """
    app = FastAPIOffline(
        redoc_url=None,
        title="tokentrail collector",
        version="1",
        description="Every request and token, and the SLOs that they meet or miss. See docs/api.md.",
    )
    problems.install(app)
    admission.install(
        app,
        access=access,
        limits=limits or QueryLimits(),
        status=status,
        cancel=cancel,
        metrics_without_key=metrics_without_key,
    )
    app.add_middleware(_Gzip, minimum_size=_LEAST_BYTES, compresslevel=_GZIP_LEVEL, exclude_content_types=_AS_IT_IS)
    app.include_router(exposition.router(metrics_page), responses=problems.responses(*admission.NO_ENTRY))
    errors = problems.responses(
        HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, *admission.REFUSALS, HTTPStatus.SERVICE_UNAVAILABLE
    )
    parts = (
        windows,
        compare,
        check,
        differences,
        goodput,
        explain,
        requests,
        request,
        timeseries,
        timeouts,
        engines,
        spans,
    )
    routers = [*(part.router(context) for part in parts), samples.router(context, status)]
    of_collector = (storage.router(usage, retention, status), collector.router(status), backup.router(backups))
    for router in (*routers, *of_collector):
        app.include_router(router, prefix="/api/v1", responses=errors, dependencies=[Depends(given_once)])

    @app.get("/healthz", tags=["process"], openapi_extra=problems.NO_KEY)
    def healthz() -> dict[str, str]:
        """The process is up; its version."""
        return {"status": "ok", "version": __version__}

    @app.get(
        "/readyz",
        tags=["process"],
        openapi_extra=problems.NO_KEY,
        responses={503: {"description": "Not ready", "content": {"application/json": {}}}},
    )
    def readyz() -> JSONResponse:
        """The process can store the data that it accepts; if not, 503 with the reason.

        It is degraded while old data waits for the store: it accepts more, and answers lack what waits.
        """
        now = status.snapshot()
        if not now.ready:
            return JSONResponse({"status": "not ready", "reason": now.reason}, 503)
        if now.behind:
            return JSONResponse({"status": "degraded", "reason": now.behind})
        return JSONResponse({"status": "ready"})

    return app
