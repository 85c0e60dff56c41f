"""`/goodput`: the requests of a window, judged by thresholds that the caller gives."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from collector.api.context import Context
from collector.api.parameters import Duration, WindowQuery
from collector.api.problems import bad_parameter
from collector.measure.answers import Goodput, ThresholdsOut, WindowOut
from collector.measure.evaluation import Counted, count
from collector.measure.surface import Surface, surface
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.model import Promise, Thresholds


class GoodputQuery(WindowQuery):
    """The thresholds to judge by."""

    ttft: Duration | None = Field(None, description="for example `500ms`")
    tpot: Duration | None = Field(None, description="for example `100ms`")
    e2e: Duration | None = Field(None, description="for example `30s`")
    surface: Literal["0", "1"] = Field("0", description="1: also attainment for every pair of TTFT and TPOT")


class Violations(BaseModel):
    """Requests by the threshold that they missed; one request may be in several."""

    ttft: Number
    tpot: Number
    e2e: Number
    failed: Number


class GoodputAnswer(BaseModel):
    """`/goodput`."""

    window: WindowOut
    thresholds: ThresholdsOut
    requests: Counts
    goodput: Goodput
    attainment: float | None
    estimated: bool
    errors: Errors | None
    violations: Violations
    surface: Surface | None = None


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/goodput", response_model_exclude_unset=True)
    def get_goodput(query: Annotated[GoodputQuery, Query()]) -> GoodputAnswer:
        """Goodput and attainment for thresholds given now; at least one."""
        reader = ctx.reader()
        window = query.window(reader)
        thresholds = Thresholds.model_construct(ttft=query.ttft, tpot=query.tpot, e2e=query.e2e)
        if not thresholds.given():
            raise bad_parameter("ttft", "give at least one of ttft, tpot and e2e, such as ttft=500ms")
        counted = count(reader, window, query.vantage, [Promise.to_all(thresholds)])
        requests = counted.requests
        answer = GoodputAnswer(
            window=WindowOut.of(window, counted.complete_ns),
            thresholds=ThresholdsOut.of(thresholds),
            requests=requests,
            goodput=Goodput.of(counted.covered),
            attainment=requests.attainment,
            estimated=counted.errors is not None,
            errors=counted.errors,
            violations=_violations(counted, thresholds),
        )
        if query.surface == "1":
            answer.surface = surface(reader, thresholds, counted)
        return answer

    return routes


def _violations(counted: Counted, thresholds: Thresholds) -> Violations:
    late = {
        name: counted.sums[f"missed_{name}"] + np.count_nonzero(past & ~counted.in_flight.is_lost)
        for name, past in counted.in_flight.missed(thresholds).items()
    }
    failed = counted.requests.failed + counted.requests.lost
    return Violations(**{**dict.fromkeys(Thresholds.model_fields, 0), **late}, failed=failed)
