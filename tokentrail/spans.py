"""Spans with varying strings (requests, announcements, cold starts), before `encode` writes them."""

from __future__ import annotations

from typing import Any, NamedTuple

from opentelemetry.trace import SpanContext
from opentelemetry.trace.status import Status as SpanStatus
from opentelemetry.trace.status import StatusCode

from tokentrail import semconv
from tokentrail.encode import Span, text
from tokentrail.phases import Partition
from tokentrail.request import RequestEnd, RequestStart, RequestTrail
from tokentrail.semconv import Status


class Emitted(NamedTuple):
    """The number of tokens of a request, the stamps of the first and the last (unix ns; 0 when there is none), and the
    number of those tokens and of others that were lost.
    """

    tokens: int
    first: int
    last: int
    dropped: int = 0


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


def request_span(request: RequestTrail, ended: RequestEnd, end: int, emitted: Emitted, phases: Partition) -> Span:
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
        semconv.DROPPED_TOKENS: emitted.dropped,
    }
    attributes |= {key: value for key, value in optional.items() if value}
    for interval in phases.intervals:
        key = semconv.PHASE_TIME_PREFIX + interval.phase
        attributes[key] = attributes.get(key, 0) + interval.end - interval.start
    return Span(
        f"{started.operation} {started.model}",
        request.trace_id,
        request.span_id,
        started.parent,
        attributes,
        arrival,
        end,
        kind=started.kind,
        status=_status(ended.error_type) if ended.status == Status.ERROR else None,
        trace_state=started.trace_state,
    )


def open_attributes(started: RequestStart) -> dict[str, Any]:
    """The attributes of an announcement that stay the same as long as the request is open."""
    return {**_identity(started), semconv.INPUT_TOKENS: started.input_tokens}


def cold_start_span(cold: ColdStartSpan) -> Span:
    """A cold start, or a sub-phase of one as its child."""
    attributes = {semconv.REQUEST_MODEL: cold.model}
    if cold.error_type:
        attributes[semconv.ERROR_TYPE] = cold.error_type
    return Span(
        f"{semconv.COLD_START_SPAN}.{cold.phase}" if cold.phase else semconv.COLD_START_SPAN,
        cold.trace_id,
        cold.span_id,
        SpanContext(cold.trace_id, cold.parent_id, False) if cold.parent_id else None,
        attributes,
        cold.start,
        max(cold.end, cold.start),
        status=_status(cold.error_type) if cold.error_type else None,
    )


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


def _status(error_type: str) -> SpanStatus:
    return SpanStatus(StatusCode.ERROR, text(error_type))
