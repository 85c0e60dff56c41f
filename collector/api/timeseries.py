"""`/timeseries`: one metric over time, in buckets aligned to the step."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.groups import GroupsQuery
from collector.api.parameters import Duration, Name, find_slo, must_be_few_points
from collector.api.problems import bad_parameter
from collector.api.session import need_all_tenants
from collector.numbers.timeseries import OF_PROCESSES, GroupedTimeseries, Metric, timeseries


class TimeseriesQuery(GroupsQuery):
    """The metric, and the width of a bucket."""

    metric: Metric
    step: Duration = Field("10s", validate_default=True, description="width of a bucket")
    slo: Name | None = Field(None, description="only requests that this SLO selects, judged by it")


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/timeseries", response_model_exclude_unset=True)
    def get_timeseries(query: Annotated[TimeseriesQuery, Query()]) -> GroupedTimeseries:
        """A metric over time, for charts."""
        group_by = query.groups()
        if query.metric in OF_PROCESSES:
            need_all_tenants()
        reader = ctx.reader()
        window = query.as_reported(reader)
        must_be_few_points(window, query.step)
        slo = None if query.slo is None else find_slo(reader.slos, query.slo)
        if query.metric in OF_PROCESSES and query.group_by not in (None, "instance"):
            raise bad_parameter("group_by", f"{query.metric} is of engine processes: group_by=instance")
        return timeseries(reader, window, query.vantages, query.metric, query.step, slo, group_by=group_by)

    return routes
