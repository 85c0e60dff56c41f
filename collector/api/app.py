"""The collector's HTTP side: `/api/v1`, `/metrics`, `/healthz` and `/readyz` as one ASGI application."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from collector import exposition
from collector.api import engines, incidents, problems, requests, slos, summary, timeseries
from collector.api.questions import Context
from collector.exposition import Ledger, Scrape
from collector.receive.status import IngestStatus
from collector.slo.burn import burn_rules, load_windows
from collector.slo.model import load_slos
from collector.sql.queries import Queries
from collector.store import Store


def create_app(
    store: Store,
    slos_file: Path | None,
    *,
    status: IngestStatus,
    lost_after_s: float,
    clock: Callable[[], int] = time.time_ns,
) -> FastAPI:
    """The application. `app.state.on_segment(segment_id)` must be called after each inserted segment, from any thread.

    Raises SloFileError or InfeasibleSlo when the SLO file cannot be used.
    """
    promises = load_slos(slos_file) if slos_file else ()
    windows = load_windows()
    for slo in promises:
        burn_rules(slo, windows)
    ctx = Context(Queries(store), promises, windows, round(lost_after_s * 1e9), clock)
    app = FastAPI(
        title="tokentrail collector",
        version="1",
        description="What happened to every request and token, and whether promises are kept. See docs/api.md.",
    )
    problems.install(app)
    ledger = Ledger(ctx.queries, promises, lost_after_ns=ctx.lost_after_ns, clock=clock)
    scrape = Scrape(ledger, ctx.queries, status, lost_after_ns=ctx.lost_after_ns, clock=clock)
    app.state.on_segment = ledger.on_segment
    app.include_router(exposition.router(scrape))
    errors = problems.responses(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
    for part in (summary, slos, requests, timeseries, engines, incidents):
        app.include_router(part.router(ctx), prefix="/api/v1", responses=errors)

    @app.get("/healthz", tags=["process"])
    def healthz() -> dict[str, str]:
        """The process is up."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["process"])
    def readyz() -> JSONResponse:
        """It can store what it accepts; 503 with the reason when not."""
        now = status.snapshot()
        if now.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": now.reason}, 503)

    return app
