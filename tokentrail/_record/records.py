"""The records that wait between the engine's threads and the exporter's. No other module knows their layout.

A record is two entries of the buffer, its kind and its subject, which one C call appends:

    Kind.START | CHOICE | END | LEAVE | CHUNK | KV | COLD, and the request, choice, chunk or event
    a `StepRun`, and the packed numbers and counts of one of its steps

The numbers of steps are packed and not kept as objects: the engine's thread makes nothing that the garbage collector
looks at, and the exporter's thread reads the numbers of all steps as one array.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum, auto
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from tokentrail._encode.wire import I64
from tokentrail._record.recipient import Recipient
from tokentrail._record.request import Choice, RequestTrail
from tokentrail.semconv import STEP_ATTRIBUTES, STEP_DETAILS

Record = tuple[Any, Any]
"""The kind and the subject of a record that is not a step."""

UNKNOWN: Final = -1
"""A count that is not known. Its attribute is absent."""


class Kind(Enum):
    """The kind of a record that is not a step is its first item."""

    START = auto()
    CHOICE = auto()
    END = auto()
    LEAVE = auto()
    CHUNK = auto()
    KV = auto()
    COLD = auto()


START, CHOICE, END, LEAVE, CHUNK = Kind.START, Kind.CHOICE, Kind.END, Kind.LEAVE, Kind.CHUNK
"""The kinds that come often. Looking up an enum's member takes longer than appending a record."""
_SMALL_REST: Final = 4
_NO_SPANS: Final = (START, CHOICE, LEAVE)
END_COST: Final = 32
"""The end of a request takes as long to build as about so many tokens."""
STEP_NAMES: Final = STEP_ATTRIBUTES + STEP_DETAILS
"""The attributes of a step's span."""
STAMPS: Final = 4
"""Numbers of a step that are always known: its start, its end and when its tokens were emitted (unix ns), and its own
number."""
STEP_INTS: Final = STAMPS - 1 + len(STEP_ATTRIBUTES)
STEP_INTS_IN_DETAIL: Final = STEP_INTS + len(STEP_DETAILS)
"""Numbers of a step without and with details. Each one costs its engine time, and most steps have no details."""
NARROW: Final = 1
WIDE: Final = 8
"""Bytes of a count."""
ENTRIES: Final = 2
"""Entries of the buffer for each record."""

kind_of: Final = itemgetter(0)
subject_of: Final = itemgetter(1)
"""The request or event of a record that is not a step."""


class StepRun:
    """The requests of steps in a row, the number of integers of each step, and the bytes of a count of tokens: 0 when
    each request got one token.

    A packed step is the start (unix ns), the end, when its tokens were emitted, the first values of `STEP_NAMES`, and
    after these numbers the counts. Nobody changes a run, so that threads may share one.
    """

    __slots__ = ("emitted", "ints", "width")

    def __init__(self, emitted: Sequence[Recipient], ints: int, width: int) -> None:
        self.emitted = emitted
        self.ints = ints
        self.width = width


class Rows(NamedTuple):
    """Steps of a run that were taken together: their numbers one after the other, and their counts."""

    emitted: Sequence[Recipient]
    ints: int
    width: int
    steps: int
    numbers: bytes
    packed_counts: bytes

    @classmethod
    def of(cls, run: StepRun, packed: Sequence[bytes]) -> Rows:
        """The packed steps of a run."""
        numbers, counts = b"".join(packed), b""
        if run.width:
            table, size = np.frombuffer(numbers, np.uint8).reshape(len(packed), -1), 8 * run.ints
            numbers, counts = table[:, :size].tobytes(), table[:, size:].tobytes()
        return cls(run.emitted, run.ints, run.width, len(packed), numbers, counts)

    def padded(self, ints: int) -> bytes:
        """The numbers with unknown ones behind those of each step."""
        numbers = np.frombuffer(self.numbers, np.int64).reshape(self.steps, self.ints)
        return np.pad(numbers, ((0, 0), (0, ints - self.ints)), constant_values=UNKNOWN).tobytes()

    def counts(self) -> I64:
        """Tokens per step and request, one step after the other."""
        if not self.width:
            return np.ones(self.steps * len(self.emitted), np.int64)
        return np.frombuffer(self.packed_counts, f"=u{self.width}").astype(np.int64)

    @property
    def spans(self) -> int:
        """The number of spans that the rows become: the steps' own, and one for each token of a sampled request."""
        sampled = np.array([is_sampled(request) for request in self.emitted], np.bool_)
        return self.steps + int(self.counts().reshape(self.steps, -1)[:, sampled].sum())


class Records(deque[Any]):
    """The buffer, two entries for each record. `run` is that of the last step, which the next step goes on with if its
    requests are the same. A `take` ends it, so that requests which their engine has forgotten are freed.
    """

    run = StepRun((), 0, -1)

    @property
    def waiting(self) -> int:
        """The number of records."""
        return len(self) // ENTRIES


class Batch(NamedTuple):
    """Records to be built: steps, and the other records with the number of steps of the batch before each."""

    steps: list[Rows]
    others: list[tuple[Record, int]]
    is_all: bool = True
    """No record waited any more when these were taken."""

    def __len__(self) -> int:
        return sum(rows.steps for rows in self.steps) + len(self.others)

    @property
    def spans(self) -> int:
        """The number of spans that the records become for sure."""
        return sum(rows.spans for rows in self.steps) + sum(spans_in(record) for record, _ in self.others)


def take(records: Records, spans: int) -> Batch:
    """Removes the oldest records, until they stand for at least that many spans or none is left. A rest of less than a
    quarter goes along, since a build of its own would cost more.
    """
    batch, is_all = Batch([], []), True
    run, packed = Records.run, list[bytes]()
    taken = steps = width = 0
    pop = records.popleft
    with suppress(IndexError):  # of an empty deque
        while taken < spans or _SMALL_REST * records.waiting < steps + len(packed) + len(batch.others):
            kind, subject = pop(), pop()
            if kind is run:
                packed.append(subject)
                taken += width
            elif type(kind) is StepRun:
                if packed:
                    batch.steps.append(Rows.of(run, packed))
                    steps += len(packed)
                run, packed, width = kind, [subject], 1 + len(kind.emitted)
                taken += width
            else:
                batch.others.append(((kind, subject), steps + len(packed)))
                taken += END_COST if kind is END else len(subject.stamps) if kind is CHUNK else 1
        is_all = not records
    if packed:
        batch.steps.append(Rows.of(run, packed))
    records.run = Records.run
    return Batch(batch.steps, batch.others, is_all)


class Sorted(NamedTuple):
    """Records that are not steps, by kind. `ended` and `left` have each request with the number of steps of the batch
    before that.
    """

    started: list[RequestTrail]
    choices: list[Choice]
    ended: list[tuple[RequestTrail, int]]
    left: list[tuple[RequestTrail, int]]
    events: defaultdict[Kind, list[Any]]


def sorted_by_kind(batch: Batch) -> Sorted:
    """The records of a batch that are not steps."""
    by_kind = Sorted([], [], [], [], defaultdict(list))
    for record, after_steps in batch.others:
        kind = kind_of(record)
        if kind is START:
            by_kind.started.append(subject_of(record))
        elif kind is CHOICE:
            by_kind.choices.append(subject_of(record))
        elif kind is END:
            by_kind.ended.append((subject_of(record), after_steps))
        elif kind is LEAVE:
            by_kind.left.append((subject_of(record), after_steps))
        else:
            by_kind.events[kind].append(subject_of(record))
    return by_kind


def step_ints(steps: Sequence[Rows]) -> I64:
    """The integers of steps: start, end, when tokens were emitted, and the values of `STEP_NAMES`, or those of
    `STEP_ATTRIBUTES` alone when no step has details.
    """
    ints = max([rows.ints for rows in steps])
    numbers = [rows.numbers if rows.ints == ints else rows.padded(ints) for rows in steps]
    return np.frombuffer(b"".join(numbers), np.int64).reshape(-1, ints)


def token_counts(steps: Sequence[Rows]) -> I64 | None:
    """Tokens per request and step, one step after the other; None when each request got one in each step."""
    widths = {rows.width for rows in steps}
    if widths == {0}:
        return None
    if WIDE in widths:
        return np.concatenate([rows.counts() for rows in steps])
    ones = [rows.packed_counts if rows.width else b"\1" * (rows.steps * len(rows.emitted)) for rows in steps]
    return np.frombuffer(b"".join(ones), np.uint8).astype(np.int64)


def without_malformed(batch: Batch) -> tuple[Batch, list[Rows]]:
    """The batch without the steps of objects that are no requests, and those steps."""
    kept: list[Rows] = []
    malformed: list[Rows] = []
    positions = [0]  # of each step of the batch and of the end, among the steps that are kept
    for rows in batch.steps:
        fit = all(isinstance(request, Recipient) for request in rows.emitted)
        (kept if fit else malformed).append(rows)
        positions += [positions[-1] + fit * (step + 1) for step in range(rows.steps)]
    return Batch(kept, [(record, positions[steps]) for record, steps in batch.others]), malformed


def spans_waiting(records: Iterable[Any]) -> int:
    """The number of spans that the records of a buffer become for sure."""
    packed: defaultdict[StepRun, list[bytes]] = defaultdict(list)
    others = 0
    entries = iter(records)
    for kind, subject in zip(entries, entries, strict=True):
        if type(kind) is StepRun:
            packed[kind].append(subject)
        else:
            others += spans_in((kind, subject))
    return others + sum(Rows.of(run, steps).spans for run, steps in packed.items())


def spans_in(record: Record) -> int:
    """The number of spans that a record becomes for sure. An ended request: one, besides its phases."""
    kind = kind_of(record)
    if kind is CHUNK:
        return len(subject_of(record).stamps)
    return 0 if kind in _NO_SPANS else 1


def is_sampled(request: object) -> bool:
    """Whether the tokens of an object are recorded: it is a request or a choice, and sampled."""
    return isinstance(request, Recipient) and request.sampled
