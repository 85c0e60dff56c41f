"""Spans with varying strings (requests, announcements, cold starts), before `encode` and `wire` write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isnan, nan
from typing import Any, Final, NamedTuple

from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.trace.status import Status as SpanStatus
from opentelemetry.trace.status import StatusCode

from tokentrail import semconv
from tokentrail._build.phases import Interval, Partition
from tokentrail._encode.encode import (
    Span,
    attribute,
    attributes_bytes,
    context_bytes,
    fresh_attribute,
    kind_bytes,
    name_bytes,
    status_bytes,
    text,
)
from tokentrail._record.arguments import IDENTITY, RequestEnd, RequestStart, identity_of
from tokentrail._record.coldstart import ColdStartSpan
from tokentrail._record.records import UNKNOWN
from tokentrail._record.request import RequestTrail
from tokentrail.semconv import Phase, Status

_USUAL: Final = (
    *IDENTITY,
    semconv.RESPONSE_MODEL,
    semconv.STATUS,
    semconv.FINISH_REASONS,
    semconv.FINISH_REASON,
    semconv.ERROR_TYPE,
)
_PHASE_TIMES: Final = {phase: semconv.PHASE_TIME_PREFIX + phase for phase in Phase}
_QUEUED, _PREFILL, _DECODE = Phase.QUEUED, Phase.PREFILL, Phase.DECODE  # a member takes long to look up
INTS: Final = (
    semconv.OUTPUT_TOKENS,
    semconv.INPUT_TOKENS,
    semconv.CACHED_TOKENS,
    semconv.CACHE_CREATION_TOKENS,
    semconv.REASONING_TOKENS,
    _PHASE_TIMES[_QUEUED],
    _PHASE_TIMES[_PREFILL],
    _PHASE_TIMES[_DECODE],
    semconv.LONGEST_GAP_INDEX,
)
DOUBLES: Final = (
    semconv.TIME_TO_FIRST_TOKEN,
    semconv.TIME_TO_LAST_TOKEN,
    semconv.TIME_TO_FIRST_CHUNK,
    semconv.LONGEST_GAP,
)
_SERVER: Final = SpanKind.SERVER  # a member takes long to look up
_ANNOUNCED: Final = (semconv.LABEL_PREFIX, semconv.REQUEST_STREAM)
"""How attributes of a request begin that it is selected by while it is in flight."""
_REMEMBERED: Final = 4096
"""Most bytes of values that are kept."""
_LARGEST: Final = 1 << 56
"""Larger integers do not fit the numbers of a template."""


class Emitted(NamedTuple):
    """The number of tokens of a request, the stamps of the first and the last (unix ns; 0 when there is none), and the
    number of those tokens and of others that were lost. `choices` are those that got tokens (0: the request has one
    answer), and `between` is the time from the first token of a choice to its last, summed over them (ns). `gap` is the
    longest wait between two tokens of an answer (ns), and `gap_index` the place of the second one.
    """

    tokens: int
    first: int
    last: int
    dropped: int = 0
    choices: int = 0
    between: int = 0
    gap: int = 0
    gap_index: int = 0

    def longest_gap(self, status: Status, end: int) -> tuple[int, int]:
        """The longest wait for a token after the first (ns) and the token's place, 0 and -1 for none, of a request that
        ended at `end` (unix ns). Of one that failed or was cancelled, a token was waited for until then; whose place is
        known where the request has one answer.
        """
        silence = end - self.last if status in (Status.ERROR, Status.CANCELLED) else 0
        if silence > self.gap:
            return silence, UNKNOWN if self.choices else self.tokens
        return (self.gap, self.gap_index) if self.gap else (0, UNKNOWN)

    def output_tokens(self, ended: RequestEnd, operation: str) -> int | None:
        """The number of output tokens: the given one, or else that of the recorded tokens, which for arrivals of chunks
        is not known. Embeddings have no output tokens: None, not 0.
        """
        if ended.output_tokens is not None or semconv.ARRIVALS in ended.attributes:
            return ended.output_tokens
        return None if operation == semconv.EMBEDDINGS and not self.tokens else self.tokens

    def tpot_ns(self, output_tokens: int | None = None) -> float | None:
        """The mean gap between the tokens of choices. None without any, or when all came at once. `output_tokens` goes
        before those recorded.
        """
        gaps = (self.tokens if output_tokens is None else output_tokens) - (self.choices or 1)
        between = self.between if self.choices else self.last - self.first
        return between / gaps if self.tokens and gaps > 0 and between > 0 else None

    def tpot_of(self, ended: RequestEnd) -> float | None:
        """The mean gap between the tokens of a request that has ended. Arrivals of chunks have none when the number of
        their tokens is not known, or when all tokens arrived at once.
        """
        at_once = self.tokens <= (self.choices or 1)
        if semconv.ARRIVALS in ended.attributes and (ended.output_tokens is None or at_once):
            return None
        arrived = ended.attributes.get(semconv.ARRIVED_TOKENS)
        return self.tpot_ns(arrived if isinstance(arrived, int) else ended.output_tokens)


RequestParts = tuple[Sequence[int], Sequence[float], bytes]
"""A request's span: the values of `INTS` (negative where one is not known) and of `DOUBLES` (NaN), which become columns
of a template, and the serialised rest."""


def request_parts(
    request: RequestTrail, ended: RequestEnd, end: int, emitted: Emitted, phases: Partition, weight: float = 1.0
) -> RequestParts:
    """The span of a request that ended at `end` (unix ns) and stands for `weight` requests. An unknown value is absent.

    Numbers that most requests have are columns; rare ones are written one by one.
    """
    started = request.started
    arrival = started.arrival_ns
    rare: dict[str, Any] = {}
    output = emitted.output_tokens(ended, started.operation)
    given = started.input_tokens if ended.input_tokens is None else ended.input_tokens
    counts = [
        UNKNOWN if count is None else count
        for count in (output, given, ended.cached_tokens, ended.cache_creation_tokens, ended.reasoning_tokens)
    ]
    if max(counts) >= _LARGEST:
        rare = {key: count for key, count in zip(INTS, counts, strict=False) if count != UNKNOWN}
        counts = [UNKNOWN] * len(counts)
    intervals, preemptions = phases
    times = {phase: end - start for phase, start, end in intervals}
    if len(times) < len(intervals):
        times = _summed(intervals)
    counts += [times.pop(_QUEUED, UNKNOWN), times.pop(_PREFILL, UNKNOWN), times.pop(_DECODE, UNKNOWN)]
    if times:
        rare |= {_PHASE_TIMES[phase]: time_ns for phase, time_ns in times.items()}
    first_s = last_s = chunk_s = gap_s = nan
    gap_index = UNKNOWN
    if emitted.tokens:
        if not request.lost:
            gap, gap_index = emitted.longest_gap(ended.status, end)
            gap_s = gap / 1e9
        first_s, last_s = (emitted.first - arrival) / 1e9, (emitted.last - arrival) / 1e9
        if started.attributes and started.attributes.get(semconv.REQUEST_STREAM) is True:
            chunk_s = first_s
    counts.append(gap_index)
    if emitted.choices:
        rare[semconv.CHOICES] = emitted.choices
        rare[semconv.TIME_BETWEEN_TOKENS] = emitted.between / 1e9
    if preemptions:
        rare[semconv.PREEMPTIONS] = preemptions
    if emitted.dropped:
        rare[semconv.DROPPED_TOKENS] = emitted.dropped
    if weight != 1:
        rare[semconv.SAMPLING_WEIGHT] = weight
    response_id = ended.response_id or started.request_id
    usual = _usual_values(started, ended)
    tail = _usual_bytes(started.kind, *usual)
    if response_id:
        tail += fresh_attribute(semconv.RESPONSE_ID, response_id)
    if started.attributes or ended.attributes:
        recorded = {*rare, *([semconv.RESPONSE_ID] if response_id else [])}
        recorded |= {k for k, v in zip(_USUAL, usual, strict=True) if v is not None}
        recorded |= {k for k, v in zip(INTS, counts, strict=True) if v != UNKNOWN}
        recorded |= {k for k, v in zip(DOUBLES, (first_s, last_s, chunk_s, gap_s), strict=True) if not isnan(v)}
        rare |= {k: v for k, v in {**started.attributes, **ended.attributes}.items() if k not in recorded}
    if rare:
        tail += attributes_bytes(rare)
    return counts, (first_s, last_s, chunk_s, gap_s), tail + context_bytes(started.parent, started.trace_state)


def announcement_tail(started: RequestStart) -> bytes:
    """The kind and the attributes of an announcement that stay the same as long as the request is open."""
    tail = _announced(started.kind, *identity_of(started))
    if started.request_id:
        tail += fresh_attribute(semconv.RESPONSE_ID, started.request_id)
    if started.input_tokens is not None:
        tail += attribute(semconv.INPUT_TOKENS, started.input_tokens)
    if started.attributes:
        given = started.attributes.items()
        tail += attributes_bytes({k: v for k, v in given if str(k).startswith(_ANNOUNCED)})
    return tail


def cold_start_span(cold: ColdStartSpan) -> Span:
    """A cold start, or a sub-phase of one as its child."""
    attributes = {semconv.REQUEST_MODEL: cold.model, **cold.limits}
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


def _summed(intervals: Sequence[Interval]) -> dict[Phase, int]:
    times: dict[Phase, int] = {}
    for phase, start, end in intervals:
        times[phase] = times.get(phase, 0) + end - start
    return times


def _usual_values(started: RequestStart, ended: RequestEnd) -> tuple[Any, ...]:
    reasons = ended.finish_reasons
    return (
        started.operation,
        started.provider or None,
        started.model,
        started.tenant or None,
        started.slo_class or None,
        # A server's own model is the one that was asked for; a client learns it from the answer.
        ended.response_model or (started.model if started.kind is _SERVER else None),
        ended.status,
        reasons or None,
        reasons[0] if reasons else None,
        ended.error_type or None,
    )


def _cached(write: Callable[..., bytes]) -> Callable[..., bytes]:
    """Keeps the bytes of values that come again and again. Values without a hash and long ones are written each time:
    clients choose the names of models, and 1,024 names of a megabyte would be a gigabyte.
    """

    @lru_cache(maxsize=1024, typed=True)
    def remembered(*values: Any) -> bytes:
        made = write(*values)
        if len(made) > _REMEMBERED:
            raise _Long(made)  # which `lru_cache` does not keep
        return made

    def written(*values: Any) -> bytes:
        try:
            return remembered(*values)
        except _Long as long:
            return long.made
        except TypeError:
            return write(*values)

    return written


class _Long(Exception):
    """The bytes of values are too long to be kept."""

    def __init__(self, made: bytes) -> None:
        self.made = made


@_cached
def _announced(kind: SpanKind, *identity: Any) -> bytes:
    return kind_bytes(kind) + attributes_bytes(dict(zip(IDENTITY, identity, strict=True)))


@_cached
def _usual_bytes(kind: SpanKind, operation: Any, provider: Any, model: Any, *others: Any) -> bytes:
    """The fields of a request's span that many requests share."""
    attributes = dict(zip(_USUAL, (operation, provider, model, *others), strict=True))
    failed = attributes[semconv.STATUS] == Status.ERROR
    status = status_bytes(_status(attributes[semconv.ERROR_TYPE] or "") if failed else None)
    return name_bytes(f"{operation} {model}") + kind_bytes(kind) + attributes_bytes(attributes) + status


def _status(error_type: str) -> SpanStatus:
    return SpanStatus(StatusCode.ERROR, text(error_type))
