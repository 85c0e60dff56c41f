"""Latencies from engines' own histograms, as bounds: a histogram has no exact quantile."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import WindowOut
from collector.count.reader import Reader
from collector.count.samples import LOOK_BACK_NS, serves

_LATENCIES: Final = ("ttft", "itl", "tpot", "e2e", "queue")


class Between(Answer):
    """A quantile that a histogram tells: over `above_s`, and at most `up_to_s`, which is null above the last bound."""

    above_s: float
    up_to_s: float | None


class SampledLatency(Answer):
    """One latency of a service, from the buckets of its histograms."""

    service: str
    process_tenant: str
    engine: str
    name: str
    """`ttft`, `itl`, `tpot`, `e2e` or `queue`."""
    count: int
    mean_s: float | None
    """Null where a histogram tells no sum."""
    p50: Between
    p90: Between
    p95: Between
    p99: Between


class SampledLatencies(Answer):
    """`/samples/latencies`."""

    window: WindowOut
    latencies: list[SampledLatency]


def sampled_latencies(reader: Reader, window: Window) -> SampledLatencies:
    """The latencies of the window, of each service whose histograms tell them."""
    told = WindowOut.of(window, reader.complete_ns)
    rows = reader.queries.rows(
        "sample_histograms",
        {"service_filter": serves(window)},
        **window.bounds,
        before_ns=LOOK_BACK_NS,
        names=[*_LATENCIES],
    )
    return SampledLatencies(window=told, latencies=[_latency(row) for row in rows if sum(row["observations"])])


def _latency(row: Mapping[str, Any]) -> SampledLatency:
    count = sum(row["observations"])
    p50, p90, p95, p99 = (between(quantile, row["bounds"], row["observations"]) for quantile in (0.5, 0.9, 0.95, 0.99))
    return SampledLatency(
        service=row["service"],
        process_tenant=row["process_tenant"],
        engine=row["engine"],
        name=row["name"],
        count=count,
        mean_s=None if math.isnan(row["total"]) else row["total"] / count,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
    )


def between(quantile: float, bounds: Sequence[float], observations: Sequence[int]) -> Between:
    """The bounds of a quantile with inclusive interpolation. `observations` has one more entry than `bounds`.

    between(0.5, [1, 2, 5], [1, 2, 1, 0]): of 4 values, the 2nd and the 3rd lie in (1, 2], and so does the median
    """
    count = sum(observations)
    place = quantile * (count - 1)
    upper = [*itertools.accumulate(observations)]
    # Of more than 2^53 observations, a double may round up to a rank that none has.
    ranks = (min(rank, count - 1) for rank in (math.floor(place), math.ceil(place)))
    first, last = (bisect.bisect_right(upper, rank) for rank in ranks)
    return Between(above_s=bounds[first - 1] if first else 0.0, up_to_s=bounds[last] if last < len(bounds) else None)
