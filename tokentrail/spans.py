"""Spans with varying strings (requests, announcements, cold starts), before `encode` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.trace.status import Status as SpanStatus
from opentelemetry.trace.status import StatusCode

from tokentrail import semconv
from tokentrail.encode import Span, attributes_bytes, kind_bytes, text
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


def start_attributes(started: RequestStart) -> dict[str, Any]:
    """The attributes of a request that arrives, which samplers decide on."""
    return {**started.attributes, **_given({**_identity(started), semconv.INPUT_TOKENS: started.input_tokens})}


def request_attributes(
    started: RequestStart, ended: RequestEnd, emitted: Emitted, phases: Partition, weight: float = 1.0
) -> dict[str, Any]:
    """The attributes of a request that has ended and stands for `weight` requests. An unknown value is absent."""
    known: dict[str, Any] = {
        **_identity(started),
        **_progress(started, emitted),
        semconv.RESPONSE_MODEL: ended.response_model or _own_model(started),
        semconv.STATUS: str(ended.status),
        semconv.FINISH_REASONS: ended.finish_reasons or None,
        semconv.FINISH_REASON: ended.finish_reasons[0] if ended.finish_reasons else None,
        semconv.ERROR_TYPE: ended.error_type or None,
        semconv.CACHED_TOKENS: ended.cached_tokens,
        semconv.CACHE_CREATION_TOKENS: ended.cache_creation_tokens,
        semconv.REASONING_TOKENS: ended.reasoning_tokens,
        semconv.PREEMPTIONS: phases.preemptions or None,
        semconv.DROPPED_TOKENS: emitted.dropped or None,
        semconv.SAMPLING_WEIGHT: weight if weight != 1 else None,
        semconv.TIME_TO_LAST_TOKEN: (emitted.last - started.arrival_ns) / 1e9 if emitted.tokens else None,
    }
    at_end = {
        semconv.INPUT_TOKENS: ended.input_tokens,
        semconv.OUTPUT_TOKENS: ended.output_tokens,
        semconv.RESPONSE_ID: ended.response_id or None,
    }
    for interval in phases.intervals:
        key = semconv.PHASE_TIME_PREFIX + interval.phase
        known[key] = known.get(key, 0) + interval.end - interval.start
    return {**started.attributes, **ended.attributes, **_given(known), **_given(at_end)}


def request_span(
    request: RequestTrail, ended: RequestEnd, end: int, emitted: Emitted, phases: Partition, weight: float = 1.0
) -> Span:
    """The span of a request that ended at `end`, at or after its last token, and stands for `weight` requests."""
    started = request.started
    return Span(
        f"{started.operation} {started.model}",
        request.trace_id,
        request.span_id,
        started.parent,
        request_attributes(started, ended, emitted, phases, weight),
        started.arrival_ns,
        end,
        kind=started.kind,
        status=_status(ended.error_type) if ended.status == Status.ERROR else None,
        trace_state=started.trace_state,
    )


def announcement_tail(started: RequestStart) -> bytes:
    """The kind and the attributes of an announcement that stay the same as long as the request is open."""
    attributes = {**_identity(started), semconv.INPUT_TOKENS: started.input_tokens}
    return kind_bytes(started.kind) + attributes_bytes(attributes)


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


def _given(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value is not None}


def _identity(started: RequestStart) -> dict[str, Any]:
    return {
        semconv.OPERATION_NAME: started.operation,
        semconv.PROVIDER_NAME: started.provider,
        semconv.REQUEST_MODEL: started.model,
        semconv.RESPONSE_ID: started.request_id or None,
        semconv.TENANT: started.tenant or None,
        semconv.SLO_CLASS: started.slo_class or None,
    }


def _progress(started: RequestStart, emitted: Emitted) -> dict[str, Any]:
    counts: dict[str, Any] = {semconv.INPUT_TOKENS: started.input_tokens, semconv.OUTPUT_TOKENS: emitted.tokens}
    if emitted.tokens:
        counts[semconv.TIME_TO_FIRST_TOKEN] = (emitted.first - started.arrival_ns) / 1e9
        if started.attributes.get(semconv.REQUEST_STREAM) is True:
            counts[semconv.TIME_TO_FIRST_CHUNK] = counts[semconv.TIME_TO_FIRST_TOKEN]
    return counts


def _own_model(started: RequestStart) -> str | None:
    """The model that answers: a server's own is the one that was asked for; a client learns it from the answer."""
    return started.model if started.kind is SpanKind.SERVER else None


def _status(error_type: str) -> SpanStatus:
    return SpanStatus(StatusCode.ERROR, text(error_type))
