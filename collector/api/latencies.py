"""Percentiles of latencies per request: exact, or estimated with standard errors when requests were sampled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from math import floor, fsum, sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.api.answers import LEVELS, Distribution, seconds
from collector.api.context import Context
from collector.api.parameters import Window
from collector.api.sums import Slice, slices
from collector.slo.counts import Number
from collector.sql.fragment import Fragment
from collector.sql.queries import Queries, part

LATENCIES: Final = ("ttft", "tpot", "e2e", "queue")
_BUCKETS: Final = 32 * 1024 + 1
_FEW: Final = 10_000
_MOST_ATTEMPTS: Final = 3
"""Rows of the present day may arrive between two queries. After so many attempts one query reads all values."""

QuantileErrors = dict[str, float]
"""The standard error of each percentile, in seconds."""


def exact(ctx: Context, window: Window, ok: Number) -> dict[str, Distribution]:
    """The distribution of every latency. About `ok` requests ended ok: of few, the latencies are read as they are."""
    if ok < _FEW:
        rows = ctx.queries.array(
            "latency_rows", {"filter": window.filter}, (np.float64, len(LATENCIES)), **window.bounds, limit=2 * _FEW
        )
        if len(rows) < 2 * _FEW:
            return {name: _of_values(values[~np.isnan(values)]) for name, values in zip(LATENCIES, rows.T, strict=True)}
    parts = [*slices([window.end_ns, window.start_ns])]
    if len(parts) > 1:
        found = {name: _in_attempts(ctx.queries, window.filter, parts, name) for name in LATENCIES}
        known = {name: distribution for name, distribution in found.items() if distribution is not None}
        if len(known) == len(found):
            return known
    row = ctx.queries.row("latencies", {"filter": window.filter}, **window.bounds)
    return {name: Distribution.of(row, name) for name in LATENCIES}


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


def _in_attempts(queries: Queries, matching: Fragment, parts: Sequence[Slice], name: str) -> Distribution | None:
    attempts = (_of_days(queries, matching, parts, name) for _ in range(_MOST_ATTEMPTS))
    return next((found for found in attempts if found is not None), None)


def _of_days(queries: Queries, matching: Fragment, parts: Sequence[Slice], name: str) -> Distribution | None:
    """The distribution of one latency over many days, in two steps. None: rows came in between.

    The first step counts requests in narrow buckets of whole microseconds. The counts tell the bucket of each
    percentile, and the second step reads the values of these buckets alone:

        buckets 10, 11, 12 with 500, 300, 200 requests    p90 has the rank 899.1: in bucket 12, behind 800 others
    """
    columns = {"us": Fragment(f"{name}_us"), "ns": Fragment(f"{name}_ns")}
    bucket = part("latency_bucket", {"us": columns["us"]})
    counted = [p.columns(queries, "latency_buckets", {"bucket": bucket, "ns": columns["ns"]}, matching) for p in parts]
    buckets = np.concatenate([np.array(c["bucket"], np.int64) for c in counted])
    n = np.zeros(_BUCKETS, np.int64)
    np.add.at(n, buckets, np.concatenate([np.array(c["n"], np.int64) for c in counted]))
    count = int(n.sum())
    if not count:
        return Distribution.empty()
    until = n.cumsum()
    ranks = np.array([*LEVELS.values()]) * (count - 1)
    whole = np.unique(np.concatenate([np.floor(ranks), np.ceil(ranks)]).astype(np.int64))
    hit = np.searchsorted(until, whole, side="right")
    wanted = {"ns": columns["ns"], "within": _within(columns["us"], sorted({*hit.tolist()}))}
    read = [p.columns(queries, "latency_values", wanted, matching)["ns"] for p in parts]
    values = np.sort(np.array([*chain(*read)]))
    of_read = np.where(np.isin(np.arange(_BUCKETS), hit), n, 0)
    if len(values) != of_read.sum():
        return None
    unread_before = (until - n)[hit] - (of_read.cumsum() - of_read)[hit]
    by_rank = dict(zip(whole.tolist(), values[whole - unread_before].tolist(), strict=True))
    low, high = ([by_rank[int(rank)] for rank in side(ranks)] for side in (np.floor, np.ceil))
    percentiles = [a + (rank - floor(rank)) * (b - a) for rank, a, b in zip(ranks, low, high, strict=True)]
    return Distribution(
        count=count,
        mean=seconds(sum(fsum(c["total"]) for c in counted) / count),
        max=seconds(max(chain(*(c["largest"] for c in counted)))),
        **dict(zip(LEVELS, map(seconds, percentiles), strict=True)),
    )


def _within(us: Fragment, buckets: Sequence[int]) -> Fragment:
    """SQL: the latency lies in one of these buckets."""
    edges = [(_first_us(bucket), _first_us(bucket + 1) - 1) for bucket in buckets]
    return Fragment(" OR ".join(f"{us.sql} BETWEEN {first} AND {last}" for first, last in edges))


def bucket_of(us: int) -> int:
    """The bucket of whole microseconds, as sql/parts/latency_bucket.sql has it: 1,024 for each power of two."""
    return int(np.float32(max(us, 1)).view(np.uint32) >> 13) - (127 << 10)


def _first_us(bucket: int) -> int:
    """The fewest microseconds of a bucket or of a later one."""
    return bisect_left(range(2**32), bucket, key=bucket_of)


def estimated(ctx: Context, window: Window) -> tuple[dict[str, Distribution], dict[str, QuantileErrors]]:
    """The same over the weights of sampled requests, and the errors of those that have values, by field."""
    found = {name: _estimated(ctx, window, name) for name in LATENCIES}
    errors = {f"{name}_s": errors for name, (_, errors) in found.items() if errors is not None}
    return {name: distribution for name, (distribution, _) in found.items()}, errors


def _estimated(ctx: Context, window: Window, name: str) -> tuple[Distribution, QuantileErrors | None]:
    value = {"value": Fragment(f"{name}_ns"), "filter": window.filter}

    def quantiles(levels: Sequence[float]) -> dict[str, Any]:
        return ctx.queries.row("estimated_latency", {**value, "levels": _levels(levels)}, **window.bounds)

    row = quantiles([*LEVELS.values()])
    if not row["n"]:
        return Distribution.empty(), None
    variance = ctx.queries.row("estimated_latency_variance", value, **window.bounds, limits=row["quantiles"])
    share_errors = [
        share_error(level, below, variance["total"], row["n"])
        for level, below in zip(LEVELS.values(), variance["below"], strict=True)
    ]
    low = quantiles([max(p - e, 0.0) for p, e in zip(LEVELS.values(), share_errors, strict=True)])
    high = quantiles([min(p + e, 1.0) for p, e in zip(LEVELS.values(), share_errors, strict=True)])
    distribution = Distribution(
        count=row["n"],
        mean=seconds(row["mean"]),
        max=seconds(row["largest"]),
        **dict(zip(LEVELS, map(seconds, row["quantiles"]), strict=True)),
    )
    widths = zip(LEVELS, low["quantiles"], high["quantiles"], strict=True)
    return distribution, {level: (b - a) / 2 / 1e9 for level, a, b in widths}


def share_error(level: float, below: float, total: float, weight: float) -> float:
    """Standard error of the share of requests at or below a percentile, from sums of w(w - 1) up to it and in all.

    The linearised variance of the ratio: Σ w(w - 1)(1[x ≤ q] - p)² ÷ W². The percentiles at p ± this error bound the
    percentile (Woodruff: Confidence intervals for medians and other position measures, JASA 47, 1952).
    """
    return sqrt(below * (1 - level) ** 2 + (total - below) * level**2) / weight


def _levels(levels: Sequence[float]) -> Fragment:
    return Fragment(", ".join(f"{level:.9f}" for level in levels))
