"""`/summary`: the numbers of a window, judged by the SLO file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.groups import must_have_column
from collector.api.parameters import WindowQuery
from collector.numbers.summary import GroupedSummary, summary, summary_by
from collector.slo.model import LabelOf
from tokentrail.shared.parameters import Dimension


class SummaryQuery(WindowQuery):
    """The column by which the summary tells requests apart."""

    group_by: Dimension | LabelOf | None = Field(
        None, description="also the summary of each value of this column, or of a label (`label.region`)"
    )
    top: Annotated[int, Field(ge=1, le=100)] = Field(
        30, description="values that have one, those with the most requests"
    )


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/summary", response_model_exclude_unset=True)
    def get_summary(query: Annotated[SummaryQuery, Query()]) -> GroupedSummary:
        """Counts, exact percentiles, throughput, goodput and attainment of a window."""
        reader = ctx.reader()
        window = query.as_reported(reader)
        must_have_column(query, query.group_by)
        if query.group_by is not None:
            return summary_by(reader, window, query.vantages, query.group_by, query.top)
        return GroupedSummary(**vars(summary(reader, window, query.vantages)))

    return routes
