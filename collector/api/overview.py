"""`/overview`: everything that the dashboard's first page shows, of one moment, in one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final, ParamSpec, TypeVar

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.parameters import Duration, Name, WindowQuery, find_slo, must_be_few_points
from collector.api.session import CURRENT
from collector.ask.times import DAY_NS, SECOND_NS
from collector.base.answer import Answer
from collector.engines.cold_starts import ColdStarts, cold_starts
from collector.engines.engines import Engines, engines
from collector.engines.kv import Kv, kv
from collector.incidents.incidents import Incidents, incidents
from collector.numbers.slos import Slos, slos
from collector.numbers.summary import Summary, summary
from collector.numbers.timeseries import Metric, Timeseries, timeseries

P = ParamSpec("P")
T = TypeVar("T")

_LATENCIES: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e")
_OF_REQUESTS: Final[tuple[Metric, ...]] = (*_LATENCIES, "requests", "goodput", "attainment")
_OF_PROCESSES: Final[tuple[Metric, ...]] = ("running", "waiting", "kv_usage", "kv_evictions")
_KNOWN_FOR_NS: Final = 30 * DAY_NS
_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
POINTS: Final = 90


class OverviewQuery(WindowQuery):
    """The window, the SLO that the charts are of, and the width of their buckets."""

    slo: Name | None = Field(None, description="the charts show requests that this SLO selects, judged by it")
    step: Duration | None = Field(
        None, description="width of the charts' buckets. Without it, a round one for 90 points or fewer"
    )


class Overview(Answer):
    """`/overview`: the answers of other endpoints at one moment."""

    summary: Summary
    slos: Slos
    """Not filtered."""
    incidents: Incidents
    timeseries: dict[Metric, Timeseries]
    kv: Kv | None
    """Null, as the next two and the charts of engine processes, with a key of one tenant: processes serve all."""
    cold_starts: ColdStarts | None
    engines: Engines | None
    """Of the last 30 days, and not filtered."""


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["overview"])

    @routes.get("/overview")
    def get_overview(query: Annotated[OverviewQuery, Query()]) -> Overview:
        """The summary, SLOs, incidents, charts and engine processes of one moment."""
        reader = ctx.reader()
        window = query.as_reported(reader)
        unfiltered = replace(window, filter=reader.tenant_filter)
        known_for = replace(unfiltered, start_ns=max(0, window.end_ns - _KNOWN_FOR_NS))
        step = query.step or step_s(window.seconds) * SECOND_NS
        must_be_few_points(window, step)
        slo = None if query.slo is None else find_slo(reader.slos, query.slo)
        everyone = not reader.tenant
        return Overview(
            slos=_part(slos, reader, unfiltered),
            incidents=_part(incidents, reader, window),
            summary=_part(summary, reader, window, query.vantage),
            timeseries={
                metric: _part(timeseries, reader, window, query.vantage, metric, step, slo, latencies=_LATENCIES)
                for metric in (*_OF_REQUESTS, *(_OF_PROCESSES if everyone else ()))
            },
            kv=_part(kv, reader, window) if everyone else None,
            cold_starts=_part(cold_starts, reader, window) if everyone else None,
            engines=_part(engines, reader, known_for, ctx.clocks_apart(reader.now_ns)) if everyone else None,
        )

    return routes


def _part(answer: Callable[P, T], *asked: P.args, **named: P.kwargs) -> T:
    """One part of the answer. It may take as long as it may alone."""
    CURRENT.get().start()
    return answer(*asked, **named)


def step_s(seconds: float) -> int:
    """The smallest round width of buckets that cuts a window of `seconds` into at most `POINTS` of them."""
    return next((step for step in _STEPS_S if step * POINTS >= seconds), _STEPS_S[-1])
