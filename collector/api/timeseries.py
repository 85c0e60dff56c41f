"""`/timeseries`: one metric over time, in buckets aligned to the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from collector.api.context import Context
from collector.api.parameters import Duration, Name, WindowQuery, find_slo
from collector.api.problems import bad_parameter
from collector.api.session import need_all_tenants
from collector.measure import itl, samples
from collector.measure.answers import WindowOut
from collector.measure.evaluation import open_requests, process_filter
from collector.measure.hops import listed_once
from collector.measure.reader import Reader
from collector.measure.summing import UNJUDGED, number_of
from collector.measure.sums import Slice, Summand, sums
from collector.measure.times import SECOND_NS, rfc3339
from collector.measure.window import Window
from collector.query.template import part
from collector.slo.counts import Number, good_is_known, judged
from collector.slo.judge import CANCELLED, FAILED, selects, verdict
from collector.slo.model import Slo
from collector.sql.fragment import Fragment, all_of

MOST_POINTS = 11_000
Metric = Literal[
    "ttft", "tpot", "itl", "e2e", "queue",
    "requests", "failed", "cancelled", "output_tokens", "goodput", "kv_evictions", "preemptions",
    "attainment", "kv_usage", "running", "waiting",
]  # fmt: skip
_UNITS = dict.fromkeys(("ttft", "tpot", "itl", "e2e", "queue"), "s") | {
    "requests": "1/s", "failed": "1/s", "cancelled": "1/s", "output_tokens": "tokens/s", "goodput": "1/s",
    "kv_evictions": "blocks/s", "preemptions": "1/s", "attainment": "ratio", "kv_usage": "ratio",
    "running": "requests", "waiting": "requests",
}  # fmt: skip

_TOGETHER = ("ttft", "tpot", "e2e")
_QUANTILES = "(0.5, 0.9, 0.95, 0.99)"
_COLUMNS = ("bucket_ns", "n", "quantiles", "largest", "sampled")
_OF_PROCESSES = frozenset({"kv_evictions", "preemptions", "kv_usage", "running", "waiting"})


class TimeseriesQuery(WindowQuery):
    """The metric, and the width of a bucket."""

    metric: Metric
    step: Duration = Field("10s", validate_default=True, description="for example `10s`")
    slo: Name | None = Field(None, description="only requests that this SLO selects, judged by it")


class LatencyPoint(BaseModel):
    """One bucket of a latency, in seconds."""

    t: str
    partial: bool
    count: Number
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ValuePoint(BaseModel):
    """One bucket of a metric with one value. It is partial if a part of it is outside the window, or incomplete."""

    t: str
    partial: bool
    value: float


Point = LatencyPoint | ValuePoint


class Timeseries(BaseModel):
    """`/timeseries`. Rates have no point behind `window.complete_until`."""

    window: WindowOut
    metric: str
    unit: str
    step_s: float
    estimated: bool
    points: Sequence[Point]


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/timeseries")
    def get_timeseries(query: Annotated[TimeseriesQuery, Query()]) -> Timeseries:
        """A metric over time, for charts."""
        return answer(ctx.reader(), query)

    return routes


def answer(reader: Reader, query: TimeseriesQuery) -> Timeseries:
    """The answer of `/timeseries`."""
    if query.metric in _OF_PROCESSES:
        need_all_tenants()
    window = query.window(reader)
    if query.metric not in _OF_PROCESSES and query.slo is None:  # an SLO selects one vantage
        window = listed_once(reader, window, query.vantage)
    if (window.end_ns - window.start_ns) / query.step > MOST_POINTS:
        raise bad_parameter("step", f"gives more than {MOST_POINTS} points: make it longer, or the window shorter")
    slos = reader.slos if query.slo is None else (find_slo(reader.slos, query.slo),)
    if query.slo is not None:
        window = replace(window, filter=all_of(window.filter, selects(slos[0], "chosen")))
    complete_ns = reader.complete_ns
    points, sampled = _points(reader, window, _Buckets(query.step, window.complete(complete_ns)), query, slos)
    return Timeseries(
        window=WindowOut.of(window, complete_ns),
        metric=query.metric,
        unit=_UNITS[query.metric],
        step_s=query.step / SECOND_NS,
        estimated=sampled,
        points=points,
    )


@dataclass(frozen=True)
class _Buckets:
    """The width of buckets in nanoseconds, and the part of the window that is complete."""

    step: int
    covered: Window

    def of(self, bucket_ns: int) -> dict[str, Any]:
        """The fields of a bucket's point that tell its time."""
        is_whole = self.covered.start_ns <= bucket_ns and bucket_ns + self.step <= self.covered.end_ns
        return {"t": rfc3339(bucket_ns), "partial": not is_whole}


def _points(
    reader: Reader, window: Window, buckets: _Buckets, query: TimeseriesQuery, slos: Sequence[Slo]
) -> tuple[Sequence[Point], bool]:
    """The points, and whether they are estimated from sampled requests."""
    metric, step = query.metric, query.step
    processes = {"process_filter": process_filter(window)}
    if metric in ("ttft", "tpot", "e2e", "queue"):
        return _latency_of_requests(reader, window, buckets, metric)
    if metric == "itl":
        return _latencies(itl.by_bucket(reader.queries, window, step), buckets), False
    if metric in ("kv_evictions", "preemptions"):
        rows = _ask(reader, "timeseries_kv_events", buckets.covered, step, processes)
        if metric == "preemptions":
            grown = samples.growth(reader, buckets.covered, ["preemptions"], step)
            rows = samples.together(rows, ({"bucket_ns": r["bucket_ns"], "preemptions": r["growth"]} for r in grown))
        return _per_second(rows, metric, buckets), False
    if metric in ("kv_usage", "running", "waiting"):
        steps = _ask(reader, "timeseries_steps", window, step, processes)
        rows = samples.together(steps, samples.gauges(reader, window, step, {row["bucket_ns"] for row in steps}))
        known = [row for row in rows if row[metric] is not None]
        return [ValuePoint(**buckets.of(row["bucket_ns"]), value=row[metric]) for row in known], False
    rows, sampled = _by_bucket(reader, buckets.covered, step, slos)
    if metric in ("goodput", "attainment"):
        rows = _with_open(rows, _not_ended(reader, window, buckets, slos))
    if metric == "goodput":
        rows = [row for row in rows if _knows_good(row)]
    if metric == "attainment":
        return _attainment(rows, buckets), sampled
    return _per_second(rows, metric, buckets), sampled


def _latency_of_requests(
    reader: Reader, window: Window, buckets: _Buckets, metric: str
) -> tuple[Sequence[Point], bool]:
    """Exact percentiles, or weighted ones as sql/queries/estimated_latency.sql has them.

    An answer of many parts shows several latencies, and asks for them at once.
    """
    names = _TOGETHER if metric in _TOGETHER and reader.in_parts else (metric,)

    def read(*, weighted: bool) -> list[dict[str, Any]]:
        latencies = Fragment(f"tuple({', '.join(_latency(name, weighted=weighted) for name in names)})")
        fragments = {"filter": window.filter, "latencies": latencies}
        rows = _ask(reader, "timeseries_latencies", window, buckets.step, fragments)
        columns = [(row["bucket_ns"], *row["latencies"][names.index(metric)]) for row in rows]
        return [dict(zip(_COLUMNS, values, strict=True)) for values in columns if values[1]]

    rows = read(weighted=False)
    sampled = any(row["sampled"] for row in rows)
    return _latencies(read(weighted=True) if sampled else rows, buckets), sampled


def _latency(name: str, *, weighted: bool) -> str:
    """SQL: of the values of one latency, the columns `_COLUMNS` behind the first."""
    value, known = f"assumeNotNull({name}_ns)", f"{name}_ns IS NOT NULL"
    n, quantiles = f"countIf({known})", f"quantilesExactInclusiveIf{_QUANTILES}({value}, {known})"
    if weighted:
        weight = "toUInt64(round(weight * 1000))"
        n, quantiles = f"sumIf(weight, {known})", f"quantilesExactWeightedIf{_QUANTILES}({value}, {weight}, {known})"
    return f"({n}, {quantiles}, maxIf({value}, {known}), countIf(is_sampled AND {known}))"


def _by_bucket(reader: Reader, window: Window, step: int, slos: Sequence[Slo]) -> tuple[list[dict[str, Any]], bool]:
    """Sums over requests by the bucket in which they ended, the oldest first; and whether they are estimates."""
    judged = verdict(slos)
    bucket = part("bucket", {})
    ended = part("ended_in_window", {})
    found = sums(
        reader.queries,
        window.filter,
        [Slice(Fragment(ended.sql, window.bounds), Fragment(bucket.sql, {"step_ns": step}))],
        {
            "requests": Summand(),
            "failed": Summand(FAILED),
            "cancelled": Summand(CANCELLED),
            "output_tokens": Summand(value="output_tokens"),
            "goodput": Summand(judged.good),
            **{name: Summand(getattr(judged, name)) for name in UNJUDGED},
        },
    )
    return [{"bucket_ns": bucket_ns, **row} for bucket_ns, row in sorted(found.by_band.items())], found.sampled


def _not_ended(reader: Reader, window: Window, buckets: _Buckets, slos: Sequence[Slo]) -> list[dict[str, Any]]:
    """A lost request is in the bucket in which it was given up, a request in flight that is bad in the last bucket.

    Behind the part of the window that is complete there is no bucket: the requests that ended are not known there.
    """
    step, end_ns = buckets.step, buckets.covered.end_ns
    if end_ns <= window.start_ns:
        return []
    in_flight = open_requests(reader, window)
    lost = in_flight.is_lost & in_flight.selected_by_any(slos)
    given_up = Counter((in_flight.lost_at_ns[lost] // step * step).tolist())
    rows: list[dict[str, Any]] = [{"bucket_ns": at_ns, "lost": n} for at_ns, n in given_up.items() if at_ns < end_ns]
    bad = number_of(in_flight.bad_for_any(slos))
    last_ns = (end_ns - 1) // step * step
    return [*rows, {"bucket_ns": last_ns, "in_flight_violations": bad}] if bad else rows


def _ask(
    reader: Reader, name: str, window: Window, step: int, fragments: Mapping[str, Fragment], **parameters: int
) -> list[dict[str, Any]]:
    return reader.queries.rows(name, fragments, **window.bounds, step_ns=step, **parameters)


def _latencies(rows: Sequence[Mapping[str, Any]], buckets: _Buckets) -> list[LatencyPoint]:
    return [
        LatencyPoint(
            **buckets.of(row["bucket_ns"]),
            count=row["n"],
            **dict(zip(("p50", "p90", "p95", "p99"), (q / SECOND_NS for q in row["quantiles"]), strict=True)),
            max=row["largest"] / SECOND_NS,
        )
        for row in rows
    ]


def _per_second(rows: Sequence[Mapping[str, Any]], metric: str, buckets: _Buckets) -> list[ValuePoint]:
    """Counts ÷ the part of the bucket that is inside the covered window, so that the outermost ones are not too low.

    A bucket of requests that do not report their tokens has no sum of tokens, and no point. Goodput has no point where
    no request can be judged.
    """
    points = []
    for row in rows:
        if row[metric] is None:
            continue
        begin, covered = row["bucket_ns"], buckets.covered
        covered_ns = min(begin + buckets.step, covered.end_ns) - max(begin, covered.start_ns)
        points.append(ValuePoint(**buckets.of(begin), value=row[metric] * SECOND_NS / covered_ns))
    return points


def _with_open(ended: Sequence[dict[str, Any]], not_ended: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The buckets of requests that ended, with the judged ones that did not; also buckets that have only these."""
    nothing = dict.fromkeys(("requests", "goodput", *UNJUDGED), 0)
    buckets = {row["bucket_ns"]: row for row in ended}
    for row in not_ended:
        buckets[row["bucket_ns"]] = {**buckets.get(row["bucket_ns"], nothing), **row}
    return [row for _, row in sorted(buckets.items())]


def _attainment(rows: Sequence[Mapping[str, Any]], buckets: _Buckets) -> list[ValuePoint]:
    known = [(row["bucket_ns"], row["goodput"] / n) for row in rows if (n := _judged(row))]
    return [ValuePoint(**buckets.of(bucket_ns), value=value) for bucket_ns, value in known]


def _knows_good(row: Mapping[str, Any]) -> bool:
    return good_is_known(_judged(row), unselected=row["unselected"], undetermined=row["undetermined"])


def _judged(counts: Mapping[str, Any]) -> Number:
    """The requests of a bucket that are good or bad."""
    n: Number = judged(
        total=counts["requests"],
        **{name: counts[name] for name in UNJUDGED},
        in_flight_violations=counts.get("in_flight_violations", 0),
        lost=counts.get("lost", 0),
    )
    return n
