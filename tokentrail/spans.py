"""Spans with varying strings (requests, announcements, cold starts), as OpenTelemetry's own `ReadableSpan`."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status as SpanStatus
from opentelemetry.trace.status import StatusCode

from tokentrail import semconv
from tokentrail.phases import Partition
from tokentrail.request import RequestEnd, RequestStart, RequestTrail
from tokentrail.semconv import Status
from tokentrail.wire import NO_RESOURCE

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Emitted(NamedTuple):
    """The number of tokens of a request, and the stamps of the first and the last (unix ns; 0 when there is none)."""

    tokens: int
    first: int
    last: int


class ColdStartSpan(NamedTuple):
    """A cold start (`phase` empty) or one sub-phase of it."""

    model: str
    phase: str
    trace_id: int
    span_id: int
    parent_id: int
    start: int
    end: int
    error_type: str


def request_span(
    request: RequestTrail, ended: RequestEnd, end: int, emitted: Emitted, phases: Partition
) -> ReadableSpan:
    """The span of a request that ended at `end`, at or after its last token."""
    started = request.started
    arrival = started.arrival_ns
    attributes: dict[str, Any] = {
        **started.attributes,
        **_identity(started),
        **_progress(started, emitted),
        semconv.RESPONSE_MODEL: started.model,
        semconv.STATUS: str(ended.status),
    }
    if ended.input_tokens is not None:
        attributes[semconv.INPUT_TOKENS] = ended.input_tokens
    if emitted.tokens:
        attributes[semconv.TIME_TO_LAST_TOKEN] = (emitted.last - arrival) / 1e9
    if ended.finish_reason:
        attributes[semconv.FINISH_REASONS] = [ended.finish_reason]
    optional = {
        semconv.FINISH_REASON: ended.finish_reason,
        semconv.ERROR_TYPE: ended.error_type,
        semconv.CACHED_TOKENS: ended.cached_tokens,
        semconv.REASONING_TOKENS: ended.reasoning_tokens,
        semconv.PREEMPTIONS: phases.preemptions,
    }
    attributes |= {key: value for key, value in optional.items() if value}
    for interval in phases.intervals:
        key = semconv.PHASE_TIME_PREFIX + interval.phase
        attributes[key] = attributes.get(key, 0) + interval.end - interval.start
    return ReadableSpan(
        text(f"{started.operation} {started.model}"),
        SpanContext(request.trace_id, request.span_id, False, _SAMPLED, started.trace_state),
        started.parent,
        attributes=clean(attributes),
        kind=started.kind,
        status=_status(ended.error_type, failed=ended.status == Status.ERROR),
        resource=NO_RESOURCE,
        start_time=arrival,
        end_time=end,
    )


def open_span(request: RequestTrail, span_id: int, now: int, emitted: Emitted) -> ReadableSpan:
    """The announcement that a request is still under way at `now`."""
    started = request.started
    return ReadableSpan(
        semconv.OPEN_SPAN,
        SpanContext(request.trace_id, span_id, False, _SAMPLED),
        SpanContext(request.trace_id, request.span_id, False),
        attributes=clean({**_identity(started), **_progress(started, emitted)}),
        resource=NO_RESOURCE,
        start_time=started.arrival_ns,
        end_time=max(now, started.arrival_ns),
    )


def cold_start_span(cold: ColdStartSpan) -> ReadableSpan:
    """A cold start, or a sub-phase of one as its child."""
    attributes = {semconv.REQUEST_MODEL: cold.model}
    if cold.error_type:
        attributes[semconv.ERROR_TYPE] = cold.error_type
    return ReadableSpan(
        f"{semconv.COLD_START_SPAN}.{text(cold.phase)}" if cold.phase else semconv.COLD_START_SPAN,
        SpanContext(cold.trace_id, cold.span_id, False, _SAMPLED),
        SpanContext(cold.trace_id, cold.parent_id, False) if cold.parent_id else None,
        attributes=clean(attributes),
        status=_status(cold.error_type, failed=bool(cold.error_type)),
        resource=NO_RESOURCE,
        start_time=cold.start,
        end_time=max(cold.end, cold.start),
    )


def clean(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that the encoder takes. Text becomes valid unicode, NumPy's numbers become Python's, None is left out;
    integers over 64 bits and objects of other types become text.
    """
    return {text(key): _cleaned(value) for key, value in attributes.items() if value is not None}


def text(value: object) -> str:
    """Text that can be encoded. Lone surrogates, which HTTP headers may bring in, become question marks."""
    plain = str(value)
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode()


def _cleaned(value: object) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value) if -(2**63) <= int(value) < 2**63 else str(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value if item is not None]
    return text(value)


def _identity(started: RequestStart) -> dict[str, Any]:
    always = {
        semconv.OPERATION_NAME: started.operation,
        semconv.PROVIDER_NAME: started.provider,
        semconv.REQUEST_MODEL: started.model,
    }
    optional = {
        semconv.RESPONSE_ID: started.request_id,
        semconv.TENANT: started.tenant,
        semconv.SLO_CLASS: started.slo_class,
    }
    return always | {key: value for key, value in optional.items() if value}


def _progress(started: RequestStart, emitted: Emitted) -> dict[str, Any]:
    counts: dict[str, Any] = {
        semconv.INPUT_TOKENS: started.input_tokens,
        semconv.OUTPUT_TOKENS: emitted.tokens,
    }
    if emitted.tokens:
        counts[semconv.TIME_TO_FIRST_CHUNK] = (emitted.first - started.arrival_ns) / 1e9
    return counts


def _status(error_type: str, *, failed: bool) -> SpanStatus:
    return SpanStatus(StatusCode.ERROR, text(error_type)) if failed else SpanStatus()
