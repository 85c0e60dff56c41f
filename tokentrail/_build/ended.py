"""Builds the spans of requests that have ended, and those of their phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from opentelemetry.trace import SpanKind

from tokentrail import semconv
from tokentrail._build.phases import Partition, partition
from tokentrail._build.sampling import Sampling
from tokentrail._build.spans import DOUBLES, INTS, Emitted, request_parts
from tokentrail._build.workbench import Workbench, alike
from tokentrail._encode.wire import Block, Columns
from tokentrail._host.books import MALFORMED, SAMPLED_OUT
from tokentrail._record.arguments import RequestEnd
from tokentrail._record.request import RequestTrail
from tokentrail.semconv import Phase


class Table(NamedTuple):
    """Requests that have ended, column by column; `ints` and `doubles` row by row in one list."""

    rows: list[int]
    ends: list[int]
    ints: list[int]
    doubles: list[float]
    tails: list[bytes]


_CLIENT: Final = SpanKind.CLIENT  # a member takes long to look up
_PREFILL: Final = Phase.PREFILL
_Phases = defaultdict[tuple[Phase, bool], list[int]]
"""By phase, and whether the tokens that it computed are told."""


class EndedRequests:
    """Decides which ended requests are kept, and builds their spans. `left_out` counts the others.

    `on_end` gets every request that ended, its end (unix ns) and its tokens.
    """

    def __init__(
        self,
        bench: Workbench,
        sampling: Sampling,
        on_end: Callable[[RequestTrail, RequestEnd, int, Emitted], object],
    ) -> None:
        self.left_out = 0
        self._bench = bench
        self._sampling = None if sampling.keeps_all else sampling
        self._on_end = on_end

    def blocks(self, requests: Sequence[RequestTrail]) -> list[Block]:
        """The spans of the requests and of their phases. A request that fails is dropped alone."""
        bench = self._bench
        rows = bench.slots.rows_of(requests)
        table = Table([], [], [], [], [])
        phases: _Phases = defaultdict(list)  # row, start, end of each, and the tokens where they are told
        for request, row, emitted in zip(requests, rows, bench.slots.release(requests), strict=True):
            bench.take_break()
            try:
                self._add(request, row, emitted, table, phases)
            except Exception as error:
                bench.lost[MALFORMED] += 1
                bench.guard.failed("building a span", error)
        return self._request_blocks(table) + [self._phase_block(*kind, some) for kind, some in phases.items()]

    def _add(
        self, request: RequestTrail, row: int, emitted: Emitted, table: Table, phases: _Phases
    ) -> None:
        ended, arrival = request.ended, request.started.arrival_ns
        assert ended is not None
        end = max(ended.at_ns, arrival, emitted.last)
        try:
            self._on_end(request, ended, end, emitted)
        except Exception as error:
            self._bench.guard.failed("recording metrics", error)
        first = emitted.first if emitted.tokens else None
        divided: Partition = ([], 0)
        if request.marks or not _seen_from_outside(request, ended):
            divided = partition(arrival, end, request.marks, self._unknown_phase, first)
        weight = self._weight(request, row, emitted, end, preempted=divided[1] > 0)
        if weight is None:
            self.left_out += 1
            self._bench.lost[SAMPLED_OUT] += 1
            return
        ints, doubles, tail = request_parts(request, ended, end, emitted, divided, weight)
        table.rows.append(row)
        table.ends.append(end)
        table.ints.extend(ints)
        table.doubles.extend(doubles)
        table.tails.append(tail)
        computed = getattr(request, "computed", None)
        for phase, start, stop in divided[0]:
            if computed and phase is _PREFILL and start in computed:
                phases[phase, True] += (row, start, stop, computed[start])
            else:
                phases[phase, False] += (row, start, stop)

    def _weight(self, request: RequestTrail, row: int, emitted: Emitted, end: int, *, preempted: bool) -> float | None:
        if self._sampling is None:
            return 1.0
        announced = self._bench.slots.is_announced(row)
        return self._sampling.weight(request, emitted, end, preempted=preempted, announced=announced)

    def _unknown_phase(self, mark: object) -> None:
        self._bench.guard.misuse("an unknown phase", mark)

    def _request_blocks(self, table: Table) -> list[Block]:
        """The spans of the requests, one block for all with the same known numbers."""
        if not table.rows:
            return []
        slots, count = self._bench.slots, len(table.rows)
        rows, ends = np.array(table.rows), np.array(table.ends)
        ints = np.array(table.ints, np.int64).reshape(count, len(INTS))
        doubles = np.array(table.doubles, np.float64).reshape(count, len(DOUBLES))
        blocks = []
        for known, chosen in alike(np.hstack([ints >= 0, ~np.isnan(doubles)])):
            mine = rows[chosen]
            columns = Columns(
                (slots.trace_high[mine], slots.trace_low[mine]),
                slots.span[mine],
                None,
                slots.arrival[mine],
                ends[chosen],
                [*ints[chosen].T[known[: len(INTS)]]],
                [*doubles[chosen].T[known[len(INTS) :]]],
            )
            keys = [key for key, is_known in zip(INTS, known[: len(INTS)], strict=True) if is_known]
            seconds = [key for key, is_known in zip(DOUBLES, known[len(INTS) :], strict=True) if is_known]
            tails = table.tails if isinstance(chosen, slice) else [table.tails[place] for place in chosen.tolist()]
            blocks.append(self._bench.fill(columns, "", keys, (), seconds, tails, slots.behind[mine]))
        return blocks

    def _phase_block(self, phase: Phase, has_tokens: bool, intervals: list[int]) -> Block:
        bench, slots = self._bench, self._bench.slots
        rows, starts, ends, *tokens = np.array(intervals).reshape(-1, 3 + has_tokens).T
        trace = slots.trace_high[rows], slots.trace_low[rows]
        columns = Columns(trace, bench.span_ids(len(rows)), slots.span[rows], starts, ends, tokens)
        keys = [semconv.PHASE_TOKENS] if has_tokens else []
        texts = ((semconv.PHASE_NAME, str(phase)),)
        return bench.fill(columns, semconv.PHASE_SPAN, keys, texts, behind=slots.behind[rows])


def _seen_from_outside(request: RequestTrail, ended: RequestEnd) -> bool:
    """A client or a proxy recorded the request. It sees when chunks arrive, and does not know the engine's phases."""
    return request.started.kind is _CLIENT or semconv.ARRIVALS in ended.attributes
