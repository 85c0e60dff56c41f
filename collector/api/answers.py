"""Response models that several endpoints share. Durations are seconds, times RFC 3339, undefined numbers null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from collector.api.parameters import Window
from collector.api.times import SECOND_NS, rfc3339
from collector.slo.counts import Counts, Number
from collector.slo.model import Thresholds

LEVELS: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
"""The percentiles of a `Distribution`."""


def seconds(ns: float | None) -> float | None:
    """Nanoseconds as seconds; None stays None."""
    return None if ns is None else ns / SECOND_NS


class WindowOut(BaseModel):
    """The window of time that was asked about."""

    start: str
    end: str
    seconds: float

    @classmethod
    def of(cls, window: Window) -> WindowOut:
        """The window as answers repeat it."""
        return cls(start=rfc3339(window.start_ns), end=rfc3339(window.end_ns), seconds=window.seconds)


class ThresholdsOut(BaseModel):
    """Thresholds; null for a latency without one."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None

    @classmethod
    def of(cls, thresholds: Thresholds) -> ThresholdsOut:
        """The thresholds as answers repeat them."""
        return cls(ttft_s=seconds(thresholds.ttft), tpot_s=seconds(thresholds.tpot), e2e_s=seconds(thresholds.e2e))


class Distribution(BaseModel):
    """Exact percentiles, and the number of values they are computed from."""

    count: Number
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    max: float | None

    @classmethod
    def empty(cls) -> Distribution:
        """The distribution of no values."""
        return cls.model_validate(dict.fromkeys(cls.model_fields) | {"count": 0})

    @classmethod
    def of(cls, row: Mapping[str, Any], name: str) -> Distribution:
        """The columns `{name}_count`, `{name}_mean`, `{name}_quantiles` and `{name}_max` of a row, in nanoseconds."""
        if row[f"{name}_count"] == 0:
            return cls.empty()
        p50, p90, p95, p99, p999 = map(seconds, row[f"{name}_quantiles"])
        return cls(
            count=row[f"{name}_count"], mean=seconds(row[f"{name}_mean"]), max=seconds(row[f"{name}_max"]),
            p50=p50, p90=p90, p95=p95, p99=p99, p999=p999,
        )  # fmt: skip


def tokens_per_s(tokens: Number | None, requests: Number, window: Window) -> float | None:
    """A sum of tokens as a rate. None when there are requests and none of them says how many tokens it had."""
    return None if tokens is None and requests else (tokens or 0) / window.seconds


class Goodput(BaseModel):
    """Good requests, and the output tokens that belong to them, per second.

    Null when none of the requests is judged, because no SLO selects them or a value is not known.
    """

    requests_per_s: float | None
    output_tokens_per_s: float | None

    @classmethod
    def of(cls, requests: Counts, tokens: Mapping[str, Number | None], window: Window) -> Goodput:
        """Goodput of a window, from the counts and sums of `evaluation.count`."""
        per_s = requests.goodput(window.seconds)
        of_tokens = tokens_per_s(tokens.get("tokens_good"), requests.good, window)
        return cls(requests_per_s=per_s, output_tokens_per_s=None if per_s is None else of_tokens)


class PhaseOut(BaseModel):
    """One phase of a request, or one sub-phase of a cold start."""

    name: str
    offset_s: float
    duration_s: float
