"""Checks of spans before they are stored: the store's ids have fixed sizes, and a wrong time is worse than no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collector.otlp import runs, thresholds
from collector.otlp.checked import Checked, ItemLimits
from collector.otlp.divide import check_envelope, encoded_anew
from collector.otlp.envelope import LEAST_SPAN_BYTES, MEASURED, scopes
from collector.otlp.errors import MalformedError
from collector.otlp.labels import IN_BYTES, bound, bound_labels
from collector.otlp.names import LONGEST, cut_spans, has_long
from collector.otlp.parse_bombs import check_for_bomb
from collector.otlp.thresholds import weigh, weigh_spans

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
NO_TRACE_ID: Final = bytes(TRACE_ID_BYTES)
NO_SPAN_ID: Final = bytes(SPAN_ID_BYTES)
EARLIEST_NS: Final = 946_684_800 * 10**9
"""2000-01-01: a clock that was never set shows an earlier time."""
LATEST_NS: Final = 4_102_444_800 * 10**9
"""2100-01-01: the partitions of the store are days, and the store still has such a date."""
DAY_NS: Final = 86_400 * 10**9
LONGEST_NS: Final = 400 * DAY_NS
"""400 days between start and end."""
_LEAST_ATTRIBUTE_BYTES: Final = 2
"""Tag and length."""
_LEAST_AT_ONCE: Final = 16
"""To check fewer spans as columns costs more than to check them one by one."""


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
    RESOURCE_TOO_LARGE = "resource_too_large"


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
    Reason.RESOURCE_TOO_LARGE: "their resource and scope are larger than TOKENTRAIL_MAX_SPAN_BYTES, or have more than "
    "1 GiB when they are repeated for each span; send less",
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
    check_for_bomb(body, LEAST_SPAN_BYTES)
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
    any_large, too_many = _look_for_large(body, limits)
    number = -1
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            check_envelope(request, resource_spans, scope_spans)
            spans = scope_spans.spans
            total += len(spans)
            number += 1
            if excess := too_many.get(number):
                rejected[Reason.RESOURCE_TOO_LARGE] += excess
                del spans[len(spans) - excess :]
            if any_large or not _all_are_good(spans, times):
                reasons = [_reason(span, times) or _reason_of_size(span, limits) for span in spans]
                _take_out(spans, reasons, rejected)
    if not times.are_within(limits):
        days: set[int] = set()
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                spans = scope_spans.spans
                _take_out(spans, [_reason_of_days(span, days, limits.max_days) for span in spans], rejected)
    body = encoded_anew(request) if rejected.total() < total else b""
    cut = cut_spans(request, body, limits.names)
    if any([IN_BYTES in body and bound_labels(request), thresholds.IN_BYTES in body and weigh_spans(request), cut]):
        body = request.SerializeToString()
    message = "; ".join(f"{count} spans: {EXPLANATION[reason]}" for reason, count in sorted(rejected.items()))
    by_reason = Counter({str(reason): count for reason, count in rejected.items()})
    return Checked(body if total else b"", total, by_reason, message, times.days(), cut=cut)


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
        for run in runs.runs(body, limits.names):
            first = Span.FromString(run.first)
            if (
                (first.events and first.ByteSize() != len(run.first))
                or _reason(first, times)
                or _reason_of_size(first, limits)
                or not _are_good(run.words(1) | run.words(1, skip=8), run.words(2), run.words(7), run.words(8), times)
                or (len(run.first) > LONGEST and has_long(first, limits.names))
                or (IN_BYTES in run.first and bound(first.attributes))
                or (thresholds.IN_BYTES in run.first and weigh(first))
            ):
                return None
            spans += len(run.rows)
    except (runs.NotUniformError, DecodeError):
        return None
    return Checked(body if spans else b"", spans, days=times.days()) if times.are_within(limits) else None


def _look_for_large(body: bytes, limits: ItemLimits) -> tuple[bool, dict[int, int]]:
    """Tell whether `_reason_of_size` must look at each span, and how many spans of which scopes are left out.

    To read the spans as bytes costs a twentieth of `ByteSize`, which encodes each span again. The last spans of a scope
    are left out that would repeat their resource and scope too often, and all if those are larger than a span may be.
    """
    large = min(limits.max_bytes, limits.max_attributes * _LEAST_ATTRIBUTE_BYTES)
    if len(body) <= large:
        return False, {}
    any_large, too_many, room = False, {}, limits.max_repeated_bytes
    for number, (size, scope_spans) in enumerate(scopes(MEASURED.FromString(body))):
        spans = len(scope_spans.spans)
        most = room if size <= max(limits.max_bytes, runs.MOST_ENVELOPE_BYTES) else 0
        allowed = min(spans, most // size) if size else spans
        room -= allowed * size
        if allowed < spans:
            too_many[number] = spans - allowed
        any_large = any_large or any(len(span) > large for span in scope_spans.spans)
    return any_large, too_many


def _all_are_good(spans: Sequence[Span], times: _Times) -> bool:
    """Check many spans at once, as `_reason` checks one; widen `times` when all are good."""
    if len(spans) < _LEAST_AT_ONCE:
        return False
    columns = zip(
        *(
            (span.trace_id, span.span_id, span.parent_span_id, span.start_time_unix_nano, span.end_time_unix_nano)
            for span in spans
        ),
        strict=True,
    )
    trace_ids, span_ids, parents, starts, ends = columns
    lengths = set(map(len, trace_ids)), set(map(len, span_ids)), set(map(len, parents)) - {0, SPAN_ID_BYTES}
    if lengths != ({TRACE_ID_BYTES}, {SPAN_ID_BYTES}, set()):
        return False
    traces = np.frombuffer(b"".join(trace_ids), "<u8").reshape(-1, 2)
    ids = np.frombuffer(b"".join(span_ids), "<u8")
    return _are_good(traces[:, 0] | traces[:, 1], ids, np.array(starts, "<u8"), np.array(ends, "<u8"), times)


def _are_good(traces: runs.U64, ids: runs.U64, start: runs.U64, end: runs.U64, times: _Times) -> bool:
    """Check columns of ids, of which a bad one is 0, and times in ns, as `_reason` does; widen `times` by good ones."""
    earliest_ns, latest_ns = int(start.min()), int(end.max())
    good = bool(
        traces.all()
        and ids.all()
        and earliest_ns >= EARLIEST_NS
        and latest_ns < LATEST_NS
        and latest_ns <= times.allowed_ns
        and (end >= start).all()
        and (end - start).max() <= LONGEST_NS
    )
    if good:
        times.earliest_ns, times.latest_ns = min(times.earliest_ns, earliest_ns), max(times.latest_ns, latest_ns)
    return good


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


def _reason_of_size(span: Span, limits: ItemLimits) -> Reason | None:
    """Return why a span is too large; None for one that is not."""
    if len(span.attributes) > limits.max_attributes:
        return Reason.TOO_MANY_ATTRIBUTES
    return Reason.TOO_LARGE if span.ByteSize() > limits.max_bytes else None
