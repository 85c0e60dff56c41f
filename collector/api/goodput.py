"""`/goodput`: the requests of a window, judged by thresholds that the caller gives."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.groups import GroupsQuery
from collector.api.parameters import Duration
from collector.api.problems import bad_parameter
from collector.numbers.goodput import GoodputAnswer, goodput
from collector.slo.model import THRESHOLDS, Thresholds


class GoodputQuery(GroupsQuery):
    """The thresholds to judge by."""

    ttft: Duration | None = Field(None, description="longest TTFT, for example `500ms`")
    tpot: Duration | None = Field(None, description="longest TPOT, for example `100ms`")
    e2e: Duration | None = Field(None, description="longest E2E, for example `30s`")
    gap: Duration | None = Field(None, description="longest wait between two tokens of one answer, for example `2s`")
    first_visible: Duration | None = Field(None, description="longest time to the first visible token")


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/goodput", response_model_exclude_unset=True)
    def get_goodput(query: Annotated[GoodputQuery, Query()]) -> GoodputAnswer:
        """Goodput and attainment for thresholds given now; at least one."""
        reader = ctx.reader()
        window = query.as_reported(reader)
        thresholds = Thresholds.model_construct(**{name: getattr(query, name) for name in Thresholds.model_fields})
        if not thresholds.given():
            raise bad_parameter("ttft", f"give at least one of {THRESHOLDS}, such as ttft=500ms")
        return goodput(reader, window, query.vantages, thresholds, group_by=query.groups())

    return routes
