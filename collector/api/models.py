"""The answers' shapes, which make the OpenAPI document. Durations are seconds, times RFC 3339, undefined is null."""

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


class RequestRow(BaseModel):
    """One request. While it is in flight, what its announcements said."""

    trace_id: str
    span_id: str
    request_id: str
    engine: str
    service: str
    instance: str
    variant: str
    vantage: str
    operation: str
    model: str
    tenant: str
    slo_class: str
    start: str
    end: str | None
    status: Literal["ok", "error", "cancelled", "in_flight"]
    error_type: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    preemptions: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    queue_s: float | None
    cold_start_s: float | None
    prefill_s: float | None
    decode_s: float | None
    preempted_s: float | None
    kv_transfer_s: float | None
    stalled_s: float | None


class Requests(BaseModel):
    """`/requests`."""

    requests: list[RequestRow]
    total: int


class PhaseOut(BaseModel):
    """A stretch of a request's life, or a sub-phase of a cold start."""

    name: str
    offset_s: float
    duration_s: float


class TokenOut(BaseModel):
    """One token: when it was emitted, and the wait for it."""

    index: int
    offset_s: float
    duration_s: float
    step: int


class EventOut(BaseModel):
    """What happened to the engine process meanwhile."""

    kind: str
    reason: str
    offset_s: float
    duration_s: float
    blocks: int
    own: bool


class StepOut(BaseModel):
    """One step of the engine process."""

    step: int
    offset_s: float
    duration_s: float
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    preempted: int
    kv_blocks_used: int
    kv_blocks_total: int
    kv_blocks_evicted: int


class RequestDetail(BaseModel):
    """`/requests/{trace_id}`."""

    request: RequestRow
    span_ids: list[str]
    phases: list[PhaseOut]
    tokens: list[TokenOut]
    events: list[EventOut]
    steps: list[StepOut]


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


class KvEngine(BaseModel):
    """One engine process: its newest step in the window, and sums over the window."""

    service: str
    instance: str
    variant: str
    seen: str
    blocks_used: int
    blocks_total: int
    usage: float | None
    running: int
    waiting: int
    evicted_blocks: int
    evictions: int
    preemptions: int


class Kv(BaseModel):
    """`/kv`."""

    engines: list[KvEngine]


class ColdStartOut(BaseModel):
    """One start of an engine process, with its sub-phases."""

    trace_id: str
    start: str
    duration_s: float
    engine: str
    service: str
    instance: str
    variant: str
    model: str
    status: Literal["ok", "error"]
    error_type: str
    phases: list[PhaseOut]


class ColdStarts(BaseModel):
    """`/cold_starts`."""

    cold_starts: list[ColdStartOut]


class EngineOut(BaseModel):
    """One engine process."""

    service: str
    instance: str
    engine: str
    variant: str
    models: list[str]
    first_seen: str
    last_seen: str
    requests: int


class Engines(BaseModel):
    """`/engines`."""

    engines: list[EngineOut]


class Incident(BaseModel):
    """A condition worth a look; `end` is null while it lasts."""

    cause: Literal["kv_eviction", "cold_start", "slo_burn", "engine_lost", "engine_hung"]
    severity: Literal["page", "ticket", "info"]
    title: str
    detail: str
    start: str
    end: str | None
    firing: bool
    slo: str | None
    instance: str | None
    requests_affected: int


class Incidents(BaseModel):
    """`/incidents`."""

    incidents: list[Incident]
