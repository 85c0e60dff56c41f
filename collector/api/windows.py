"""Endpoints that ask one question about the requests of a window."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.groups import must_have_column
from collector.api.latency import LengthQuery
from collector.api.parameters import Name, WindowQuery, find_slo
from collector.incidents.incidents import Incidents, incidents
from collector.incidents.verdict import VerdictOut, verdict
from collector.numbers.changes import Changes, changes
from collector.numbers.heatmap import Heatmap, heatmap
from collector.numbers.slos import OneSlo, Slos, one_slo, slos
from collector.numbers.summary import GroupedSummary, summary, summary_by
from collector.numbers.values import Values, values
from collector.slo.model import LabelOf
from tokentrail.shared.parameters import Dimension, Latency


class SummaryQuery(WindowQuery):
    """The column by which the summary tells requests apart."""

    group_by: Dimension | LabelOf | None = Field(
        None, description="also the summary of each value of this column, or of a label (`label.region`)"
    )
    top: Annotated[int, Field(ge=1, le=100)] = Field(
        30, description="values that have one, those with the most requests"
    )


class HeatmapQuery(LengthQuery):
    """The grid."""

    metric: Latency = Field("ttft", description="the latency")
    columns: int = Field(60, ge=1, le=500, description="columns of time")
    rows: int = Field(40, ge=1, le=200, description="rows of latency")
    slo: Name | None = Field(None, description="only requests that this SLO selects, and bad ones of it")


class LabelsQuery(WindowQuery):
    """Which requests have the values."""

    limit: int = Field(100, ge=1, le=1000, description="values of each dimension")


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/summary", tags=["requests"], response_model_exclude_unset=True)
    def get_summary(query: Annotated[SummaryQuery, Query()]) -> GroupedSummary:
        """Counts, exact percentiles, throughput, goodput and attainment of a window."""
        reader = ctx.reader()
        window = query.as_reported(reader)
        must_have_column(query, query.group_by)
        if query.group_by is not None:
            return summary_by(reader, window, query.vantages, query.group_by, query.top)
        return GroupedSummary(**vars(summary(reader, window, query.vantages)))

    @routes.get("/changes", tags=["requests"])
    def get_changes(query: Annotated[WindowQuery, Query()]) -> Changes:
        """Models, variants and processes of a service that came, went, came back or became those of most requests, and
        other definitions of SLOs, the earliest first.
        """
        reader = ctx.reader()
        return changes(reader, query.window(reader))

    @routes.get("/heatmap", tags=["requests"])
    def get_heatmap(query: Annotated[HeatmapQuery, Query()]) -> Heatmap:
        """How many requests ended at each time with each latency, and how many of them are bad or failed."""
        reader = ctx.reader()
        slo = None if query.slo is None else find_slo(reader.slos, query.slo)
        window = query.as_reported(reader)
        return heatmap(reader, window, query.vantages, query.metric, query.columns, query.rows, slo)

    @routes.get("/labels", tags=["requests"])
    def get_labels(query: Annotated[LabelsQuery, Query()]) -> Values:
        """Models, tenants, labels and other values of the requests that ended in the window, the commonest first."""
        reader = ctx.reader()
        return values(reader, query.window(reader), query.limit)

    @routes.get("/slos", tags=["SLOs"])
    def get_slos(query: Annotated[WindowQuery, Query()]) -> Slos:
        """Every SLO of the SLO file, over its own window."""
        reader = ctx.reader()
        return slos(reader, query.as_reported(reader))

    @routes.get("/slos/{name}", tags=["SLOs"])
    def get_slo(name: Annotated[str, Path(max_length=63)], query: Annotated[WindowQuery, Query()]) -> OneSlo:
        """One SLO."""
        reader = ctx.reader()
        return one_slo(reader, find_slo(reader.slos, name), query.as_reported(reader))

    @routes.get("/verdict", tags=["SLOs"])
    def get_verdict(query: Annotated[WindowQuery, Query()]) -> VerdictOut:
        """Whether the promises are kept, since when not, who is hit, by what cause, and what stands behind it."""
        reader = ctx.reader()
        return verdict(reader, query.as_reported(reader), query.vantages)

    @routes.get("/incidents", tags=["incidents"])
    def get_incidents(query: Annotated[WindowQuery, Query()]) -> Incidents:
        """Incidents of the window: first those that fire at its end, then the others, each newest first."""
        reader = ctx.reader()
        return incidents(reader, query.as_reported(reader))

    return routes
