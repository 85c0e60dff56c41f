"""Builds serialised spans from the records of an engine: those of tokens and steps here, the others elsewhere."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tokentrail import semconv
from tokentrail._build.announce import Announcements
from tokentrail._build.chunks import chunk_columns
from tokentrail._build.ended import EndedRequests
from tokentrail._build.events import cold_start_blocks, kv_blocks, own_trace
from tokentrail._build.sampling import Sampling
from tokentrail._build.slots import TokenRun
from tokentrail._build.spans import Emitted
from tokentrail._build.stamps import far_from, probable_unit
from tokentrail._build.steps import StepColumns, TokenOwners, step_columns, token_columns, token_owners
from tokentrail._build.workbench import Mask, Workbench, alike
from tokentrail._encode.wire import I64, U64, Block, Columns
from tokentrail._host.books import MALFORMED, SAMPLED_OUT
from tokentrail._host.guard import Guard
from tokentrail._record.arguments import RequestEnd
from tokentrail._record.recipient import ENDED_SLOT
from tokentrail._record.records import STEP_NAMES, Batch, Kind, Rows, Sorted, sorted_by_kind, without_malformed
from tokentrail._record.request import RequestTrail
from tokentrail.semconv import Status

LATE: Final = "late"
"""Reason of a drop: the token's request had ended."""
FOREIGN: Final = "foreign"
"""Reason of a drop: the token's request is a copy, or of another trail."""

_STRIDE: Final = np.uint64(semconv.TOKEN_ID_STRIDE)

_StepColumns = tuple[StepColumns, TokenOwners]


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
    abandoned. `EndedRequests` describes `sampling` and `on_end`, and `Workbench` describes `take_break`.
    """

    def __init__(
        self,
        guard: Guard,
        max_age_s: float,
        ids: np.random.Generator,
        sampling: Sampling,
        on_end: Callable[[RequestTrail, RequestEnd, int, Emitted], object],
        take_break: Callable[[], object],
    ) -> None:
        self.abandoned = 0
        self.bench = Workbench(guard, ids, take_break)
        self._sampling = sampling
        self._max_age_ns = round(max_age_s * 1e9)
        self._ended_requests = EndedRequests(self.bench, sampling, on_end)
        self._announcements = Announcements(self.bench, sampling)
        self._ended: list[RequestTrail] = []
        self._left: list[RequestTrail] = []

    def build_steps(self, batch: Batch, now: int) -> Steps:
        """The spans of steps, tokens and events at `now` (unix ns). Remembers the requests that ended. The blocks of
        the call before are gone.
        """
        slots, take_break = self.bench.slots, self.bench.take_break
        self.bench.buffer.reset()
        self.bench.batch_ns = now
        records = sorted_by_kind(batch)
        take_break()
        slots.take(records.started, self._sampling, self.bench.behind_by)
        slots.take_choices(records.choices)
        take_break()
        try:
            columns = self._columns(batch.steps)
        except (struct.error, AttributeError) as error:
            batch = self._without_malformed(batch, error)
            records = sorted_by_kind(batch)
            columns = self._columns(batch.steps)
        for request, after_steps in records.ended:
            if request.ended is None:
                self._abandon(request, now)
            elif slots.mark_ended(request, after_steps=after_steps, end=request.ended.at_ns):
                self._ended.append(request)
        for request, after_steps in records.left:
            if slots.mark_ended(request, after_steps=after_steps, end=-1):
                self._left.append(request)
        take_break()
        self._check_stamps(records, columns, now)
        take_break()
        events = kv_blocks(self.bench, records.events[Kind.KV])
        events += cold_start_blocks(self.bench, records.events[Kind.COLD])
        of_tokens: list[_Tokens] = []
        if columns is not None:
            steps, owners = columns
            events = [*self._step_blocks(steps), *events]
            if of_steps := token_columns(owners, steps, slots, self._refuse):
                of_tokens.append(_Tokens(of_steps[0], of_steps[1]))
        if of_chunks := chunk_columns(records.events[Kind.CHUNK], slots, self._refuse):
            of_tokens.append(_Tokens(of_chunks, None))
        of_tokens = [tokens for some in of_tokens if len((tokens := self._traced(some)).run.rows)]
        of_tokens = [tokens for some in of_tokens for tokens in self._by_choice(some)]
        return Steps([self._token_block(tokens) for tokens in of_tokens], events, [tokens.run for tokens in of_tokens])

    def build_requests(self, now: int, *, is_behind: bool = False) -> list[Block]:
        """The spans of the requests that ended in the batch, and the announcements that are due at `now` (unix ns).
        `Announcements.blocks` describes `is_behind`.
        """
        ended, self._ended = self._ended, []
        blocks = self._ended_requests.blocks(ended)
        left, self._left = self._left, []
        self.bench.slots.release(left)
        self._abandon_old(now)
        return blocks + self._announcements.blocks(now, is_behind=is_behind)

    @property
    def left_out(self) -> int:
        """The requests that sampling left out."""
        return self._ended_requests.left_out

    def lose(self, owners: I64) -> None:
        """Counts tokens that found no room in the queue for the requests in these slots."""
        self.bench.slots.lose(owners)

    def take_lost(self) -> Counter[str]:
        """The spans that were lost or sampled out since the last call, by reason."""
        lost, self.bench.lost = self.bench.lost, Counter()
        return lost

    def abandon_all(self, now: int) -> int:
        """Ends the requests that are open. Returns the number of records that this appended."""
        return sum(self._abandon(request, now) for request in self._open_requests())

    def forget(self) -> None:
        """Frees the slots of the requests under way. A forked child calls it, since the parent goes on with them."""
        self.bench.slots.release(self._open_requests())

    def _open_requests(self) -> list[RequestTrail]:
        return [request for reference in self.bench.slots.open.values() if (request := reference())]

    def _abandon_old(self, now: int) -> None:
        """Ends the requests over the greatest age, when an announcement of them is due."""
        slots = self.bench.slots
        for slot in np.flatnonzero((slots.announcement <= now) & (slots.arrival < now - self._max_age_ns)).tolist():
            if request := slots.open[slot]():
                self._abandon(request, now)

    def _abandon(self, request: RequestTrail, now: int) -> bool:
        """Ends a request that nobody ended; its end is a record of the next batch. False when it has ended."""
        if request.ended is not None:
            return False
        self.abandoned += 1
        self.bench.guard.warn("abandoned", "tokentrail ends a request that nobody ended (%032x)", request.trace_id)
        request.end(now, status=Status.ERROR, error_type=semconv.ABANDONED)
        return True

    def _without_malformed(self, batch: Batch, error: Exception) -> Batch:
        """The batch without its malformed steps, so that the positions of the others are those of its columns."""
        batch, malformed = without_malformed(batch)
        self.bench.lost[MALFORMED] += sum(rows.spans for rows in malformed)
        self.bench.guard.failed("building steps", error)
        return batch

    def _columns(self, steps: Sequence[Rows]) -> _StepColumns | None:
        """The columns of steps, and the owners of their tokens. Raises an error for a malformed step."""
        return (step_columns(steps), token_owners(steps)) if steps else None

    def _refuse(self, slot: int, tokens: int) -> None:
        """Counts and logs tokens that no request gets; `slot` tells why."""
        if not tokens:
            return
        reason, why = (LATE, "had ended") if slot == ENDED_SLOT else (FOREIGN, "is a copy or of another trail")
        self.bench.lost[reason] += tokens
        self.bench.guard.warn(reason, "tokentrail dropped %d tokens whose request %s", tokens, why)

    def _check_stamps(self, records: Sorted, columns: _StepColumns | None, now: int) -> None:
        """Counts stamps that are no unix nanoseconds of the present, and logs their probable unit once."""
        stamps = [request.started.arrival_ns for request in records.started]
        stamps += [request.ended.at_ns for request in self._ended if request.ended]
        stamps += [stamp for chunk in records.events[Kind.CHUNK] for stamp in chunk.stamps]
        parts = [np.array(stamps, np.int64), *(columns[0][:2] if columns else ())]
        far = np.concatenate([far_from(now, part) for part in parts])
        if len(far):
            unit = probable_unit(int(far[0]), now)
            self.bench.guard.misuse(
                f"a stamp that is far from now ({unit} in place of unix ns?)", int(far[0]), times=len(far)
            )

    def _step_blocks(self, steps: StepColumns) -> list[Block]:
        """The spans of steps, one block for all with the same known numbers. The step's own number is one."""
        known = steps.values >= 0
        known[:, 0] = True
        trace = own_trace(self.bench, 1)
        return [self._step_block(_chosen(steps, rows), columns, trace) for columns, rows in alike(known)]

    def _step_block(self, steps: StepColumns, known: Mask, trace: tuple[U64, U64]) -> Block:
        count = len(steps.start)
        values = list(steps.values.T[known])
        ids = self.bench.span_ids(count)
        columns = Columns(trace, ids, None, steps.start, steps.end, values, lengths=np.array([count]))
        names = [name for name, is_known in zip(STEP_NAMES, known, strict=False) if is_known]
        return self.bench.fill(columns, semconv.STEP_SPAN, names, behind=self.bench.behind_by(steps.start))

    def _traced(self, tokens: _Tokens) -> _Tokens:
        """The tokens that become spans."""
        traced = self.bench.slots.traced[tokens.run.rows]
        if traced.all():
            return tokens
        self.bench.lost[SAMPLED_OUT] += int(tokens.run.lengths[~traced].sum())
        return _chosen_tokens(tokens, traced)

    def _by_choice(self, tokens: _Tokens) -> list[_Tokens]:
        """The tokens of requests with one answer, and those of choices."""
        of_choices = self.bench.slots.choice[tokens.run.rows] >= 0
        if of_choices.all() or not of_choices.any():
            return [tokens]
        return [_chosen_tokens(tokens, ~of_choices), _chosen_tokens(tokens, of_choices)]

    def _token_block(self, tokens: _Tokens) -> Block:
        self.bench.take_break()
        slots, run = self.bench.slots, tokens.run
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
        of_request = slots.behind[run.rows]
        behind = np.repeat(of_request, run.lengths) if of_request.any() else 0
        return self.bench.fill(columns, semconv.TOKEN_SPAN, [*ints], behind=behind)


class _Tokens(NamedTuple):
    """Tokens, and the number of each one's engine step, if there was one."""

    run: TokenRun
    step: I64 | None


def _chosen(steps: StepColumns, rows: I64 | slice) -> StepColumns:
    return StepColumns(*(column[rows] for column in steps))


def _chosen_tokens(tokens: _Tokens, rows: Mask) -> _Tokens:
    """The tokens of some rows of the run."""
    run = tokens.run
    each = np.repeat(rows, run.lengths)
    chosen = TokenRun(run.index[each], run.start[each], run.end[each], run.rows[rows], run.lengths[rows])
    return _Tokens(chosen, None if tokens.step is None else tokens.step[each])
