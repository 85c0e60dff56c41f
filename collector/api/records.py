"""Shapes of what is said about single requests, engine processes and incidents, as in models.py."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


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
