"""`/slos`: attainment, error budget and burn rates of the SLOs in the SLO file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from collector.api.context import Context
from collector.api.parameters import WindowQuery, find_slo
from collector.measure.answers import WindowOut
from collector.measure.reader import Reader
from collector.measure.slos import SloOut, evaluate


class OneSlo(SloOut):
    """`/slos/{name}`."""

    window: WindowOut


class Slos(BaseModel):
    """`/slos`. The numbers are of each SLO's own window, which ends where `window` does."""

    window: WindowOut
    slos: list[SloOut]


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["SLOs"])

    @routes.get("/slos")
    def get_slos(query: Annotated[WindowQuery, Query()]) -> Slos:
        """Every SLO of the SLO file, over its own window."""
        return answer(ctx.reader(), query)

    @routes.get("/slos/{name}")
    def get_slo(name: Annotated[str, Path(max_length=63)], query: Annotated[WindowQuery, Query()]) -> OneSlo:
        """One SLO."""
        reader = ctx.reader()
        window = query.window(reader)
        told = WindowOut.of(window, reader.complete_ns)
        (slo,) = evaluate(reader, [find_slo(reader.slos, name)], window)
        return OneSlo(window=told, **vars(slo))

    return routes


def answer(reader: Reader, query: WindowQuery) -> Slos:
    """The answer of `/slos`."""
    window = query.window(reader)
    told = WindowOut.of(window, reader.complete_ns)
    return Slos(window=told, slos=evaluate(reader, reader.slos, window))
