"""`/goodput`: the requests of a window, judged by thresholds that the caller gives."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from collector.api.answers import Goodput, ThresholdsOut, WindowOut
from collector.api.context import Context
from collector.api.evaluation import count
from collector.api.parameters import Duration, Window, WindowQuery
from collector.api.problems import bad_parameter
from collector.api.surface import Surface, surface
from collector.slo.counts import Counts
from collector.slo.judge import bad_already, good, missed, missed_already
from collector.slo.model import Thresholds
from collector.sql.fragment import FALSE, Fragment


class GoodputQuery(WindowQuery):
    """The thresholds to judge by."""

    ttft: Duration | None = Field(None, description="for example `500ms`")
    tpot: Duration | None = Field(None, description="for example `100ms`")
    e2e: Duration | None = Field(None, description="for example `30s`")
    surface: Literal["0", "1"] = Field("0", description="1: also attainment for every pair of TTFT and TPOT")


class Violations(BaseModel):
    """Requests by the threshold that they missed; one request may be in several."""

    ttft: int
    tpot: int
    e2e: int
    failed: int


class GoodputAnswer(BaseModel):
    """`/goodput`."""

    window: WindowOut
    thresholds: ThresholdsOut
    requests: Counts
    goodput: Goodput
    attainment: float | None
    violations: Violations
    surface: Surface | None = None


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/goodput", response_model_exclude_unset=True)
    def get_goodput(query: Annotated[GoodputQuery, Query()]) -> GoodputAnswer:
        """The same judgement for thresholds given now; at least one."""
        window = query.window(ctx.clock())
        thresholds = Thresholds.model_construct(ttft=query.ttft, tpot=query.tpot, e2e=query.e2e)
        if not thresholds.given():
            raise bad_parameter("ttft", "give at least one of ttft, tpot and e2e, such as ttft=500ms")
        requests, tokens = count(ctx, window, good(thresholds, "asked"), bad_already(thresholds, "asked"))
        answer = GoodputAnswer(
            window=WindowOut.of(window),
            thresholds=ThresholdsOut.of(thresholds),
            requests=requests,
            goodput=Goodput.of(requests, tokens, window),
            attainment=requests.attainment,
            violations=_violations(ctx, window, thresholds),
        )
        if query.surface == "1":
            answer.surface = surface(ctx, window, thresholds)
        return answer

    return routes


def _violations(ctx: Context, window: Window, thresholds: Thresholds) -> Violations:
    never = dict.fromkeys(Thresholds.model_fields, FALSE)

    def fragments(by_threshold: dict[str, Fragment]) -> dict[str, Fragment]:
        return {"filter": window.filter, **never, **by_threshold}

    ended = ctx.queries.row("violations", fragments(missed(thresholds, "asked")), **window.bounds)
    not_ended = ctx.queries.row(
        "in_flight_violations",
        fragments(missed_already(thresholds, "asked")),
        **window.bounds,
        lost_after_ns=ctx.lost_after_ns,
    )
    return Violations.model_validate({key: ended[key] + not_ended[key] for key in ended})
