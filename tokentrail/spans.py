"""The few spans whose strings vary (requests, announcements, cold starts), as OpenTelemetry's own `ReadableSpan`."""

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
from tokentrail.request import Ending, Opening, RequestTrail
from tokentrail.semconv import Status
from tokentrail.wire import NO_RESOURCE

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Emitted(NamedTuple):
    """What a request has emitted: tokens, and the stamps of the first and last (unix ns; 0 when there is none)."""

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


def request_span(request: RequestTrail, ending: Ending, end: int, emitted: Emitted, phases: Partition) -> ReadableSpan:
    """The span of a request that has ended at `end` (which is not before its last token)."""
    opening = request.opening
    arrival = opening.arrival_ns
    attributes: dict[str, Any] = {
        **opening.attributes,
        **_identity(opening),
        **_progress(opening, emitted),
        semconv.RESPONSE_MODEL: opening.model,
        semconv.STATUS: str(ending.status),
    }
    if ending.input_tokens is not None:
        attributes[semconv.INPUT_TOKENS] = ending.input_tokens
    if emitted.tokens:
        attributes[semconv.TIME_TO_LAST_TOKEN] = (emitted.last - arrival) / 1e9
    if ending.finish_reason:
        attributes[semconv.FINISH_REASONS] = [ending.finish_reason]
    optional = {
        semconv.FINISH_REASON: ending.finish_reason,
        semconv.ERROR_TYPE: ending.error_type,
        semconv.CACHED_TOKENS: ending.cached_tokens,
        semconv.REASONING_TOKENS: ending.reasoning_tokens,
        semconv.PREEMPTIONS: phases.preemptions,
    }
    attributes |= {key: value for key, value in optional.items() if value}
    for stretch in phases.stretches:
        key = semconv.PHASE_TIME_PREFIX + stretch.phase
        attributes[key] = attributes.get(key, 0) + stretch.end - stretch.start
    return ReadableSpan(
        text(f"{opening.operation} {opening.model}"),
        SpanContext(request.trace_id, request.span_id, False, _SAMPLED, opening.trace_state),
        opening.parent,
        attributes=clean(attributes),
        kind=opening.kind,
        status=_status(ending.error_type, failed=ending.status == Status.ERROR),
        resource=NO_RESOURCE,
        start_time=arrival,
        end_time=end,
    )


def open_span(request: RequestTrail, span_id: int, now: int, emitted: Emitted) -> ReadableSpan:
    """The announcement that a request is still under way at `now`."""
    opening = request.opening
    return ReadableSpan(
        semconv.OPEN_SPAN,
        SpanContext(request.trace_id, span_id, False, _SAMPLED),
        SpanContext(request.trace_id, request.span_id, False),
        attributes=clean({**_identity(opening), **_progress(opening, emitted)}),
        resource=NO_RESOURCE,
        start_time=opening.arrival_ns,
        end_time=max(now, opening.arrival_ns),
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
    """Attributes that the encoder takes: text is valid unicode, numbers (NumPy's too) are Python's, integers fit 64
    bits; None is left out and any other object becomes its text.
    """
    return {text(key): _cleaned(value) for key, value in attributes.items() if value is not None}


def text(value: object) -> str:
    """Text that can be encoded: what an HTTP header smuggled in as lone surrogates becomes question marks."""
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


def _identity(opening: Opening) -> dict[str, Any]:
    always = {
        semconv.OPERATION_NAME: opening.operation,
        semconv.PROVIDER_NAME: opening.provider,
        semconv.REQUEST_MODEL: opening.model,
    }
    optional = {
        semconv.RESPONSE_ID: opening.request_id,
        semconv.TENANT: opening.tenant,
        semconv.SLO_CLASS: opening.slo_class,
    }
    return always | {key: value for key, value in optional.items() if value}


def _progress(opening: Opening, emitted: Emitted) -> dict[str, Any]:
    counts: dict[str, Any] = {
        semconv.INPUT_TOKENS: opening.input_tokens,
        semconv.OUTPUT_TOKENS: emitted.tokens,
    }
    if emitted.tokens:
        counts[semconv.TIME_TO_FIRST_CHUNK] = (emitted.first - opening.arrival_ns) / 1e9
    return counts


def _status(error_type: str, *, failed: bool) -> SpanStatus:
    return SpanStatus(StatusCode.ERROR, text(error_type)) if failed else SpanStatus()
