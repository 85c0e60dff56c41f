"""`/heatmap`: requests by time and latency, for a chart."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.latency import LengthQuery
from collector.api.parameters import Name, find_slo
from collector.numbers.heatmap import Heatmap, heatmap
from tokentrail.shared.parameters import Latency


class HeatmapQuery(LengthQuery):
    """The grid."""

    metric: Latency = Field("ttft", description="the latency")
    columns: int = Field(60, ge=1, le=500, description="columns of time")
    rows: int = Field(40, ge=1, le=200, description="rows of latency")
    slo: Name | None = Field(None, description="only requests that this SLO selects, and bad ones of it")


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/heatmap")
    def get_heatmap(query: Annotated[HeatmapQuery, Query()]) -> Heatmap:
        """How many requests ended at each time with each latency, and how many of them are bad or failed."""
        reader = ctx.reader()
        slo = None if query.slo is None else find_slo(reader.slos, query.slo)
        window = query.as_reported(reader)
        return heatmap(reader, window, query.vantages, query.metric, query.columns, query.rows, slo)

    return routes
