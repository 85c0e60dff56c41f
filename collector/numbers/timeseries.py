"""One metric over time, in buckets aligned to the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from collector.ask.times import SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count import samples
from collector.count.answers import WindowOut
from collector.count.evaluation import process_filter
from collector.count.hops import without_doubles
from collector.count.over_time import ended_by_bucket, judged_by_bucket, late_in_flight
from collector.count.reader import Reader
from collector.numbers import itl
from collector.numbers.groups import Value, groups_of
from collector.numbers.latencies import LATENCIES, ns_of
from collector.slo.counts import Number
from collector.slo.judge import selects
from collector.slo.model import Slo
from collector.sql.fragment import TRUE, Fragment, all_of

Metric = Literal[
    "ttft", "tpot", "itl", "e2e", "queue", "gap",
    "requests", "failed", "cancelled", "output_tokens", "goodput", "kv_evictions", "preemptions",
    "attainment", "kv_usage", "running", "waiting",
]  # fmt: skip
_UNITS: Final = dict.fromkeys((*LATENCIES, "itl"), "s") | {
    "requests": "1/s", "failed": "1/s", "cancelled": "1/s", "output_tokens": "tokens/s", "goodput": "1/s",
    "kv_evictions": "blocks/s", "preemptions": "1/s", "attainment": "ratio", "kv_usage": "ratio",
    "running": "requests", "waiting": "requests",
}  # fmt: skip

_QUANTILES: Final = "(0.5, 0.9, 0.95, 0.99)"
_COLUMNS: Final = ("bucket_ns", "n", "quantiles", "largest", "sampled")
_JUDGED: Final = frozenset({"goodput", "attainment"})
OF_PROCESSES: Final = frozenset({"kv_evictions", "preemptions", "kv_usage", "running", "waiting"})


class _Point(Answer):
    t: str
    """When the bucket begins."""
    partial: bool
    """A part of the bucket is outside the window, or not over and complete yet: the value is of `covered_s` alone."""
    covered_s: float
    """How much of the bucket is inside the window and complete. Rates are per second of it."""


class LatencyPoint(_Point):
    """One bucket of a latency, in seconds."""

    count: Number
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ValuePoint(_Point):
    """One bucket of another metric."""

    value: float


Point = LatencyPoint | ValuePoint


class Timeseries(Answer):
    """`/timeseries`."""

    window: WindowOut
    metric: str
    unit: str
    step_s: float
    estimated: bool
    points: Sequence[Point]
    """Rates have none behind `window.complete_until`."""
    in_flight_violations: int | None
    """Requests in flight at the window's end that are past a threshold: bad by now, and in no bucket. Of `goodput` and
    `attainment`."""


class SeriesOfGroup(Value):
    """The points of one value of the column that `group_by` names."""

    estimated: bool
    points: Sequence[Point]
    in_flight_violations: int | None


class GroupedTimeseries(Timeseries):
    """`/timeseries`."""

    groups: list[SeriesOfGroup] | None = None
    """The values with the most requests first, as many as `top` says, then the others together; absent without
    `group_by`."""
    groups_total: int | None = None
    """All values, also those that have no group of their own."""


def timeseries(
    reader: Reader,
    window: Window,
    vantage: Sequence[str],
    metric: Metric,
    step_ns: int,
    slo: Slo | None,
    *,
    latencies: Sequence[Metric] = (),
    group_by: tuple[str, int] | None = None,
) -> GroupedTimeseries:
    """A metric over time. `slo` keeps the requests that it selects, and judges them.

    Without it, all SLOs do, and each request counts once, as measured at these vantages. The caller asks for
    `latencies` too, so they are read at once. `group_by`: a column, and how many of its values have a series
    of their own; each is read for itself.
    """
    if slo is not None:  # it selects one vantage
        window = replace(window, filter=all_of(window.filter, selects(slo, "chosen")))
    elif metric not in OF_PROCESSES:
        window = without_doubles(reader, window, vantage)
    complete_ns = reader.complete_ns
    buckets = _Buckets(step_ns, window.complete(complete_ns))
    slos = reader.slos if slo is None else (slo,)

    def series(window: Window, processes: Fragment = TRUE) -> dict[str, Any]:
        of_own = replace(buckets, covered=window.complete(complete_ns))
        points, sampled = _points(reader, window, of_own, metric, slos, latencies, processes)
        late = late_in_flight(reader, window, slos) if metric in _JUDGED else None
        return {"estimated": sampled, "points": points, "in_flight_violations": late}

    answer = GroupedTimeseries(
        window=WindowOut.of(window, complete_ns),
        metric=metric,
        unit=_UNITS[metric],
        step_s=step_ns / SECOND_NS,
        **series(window),
    )
    if group_by is not None:
        of_processes = metric in OF_PROCESSES
        groups = groups_of(reader, window, *group_by, of_processes=of_processes)
        read = [
            series(window, one.has) if of_processes else series(replace(window, filter=all_of(window.filter, one.has)))
            for one in groups.groups
        ]
        answer.groups = [SeriesOfGroup(**one.names, **of) for one, of in zip(groups.groups, read, strict=True)]
        answer.groups_total = groups.total
    return answer


@dataclass(frozen=True)
class _Buckets:
    """The width of buckets in nanoseconds, and the part of the window that is complete."""

    step: int
    covered: Window

    def of(self, bucket_ns: int) -> dict[str, Any]:
        """The fields of a bucket's point that tell its time."""
        covered_ns = self.covered_ns(bucket_ns)
        return {"t": rfc3339(bucket_ns), "partial": covered_ns < self.step, "covered_s": covered_ns / SECOND_NS}

    def covered_ns(self, bucket_ns: int) -> int:
        """How much of a bucket is inside the window and complete."""
        end_ns = min(bucket_ns + self.step, self.covered.end_ns)
        return max(0, end_ns - max(bucket_ns, self.covered.start_ns))


def _points(
    reader: Reader,
    window: Window,
    buckets: _Buckets,
    metric: Metric,
    slos: Sequence[Slo],
    latencies: Sequence[Metric],
    processes: Fragment,
) -> tuple[Sequence[Point], bool]:
    """The points, and whether they are estimated from sampled requests. `processes` selects them."""
    step = buckets.step
    of_processes = {"process_filter": all_of(process_filter(window), processes)}
    if metric in LATENCIES:
        return _latency_of_requests(reader, window, buckets, metric, latencies if metric in latencies else (metric,))
    if metric == "itl":
        return _latencies(itl.by_bucket(reader.queries, window, step), buckets), False
    if metric in ("kv_evictions", "preemptions"):
        rows = _ask(reader, "timeseries_kv_events", buckets.covered, step, of_processes)
        if metric == "preemptions":
            grown = samples.growth(reader, buckets.covered, ["preemptions"], step, processes)
            rows = samples.merged(rows, ({"bucket_ns": r["bucket_ns"], "preemptions": r["growth"]} for r in grown))
        return _per_second(rows, metric, buckets), False
    if metric in ("kv_usage", "running", "waiting"):
        steps = _ask(reader, "timeseries_steps", window, step, of_processes)
        sampled_too = samples.gauges(reader, window, step, {row["bucket_ns"] for row in steps}, processes)
        rows = samples.merged(steps, sampled_too)
        return _known(rows, metric, buckets), False
    if metric in _JUDGED:
        counts, sampled = judged_by_bucket(reader, window, buckets.covered, step, slos)
    else:
        counts, sampled = ended_by_bucket(reader, buckets.covered, step, slos)
    rows = [{"bucket_ns": bucket_ns, **row} for bucket_ns, row in counts.items()]
    return (_known if metric == "attainment" else _per_second)(rows, metric, buckets), sampled


def _latency_of_requests(
    reader: Reader, window: Window, buckets: _Buckets, metric: Metric, names: Sequence[Metric]
) -> tuple[Sequence[Point], bool]:
    """Exact percentiles, or weighted ones as in numbers/queries/estimated_latency.sql. `names` are read at once."""

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
    value, known = f"assumeNotNull({ns_of(name)})", f"{ns_of(name)} IS NOT NULL"
    n, quantiles = f"countIf({known})", f"quantilesExactInclusiveIf{_QUANTILES}({value}, {known})"
    if weighted:
        weight = "toUInt64(round(weight * 1000))"
        n, quantiles = f"sumIf(weight, {known})", f"quantilesExactWeightedIf{_QUANTILES}({value}, {weight}, {known})"
    return f"({n}, {quantiles}, maxIf({value}, {known}), countIf(is_sampled AND {known}))"


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
        begin = row["bucket_ns"]
        value = row[metric] * SECOND_NS / buckets.covered_ns(begin)
        points.append(ValuePoint(**buckets.of(begin), value=value))
    return points


def _known(rows: Sequence[Mapping[str, Any]], metric: str, buckets: _Buckets) -> list[ValuePoint]:
    """Values as they are, where they are known."""
    known = [(row["bucket_ns"], row[metric]) for row in rows if row[metric] is not None]
    return [ValuePoint(**buckets.of(bucket_ns), value=value) for bucket_ns, value in known]
