"""State of the requests under way, one NumPy column per field.

A request has a row, its slot, from its start to its end. A later request takes the slot again. Each choice of a request
has a row of its own too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np
import numpy.typing as npt

from tokentrail._build.sampling import NEVER, Sampling
from tokentrail._build.spans import Emitted
from tokentrail._encode.wire import I64, U64
from tokentrail._record.recipient import ENDED_SLOT, FIRST_SLOT
from tokentrail._record.request import Choice, RequestTrail

NOW: Final = -1
"""A stamp before all others."""
ALL_IDS: Final = 0xFFFF_FFFF_FFFF_FFFF
SETTLED_NS: Final = 1_000_000_000
"""Who got no token for so long waits for one. Within this time tokens reach the builder: a proxy collects arrivals."""
_ROW_BITS: Final = 32
_ROW: Final = (1 << _ROW_BITS) - 1
_TABLES = count(1)


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens sorted by row, in order of emission within each: their index and stamps (unix ns). `rows` are the rows,
    each once, and `lengths` the tokens of each.
    """

    index: I64
    start: I64
    end: I64
    rows: I64
    lengths: I64

    @property
    def owners(self) -> I64:
        """The row of each token."""
        return np.repeat(self.rows, self.lengths)


class Slots:
    """The columns. `open` maps each taken slot to its request, weakly: a request that its engine has forgotten ends as
    abandoned. No request has a slot below `FIRST_SLOT`.
    """

    def __init__(self, capacity: int = 256, table: int | None = None) -> None:
        self._table = (next(_TABLES) if table is None else table) << _ROW_BITS
        self.open: dict[int, weakref.ref[RequestTrail]] = {}
        self.identity: dict[int, bytes] = {}  # the serialised part of announcements that stays the same
        self._free = list(range(capacity - 1, FIRST_SLOT - 1, -1))
        self.trace_high: U64 = np.zeros(capacity, np.uint64)
        self.trace_low: U64 = np.zeros(capacity, np.uint64)
        self.span: U64 = np.zeros(capacity, np.uint64)
        self.arrival: I64 = np.zeros(capacity, np.int64)
        self.behind: I64 = np.zeros(capacity, np.int64)  # so far (ns) the request's stamps are behind the wall clock
        self.tokens: I64 = np.zeros(capacity, np.int64)
        self.first: I64 = np.zeros(capacity, np.int64)
        self.last: I64 = np.zeros(capacity, np.int64)
        self.gap: I64 = np.zeros(capacity, np.int64)  # the longest wait between two tokens (ns)
        self.gap_index: I64 = np.zeros(capacity, np.int64)  # the place of the second one in its answer
        self.told_gap: I64 = np.zeros(capacity, np.int64)  # the longest wait that an announcement told (ns)
        self.dropped: I64 = np.zeros(capacity, np.int64)
        self.announcement: I64 = np.full(capacity, NEVER)  # when the next one is due
        self.wait: I64 = np.zeros(capacity, np.int64)  # from that one to the next
        self.last_step: I64 = np.full(capacity, NEVER)  # steps of this batch before the request's end
        self.request: I64 = np.arange(capacity)  # the row of the request; for the row of a choice it is another one
        self.choice: I64 = np.full(capacity, -1)
        self.choices: dict[int, list[tuple[int, Choice]]] = {}  # rows of the choices, by the row of their request
        self.traced = np.ones(capacity, np.bool_)  # whether the tokens become spans
        self.first_deadline: I64 = np.zeros(capacity, np.int64)  # a request without a token is certain to be kept then
        self.deadline: I64 = np.zeros(capacity, np.int64)  # … and one without an end then
        self.most_gap: I64 = np.zeros(capacity, np.int64)  # … and one that waited longer for a token (ns)
        self.end: I64 = np.full(capacity, NEVER)  # the request's end, unix ns
        self.last_step[:FIRST_SLOT], self.end[:FIRST_SLOT] = 0, -1

    @property
    def capacity(self) -> int:
        """Rows of the columns. Every slot is below it."""
        return len(self.span)

    def take(
        self,
        requests: Sequence[RequestTrail],
        sampling: Sampling | None = None,
        behind_by: Callable[[I64], I64 | int] = lambda _: 0,
    ) -> None:
        """Gives new requests their slots. `sampling` decides which requests get token spans (None: all), and the time
        from which a request is certain to be kept. `behind_by` tells how far stamps are behind the wall clock.
        """
        taken = self._taken(len(requests))
        for slot, request in zip(taken, requests, strict=True):
            request.slot = self._table | slot
            self.open[slot] = weakref.ref(request)
        rows = np.array(taken, np.int64)
        self.trace_high[rows], self.trace_low[rows] = trace_columns(requests)
        self.span[rows] = [request.span_id for request in requests]
        self.arrival[rows] = self.last[rows] = [request.started.arrival_ns for request in requests]
        self.behind[rows] = behind_by(self.arrival[rows])
        for column in (self.tokens, self.first, self.dropped, self.announcement, self.wait, self.gap, self.told_gap):
            column[rows] = 0
        self.last_step[rows] = self.end[rows] = NEVER
        if sampling is None or sampling.keeps_all:
            self.traced[rows], self.first_deadline[rows], self.deadline[rows] = True, NOW, NOW
            self.most_gap[rows] = NEVER
        elif requests:
            self.traced[rows] = [sampling.records_tokens(request) for request in requests]
            always = NOW, NOW, NEVER
            deadlines = [always if sampling.is_chosen(one) else sampling.deadlines(one) for one in requests]
            self.first_deadline[rows], self.deadline[rows], self.most_gap[rows] = np.array(deadlines, np.int64).T
        self.request[rows], self.choice[rows] = rows, -1

    def take_choices(self, choices: Sequence[Choice]) -> None:
        """Gives choices their slots. The choice of a request that has ended has ended too."""
        for choice, row in zip(choices, self._taken(len(choices)), strict=True):
            request = choice.request.slot & _ROW
            if request not in self.open or self.open[request]() is not choice.request:
                choice.slot = ENDED_SLOT
                self._free.append(row)
                continue
            choice.slot = self._table | row
            self.choices.setdefault(request, []).append((row, choice))
            for column in (
                self.trace_high,
                self.trace_low,
                self.span,
                self.arrival,
                self.behind,
                self.traced,
                self.last_step,
                self.end,
            ):
                column[row] = column[request]
            for column in (self.tokens, self.first, self.dropped, self.gap):
                column[row] = 0
            self.last[row] = self.arrival[row]
            self.announcement[row] = NEVER
            self.request[row], self.choice[row] = request, choice.index

    def rows(self, slots: I64) -> tuple[I64, npt.NDArray[np.bool_]]:
        """The rows of these slots, and which of them are foreign: a request that has no row here gets that of
        `ENDED_SLOT`.
        """
        rows = slots & _ROW
        foreign = (slots ^ rows) != self._table
        if foreign.any():
            foreign &= slots > ENDED_SLOT
            rows[foreign] = ENDED_SLOT
        return rows, foreign

    def mark_ended(self, request: RequestTrail, *, after_steps: int, end: int) -> bool:
        """Lets a request get tokens in that many steps of the batch, and in later ones that were over at its end (unix
        ns); False when it has ended before.
        """
        slot = request.slot & _ROW
        if self.last_step[slot] != NEVER:
            return False
        self.last_step[slot], self.end[slot] = after_steps, end
        for row, _ in self.choices.get(slot, ()):
            self.last_step[row], self.end[row] = after_steps, end
        return True

    def is_announced(self, row: int) -> bool:
        """Whether the request of a row was announced."""
        return bool(self.wait[row])

    def rows_of(self, requests: Sequence[RequestTrail]) -> list[int]:
        """The rows of requests under way."""
        return [request.slot & _ROW for request in requests]

    def release(self, requests: Sequence[RequestTrail]) -> list[Emitted]:
        """Frees the slots of requests that have ended. Returns their tokens. The columns keep their values until the
        next `take`.
        """
        slots = self.rows_of(requests)
        rows = np.array(slots, np.int64)
        names = ("tokens", "first", "last", "dropped", "gap", "gap_index")
        columns = [getattr(self, name)[rows].tolist() for name in names]
        emitted = []
        for slot, request, tokens, first, last, dropped, *gap in zip(slots, requests, *columns, strict=True):
            of_choices = self._release_choices(slot) if slot in self.choices else (0, 0)
            emitted.append(Emitted(tokens, first, last if tokens else 0, dropped + request.lost, *of_choices, *gap))
            request.slot = ENDED_SLOT
            del self.open[slot]
            self.identity.pop(slot, None)
        self.announcement[rows] = NEVER
        self._free += slots
        return emitted

    def _release_choices(self, request: int) -> tuple[int, int]:
        """Frees the slots of the choices of a request. How many got tokens, and the time between their tokens."""
        released = self.choices.pop(request)
        rows = np.array([row for row, _ in released], np.int64)
        for _, choice in released:
            choice.slot = ENDED_SLOT
        self._free += rows.tolist()
        rows = rows[self.tokens[rows] > 0]
        return len(rows), int((self.last[rows] - self.first[rows]).sum())

    def are_certain(self, rows: I64, now: int) -> npt.NDArray[np.bool_]:
        """Whether the requests under way in these rows are certain to be kept. A request that is late stays late."""
        first = np.where(self.tokens[rows] > 0, self.first[rows], now)
        late = (first > self.first_deadline[rows]) | (now > self.deadline[rows])
        return late | (self.longest_gap(rows, now) > self.most_gap[rows])

    def longest_gap(self, rows: I64, now: int) -> I64:
        """The longest wait for a token after the first of requests under way, by `now` (unix ns): in ns."""
        return np.maximum(self.gap[rows], now - self.last_told(rows, now))

    def last_told(self, rows: I64, now: int) -> I64:
        """The latest token of requests under way; `now` (unix ns) without a token, or where the next one may be under
        way to this thread.
        """
        return np.where((self.tokens[rows] > 0) & (now - self.last[rows] >= SETTLED_NS), self.last[rows], now)

    def advance(self, slots: I64, ends: I64) -> TokenRun:
        """Appends tokens to their requests: `slots` sorted, `ends` in order of emission within a slot.

        A token starts when the one before it ended (the first: on arrival). After a clock that ran backwards it has a
        duration of 0 and never a negative one, so that the durations always add up to the time from arrival to the last
        token.

            slots = [2, 2, 7], ends = [30, 40, 35]; slot 2 had 1 token, at 20; slot 7 had none and arrived at 10
            heads = [0, 2], lengths = [2, 1]     slot 2's tokens begin at position 0, slot 7's at position 2
            start = [20, 30, 10]                 the end of the token before, at the heads the end of the last batch
            index = [1, 2, 0]                    afterwards: tokens = 3 and 1, last = 40 and 35, first = 35 for slot 7
        """
        heads = np.flatnonzero(np.diff(slots, prepend=-1))
        lengths = np.diff(heads, append=len(slots))
        owners = slots[heads]
        last, tokens = self.last[owners], self.tokens[owners]
        starts = _shifted(ends, heads, last)
        if (ends < starts).any():
            group = np.repeat(np.arange(len(heads)), lengths)
            ends = _running_max(np.maximum(ends, last[group]), group, heads, lengths)
            starts = _shifted(ends, heads, last)
        index = np.arange(len(slots)) + np.repeat(tokens - heads, lengths)
        fresh = tokens == 0
        self.first[owners[fresh]] = ends[heads[fresh]]
        self.last[owners] = ends[heads + lengths - 1]
        self.tokens[owners] = tokens + lengths
        self._note_gaps(owners, heads, lengths, np.where(index > 0, ends - starts, 0), index)
        if self.choices:
            self._add_to_requests(owners, lengths, ends[heads])
        return TokenRun(index, starts, ends, owners, lengths)

    def _note_gaps(self, owners: I64, heads: I64, lengths: I64, waits: I64, index: I64) -> None:
        """Remembers the longest of these waits of each row, and the first token that waited so long."""
        longest = np.maximum.reduceat(waits, heads)
        longer = longest > self.gap[owners]
        if longer.any():
            which = np.flatnonzero((waits == np.repeat(longest, lengths)) & np.repeat(longer, lengths))[::-1]
            self.gap_index[np.repeat(owners, lengths)[which]] = index[which]
            self.gap[owners[longer]] = longest[longer]

    def _add_to_requests(self, owners: I64, lengths: I64, begins: I64) -> None:
        """Adds the tokens of choices to their requests. `begins` are the first ones of the batch."""
        of_choices = self.choice[owners] >= 0
        owners, lengths, begins = owners[of_choices], lengths[of_choices], begins[of_choices]
        requests = self.request[owners]
        self.first[requests[self.tokens[requests] == 0]] = NEVER
        np.minimum.at(self.first, requests, begins)
        np.maximum.at(self.last, requests, self.last[owners])
        np.add.at(self.tokens, requests, lengths)
        longer = self.gap[owners] > self.gap[requests]
        for row, request in zip(owners[longer].tolist(), requests[longer].tolist(), strict=True):
            if self.gap[row] > self.gap[request]:
                self.gap[request], self.gap_index[request] = self.gap[row], self.gap_index[row]

    def lose(self, owners: I64) -> None:
        """Counts tokens of these rows that were lost, for their requests."""
        np.add.at(self.dropped, self.request[owners], 1)

    def _taken(self, count: int) -> list[int]:
        while len(self._free) < count:
            self._grow()
        return [self._free.pop() for _ in range(count)]

    def _grow(self) -> None:
        old = self.capacity
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.announcement[old:] = NEVER
        self._free[:0] = range(2 * old - 1, old - 1, -1)  # the lowest slots are taken first


def trace_columns(requests: Sequence[RequestTrail]) -> tuple[U64, U64]:
    """The trace ids of requests, high and low 64 bits."""
    ids = [request.trace_id for request in requests]
    return np.array([i >> 64 for i in ids], np.uint64), np.array([i & ALL_IDS for i in ids], np.uint64)


def _shifted(ends: I64, heads: I64, before: I64) -> I64:
    """The end of the token before each one; at the heads that of another batch."""
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1]
    starts[heads] = before
    return starts


def _running_max(values: I64, group: I64, heads: I64, lengths: I64) -> I64:
    """Each value raised to the largest one before it in its group. A clock that runs forward leaves nothing to do.

    values = [30, 25, 28, 10], group = [0, 0, 0, 1]
    falls  = [1]                 25 is less than 30 and in the same group; group 1 is not looked at
    result = [30, 30, 30, 10]    group 0 is accumulated in place
    """
    falls = np.flatnonzero((values[1:] < values[:-1]) & (group[1:] == group[:-1])) + 1
    for fallen in np.unique(group[falls]):
        part = values[heads[fallen] : heads[fallen] + lengths[fallen]]
        np.maximum.accumulate(part, out=part)
    return values
