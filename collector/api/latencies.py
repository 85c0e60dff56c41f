"""Percentiles of latencies per request: exact, or estimated with standard errors when requests were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.api.answers import Distribution, seconds
from collector.api.context import Context
from collector.api.parameters import Window
from collector.sql.fragment import Fragment

LATENCIES: Final = ("ttft", "tpot", "e2e", "queue")
LEVELS: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}

QuantileErrors = dict[str, float]
"""The standard error of each percentile, in seconds."""


def exact(ctx: Context, window: Window) -> dict[str, Distribution]:
    """The distribution of every latency."""
    row = ctx.queries.row("latencies", {"filter": window.filter}, **window.bounds)
    return {name: Distribution.of(row, name) for name in LATENCIES}


def itl(ctx: Context, window: Window) -> Distribution:
    """The distribution over tokens. The query reads all requests of the window, so it is not run without a token."""
    if not ctx.queries.rows("itl_exists", end_ns=window.end_ns):
        return Distribution.empty()
    found = ctx.queries.columns("itl", {"filter": window.filter}, **window.bounds)
    return _of_counts(np.array(found["duration_us"], np.uint64) * 1000, np.array(found["n"], np.uint64))


def _of_counts(values_ns: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]) -> Distribution:
    """The distribution of values that occur `counts` times each, with the percentiles of `numpy.percentile`.

    values [10, 30], counts [3, 1]: 10, 10, 10, 30    p90 has the rank 0.9 · 3 = 2.7, between 10 and 30: 24
    """
    if not values_ns.size:
        return Distribution.empty()
    order = np.argsort(values_ns)
    values_ns, until = values_ns[order], counts[order].cumsum()
    ranks = np.array([*LEVELS.values()]) * float(until[-1] - 1)
    low, high = (
        values_ns[np.searchsorted(until, part(ranks), side="right")].astype(float) for part in (np.floor, np.ceil)
    )
    percentiles = low + (ranks - np.floor(ranks)) * (high - low)
    return Distribution(
        count=int(until[-1]),
        mean=seconds(float(np.average(values_ns, weights=counts[order]))),
        max=seconds(int(values_ns[-1])),
        **dict(zip(LEVELS, map(seconds, percentiles.tolist()), strict=True)),
    )


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
