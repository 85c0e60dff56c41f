"""Builds serialised spans (token, step, phase, request, KV, cold start) from the records of an engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokentrail import semconv
from tokentrail.chunks import chunk_columns
from tokentrail.encode import Span, span_bytes
from tokentrail.export import SAMPLED_OUT
from tokentrail.guard import Guard
from tokentrail.phases import partition
from tokentrail.records import MALFORMED, Batch, Kind, Rows, kind_of, subject_of, without_malformed
from tokentrail.request import ENDED_SLOT, Choice, RequestEnd, RequestTrail
from tokentrail.sampling import Sampling
from tokentrail.semconv import KvEvent, Phase, Status
from tokentrail.slots import Slots, TokenRun, trace_columns
from tokentrail.spans import Emitted, RequestParts, announcement_tail, cold_start_span, request_parts
from tokentrail.stamps import far_from, probable_unit
from tokentrail.steps import StepColumns, TokenOwners, step_columns, token_columns, token_owners
from tokentrail.wire import I64, U64, Block, Buffer, Columns, fill, joined

ANNOUNCE_AFTER_NS: Final = 5_000_000_000
"""A request is announced on arrival, again after this time, and from then on after twice the time before …"""
ANNOUNCE_EVERY_NS: Final = 20_000_000_000
"""… but at least this often: the collector takes a request for lost that it has not heard of for 30 s."""
ANNOUNCED_AT_ONCE: Final = 500
"""Announcements that are built without a break."""
LATE: Final = "late"
"""Reason of a drop: the token's request had ended."""
FOREIGN: Final = "foreign"
"""Reason of a drop: the token's request is a copy, or of another trail."""

_STRIDE: Final = np.uint64(semconv.TOKEN_ID_STRIDE)

_StepColumns = tuple[StepColumns, TokenOwners]
_Shape = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of a request's integers and doubles. Requests with the same ones share a template."""


class KvSpan(NamedTuple):
    """A recorded KV event; stamps in unix ns."""

    kind: KvEvent
    blocks: int
    reason: str
    step: int
    start: int
    end: int
    request: RequestTrail | None


class Steps(NamedTuple):
    """Spans of a batch of steps: those of tokens, and the engine's own (steps, events)."""

    tokens: list[Block]
    engine: list[Block]
    runs: list[TokenRun]

    @property
    def owners(self) -> I64:
        """The row of the request of each token."""
        return np.concatenate([run.owners for run in self.runs])


class Assembler:
    """Holds the requests under way and builds spans from batches of records, in the order of their recording.

    `build_steps` and then `build_requests` are called for each batch. A kind of record that fails does not stop the
    others; `take_lost` gives the spans that could not be built. `max_age_s` is the age at which an open request ends as
    abandoned. `left_out` counts the requests that `sampling` left out. `on_end` gets every request that ended, its end
    (unix ns) and its tokens. `breathe` is called between two pieces of work, so that other threads get their turn.
    """

    def __init__(
        self,
        guard: Guard,
        max_age_s: float,
        ids: np.random.Generator,
        sampling: Sampling,
        on_end: Callable[[RequestTrail, RequestEnd, int, Emitted], object],
        breathe: Callable[[], object],
    ) -> None:
        self.abandoned = self.left_out = 0
        self._sampling = sampling
        self._on_end = on_end
        self._breathe = breathe
        self._guard = guard
        self._max_age_ns = round(max_age_s * 1e9)
        self._ids = ids
        self._slots = Slots()
        self._buffer = Buffer()
        self._lost: Counter[str] = Counter()
        self._ended: list[RequestTrail] = []
        self._left: list[RequestTrail] = []

    def build_steps(self, batch: Batch, now: int) -> Steps:
        """The spans of steps, tokens and events at `now` (unix ns). Remembers the requests that ended. The blocks of
        the call before are gone.
        """
        self._buffer.reset()
        records = _sorted(batch)
        sampling = self._sampling
        traced = None if sampling.keeps_all else [sampling.records_tokens(request) for request in records.started]
        self._breathe()
        self._slots.take(records.started, traced)
        self._slots.take_choices(records.choices)
        self._breathe()
        try:
            columns = self._columns(batch.steps)
        except (TypeError, AttributeError) as error:
            batch = self._without_malformed(batch, error)
            records = _sorted(batch)
            columns = self._columns(batch.steps)
        for request, after_steps in records.ended:
            if request.ended is None:
                self._abandon(request, now)
            elif self._slots.mark_ended(request, after_steps=after_steps, end=request.ended.at_ns):
                self._ended.append(request)
        for request, after_steps in records.left:
            if self._slots.mark_ended(request, after_steps=after_steps, end=-1):
                self._left.append(request)
        self._breathe()
        self._check_stamps(records, columns, now)
        self._breathe()
        events = self._kv_blocks(records.events[Kind.KV]) + self._encode_each(
            cold_start_span, records.events[Kind.COLD]
        )
        found: list[_Tokens] = []
        if columns is not None:
            steps, owners = columns
            events = [*self._step_blocks(steps), *events]
            if of_steps := token_columns(owners, steps, self._slots, self._refuse):
                found.append(_Tokens(of_steps[0], of_steps[1]))
        if of_chunks := chunk_columns(records.events[Kind.CHUNK], self._slots, self._refuse):
            found.append(_Tokens(of_chunks, None))
        found = [tokens for some in found if len((tokens := self._traced(some)).run.rows)]
        found = [tokens for some in found for tokens in self._by_choice(some)]
        return Steps([self._token_block(tokens) for tokens in found], events, [tokens.run for tokens in found])

    def build_requests(self, now: int) -> list[Block]:
        """The spans of the requests that ended in the batch, and the announcements that are due at `now` (unix ns)."""
        ended, self._ended = self._ended, []
        blocks = self._request_blocks(ended)
        left, self._left = self._left, []
        self._slots.release(left)
        return blocks + self._announcements(now)

    def lose(self, owners: I64) -> None:
        """Counts tokens that found no room in the queue for the requests in these slots."""
        self._slots.lose(owners)

    def take_lost(self) -> Counter[str]:
        """The spans that were lost or sampled out since the last call, by reason."""
        lost, self._lost = self._lost, Counter()
        return lost

    def abandon_all(self, now: int) -> int:
        """Ends the requests that are open. Returns the number of records that this appended."""
        return sum(self._abandon(request, now) for request in self._open_requests())

    def forget(self) -> None:
        """Frees the slots of the requests under way. A forked child calls it, since the parent goes on with them."""
        self._slots.release(self._open_requests())

    def _open_requests(self) -> list[RequestTrail]:
        return [request for reference in self._slots.open.values() if (request := reference())]

    def _abandon(self, request: RequestTrail, now: int) -> bool:
        """Ends a request that nobody ended; its end is a record of the next batch. False when it has ended."""
        if request.ended is not None:
            return False
        self.abandoned += 1
        self._guard.warn("abandoned", "tokentrail ends a request that nobody ended (%032x)", request.trace_id)
        request.end(now, status=Status.ERROR, error_type=semconv.ABANDONED)
        return True

    def _without_malformed(self, batch: Batch, error: Exception) -> Batch:
        """The batch without its malformed steps, so that the positions of the others are those of its columns."""
        batch, malformed = without_malformed(batch)
        self._lost[MALFORMED] += sum(rows.spans for rows in malformed)
        self._guard.failed("building steps", error)
        return batch

    def _columns(self, steps: Sequence[Rows]) -> _StepColumns | None:
        """The columns of steps, and the owners of their tokens. Raises an error for a malformed step."""
        return (step_columns(steps), token_owners(steps)) if steps else None

    def _refuse(self, slot: int, tokens: int) -> None:
        """Counts and logs tokens that no request gets; `slot` tells why."""
        if not tokens:
            return
        reason, why = (LATE, "had ended") if slot == ENDED_SLOT else (FOREIGN, "is a copy or of another trail")
        self._lost[reason] += tokens
        self._guard.warn(reason, "tokentrail dropped %d tokens whose request %s", tokens, why)

    def _check_stamps(self, records: _Sorted, columns: _StepColumns | None, now: int) -> None:
        """Counts stamps that are no unix nanoseconds of the present, and logs their probable unit once."""
        stamps = [request.started.arrival_ns for request in records.started]
        stamps += [request.ended.at_ns for request in self._ended if request.ended]
        stamps += [stamp for chunk in records.events[Kind.CHUNK] for stamp in chunk.stamps]
        parts = [np.array(stamps, np.int64), *(columns[0][:2] if columns else ())]
        far = np.concatenate([far_from(now, part) for part in parts])
        if len(far):
            unit = probable_unit(int(far[0]), now)
            self._guard.misuse(
                f"a stamp that is far from now ({unit} in place of unix ns?)", int(far[0]), times=len(far)
            )

    def _step_blocks(self, steps: StepColumns) -> list[Block]:
        """The spans of steps, one block for those whose known numbers are the same. The step's own number is one."""
        known = steps.values >= 0
        known[:, 0] = True
        trace = self._own_trace(1)
        kinds, kind = (known[:1], None) if (known == known[0]).all() else np.unique(known, axis=0, return_inverse=True)
        return [
            self._step_block(
                steps if kind is None else _chosen(steps, np.flatnonzero(kind.ravel() == number)), columns, trace
            )
            for number, columns in enumerate(kinds)
        ]

    def _step_block(self, steps: StepColumns, known: npt.NDArray[np.bool_], trace: tuple[U64, U64]) -> Block:
        count = len(steps.start)
        values = list(steps.values[:, known].T)
        columns = Columns(trace, self._span_ids(count), None, steps.start, steps.end, values, lengths=np.array([count]))
        names = [name for name, is_known in zip(semconv.STEP_ATTRIBUTES, known, strict=True) if is_known]
        return fill(columns, semconv.STEP_SPAN, names, buffer=self._buffer)

    def _traced(self, tokens: _Tokens) -> _Tokens:
        """The tokens that become spans."""
        traced = self._slots.traced[tokens.run.rows]
        if traced.all():
            return tokens
        self._lost[SAMPLED_OUT] += int(tokens.run.lengths[~traced].sum())
        return _chosen_tokens(tokens, traced)

    def _by_choice(self, tokens: _Tokens) -> list[_Tokens]:
        """The tokens of requests with one answer, and those of choices."""
        of_choices = self._slots.choice[tokens.run.rows] >= 0
        if of_choices.all() or not of_choices.any():
            return [tokens]
        return [_chosen_tokens(tokens, ~of_choices), _chosen_tokens(tokens, of_choices)]

    def _token_block(self, tokens: _Tokens) -> Block:
        self._breathe()
        slots, run = self._slots, tokens.run
        parent, choice = slots.span[run.rows], slots.choice[run.rows]
        ordinal = np.repeat((choice + 1) << 32, run.lengths) + run.index + 1
        span = np.repeat(parent, run.lengths) + ordinal.astype(np.uint64) * _STRIDE
        trace = slots.trace_high[run.rows], slots.trace_low[run.rows]
        ints: dict[str, I64] = {}
        if choice[0] >= 0:
            ints[semconv.CHOICE_INDEX] = np.repeat(choice, run.lengths)
        if tokens.step is not None:
            ints[semconv.STEP] = tokens.step
        columns = Columns(trace, span, parent, run.start, run.end, [*ints.values()], lengths=run.lengths)
        return fill(columns, semconv.TOKEN_SPAN, [*ints], buffer=self._buffer)

    def _request_blocks(self, requests: list[RequestTrail]) -> list[Block]:
        """The spans of requests that have ended, and those of their phases. A request that fails is dropped alone."""
        phases: defaultdict[Phase, list[tuple[int, int, int]]] = defaultdict(list)  # row, start, end
        alike: defaultdict[_Shape, list[tuple[int, int, RequestParts]]] = defaultdict(list)  # row, end, parts
        rows, keeps_all = self._slots.rows_of(requests), self._sampling.keeps_all
        for request, row, emitted in zip(requests, rows, self._slots.release(requests), strict=True):
            self._breathe()
            try:
                ended, arrival = request.ended, request.started.arrival_ns
                assert ended is not None
                end = max(ended.at_ns, arrival, emitted.last)
                self._tell(request, ended, end, emitted)
                found = partition(
                    arrival, end, request.marks, self._unknown_phase, emitted.first if emitted.tokens else None
                )
                weight: float | None = 1.0
                if not keeps_all:
                    weight = self._weight(request, row, emitted, end, preempted=found.preemptions > 0)
                if weight is None:
                    self.left_out += 1
                    self._lost[SAMPLED_OUT] += 1
                    continue
                parts = request_parts(request, ended, emitted, found, weight)
                alike[tuple(parts.ints), tuple(parts.doubles)].append((row, end, parts))
                for phase, start, stop in found.intervals:
                    phases[phase].append((row, start, stop))
            except Exception as error:
                self._lost[MALFORMED] += 1
                self._guard.failed("building a span", error)
        blocks = [self._request_block(shape, group) for shape, group in alike.items()]
        return blocks + [self._phase_block(phase, np.array(intervals)) for phase, intervals in phases.items()]

    def _tell(self, request: RequestTrail, ended: RequestEnd, end: int, emitted: Emitted) -> None:
        try:
            self._on_end(request, ended, end, emitted)
        except Exception as error:
            self._guard.failed("recording metrics", error)

    def _weight(self, request: RequestTrail, row: int, emitted: Emitted, end: int, *, preempted: bool) -> float | None:
        announced = self._slots.is_announced(row)
        return self._sampling.weight(request, emitted, end, preempted=preempted, announced=announced)

    def _request_block(self, shape: _Shape, group: list[tuple[int, int, RequestParts]]) -> Block:
        """The spans of requests whose attributes have the same names."""
        slots = self._slots
        rows = np.array([row for row, _, _ in group], np.int64)
        ends = np.array([end for _, end, _ in group], np.int64)
        ints = np.array([tuple(parts.ints.values()) for _, _, parts in group], np.int64)
        doubles = np.array([tuple(parts.doubles.values()) for _, _, parts in group], np.float64)
        trace = slots.trace_high[rows], slots.trace_low[rows]
        columns = Columns(trace, slots.span[rows], None, slots.arrival[rows], ends, [*ints.T], [*doubles.T])
        return fill(columns, "", shape[0], (), shape[1], [parts.tail for _, _, parts in group], buffer=self._buffer)

    def _unknown_phase(self, mark: object) -> None:
        self._guard.misuse("an unknown phase", mark)

    def _phase_block(self, phase: Phase, intervals: I64) -> Block:
        slots, (rows, starts, ends) = self._slots, intervals.T
        trace = slots.trace_high[rows], slots.trace_low[rows]
        columns = Columns(trace, self._span_ids(len(rows)), slots.span[rows], starts, ends)
        return fill(columns, semconv.PHASE_SPAN, (), ((semconv.PHASE_NAME, str(phase)),), buffer=self._buffer)

    def _kv_blocks(self, events: list[KvSpan]) -> list[Block]:
        alike: defaultdict[tuple[KvEvent, str, bool], list[KvSpan]] = defaultdict(list)
        for event in events:
            alike[event.kind, event.reason, event.request is not None].append(event)
        return [self._kv_block(kind, reason, group) for (kind, reason, _), group in alike.items()]

    def _kv_block(self, kind: KvEvent, reason: str, events: list[KvSpan]) -> Block:
        victims = [event.request for event in events if event.request is not None]
        columns = Columns(
            trace_columns(victims) if victims else self._own_trace(len(events)),
            self._span_ids(len(events)),
            np.array([victim.span_id for victim in victims], np.uint64) if victims else None,
            np.array([event.start for event in events], np.int64),
            np.array([event.end for event in events], np.int64),
            list(np.array([(event.blocks, event.step) for event in events], np.int64).T),
        )
        name = semconv.KV_SPAN_PREFIX + kind
        return fill(columns, name, (semconv.KV_BLOCKS, semconv.STEP), ((semconv.KV_REASON, reason),))

    def _announcements(self, now: int) -> list[Block]:
        """Announces the open requests that are due: those with tokens, and those without."""
        slots = self._slots
        due = np.flatnonzero(slots.announcement <= now)
        for slot in due[now - slots.arrival[due] > self._max_age_ns].tolist():
            if request := slots.open[slot]():
                self._abandon(request, now)
        if not self._sampling.keeps_all:
            due = due[[self._is_certain(slot, now) for slot in due.tolist()]] if len(due) else due
        slots.wait[due] = np.clip(2 * slots.wait[due], ANNOUNCE_AFTER_NS, ANNOUNCE_EVERY_NS)
        slots.announcement[due] = now + slots.wait[due]
        begun = slots.tokens[due] > 0
        return [
            self._announcement_block(some[done : done + ANNOUNCED_AT_ONCE], keys, now)
            for some, keys in ((due[begun], (semconv.TIME_TO_FIRST_TOKEN,)), (due[~begun], ()))
            for done in range(0, len(some), ANNOUNCED_AT_ONCE)
        ]

    def _is_certain(self, slot: int, now: int) -> bool:
        request = self._slots.open[slot]()
        return request is not None and self._sampling.announces(request, self._slots.emitted(slot, request.lost), now)

    def _announcement_block(self, due: I64, keys: Sequence[str], now: int) -> Block:
        self._breathe()
        slots, arrival = self._slots, self._slots.arrival[due]
        columns = Columns(
            (slots.trace_high[due], slots.trace_low[due]),
            self._span_ids(len(due)),
            slots.span[due],
            arrival,
            np.maximum(arrival, now),
            (slots.tokens[due],),
            ((slots.first[due] - arrival) / 1e9,) * len(keys),
        )
        tails = [self._identity(slot) for slot in due.tolist()]
        return fill(columns, semconv.OPEN_SPAN, (semconv.OUTPUT_TOKENS,), (), keys, tails, buffer=self._buffer)

    def _identity(self, slot: int) -> bytes:
        """The kind and the attributes of a request's announcements that stay the same."""
        known = self._slots.identity.get(slot)
        if known is None:
            self._breathe()
            request = self._slots.open[slot]()
            known = announcement_tail(request.started) if request else b""
            self._slots.identity[slot] = known
        return known

    def _encode_each(self, make: Callable[[Any], Span], items: Sequence[Any]) -> list[Block]:
        """Serialises spans one by one. A span that fails is dropped alone."""
        spans = []
        for item in items:
            try:
                spans.append(span_bytes(make(item)))
            except Exception as error:
                self._lost[MALFORMED] += 1
                self._guard.failed("building a span", error)
        return joined(spans)

    def _span_ids(self, count: int) -> U64:
        return np.maximum(np.frombuffer(self._ids.bytes(8 * count), np.uint64), 1)  # an id is not 0

    def _own_trace(self, count: int) -> tuple[U64, U64]:
        """A new trace for each batch of the engine's own spans. Trace backends refuse one that grows for days."""
        high, low = self._span_ids(2)
        return np.full(count, high), np.full(count, low)


class _Tokens(NamedTuple):
    """Tokens, and the number of each one's engine step, if there was one."""

    run: TokenRun
    step: I64 | None


class _Sorted(NamedTuple):
    """Records that are not steps, by kind. `ended` and `left` have each request with the number of steps of the batch
    before that.
    """

    started: list[RequestTrail]
    choices: list[Choice]
    ended: list[tuple[RequestTrail, int]]
    left: list[tuple[RequestTrail, int]]
    events: defaultdict[Kind, list[Any]]


def _sorted(batch: Batch) -> _Sorted:
    found = _Sorted([], [], [], [], defaultdict(list))
    for record, after_steps in batch.others:
        kind = kind_of(record)
        if kind is Kind.START:
            found.started.append(subject_of(record))
        elif kind is Kind.CHOICE:
            found.choices.append(subject_of(record))
        elif kind is Kind.END:
            found.ended.append((subject_of(record), after_steps))
        elif kind is Kind.LEAVE:
            found.left.append((subject_of(record), after_steps))
        else:
            found.events[kind].append(subject_of(record))
    return found


def _chosen(steps: StepColumns, rows: I64) -> StepColumns:
    return StepColumns(*(column[rows] for column in steps))


def _chosen_tokens(tokens: _Tokens, rows: npt.NDArray[np.bool_]) -> _Tokens:
    """The tokens of some rows of the run."""
    run = tokens.run
    each = np.repeat(rows, run.lengths)
    chosen = TokenRun(run.index[each], run.start[each], run.end[each], run.rows[rows], run.lengths[rows])
    return _Tokens(chosen, None if tokens.step is None else tokens.step[each])
