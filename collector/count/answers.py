"""Response models that several endpoints share. Durations are seconds, times RFC 3339, undefined numbers null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from collector.ask.times import SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.slo.counts import Counts, Number
from collector.slo.model import Thresholds

LEVELS: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
"""The percentiles of a `Distribution`."""


def seconds(ns: float | None) -> float | None:
    """Nanoseconds as seconds; None stays None."""
    return None if ns is None else ns / SECOND_NS


class WindowOut(Answer):
    """The window of time that was asked about."""

    start: str
    end: str
    seconds: float
    complete_until: str
    """What ended before is in the answer; what ended later may be on its way."""
    covered_s: float
    """The seconds of the window before `complete_until`, by which rates divide; 0 where the window begins later."""

    @classmethod
    def of(cls, window: Window, complete_ns: int) -> WindowOut:
        """The window as answers repeat it."""
        return cls(
            start=rfc3339(window.start_ns),
            end=rfc3339(window.end_ns),
            seconds=window.seconds,
            complete_until=rfc3339(min(window.end_ns, complete_ns)),
            covered_s=window.complete(complete_ns).seconds,
        )


class ThresholdsOut(Answer):
    """Thresholds; null for a latency without one."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    gap_s: float | None
    first_visible_s: float | None

    @classmethod
    def of(cls, thresholds: Thresholds) -> ThresholdsOut:
        """The thresholds as answers repeat them."""
        return cls.model_validate({f"{name}_s": seconds(getattr(thresholds, name)) for name in Thresholds.model_fields})


class Distribution(Answer):
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


def per_s(n: Number | None, covered_s: float) -> float | None:
    """A count as a rate; None for an unknown count, or in a time of which nothing is known yet."""
    return None if n is None or not covered_s else n / covered_s


@dataclass(frozen=True)
class Covered:
    """The requests that ended in the part of a window that is complete, and the sums over them."""

    seconds: float
    requests: Counts
    sums: Mapping[str, Number | None]

    def tokens_per_s(self, name: str, requests: Number) -> float | None:
        """A sum of tokens as a rate. None when there are requests and none of them says how many tokens it had."""
        tokens = self.sums.get(name)
        return per_s(None if tokens is None and requests else tokens or 0, self.seconds)


class Goodput(Answer):
    """Good requests, and the output tokens that belong to them, per second of the time that is complete.

    Null when none of the requests is judged, because no SLO selects them or a value is not known.
    """

    requests_per_s: float | None
    output_tokens_per_s: float | None

    @classmethod
    def of(cls, covered: Covered) -> Goodput:
        """Goodput of a window."""
        known = covered.requests.good_is_known
        return cls(
            requests_per_s=per_s(covered.requests.good, covered.seconds) if known else None,
            output_tokens_per_s=covered.tokens_per_s("tokens_good", covered.requests.good) if known else None,
        )


class PhaseOut(Answer):
    """One phase of a request, or one sub-phase of a cold start."""

    name: str
    offset_s: float
    duration_s: float
