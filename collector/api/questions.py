"""What several endpoints need: counts of a window and the numbers that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collector.api.models import Counts, Distribution, Goodput, ThresholdsOut, WindowOut
from collector.api.parameters import Window
from collector.api.times import SECOND_NS, rfc3339
from collector.slo.burn import Windows
from collector.slo.judge import TRUE, Condition
from collector.slo.model import Slo, Thresholds
from collector.sql.queries import Queries


@dataclass(frozen=True)
class Context:
    """What the handlers work with."""

    queries: Queries
    slos: tuple[Slo, ...]
    windows: Windows
    lost_after_ns: int
    clock: Callable[[], int] = field(repr=False)
    """Unix nanoseconds."""


def counts(ctx: Context, window: Window, good: Condition, bad_already: Condition) -> tuple[Counts, Mapping[str, int]]:
    """Requests of a window by how they ended, and the sums of their tokens (tokens_out, tokens_all, tokens_good)."""
    ended = ctx.queries.ask_one("counts", {"filter": window.filter, "good": good}, **window.bounds)
    open_ = ctx.queries.ask_one(
        "in_flight_counts",
        {"filter": window.filter, "bad_already": bad_already},
        **window.bounds,
        lost_after_ns=ctx.lost_after_ns,
    )
    return Counts.model_validate({**ended, **open_}), ended


def attainment(requests: Counts) -> float | None:
    """Good ÷ all that were not cancelled, with those in flight that are bad already; None without any."""
    judged = requests.total - requests.cancelled + requests.in_flight_violations + requests.lost
    return requests.good / judged if judged else None


def goodput(requests: Counts, tokens: Mapping[str, int], window: Window) -> Goodput:
    """Good requests, and the output tokens that belong to them, per second."""
    return Goodput(
        requests_per_s=requests.good / window.seconds, output_tokens_per_s=tokens["tokens_good"] / window.seconds
    )


def window_out(window: Window) -> WindowOut:
    """A window as answers repeat it."""
    return WindowOut(start=rfc3339(window.start_ns), end=rfc3339(window.end_ns), seconds=window.seconds)


def thresholds_out(thresholds: Thresholds) -> ThresholdsOut:
    """Thresholds as answers repeat them."""
    return ThresholdsOut(
        ttft_s=seconds(thresholds.ttft), tpot_s=seconds(thresholds.tpot), e2e_s=seconds(thresholds.e2e)
    )


def seconds(ns: float | None) -> float | None:
    """Nanoseconds as seconds; None stays None."""
    return None if ns is None else ns / SECOND_NS


def nothing() -> Distribution:
    """The distribution of no values."""
    return Distribution.model_validate(dict.fromkeys(Distribution.model_fields) | {"count": 0})


def distribution(row: Mapping[str, Any], name: str) -> Distribution:
    """The columns `{name}_count`, `_mean`, `_quantiles` and `_max` of a row."""
    if row[f"{name}_count"] == 0:
        return nothing()
    quantiles: Sequence[float] = row[f"{name}_quantiles"]
    p50, p90, p95, p99, p999 = map(seconds, quantiles)
    return Distribution(
        count=row[f"{name}_count"], mean=seconds(row[f"{name}_mean"]), max=seconds(row[f"{name}_max"]),
        p50=p50, p90=p90, p95=p95, p99=p99, p999=p999,
    )  # fmt: skip


def of_engines(window: Window) -> dict[str, Condition]:
    """Conditions for what belongs to an engine process and not to a request: the process served matching requests."""
    return {"of_engines": TRUE} if window.filter == TRUE else {"filter": window.filter}
