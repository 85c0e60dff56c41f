"""Spans with varying strings (requests, announcements, cold starts), as OpenTelemetry's own `ReadableSpan`."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
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


def start_attributes(started: RequestStart) -> dict[str, Any]:
    """The attributes of a request that arrives, which samplers decide on."""
    return {**started.attributes, **_given({**_identity(started), semconv.INPUT_TOKENS: started.input_tokens})}


def request_attributes(
    started: RequestStart, ended: RequestEnd, emitted: Emitted, phases: Partition, weight: float = 1.0
) -> dict[str, Any]:
    """The attributes of a request that has ended and stands for `weight` requests, before `clean`. What is not known is
    absent.
    """
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


def open_attributes(started: RequestStart, emitted: Emitted) -> dict[str, Any]:
    """The attributes of a request that is under way, before `clean`."""
    return _given({**_identity(started), **_progress(started, emitted)})


def request_span(
    request: RequestTrail, ended: RequestEnd, end: int, emitted: Emitted, phases: Partition, weight: float = 1.0
) -> ReadableSpan:
    """The span of a request that ended at `end`, at or after its last token, and stands for `weight` requests."""
    started = request.started
    return ReadableSpan(
        text(f"{started.operation} {started.model}"),
        SpanContext(request.trace_id, request.span_id, False, _SAMPLED, started.trace_state),
        started.parent,
        attributes=clean(request_attributes(started, ended, emitted, phases, weight)),
        kind=started.kind,
        status=_status(ended.error_type, failed=ended.status == Status.ERROR),
        resource=NO_RESOURCE,
        start_time=started.arrival_ns,
        end_time=end,
    )


def open_span(request: RequestTrail, span_id: int, now: int, emitted: Emitted) -> ReadableSpan:
    """The announcement that a request is still under way at `now`."""
    started = request.started
    return ReadableSpan(
        semconv.OPEN_SPAN,
        SpanContext(request.trace_id, span_id, False, _SAMPLED),
        SpanContext(request.trace_id, request.span_id, False),
        attributes=clean(open_attributes(started, emitted)),
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
    """Text that can be encoded. Lone surrogates, which HTTP headers may bring in, become question marks; an object that
    cannot be shown becomes the name of its type.
    """
    try:
        plain = str(value)
    except Exception:
        plain = type(value).__name__
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


def _status(error_type: str, *, failed: bool) -> SpanStatus:
    return SpanStatus(StatusCode.ERROR, text(error_type)) if failed else SpanStatus()
