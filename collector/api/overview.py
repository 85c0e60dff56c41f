"""`/overview`: everything that the dashboard's first page shows, of one moment, in one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, ParamSpec, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from collector.api import engines, incidents, slos, summary, timeseries
from collector.api.context import Context
from collector.api.engines import ColdStarts, Engines, Kv
from collector.api.incidents import Incidents
from collector.api.parameters import Duration, Name, WindowQuery
from collector.api.session import CURRENT
from collector.api.slos import Slos
from collector.api.summary import Summary
from collector.api.timeseries import Metric, Timeseries, TimeseriesQuery
from collector.measure.times import DAY_NS, SECOND_NS, Moment

P = ParamSpec("P")
T = TypeVar("T")

_OF_REQUESTS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e", "requests", "goodput", "attainment")
_OF_PROCESSES: Final[tuple[Metric, ...]] = ("running", "waiting", "kv_usage", "kv_evictions")
_KNOWN_FOR_NS: Final = 30 * DAY_NS
_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
POINTS: Final = 90


class OverviewQuery(WindowQuery):
    """The window, the SLO that the charts are of, and the width of their buckets."""

    slo: Name | None = Field(None, description="the charts show requests that this SLO selects, judged by it")
    step: Duration | None = Field(None, description="for example `10s`; without it, a round one for 90 points or fewer")


class Overview(BaseModel):
    """`/overview`: answers of other endpoints. Null: engine processes serve all tenants, and the caller sees one.

    `slos` and `engines` are not filtered; `engines` has those of the last 30 days.
    """

    summary: Summary
    slos: Slos
    incidents: Incidents
    timeseries: dict[Metric, Timeseries]
    kv: Kv | None
    cold_starts: ColdStarts | None
    engines: Engines | None


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["overview"])

    @routes.get("/overview")
    def get_overview(query: Annotated[OverviewQuery, Query()]) -> Overview:
        """The summary, SLOs, incidents, charts and engine processes of one moment."""
        reader = ctx.reader()
        reader.answer_in_parts(query.end)
        given = {name: getattr(query, name) for name in WindowQuery.model_fields}
        window = WindowQuery.model_validate(given)
        known_for = WindowQuery.model_validate({"start": _long_before(query.end), "end": query.end})
        of_window = _part(summary.answer, reader, window)
        step = query.step or step_s(of_window.window.seconds) * SECOND_NS
        everyone = not reader.tenant
        return Overview(
            summary=of_window,
            slos=_part(slos.answer, reader, WindowQuery.model_validate({"start": query.start, "end": query.end})),
            incidents=_part(incidents.answer, reader, window),
            timeseries={
                metric: _part(
                    timeseries.answer,
                    reader,
                    TimeseriesQuery.model_validate({**given, "metric": metric, "step": step, "slo": query.slo}),
                )
                for metric in (*_OF_REQUESTS, *(_OF_PROCESSES if everyone else ()))
            },
            kv=_part(engines.answer_kv, reader, window) if everyone else None,
            cold_starts=_part(engines.answer_cold_starts, reader, window) if everyone else None,
            engines=_part(engines.answer_engines, reader, known_for, ctx.clocks) if everyone else None,
        )

    return routes


def _part(answer: Callable[P, T], *asked: P.args, **named: P.kwargs) -> T:
    """One part of the answer. It may take as long as it may alone."""
    CURRENT.get().start()
    return answer(*asked, **named)


def _long_before(end: Moment) -> Moment:
    """The start of the days of which engines are listed."""
    start_ns = end.ns - _KNOWN_FOR_NS
    return Moment(start_ns if end.relative else max(0, start_ns), relative=end.relative)


def step_s(seconds: float) -> int:
    """The smallest round width of buckets that cuts a window of `seconds` into at most `POINTS` of them."""
    return next((step for step in _STEPS_S if step * POINTS >= seconds), _STEPS_S[-1])
