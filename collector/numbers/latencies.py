"""Percentiles of latencies per request: exact, or estimated with standard errors when requests were sampled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import floor, sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.ask.queries import Queries
from collector.ask.slices import Slice, slices
from collector.ask.template import part
from collector.ask.window import Window
from collector.count.answers import LEVELS, Distribution, seconds
from collector.count.reader import Reader
from collector.slo.counts import Number
from collector.slo.judge import LARGEST_US, column_of
from collector.sql.fragment import Fragment, any_of

LATENCIES: Final = ("ttft", "tpot", "e2e", "queue", "gap")
_BUCKETS: Final = 32 * 1024 + 1
_FEW: Final = 10_000
_MOST_ROWS: Final = 500_000
_MOST_ATTEMPTS: Final = 3
"""Rows of past days may arrive between two queries. After so many attempts one query reads all values."""
_BUCKET: Final = np.dtype([("bucket", "<u2"), ("n", "<u8"), ("total", "<f8"), ("largest", "<f8")])
_VALUE: Final = np.dtype([("ns", "<f8")])

Floats = npt.NDArray[np.float64]
QuantileErrors = dict[str, float]
"""The standard error of each percentile, in seconds."""


def ns_of(name: str) -> str:
    """SQL: a latency in nanoseconds, NULL where it is not known or cannot exist. No answer has a longest gap of 0."""
    return "nullIf(gap_ns, 0)" if name == "gap" else f"{name}_ns"


def exact(reader: Reader, window: Window, ok: Number) -> dict[str, Distribution]:
    """The distribution of every latency. About `ok` requests ended ok: of few, the latencies are read as they are."""
    if ok < _FEW:
        in_window = Fragment(part("ended_in_window", {}).sql, window.bounds)
        rows = _rows(reader.queries, window.filter, in_window, 2 * _FEW)
        if rows is not None:
            return {name: _of_values(values[~np.isnan(values)]) for name, values in zip(LATENCIES, rows.T, strict=True)}
    parts = [*slices([window.end_ns, window.start_ns])]
    whole = [one for one in parts if one.hours]
    if whole:
        rest = _rest(reader.queries, window.filter, [one.ended for one in parts if not one.hours])
        asked, values = (parts, np.empty((0, len(LATENCIES)))) if rest is None else (whole, rest)
        distributions = {
            name: _in_attempts(reader.queries, window.filter, asked, name, values[:, i])
            for i, name in enumerate(LATENCIES)
        }
        known = {name: distribution for name, distribution in distributions.items() if distribution is not None}
        if len(known) == len(distributions):
            return known
    every = _by(reader, window, Fragment("''"))
    return every.get("", dict.fromkeys(LATENCIES, Distribution.empty()))


def exact_by(reader: Reader, window: Window, column: str) -> dict[str, dict[str, Distribution]]:
    """The distributions of every latency for each value of a column that has requests which ended ok."""
    return _by(reader, window, column_of(column, "by"))


def _by(reader: Reader, window: Window, column: Fragment) -> dict[str, dict[str, Distribution]]:
    rows = reader.queries.rows("latencies", {"column": column, "filter": window.filter}, **window.bounds)
    return {row["value"]: {name: Distribution.of(row, name) for name in LATENCIES} for row in rows}


def _rest(queries: Queries, matching: Fragment, ended: Sequence[Fragment]) -> Floats | None:
    """The latencies of the requests that are in no whole day and no whole hours; None for too many."""
    return _rows(queries, matching, any_of(*ended), _MOST_ROWS) if ended else np.empty((0, len(LATENCIES)))


def _rows(queries: Queries, matching: Fragment, ended: Fragment, limit: int) -> Floats | None:
    """The latencies of each request that ended ok, in ns, with NaN for one that is not known; None for too many."""
    fragments = {"filter": matching, "ended": ended}
    rows = queries.array("latency_rows", fragments, (np.float64, len(LATENCIES)), limit=limit)
    return rows if len(rows) < limit else None


def _of_values(values_ns: npt.NDArray[np.float64]) -> Distribution:
    if not values_ns.size:
        return Distribution.empty()
    percentiles = np.percentile(values_ns, [100 * level for level in LEVELS.values()]).tolist()
    return Distribution(
        count=values_ns.size,
        mean=seconds(float(values_ns.mean())),
        max=seconds(float(values_ns.max())),
        **dict(zip(LEVELS, map(seconds, percentiles), strict=True)),
    )


def _in_attempts(
    queries: Queries, matching: Fragment, parts: Sequence[Slice], name: str, rest: Floats
) -> Distribution | None:
    attempts = (_of_slices(queries, matching, parts, name, rest) for _ in range(_MOST_ATTEMPTS))
    return next((found for found in attempts if found is not None), None)


def _of_slices(
    queries: Queries, matching: Fragment, parts: Sequence[Slice], name: str, rest: Floats
) -> Distribution | None:
    """The distribution of one latency over slices of a window and the rest, in two steps. None: rows came in between.

    The first step counts requests in narrow buckets of whole microseconds. The counts tell the bucket of each
    percentile, and the second step reads the values of these buckets alone:

        buckets 10, 11, 12 with 500, 300, 200 requests    p90 has the rank 899.1: in bucket 12, behind 800 others
    """
    rest = rest[~np.isnan(rest)]
    buckets_of_rest = buckets_of(rest)
    us, ns = Fragment(f"{name}_us"), Fragment(ns_of(name))
    bucket = {"bucket": part("latency_bucket", {"us": us}), "ns": ns}
    counted = [one.arrays(queries, "latency_buckets", bucket, matching, _BUCKET) for one in parts]
    n = np.bincount(buckets_of_rest, minlength=_BUCKETS)
    for one in counted:
        n[one["bucket"]] += one["n"].astype(np.int64)
    count = int(n.sum())
    if not count:
        return Distribution.empty()
    until = n.cumsum()
    ranks = np.array([*LEVELS.values()]) * (count - 1)
    whole = np.unique(np.concatenate([np.floor(ranks), np.ceil(ranks)]).astype(np.int64))
    hit = np.searchsorted(until, whole, side="right")
    wanted = {"ns": ns, "within": _within(us, sorted({*hit.tolist()}))}
    read = [one.arrays(queries, "latency_values", wanted, matching, _VALUE)["ns"] for one in parts]
    values = np.sort(np.concatenate([rest[np.isin(buckets_of_rest, hit)], *read]))
    of_read = np.where(np.isin(np.arange(_BUCKETS), hit), n, 0)
    if len(values) != of_read.sum():
        return None
    unread_before = (until - n)[hit] - (of_read.cumsum() - of_read)[hit]
    by_rank = dict(zip(whole.tolist(), values[whole - unread_before].tolist(), strict=True))
    low, high = ([by_rank[int(rank)] for rank in side(ranks)] for side in (np.floor, np.ceil))
    percentiles = [a + (rank - floor(rank)) * (b - a) for rank, a, b in zip(ranks, low, high, strict=True)]
    totals, largest = ([rest, *(one[column] for one in counted)] for column in ("total", "largest"))
    return Distribution(
        count=count,
        mean=seconds(sum(float(one.sum()) for one in totals) / count),
        max=seconds(max(float(one.max()) for one in largest if one.size)),
        **dict(zip(LEVELS, map(seconds, percentiles), strict=True)),
    )


def _within(us: Fragment, buckets: Sequence[int]) -> Fragment:
    """SQL: the latency lies in one of these buckets."""
    edges = [(_first_us(bucket), _first_us(bucket + 1) - 1) for bucket in buckets]
    return Fragment(" OR ".join(f"{us.sql} BETWEEN {first} AND {last}" for first, last in edges))


def buckets_of(values_ns: Floats) -> npt.NDArray[np.int64]:
    """The buckets of latencies, as ask/sql/latency_bucket.sql has them: 1,024 for each power of two of µs."""
    us = np.clip(np.ceil(np.ceil(values_ns) / 1000), 1, LARGEST_US)
    return (us.astype(np.float32).view(np.uint32) >> 13).astype(np.int64) - (127 << 10)


def bucket_of(us: int) -> int:
    """The bucket of whole microseconds."""
    return int(buckets_of(np.array([us * 1000.0]))[0])


def _first_us(bucket: int) -> int:
    """The fewest microseconds of a bucket or of a later one."""
    return bisect_left(range(2**32), bucket, key=bucket_of)


def estimated(reader: Reader, window: Window) -> tuple[dict[str, Distribution], dict[str, QuantileErrors]]:
    """The distributions by the weights of sampled requests, and the errors of those that have values, by field."""
    estimates = {name: _estimated(reader, window, name) for name in LATENCIES}
    errors = {f"{name}_s": errors for name, (_, errors) in estimates.items() if errors is not None}
    return {name: distribution for name, (distribution, _) in estimates.items()}, errors


def _estimated(reader: Reader, window: Window, name: str) -> tuple[Distribution, QuantileErrors | None]:
    value = {"value": Fragment(ns_of(name)), "filter": window.filter}

    def quantiles(levels: Sequence[float]) -> dict[str, Any]:
        return reader.queries.row("estimated_latency", {**value, "levels": _levels(levels)}, **window.bounds)

    row = quantiles([*LEVELS.values()])
    if not row["n"]:
        return Distribution.empty(), None
    variance = reader.queries.row("estimated_latency_variance", value, **window.bounds, limits=row["quantiles"])
    share_errors = [
        share_error(level, below, variance["total"], row["n"])
        for level, below in zip(LEVELS.values(), variance["below"], strict=True)
    ]
    low = [max(p - e, 0.0) for p, e in zip(LEVELS.values(), share_errors, strict=True)]
    high = [min(p + e, 1.0) for p, e in zip(LEVELS.values(), share_errors, strict=True)]
    bounds = quantiles([*low, *high])["quantiles"]
    distribution = Distribution(
        count=row["n"],
        mean=seconds(row["mean"]),
        max=seconds(row["largest"]),
        **dict(zip(LEVELS, map(seconds, row["quantiles"]), strict=True)),
    )
    widths = zip(LEVELS, bounds[: len(low)], bounds[len(low) :], strict=True)
    return distribution, {level: (b - a) / 2 / 1e9 for level, a, b in widths}


def share_error(level: float, below: float, total: float, weight: float) -> float:
    """Standard error of the share of requests at or below a percentile, from sums of w(w - 1) up to it and in all.

    The linearised variance of the ratio: Σ w(w - 1)(1[x ≤ q] - p)² ÷ W². The percentiles at p ± this error bound the
    percentile (Woodruff: Confidence intervals for medians and other position measures, JASA 47, 1952).
    """
    return sqrt(below * (1 - level) ** 2 + (total - below) * level**2) / weight


def _levels(levels: Sequence[float]) -> Fragment:
    return Fragment(", ".join(f"{level:.9f}" for level in levels))
