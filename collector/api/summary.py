"""`/summary`: the numbers of a window, judged by the SLO file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.measure.summary import Summary, summary


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/summary")
    def get_summary(query: Annotated[WindowQuery, Query()]) -> Summary:
        """Counts, exact percentiles, throughput, goodput and attainment of a window."""
        reader = ctx.reader()
        return summary(reader, query.window(reader), query.vantage)

    return routes
