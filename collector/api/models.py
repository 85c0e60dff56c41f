"""Shapes of counts and judgements, for OpenAPI too. Durations are seconds, times RFC 3339, undefined is null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

Severity = Literal["page", "ticket"]


class WindowOut(BaseModel):
    """The stretch of time that was asked about."""

    start: str
    end: str
    seconds: float


class Counts(BaseModel):
    """Requests: ended in the window, and in flight at its end."""

    total: int
    ok: int
    good: int
    failed: int
    cancelled: int
    in_flight: int
    in_flight_violations: int
    lost: int


class Distribution(BaseModel):
    """Exact percentiles with the count they rest on."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    max: float | None


class Throughput(BaseModel):
    """Over all requests that ended in the window."""

    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float


class Goodput(BaseModel):
    """Over the good ones."""

    requests_per_s: float
    output_tokens_per_s: float


class Summary(BaseModel):
    """`/summary`."""

    window: WindowOut
    requests: Counts
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution
    queue_s: Distribution
    throughput: Throughput
    goodput: Goodput
    attainment: float | None


class ThresholdsOut(BaseModel):
    """Null where nothing is promised."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None


class Violations(BaseModel):
    """Requests by what they missed; one may be in several."""

    ttft: int
    tpot: int
    e2e: int
    failed: int


class Surface(BaseModel):
    """Attainment for every pair of thresholds; `ttft_s` indexes rows."""

    ttft_s: list[float]
    tpot_s: list[float]
    attainment: list[list[float | None]]


class GoodputAnswer(BaseModel):
    """`/goodput`."""

    window: WindowOut
    thresholds: ThresholdsOut
    requests: Counts
    goodput: Goodput
    attainment: float | None
    violations: Violations
    surface: Surface | None = None


class BurnOut(BaseModel):
    """One multi-window burn-rate rule."""

    name: str
    severity: Severity
    short_s: float
    long_s: float
    threshold: float
    short_burn: float | None
    long_burn: float | None
    firing: bool


class SloOut(BaseModel):
    """One SLO over its own window."""

    name: str
    description: str
    objective: float
    window_s: float
    select: dict[str, list[str]]
    thresholds: ThresholdsOut
    requests: Counts
    attainment: float | None
    goodput_rps: float
    budget_left: float | None
    burn: list[BurnOut]
    firing: Severity | None


class Slos(BaseModel):
    """`/slos`."""

    slos: list[SloOut]


class LatencyPoint(BaseModel):
    """One bucket of a latency; seconds."""

    t: str
    count: int
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ValuePoint(BaseModel):
    """One bucket of anything else."""

    t: str
    value: float


class Timeseries(BaseModel):
    """`/timeseries`."""

    metric: str
    unit: str
    step_s: float
    points: Sequence[LatencyPoint | ValuePoint]
