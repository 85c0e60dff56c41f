"""The records that wait between the engine's threads and the exporter's. No other module knows their layout.

    (Kind.STEP, start_ns, end_ns, step, … kv_evicted, emitted, counts)
    (Kind.START | END | LEAVE | CHUNK | KV | COLD, request, chunk or event)

`emitted` is the tuple of the requests that got tokens in the step, `counts` the number of tokens of each or None.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from itertools import chain
from numbers import Integral
from operator import itemgetter
from typing import Any, Final

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


class Kind(Enum):
    """The kind of a record is its first item."""

    STEP = auto()
    START = auto()
    END = auto()
    LEAVE = auto()
    CHUNK = auto()
    KV = auto()
    COLD = auto()


_STEP: Final = Kind.STEP  # looking up an enum's member takes longer than appending a record
_END: Final = Kind.END
_CHUNK: Final = Kind.CHUNK
END_COST: Final = 32
"""The end of a request takes as long to build as about so many tokens."""
_STEP_INTS: Final = 2 + len(STEP_ATTRIBUTES)
_ints_of: Final = itemgetter(slice(1, 1 + _STEP_INTS))

kind_of: Final = itemgetter(0)
subject_of: Final = itemgetter(1)
"""The request or event of a record that is not a step."""
emitted_of: Final = itemgetter(-2)
counts_of: Final = itemgetter(-1)


class Recorder:
    """The part of a `Trail` that runs in the engine's thread: it appends records to a bounded buffer.

    `drop(spans, reason)` counts the spans of a record that the buffer did not take.
    """

    def __init__(self, guard: Guard, drop: Callable[[int, str], None]) -> None:
        self._guard = guard
        self._drop = drop
        self._records: deque[Record] = deque()
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
        prefill_tokens: int = 0,
        decode_tokens: int = 0,
        running: int = 0,
        waiting: int = 0,
        preempted: int = 0,
        kv_used: int = 0,
        kv_total: int = 0,
        kv_evicted: int = 0,
    ) -> None:
        """Records one engine step, from `start_ns` to `end_ns` (unix ns). `emitted` are the requests that got tokens in
        it, `counts` the number of tokens of each (None: one each). All its tokens end with it. This is the hot path.
        """
        try:
            record = (
                _STEP, start_ns, end_ns, step, prefill_tokens, decode_tokens, running, waiting, preempted,
                kv_used, kv_total, kv_evicted, tuple(emitted), None if counts is None else tuple(counts),
            )  # fmt: skip
            if self._closed or len(self._records) >= MAX_PENDING_RECORDS:
                self._refuse(record)
            else:
                self._append(record)
        except Exception as error:
            self._guard.failed("recording a step", error)

    def _record(self, record: Record) -> None:
        if self._closed or len(self._records) >= MAX_PENDING_RECORDS:
            self._refuse(record)
        else:
            self._append(record)

    def _refuse(self, record: Record) -> None:
        self._drop(spans_in(record), SHUTDOWN if self._closed else BUFFER_FULL)
        if kind_of(record) is _STEP:
            for request, tokens in _tokens_in(record):
                request.lost += tokens  # without a lock: two threads that emit to one request may lose a count
        elif kind_of(record) is _CHUNK:
            subject_of(record).request.lost += spans_in(record)


def take(records: deque[Record], spans: int) -> list[Record]:
    """Removes the oldest records, until they stand for at least that many spans or none is left."""
    taken: list[Record] = []
    found = 0
    pop = records.popleft
    while records and found < spans:
        record = pop()
        taken.append(record)
        kind = record[0]
        if kind is _STEP:
            found += 1 + len(record[-2])
        else:
            found += END_COST if kind is _END else spans_in(record) if kind is _CHUNK else 1
    return taken


def step_ints(records: Sequence[Record]) -> I64:
    """The integers of step records, (S, 11): start, end, then the values of `STEP_ATTRIBUTES`.

    Raises `TypeError`, `ValueError` or `OverflowError` for a malformed record.
    """
    flat = np.fromiter(chain.from_iterable(map(_ints_of, records)), np.int64, len(records) * _STEP_INTS)
    return flat.reshape(-1, _STEP_INTS)


def token_counts(records: Sequence[Record]) -> I64 | None:
    """Tokens per request and step, one step after the other; None when each request got one in each step.

    Raises `TypeError` or `ValueError` for counts that do not fit their requests.
    """
    given = list(map(counts_of, records))
    if given.count(None) == len(given):
        return None
    emitted = list(map(emitted_of, records))
    parts = [(1,) * len(some) if counts is None else counts for some, counts in zip(emitted, given, strict=True)]
    if list(map(len, parts)) != list(map(len, emitted)):
        raise ValueError("counts do not fit their requests")
    counts = np.frombuffer(array("q", chain.from_iterable(parts)), np.int64)
    if counts.min(initial=0) < 0 or counts.max(initial=0) > MAX_TOKENS:
        raise ValueError("counts that no step can have")
    return counts


def well_formed(record: Record) -> bool:
    """Whether a step record can become columns."""
    _kind, *ints, emitted, counts = record
    return (
        all(_is_integer(value, -(2**63), 2**63 - 1) for value in ints)
        and all(isinstance(request, RequestTrail) for request in emitted)
        and (counts is None or _counts_fit(emitted, counts))
    )


def spans_in(record: Record) -> int:
    """The number of spans that a record becomes for sure. An ended request: one, besides its phases; a step: its own
    and one for each token of a sampled request.
    """
    kind = kind_of(record)
    if kind is _STEP:
        return 1 + sum(tokens for _, tokens in _tokens_in(record))
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
