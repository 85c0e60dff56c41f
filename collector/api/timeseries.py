"""`/timeseries`: one metric over time, in buckets aligned to the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query

from collector.api.models import LatencyPoint, Timeseries, ValuePoint
from collector.api.parameters import TimeseriesQuery, Window
from collector.api.problems import bad_parameter
from collector.api.questions import Context, of_engines
from collector.api.slos import find
from collector.api.times import SECOND_NS, rfc3339
from collector.slo.judge import Condition, bad_already_for_any, both, good_for_all, selected
from collector.slo.model import Slo

MOST_POINTS = 11_000
Point = LatencyPoint | ValuePoint
_UNITS = dict.fromkeys(("ttft", "tpot", "itl", "e2e", "queue"), "s") | {
    "requests": "1/s", "failed": "1/s", "cancelled": "1/s", "output_tokens": "tokens/s", "goodput": "1/s",
    "kv_evictions": "blocks/s", "preemptions": "1/s", "attainment": "ratio", "kv_usage": "ratio",
    "running": "requests", "waiting": "requests",
}  # fmt: skip


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/timeseries")
    def get_timeseries(query: Annotated[TimeseriesQuery, Query()]) -> Timeseries:
        """A metric over time, for charts."""
        window = query.window(ctx.clock())
        if (window.end_ns - window.start_ns) / query.step > MOST_POINTS:
            raise bad_parameter("step", f"gives more than {MOST_POINTS} points: make it longer, or the window shorter")
        slos = ctx.slos if query.slo is None else (find(ctx.slos, query.slo),)
        if query.slo is not None:
            window = replace(window, filter=both(window.filter, selected(slos[0].select, "chosen")))
        points = _points(ctx, window, query, slos)
        return Timeseries(metric=query.metric, unit=_UNITS[query.metric], step_s=query.step / SECOND_NS, points=points)

    return routes


def _points(ctx: Context, window: Window, query: TimeseriesQuery, slos: Sequence[Slo]) -> Sequence[Point]:
    metric, step = query.metric, query.step
    conditions = {"filter": window.filter}
    judged = {"good": good_for_all(slos), **conditions}
    if metric in ("ttft", "tpot", "e2e", "queue"):
        value = Condition(f"{metric}_ns")
        return _latencies(_ask(ctx, "timeseries_latency", window, step, {"value": value, **conditions}))
    if metric == "itl":
        return _latencies(_ask(ctx, "timeseries_itl", window, step, conditions))
    if metric in ("kv_evictions", "preemptions"):
        rows = _ask(ctx, "timeseries_kv_events", window, step, of_engines(window))
        return _per_second(rows, metric, window, step)
    if metric in ("kv_usage", "running", "waiting"):
        rows = _ask(ctx, "timeseries_steps", window, step, of_engines(window))
        return [ValuePoint(t=rfc3339(r["bucket_ns"]), value=r[metric]) for r in rows if r[metric] is not None]
    rows = _ask(ctx, "timeseries_requests", window, step, judged)
    if metric == "attainment":
        return _attainment(ctx, window, step, rows, {"bad_already": bad_already_for_any(slos), **conditions})
    return _per_second(rows, "tokens_out" if metric == "output_tokens" else metric, window, step)


def _ask(
    ctx: Context, name: str, window: Window, step: int, conditions: Mapping[str, Condition]
) -> list[dict[str, Any]]:
    return ctx.queries.ask(name, conditions, **window.bounds, step_ns=step)


def _latencies(rows: Sequence[Mapping[str, Any]]) -> list[LatencyPoint]:
    return [
        LatencyPoint(
            t=rfc3339(row["bucket_ns"]),
            count=row["n"],
            **dict(zip(("p50", "p90", "p95", "p99"), (q / SECOND_NS for q in row["quantiles"]), strict=True)),
            max=row["largest"] / SECOND_NS,
        )
        for row in rows
    ]


def _per_second(rows: Sequence[Mapping[str, Any]], metric: str, window: Window, step: int) -> list[ValuePoint]:
    """Counts divided by how much of the window their bucket holds, so that the outermost are not too low."""
    points = []
    for row in rows:
        begin = row["bucket_ns"]
        covered_ns = min(begin + step, window.end_ns) - max(begin, window.start_ns)
        points.append(ValuePoint(t=rfc3339(begin), value=row[metric] * SECOND_NS / covered_ns))
    return points


def _attainment(
    ctx: Context, window: Window, step: int, rows: Sequence[Mapping[str, Any]], conditions: Mapping[str, Condition]
) -> list[ValuePoint]:
    judged, met = Counter[int](), Counter[int]()
    for row in rows:
        judged[row["bucket_ns"]] += row["judged"]
        met[row["bucket_ns"]] += row["goodput"]
    for row in ctx.queries.ask(
        "timeseries_in_flight", conditions, **window.bounds, step_ns=step, lost_after_ns=ctx.lost_after_ns
    ):
        judged[row["bucket_ns"]] += row["bad"]
    return [ValuePoint(t=rfc3339(t), value=met[t] / judged[t]) for t in sorted(judged) if judged[t]]
