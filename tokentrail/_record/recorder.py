"""The hot path: a trail's calls append records to a bounded buffer."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any, Final, SupportsInt

from tokentrail._host.books import BUFFER_FULL, MALFORMED, SHUTDOWN
from tokentrail._host.guard import Guard
from tokentrail._record.arguments import MAX_TOKENS
from tokentrail._record.recipient import Recipient
from tokentrail._record.records import (
    CHUNK,
    ENTRIES,
    NARROW,
    STAMPS,
    STEP_INTS,
    STEP_INTS_IN_DETAIL,
    UNKNOWN,
    WIDE,
    Record,
    Records,
    Rows,
    StepRun,
    is_sampled,
    kind_of,
    spans_in,
    subject_of,
)

MAX_PENDING_RECORDS: Final = 65_536
"""Records that may wait, far more than a schedule delay brings. Steps and events beyond it are dropped and counted."""
MAX_ENTRIES: Final = ENTRIES * MAX_PENDING_RECORDS
_pack: Final = struct.Struct(f"{STEP_INTS}n").pack
"""`n` is 8 bytes on a 64-bit machine, and packed faster than `q`."""
_pack_in_detail: Final = struct.Struct(f"{STEP_INTS_IN_DETAIL}n").pack


class Recorder:
    """The part of a `Trail` that runs in the engine's thread: it appends records to a bounded buffer.

    `drop(spans, reason)` counts the spans of a record that the buffer did not take.
    """

    def __init__(self, guard: Guard, drop: Callable[[int, str], None]) -> None:
        self._guard = guard
        self._drop = drop
        self._records = Records()
        self._append = self._records.extend  # in one C call, so that threads need no lock
        self._closed = False

    def step(
        self,
        step: int,
        start_ns: int,
        end_ns: int,
        emitted: Sequence[Recipient],
        counts: Sequence[int] | None = None,
        prefill_tokens: int | None = UNKNOWN,
        decode_tokens: int | None = UNKNOWN,
        running: int | None = UNKNOWN,
        waiting: int | None = UNKNOWN,
        preempted: int | None = UNKNOWN,
        kv_used: int | None = UNKNOWN,
        kv_total: int | None = UNKNOWN,
        kv_evicted: int | None = UNKNOWN,
        waiting_for_batch: int | None = UNKNOWN,
        waiting_for_tokens: int | None = UNKNOWN,
        waiting_for_kv: int | None = UNKNOWN,
        waiting_for_priority: int | None = UNKNOWN,
        cached_tokens: int | None = UNKNOWN,
        drafted_tokens: int | None = UNKNOWN,
        retries: int | None = UNKNOWN,
        graph_rows: int | None = UNKNOWN,
        device_ns: int | None = UNKNOWN,
        compute_ns: int | None = UNKNOWN,
        memory_ns: int | None = UNKNOWN,
        emitted_ns: int | None = None,
    ) -> None:
        """Records one engine step, from `start_ns` to `end_ns` (unix ns). `emitted` are the requests that got tokens in
        it, or their choices; `counts` is the number of tokens of each (None: one each). Its tokens are
        emitted at `emitted_ns`, by default at its end: a front end in another process than the engine has them later. A
        number that the engine does not know is left out or None, and absent from the span. This is the hot path.
        """
        try:
            if type(emitted) is not list:
                emitted = tuple(emitted)
            if emitted_ns is None:
                emitted_ns = end_ns
            width, ints = 0, STEP_INTS
            try:
                if (
                    waiting_for_batch is waiting_for_tokens is waiting_for_kv is waiting_for_priority is cached_tokens
                    is drafted_tokens is retries is graph_rows is device_ns is compute_ns is memory_ns is UNKNOWN
                ):  # fmt: skip
                    packed = _pack(
                        start_ns, end_ns, emitted_ns, step, prefill_tokens, decode_tokens, running, waiting, preempted,
                        kv_used, kv_total, kv_evicted,
                    )  # fmt: skip
                else:
                    ints = STEP_INTS_IN_DETAIL
                    packed = _pack_in_detail(
                        start_ns, end_ns, emitted_ns, step, prefill_tokens, decode_tokens, running, waiting, preempted,
                        kv_used, kv_total, kv_evicted, waiting_for_batch, waiting_for_tokens, waiting_for_kv,
                        waiting_for_priority, cached_tokens, drafted_tokens, retries, graph_rows, device_ns, compute_ns,
                        memory_ns,
                    )  # fmt: skip
                if counts is not None:
                    narrow = bytes(counts if type(counts) is list else tuple(counts))
                    if len(narrow) != len(emitted):
                        raise ValueError("counts do not fit their requests")
                    width, packed = NARROW, packed + narrow
            except (struct.error, ValueError, TypeError):
                width, ints = 0 if counts is None else WIDE, STEP_INTS_IN_DETAIL
                packed = self._unusual(
                    emitted, counts, start_ns, end_ns, emitted_ns, step, prefill_tokens, decode_tokens, running,
                    waiting, preempted, kv_used, kv_total, kv_evicted, waiting_for_batch, waiting_for_tokens,
                    waiting_for_kv, waiting_for_priority, cached_tokens, drafted_tokens, retries, graph_rows, device_ns,
                    compute_ns, memory_ns,
                )  # fmt: skip
            records = self._records
            if self._closed or len(records) >= MAX_ENTRIES:
                self._refuse_step(Rows.of(StepRun(emitted, ints, width), [packed]))
                return
            run = records.run
            if run.ints != ints or run.width != width or run.emitted != emitted:
                records.run = run = StepRun(emitted[:], ints, width)
            self._append((run, packed))
        except Exception as error:
            self._guard.failed("recording a step", error)

    def _unusual(self, emitted: Sequence[Recipient], counts: Sequence[int] | None, *numbers: Any) -> bytes:
        """A packed step that has a number that is None (unknown) or a float (truncated), or a count over
        255. A malformed step is dropped and raises an error.
        """
        given = None if counts is None else tuple(counts)
        stamps, values = numbers[:STAMPS], numbers[STAMPS:]
        known = [*stamps, *(UNKNOWN if value is None else value for value in values)]
        try:
            packed = _pack_in_detail(*(value if type(value) is int else _truncated(value) for value in known))
            if given is None:
                return packed
            if len(given) != len(emitted) or not all(_is_count(count) for count in given):
                raise ValueError("counts do not fit their requests")
            return packed + array("q", map(int, given)).tobytes()
        except (struct.error, ValueError, OverflowError):
            self._drop(1 + sum(tokens for _, tokens in _tokens_in(emitted, given)), MALFORMED)
            raise

    def _record(self, record: Record) -> None:
        if self._closed or len(self._records) >= MAX_ENTRIES:
            self._refuse(record)
        else:
            self._append(record)

    def _refuse(self, record: Record) -> None:
        self._count_refused(spans_in(record))
        if kind_of(record) is CHUNK:
            subject_of(record).recipient.request.lost += spans_in(record)

    def _refuse_step(self, rows: Rows) -> None:
        self._count_refused(rows.spans)
        for recipient, tokens in zip(rows.emitted, rows.counts().tolist(), strict=True):
            if is_sampled(recipient):
                recipient.request.lost += (
                    tokens  # without a lock: two threads that emit to one request may lose a count
                )

    def _count_refused(self, spans: int) -> None:
        self._drop(spans, SHUTDOWN if self._closed else BUFFER_FULL)


def _truncated(value: Any) -> Any:
    """An int of a number that has one. In Python 3.11 this question takes 20 µs, too long for the ints of each step."""
    return int(value) if isinstance(value, SupportsInt) else value


def _tokens_in(emitted: Sequence[Recipient], counts: Sequence[int] | None) -> Iterator[tuple[Recipient, int]]:
    """The sampled requests of a step that may be malformed, and the number of tokens of each."""
    if counts is None or len(counts) != len(emitted):
        counts = (1,) * len(emitted)
    for request, count in zip(emitted, counts, strict=True):
        if is_sampled(request):
            yield request, int(count) if _is_count(count) else 1


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and 0 <= int(value) <= MAX_TOKENS
