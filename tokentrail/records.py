"""The records that wait between the engine's threads and the exporter's. No other module knows their layout.

    (Kind.STEP, start_ns, end_ns, step, … kv_evicted, emitted, counts)
    (Kind.START | END | LEAVE | CHUNK | KV | COLD, request, chunk or event)

`emitted` is the tuple of the requests that got tokens in the step, `counts` the number of tokens of each or None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
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


def take(records: deque[Record], spans: int) -> list[Record]:
    """Removes the oldest records, until they stand for at least that many spans or none is left."""
    taken: list[Record] = []
    found = 0
    pop = records.popleft
    while records and found < spans:
        record = pop()
        taken.append(record)
        found += 1 + len(record[-2]) if record[0] is _STEP else 1
    return taken


def step_ints(records: Sequence[Record]) -> I64:
    """The integers of step records, (S, 11): start, end, then the values of `STEP_ATTRIBUTES`.

    Raises `TypeError`, `ValueError` or `OverflowError` for a malformed record.
    """
    flat = np.fromiter(chain.from_iterable(map(_ints_of, records)), np.int64, len(records) * _STEP_INTS)
    return flat.reshape(-1, _STEP_INTS)


def token_counts(records: Sequence[Record]) -> I64 | None:
    """Tokens per request and step, one step after the other; None when each request got one in each step.

    Raises `ValueError` for counts that do not fit their requests.
    """
    given = list(map(counts_of, records))
    if given.count(None) == len(given):
        return None
    parts = []
    for record, counts in zip(records, given, strict=True):
        emitted = emitted_of(record)
        if counts is not None and not _counts_fit(emitted, counts):
            raise ValueError(f"step {record[3]} emitted to {len(emitted)} requests with counts {counts!r}")
        parts.append((1,) * len(emitted) if counts is None else counts)
    return np.fromiter(chain.from_iterable(parts), np.int64)


def well_formed(record: Record) -> bool:
    """Whether a step record can become columns."""
    _kind, *ints, emitted, counts = record
    return (
        all(_is_integer(value, -(2**63), 2**63 - 1) for value in ints)
        and all(isinstance(request, RequestTrail) for request in emitted)
        and (counts is None or _counts_fit(emitted, counts))
    )


def spans_in(record: Record) -> int:
    """The number of spans that a record becomes; a step: its own and one for each token of a sampled request."""
    if kind_of(record) is Kind.CHUNK:
        return len(subject_of(record).stamps)
    if kind_of(record) is not _STEP:
        return 1
    emitted, counts = emitted_of(record), counts_of(record)
    sampled = [isinstance(request, RequestTrail) and request.sampled for request in emitted]
    if counts is None or len(counts) != len(emitted):
        return 1 + sum(sampled)
    fitting = (int(count) if _is_integer(count, 0, MAX_TOKENS) else 1 for count in counts)
    return 1 + sum(count for count, wanted in zip(fitting, sampled, strict=True) if wanted)


def _counts_fit(emitted: Sequence[Any], counts: Sequence[Any]) -> bool:
    return len(counts) == len(emitted) and all(_is_integer(count, 0, MAX_TOKENS) for count in counts)


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, Integral) and low <= int(value) <= high
