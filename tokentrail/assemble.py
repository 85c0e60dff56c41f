"""Builds serialised spans (token, step, phase, request, KV, cold start) from the records of an engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from opentelemetry.sdk.trace import ReadableSpan

from tokentrail import semconv
from tokentrail.chunks import chunk_columns
from tokentrail.guard import Guard
from tokentrail.phases import PhaseInterval, partition
from tokentrail.records import Kind, Record, kind_of, spans_in, subject_of, well_formed
from tokentrail.request import ENDED_SLOT, Chunk, RequestTrail
from tokentrail.sampling import Sampling
from tokentrail.semconv import KvEvent, Phase
from tokentrail.slots import Slots, TokenRun
from tokentrail.spans import cold_start_span, open_span, request_span
from tokentrail.steps import step_columns, token_columns
from tokentrail.wire import I64, U64, Block, Columns, fill, span_bytes

ANNOUNCE_EVERY_NS: Final = 5_000_000_000
"""How often a request that is still open is announced again."""
LATE: Final = "late"
"""Reason of a drop: the token's request had ended."""
FOREIGN: Final = "foreign"
"""Reason of a drop: the token's request is a copy, or of another trail."""
MALFORMED: Final = "malformed"
"""Reason of a drop: the record cannot become a span, for wrong types or counts that do not match."""

_ALL_IDS: Final = 0xFFFF_FFFF_FFFF_FFFF
_STRIDE: Final = np.uint64(semconv.TOKEN_ID_STRIDE)


class KvSpan(NamedTuple):
    """A recorded KV event; stamps in unix ns."""

    kind: KvEvent
    blocks: int
    reason: str
    step: int
    start: int
    end: int
    request: RequestTrail | None


class Assembler:
    """Holds the requests under way and builds spans from batches of records, in the order of their recording.

    `drop(spans, reason)` counts the spans that cannot be built. A kind of record that fails does not stop the others.
    `left_out` counts the requests that sampling left out.
    """

    def __init__(
        self, guard: Guard, drop: Callable[[int, str], None], ids: np.random.Generator, sampling: Sampling
    ) -> None:
        self._guard = guard
        self._drop = drop
        self._ids = ids
        self._sampling = sampling
        self._slots = Slots()
        self.left_out = 0

    def build(self, records: Iterable[Record], now: int) -> list[Block]:
        """The spans of a batch of records, and the announcements that are due at `now` (unix ns)."""
        steps: list[Record] = []
        ended: list[RequestTrail] = []
        left: list[RequestTrail] = []
        events: defaultdict[Kind, list[Any]] = defaultdict(list)
        for record in records:
            kind = kind_of(record)
            if kind is Kind.STEP:
                steps.append(record)
            elif kind is Kind.START:
                self._slots.take(subject_of(record), traced=self._sampling.records_tokens(subject_of(record)))
            elif kind is Kind.END:
                end = subject_of(record).ended.at_ns
                if self._slots.mark_ended(subject_of(record), after_steps=len(steps), end=end):
                    ended.append(subject_of(record))
            elif kind is Kind.LEAVE:
                if self._slots.mark_ended(subject_of(record), after_steps=len(steps), end=-1):
                    left.append(subject_of(record))
            else:
                events[kind].append(subject_of(record))
        blocks = self._step_blocks(steps)
        blocks += self._chunk_blocks(events[Kind.CHUNK])
        blocks += self._request_blocks(ended)
        for request in left:
            self._slots.release(request)
        blocks += self._kv_blocks(events[Kind.KV])
        blocks += self._encode_each(cold_start_span, events[Kind.COLD])
        return blocks + self._announcements(now)

    def abandon(self) -> None:
        """Forgets the requests under way. A forked child calls it, since the parent goes on with them."""
        for request in list(self._slots.open.values()):
            self._slots.release(request)

    def _step_blocks(self, records: list[Record]) -> list[Block]:
        if not records:
            return []
        try:
            return self._steps_and_tokens(records)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            kept = [record for record in records if well_formed(record)]
            self._drop(sum(map(spans_in, records)) - sum(map(spans_in, kept)), MALFORMED)
            self._guard.failed("building steps", error)
            return self._steps_and_tokens(kept) if kept else []

    def _steps_and_tokens(self, records: list[Record]) -> list[Block]:
        slots, count = self._slots, len(records)
        steps = step_columns(records)
        tokens = token_columns(records, steps, slots, self._refuse)
        columns = Columns(
            self._own_trace(count), self._span_ids(count), None, steps.start, steps.end, list(steps.values.T)
        )
        blocks = [fill(columns, semconv.STEP_SPAN, semconv.STEP_ATTRIBUTES)]
        if tokens is None:
            return blocks
        return [*blocks, *self._token_blocks(tokens.slots, tokens.run, {semconv.STEP: tokens.step})]

    def _chunk_blocks(self, chunks: list[Chunk]) -> list[Block]:
        tokens = chunk_columns(chunks, self._slots, self._refuse)
        return self._token_blocks(*tokens, {}) if tokens else []

    def _token_blocks(self, owner: I64, run: TokenRun, ints: Mapping[str, I64]) -> list[Block]:
        slots = self._slots
        traced = slots.traced[owner]
        if not traced.all():
            owner, run = owner[traced], TokenRun(run.index[traced], run.start[traced], run.end[traced])
            ints = {key: values[traced] for key, values in ints.items()}
        if not len(owner):
            return []
        parent = slots.span[owner]
        span = parent + (run.index + 1).astype(np.uint64) * _STRIDE
        trace = slots.trace_high[owner], slots.trace_low[owner]
        columns = Columns(trace, span, parent, run.start, run.end, (run.index, *ints.values()))
        return [fill(columns, semconv.TOKEN_SPAN, (semconv.TOKEN_INDEX, *ints))]

    def _refuse(self, slot: int, tokens: int) -> None:
        """Counts and logs tokens that no request gets; `slot` tells why."""
        if not tokens:
            return
        reason, why = (LATE, "had ended") if slot == ENDED_SLOT else (FOREIGN, "is a copy or of another trail")
        self._drop(tokens, reason)
        self._guard.warn(reason, "tokentrail dropped %d tokens whose request %s", tokens, why)

    def _request_blocks(self, ended: list[RequestTrail]) -> list[Block]:
        phases: defaultdict[Phase, list[tuple[RequestTrail, PhaseInterval]]] = defaultdict(list)

        def span_of(request: RequestTrail) -> ReadableSpan | None:
            announced = self._slots.is_announced(request)
            emitted = self._slots.release(request)
            ended, arrival = request.ended, request.started.arrival_ns
            assert ended is not None
            end = max(ended.at_ns, arrival, emitted.last)
            first = emitted.first if emitted.tokens else None
            parts = partition(arrival, end, request.marks, self._unknown_phase, first)
            preempted = parts.preemptions > 0
            weight = self._sampling.weight(request, emitted, end, preempted=preempted, announced=announced)
            if weight is None:
                self.left_out += 1
                return None
            for interval in parts.intervals:
                phases[interval.phase].append((request, interval))
            return request_span(request, ended, end, emitted, parts, weight)

        blocks = self._encode_each(span_of, ended)
        return blocks + [self._phase_block(phase, intervals) for phase, intervals in phases.items()]

    def _unknown_phase(self, mark: object) -> None:
        self._guard.misuse("an unknown phase", mark)

    def _phase_block(self, phase: Phase, intervals: list[tuple[RequestTrail, PhaseInterval]]) -> Block:
        columns = Columns(
            _trace_columns([request for request, _ in intervals]),
            self._span_ids(len(intervals)),
            np.array([request.span_id for request, _ in intervals], np.uint64),
            np.array([interval.start for _, interval in intervals], np.int64),
            np.array([interval.end for _, interval in intervals], np.int64),
        )
        return fill(columns, semconv.PHASE_SPAN, (), ((semconv.PHASE_NAME, str(phase)),))

    def _kv_blocks(self, events: list[KvSpan]) -> list[Block]:
        alike: defaultdict[tuple[KvEvent, str, bool], list[KvSpan]] = defaultdict(list)
        for event in events:
            alike[event.kind, event.reason, event.request is not None].append(event)
        return [self._kv_block(kind, reason, group) for (kind, reason, _), group in alike.items()]

    def _kv_block(self, kind: KvEvent, reason: str, events: list[KvSpan]) -> Block:
        victims = [event.request for event in events if event.request is not None]
        columns = Columns(
            _trace_columns(victims) if victims else self._own_trace(len(events)),
            self._span_ids(len(events)),
            np.array([victim.span_id for victim in victims], np.uint64) if victims else None,
            np.array([event.start for event in events], np.int64),
            np.array([event.end for event in events], np.int64),
            [np.array([event.blocks for event in events]), np.array([event.step for event in events])],
        )
        name = semconv.KV_SPAN_PREFIX + kind
        return fill(columns, name, (semconv.KV_BLOCKS, semconv.STEP), ((semconv.KV_REASON, reason),))

    def _announcements(self, now: int) -> list[Block]:
        slots = self._slots
        due = [slot for slot in slots.open if now - slots.announced[slot] >= ANNOUNCE_EVERY_NS]
        if not self._sampling.keeps_all:
            due = [slot for slot in due if self._sampling.announces(slots.open[slot], slots.emitted(slot), now)]
        slots.announced[due] = now
        ids = self._span_ids(len(due)).tolist()
        return self._encode_each(
            lambda item: open_span(slots.open[item[0]], item[1], now, slots.emitted(item[0])),
            list(zip(due, ids, strict=True)),
        )

    def _encode_each(self, make: Callable[[Any], ReadableSpan | None], items: Sequence[Any]) -> list[Block]:
        """Serialises spans one by one; None is no span. A span that fails is dropped alone."""
        blocks = []
        for item in items:
            try:
                span = make(item)
                data = span_bytes(span) if span else b""
            except Exception as error:
                self._drop(1, MALFORMED)
                self._guard.failed("building a span", error)
            else:
                blocks += [Block(data, 1, len(data))] if data else []
        return blocks

    def _span_ids(self, count: int) -> U64:
        return self._ids.integers(1, _ALL_IDS, count, np.uint64, endpoint=True)

    def _own_trace(self, count: int) -> tuple[U64, U64]:
        """A new trace for each batch of the engine's own spans. Trace backends refuse one that grows for days."""
        high, low = self._span_ids(2)
        return np.full(count, high), np.full(count, low)


def _trace_columns(requests: Sequence[RequestTrail]) -> tuple[U64, U64]:
    high = np.array([request.trace_id >> 64 for request in requests], np.uint64)
    return high, np.array([request.trace_id & _ALL_IDS for request in requests], np.uint64)
