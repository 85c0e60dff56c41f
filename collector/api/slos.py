"""`/slos`: attainment, error budget and burn rates of the SLOs in the SLO file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from collector.api.context import Context
from collector.api.parameters import WindowQuery, find_slo
from collector.numbers.slos import OneSlo, Slos, one_slo, slos


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["SLOs"])

    @routes.get("/slos")
    def get_slos(query: Annotated[WindowQuery, Query()]) -> Slos:
        """Every SLO of the SLO file, over its own window."""
        reader = ctx.reader()
        return slos(reader, query.as_reported(reader))

    @routes.get("/slos/{name}")
    def get_slo(name: Annotated[str, Path(max_length=63)], query: Annotated[WindowQuery, Query()]) -> OneSlo:
        """One SLO."""
        reader = ctx.reader()
        return one_slo(reader, find_slo(reader.slos, name), query.as_reported(reader))

    return routes
