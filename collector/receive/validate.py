"""Checks of spans before they are stored: the store's ids have fixed sizes, and a wrong time is worse than no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collector.receive import runs
from collector.receive.checked import Checked, ItemLimits
from collector.receive.errors import MalformedError

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
NO_TRACE_ID: Final = bytes(TRACE_ID_BYTES)
NO_SPAN_ID: Final = bytes(SPAN_ID_BYTES)
EARLIEST_NS: Final = 946_684_800 * 10**9
"""2000-01-01: a clock that was never set shows an earlier time."""
LATEST_NS: Final = 4_102_444_800 * 10**9
"""2100-01-01: the store, whose partitions are days, still has such a date."""
DAY_NS: Final = 86_400 * 10**9
LONGEST_NS: Final = 400 * DAY_NS
"""400 days between start and end."""
_LEAST_ATTRIBUTE_BYTES: Final = 2
"""Tag and length."""


class Reason(StrEnum):
    """The reasons for which a span is not stored."""

    TRACE_ID = "trace_id"
    SPAN_ID = "span_id"
    PARENT_SPAN_ID = "parent_span_id"
    TIME = "time"
    END_BEFORE_START = "end_before_start"
    FUTURE = "future"
    TOO_MANY_DAYS = "too_many_days"
    TOO_MANY_ATTRIBUTES = "too_many_attributes"
    TOO_LARGE = "too_large"


EXPLANATION: Final = {
    Reason.TRACE_ID: "trace_id must be 16 bytes and not all zero",
    Reason.SPAN_ID: "span_id must be 8 bytes and not all zero",
    Reason.PARENT_SPAN_ID: "parent_span_id must be empty or 8 bytes",
    Reason.TIME: "start and end must be unix nanoseconds between the years 2000 and 2100, at most 400 days apart",
    Reason.END_BEFORE_START: "end is before start",
    Reason.FUTURE: "end is later than TOKENTRAIL_MAX_FUTURE_S from now; is the sender's clock right?",
    Reason.TOO_MANY_DAYS: "the spans before it have TOKENTRAIL_MAX_PAYLOAD_DAYS other days; send smaller batches",
    Reason.TOO_MANY_ATTRIBUTES: "more attributes than TOKENTRAIL_MAX_SPAN_ATTRIBUTES",
    Reason.TOO_LARGE: "larger than TOKENTRAIL_MAX_SPAN_BYTES",
}


@dataclass
class _Times:
    """The earliest start and the latest end of a request's spans, and the latest end that a span may have."""

    allowed_ns: int
    earliest_ns: int = LATEST_NS
    latest_ns: int = 0

    def days(self) -> tuple[int, int]:
        """Return the days of the earliest start and of the latest end, counted from 1970-01-01."""
        return self.earliest_ns // DAY_NS, self.latest_ns // DAY_NS

    def are_within(self, limits: ItemLimits) -> bool:
        """Tell whether the days from the first to the last are no more than a request may have."""
        first, last = self.days()
        return last - first < limits.max_days


def check(body: bytes, limits: ItemLimits) -> Checked:
    """Take out the spans of a request that cannot be stored; raises `MalformedError`."""
    uniform = check_if_uniform(body, limits)
    if uniform is not None:
        return uniform
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        msg = f"the body is not an OTLP ExportTraceServiceRequest: {error}"
        raise MalformedError(msg) from error
    return check_parsed(request, body, limits)


def check_parsed(request: ExportTraceServiceRequest, body: bytes, limits: ItemLimits) -> Checked:
    """Do the same for a request that is already parsed; `body` is its encoding."""
    total = 0
    rejected: Counter[Reason] = Counter()
    times = _Times(limits.latest_ns())
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            spans = scope_spans.spans
            total += len(spans)
            reasons = [_reason(span, times) or _reason_of_size(span, len(body), limits) for span in spans]
            _take_out(spans, reasons, rejected)
    if not times.are_within(limits):
        days: set[int] = set()
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                spans = scope_spans.spans
                _take_out(spans, [_reason_of_days(span, days, limits.max_days) for span in spans], rejected)
    if rejected:
        body = request.SerializeToString() if rejected.total() < total else b""
    message = "; ".join(f"{count} spans: {EXPLANATION[reason]}" for reason, count in sorted(rejected.items()))
    by_reason = Counter({str(reason): count for reason, count in rejected.items()})
    return Checked(body if total else b"", total, by_reason, message, times.days())


def _take_out(spans: MutableSequence[Span], reasons: Sequence[Reason | None], rejected: Counter[Reason]) -> None:
    for index in range(len(reasons) - 1, -1, -1):
        if reason := reasons[index]:
            rejected[reason] += 1
            del spans[index]


def check_if_uniform(body: bytes, limits: ItemLimits) -> Checked | None:
    """Check a request that consists of long runs of good spans; None when it must be parsed to know."""
    times = _Times(limits.latest_ns())
    spans = 0
    try:
        for run in runs.runs(body):
            first = Span.FromString(run.first)
            if (
                _reason(first, times)
                or _reason_of_size(first, len(body), limits)
                or not _ids_and_times_are_good(run, times)
            ):
                return None
            spans += len(run.rows)
    except (runs.NotUniformError, DecodeError):
        return None
    return Checked(body if spans else b"", spans, days=times.days()) if times.are_within(limits) else None


def _ids_and_times_are_good(run: runs.Run, times: _Times) -> bool:
    """Check all spans of a run, whose first span is good, as `_reason` checks one span; widen `times` by them."""
    start, end = run.words(7), run.words(8)
    earliest_ns, latest_ns = int(start.min()), int(end.max())
    times.earliest_ns, times.latest_ns = min(times.earliest_ns, earliest_ns), max(times.latest_ns, latest_ns)
    return bool(
        (run.words(1) | run.words(1, skip=8)).all()
        and run.words(2).all()
        and earliest_ns >= EARLIEST_NS
        and latest_ns < LATEST_NS
        and latest_ns <= times.allowed_ns
        and (end >= start).all()
        and (end - start).max() <= LONGEST_NS
    )


def _reason(span: Span, times: _Times) -> Reason | None:
    """Return why a span cannot be stored; None for a good one, by which it widens `times`."""
    start, end = span.start_time_unix_nano, span.end_time_unix_nano
    trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
    if len(trace_id) != TRACE_ID_BYTES or trace_id == NO_TRACE_ID:
        return Reason.TRACE_ID
    if len(span_id) != SPAN_ID_BYTES or span_id == NO_SPAN_ID:
        return Reason.SPAN_ID
    if len(parent) not in (0, SPAN_ID_BYTES):
        return Reason.PARENT_SPAN_ID
    if not EARLIEST_NS <= start < LATEST_NS or not EARLIEST_NS <= end < LATEST_NS:
        return Reason.TIME
    if end < start:
        return Reason.END_BEFORE_START
    if end - start > LONGEST_NS:
        return Reason.TIME
    if end > times.allowed_ns:
        return Reason.FUTURE
    if start < times.earliest_ns:
        times.earliest_ns = start
    if end > times.latest_ns:
        times.latest_ns = end
    return None


def _reason_of_days(span: Span, days: set[int], most: int) -> Reason | None:
    """Add the span's days to those of the spans before it, unless they become too many."""
    start, end = span.start_time_unix_nano // DAY_NS, span.end_time_unix_nano // DAY_NS
    if start in days and end in days:
        return None
    with_span = days | {start, end}
    if len(with_span) > most:
        return Reason.TOO_MANY_DAYS
    days.update(with_span)
    return None


def _reason_of_size(span: Span, body_bytes: int, limits: ItemLimits) -> Reason | None:
    """Return why a span is too large; a body that is small enough itself saves the counting."""
    if body_bytes > limits.max_attributes * _LEAST_ATTRIBUTE_BYTES and len(span.attributes) > limits.max_attributes:
        return Reason.TOO_MANY_ATTRIBUTES
    return Reason.TOO_LARGE if body_bytes > limits.max_bytes and span.ByteSize() > limits.max_bytes else None
