"""The records that wait between the engine's threads and the exporter's. No other module knows their layout.

    (numbers, emitted, counts)                                       a step
    (Kind.START | END | LEAVE | CHUNK | KV | COLD, request, chunk or event)

`numbers` are the start (unix ns), the end and the values of `STEP_ATTRIBUTES`, packed: the garbage collector does not
look into bytes, and the exporter's thread reads those of all steps as one array. `emitted` are the requests that got
tokens in the step, `counts` the number of tokens of each or None. Steps in a row with the same requests share
`emitted`.
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from itertools import accumulate, chain
from numbers import Integral, Real
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from tokentrail.arguments import MAX_TOKENS
from tokentrail.export import BUFFER_FULL, SHUTDOWN
from tokentrail.guard import Guard
from tokentrail.request import RequestTrail
from tokentrail.semconv import STEP_ATTRIBUTES
from tokentrail.wire import I64

Record = tuple[Any, ...]

MAX_PENDING_RECORDS: Final = 65_536
"""Records that may wait, far more than a schedule delay brings. Steps and events beyond it are dropped and counted."""
MALFORMED: Final = "malformed"
"""Reason of a drop: the record cannot become a span, for wrong types or counts that do not match."""
UNKNOWN: Final = -1
"""A count of a step that the engine does not know. Its attribute is absent."""


class Kind(Enum):
    """The kind of a record that is not a step is its first item."""

    START = auto()
    END = auto()
    LEAVE = auto()
    CHUNK = auto()
    KV = auto()
    COLD = auto()


_END: Final = Kind.END  # looking up an enum's member takes longer than appending a record
_CHUNK: Final = Kind.CHUNK
END_COST: Final = 32
"""The end of a request takes as long to build as about so many tokens."""
_STEP_INTS: Final = 2 + len(STEP_ATTRIBUTES)
_FIRST_COUNT: Final = 3
"""Position of the first number of a step that may be unknown."""
_pack: Final = struct.Struct(f"={_STEP_INTS}q").pack

kind_of: Final = itemgetter(0)
subject_of: Final = itemgetter(1)
"""The request or event of a record that is not a step."""
emitted_of: Final = itemgetter(1)
counts_of: Final = itemgetter(2)


class Records(deque[Record]):
    """The buffer. `emitted` are the requests of the last step, which the next step shares if they are still the same.
    It is None after a `take`, so that requests which their engine has forgotten are freed.
    """

    emitted: Sequence[RequestTrail] | None = None


class Batch(NamedTuple):
    """Records to be built: the steps, and the others with the number of steps of the batch before each."""

    steps: list[Record]
    others: list[tuple[Record, int]]

    def records(self) -> list[Record]:
        """All of them; steps come first."""
        return [*self.steps, *(record for record, _ in self.others)]


class Recorder:
    """The part of a `Trail` that runs in the engine's thread: it appends records to a bounded buffer.

    `drop(spans, reason)` counts the spans of a record that the buffer did not take.
    """

    def __init__(self, guard: Guard, drop: Callable[[int, str], None]) -> None:
        self._guard = guard
        self._drop = drop
        self._records = Records()
        self._append = self._records.append
        self._closed = False

    def step(
        self,
        step: int,
        start_ns: int,
        end_ns: int,
        emitted: Sequence[RequestTrail],
        *,
        counts: Sequence[int] | None = None,
        prefill_tokens: int | None = UNKNOWN,
        decode_tokens: int | None = UNKNOWN,
        running: int | None = UNKNOWN,
        waiting: int | None = UNKNOWN,
        preempted: int | None = UNKNOWN,
        kv_used: int | None = UNKNOWN,
        kv_total: int | None = UNKNOWN,
        kv_evicted: int | None = UNKNOWN,
    ) -> None:
        """Records one engine step, from `start_ns` to `end_ns` (unix ns). `emitted` are the requests that got tokens in
        it, `counts` the number of tokens of each (None: one each). All its tokens end with it. A number that the engine
        does not know is left out or None, and absent from the span. This is the hot path.
        """
        try:
            if emitted.__class__ is not list:
                emitted = tuple(emitted)
            same = self._records.emitted
            if emitted != same:
                self._records.emitted = same = emitted[:]
            if counts is not None:
                counts = tuple(counts)
            try:
                numbers = _pack(
                    start_ns, end_ns, step, prefill_tokens, decode_tokens, running, waiting, preempted, kv_used,
                    kv_total, kv_evicted,
                )  # fmt: skip
            except struct.error:
                numbers = self._packed(
                    same, counts, start_ns, end_ns, step, prefill_tokens, decode_tokens, running, waiting, preempted,
                    kv_used, kv_total, kv_evicted,
                )  # fmt: skip
            record = (numbers, same, counts)
            if self._closed or len(self._records) >= MAX_PENDING_RECORDS:
                self._refuse(record)
            else:
                self._append(record)
        except Exception as error:
            self._guard.failed("recording a step", error)

    def _packed(self, emitted: Sequence[RequestTrail], counts: tuple[int, ...] | None, *numbers: Any) -> bytes:
        """The numbers of a step that are not all integers: None is unknown, and floats are truncated."""
        stamps, values = numbers[:_FIRST_COUNT], numbers[_FIRST_COUNT:]
        known = [*stamps, *(UNKNOWN if value is None else value for value in values)]
        try:
            return _pack(*(int(value) if isinstance(value, Real) else value for value in known))
        except (struct.error, ValueError, OverflowError):
            self._drop(spans_in((b"", emitted, counts)), MALFORMED)
            raise

    def _record(self, record: Record) -> None:
        if self._closed or len(self._records) >= MAX_PENDING_RECORDS:
            self._refuse(record)
        else:
            self._append(record)

    def _refuse(self, record: Record) -> None:
        self._drop(spans_in(record), SHUTDOWN if self._closed else BUFFER_FULL)
        if is_step(record):
            for request, tokens in _tokens_in(record):
                request.lost += tokens  # without a lock: two threads that emit to one request may lose a count
        elif kind_of(record) is _CHUNK:
            subject_of(record).request.lost += spans_in(record)


def is_step(record: Record) -> bool:
    """Whether a record is that of a step."""
    return type(record[0]) is bytes


def take(records: Records, spans: int) -> Batch:
    """Removes the oldest records, until they stand for at least that many spans or none is left."""
    batch = Batch([], [])
    steps = batch.steps
    found = 0
    pop, add = records.popleft, steps.append
    while records and found < spans:
        record = pop()
        kind = record[0]
        if type(kind) is bytes:
            add(record)
            found += 1 + len(record[1])
        else:
            batch.others.append((record, len(steps)))
            found += END_COST if kind is _END else spans_in(record) if kind is _CHUNK else 1
    records.emitted = None
    return batch


def step_ints(steps: Sequence[Record]) -> I64:
    """The integers of step records, (S, 11): start, end, then the values of `STEP_ATTRIBUTES`."""
    return np.frombuffer(b"".join(map(kind_of, steps)), np.int64).reshape(-1, _STEP_INTS)


def token_counts(steps: Sequence[Record]) -> I64 | None:
    """Tokens per request and step, one step after the other; None when each request got one in each step.

    Raises `TypeError` or `ValueError` for counts that do not fit their requests.
    """
    given = list(map(counts_of, steps))
    if given.count(None) == len(given):
        return None
    lengths = list(map(len, map(emitted_of, steps)))
    parts = [(1,) * length if counts is None else counts for length, counts in zip(lengths, given, strict=True)]
    if list(map(len, parts)) != lengths:
        raise ValueError("counts do not fit their requests")
    try:
        return np.frombuffer(b"".join(map(bytes, parts)), np.uint8).astype(np.int64)
    except ValueError:  # a count over 255 fits no byte
        counts = np.frombuffer(array("q", chain.from_iterable(parts)), np.int64)
    if counts.min(initial=0) < 0 or counts.max(initial=0) > MAX_TOKENS:
        raise ValueError("counts that no step can have")
    return counts


def without_malformed(batch: Batch) -> tuple[Batch, list[Record]]:
    """The batch without the steps that cannot become columns, and those steps."""
    fit = [_well_formed(record) for record in batch.steps]
    before = [0, *accumulate(fit)]
    kept = [record for record, fits in zip(batch.steps, fit, strict=True) if fits]
    others = [(record, before[steps]) for record, steps in batch.others]
    return Batch(kept, others), [record for record, fits in zip(batch.steps, fit, strict=True) if not fits]


def _well_formed(step: Record) -> bool:
    emitted, counts = emitted_of(step), counts_of(step)
    return all(isinstance(request, RequestTrail) for request in emitted) and (
        counts is None or _counts_fit(emitted, counts)
    )


def spans_in(record: Record) -> int:
    """The number of spans that a record becomes for sure. An ended request: one, besides its phases; a step: its own
    and one for each token of a sampled request.
    """
    if is_step(record):
        return 1 + sum(tokens for _, tokens in _tokens_in(record))
    kind = kind_of(record)
    if kind is _CHUNK:
        return len(subject_of(record).stamps)
    return 0 if kind in (Kind.START, Kind.LEAVE) else 1


def _tokens_in(record: Record) -> Iterator[tuple[RequestTrail, int]]:
    """The sampled requests of a step that may be malformed, and the number of tokens of each."""
    emitted, counts = emitted_of(record), counts_of(record)
    if counts is None or len(counts) != len(emitted):
        counts = (1,) * len(emitted)
    for request, count in zip(emitted, counts, strict=True):
        if isinstance(request, RequestTrail) and request.sampled:
            yield request, int(count) if _is_integer(count, 0, MAX_TOKENS) else 1


def _counts_fit(emitted: Sequence[Any], counts: Sequence[Any]) -> bool:
    return len(counts) == len(emitted) and all(_is_integer(count, 0, MAX_TOKENS) for count in counts)


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, Integral) and low <= int(value) <= high
