"""Requests that had not ended at a moment: an answer reads them once, and judges them by their announcements."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import compress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.ask.queries import Queries
from collector.base.process import PROCESS, Process
from collector.slo.cells import Cells
from collector.slo.judged import Judged
from collector.slo.model import LabelRule, Promise, Thresholds
from collector.sql.fragment import Fragment
from tokentrail.shared.parameters import LABEL

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_MINUTE_NS: Final = 60_000_000_000
_LOOK_BACK_NS: Final = (5 * _MINUTE_NS, 24 * 60 * _MINUTE_NS)
"""How far back the last step of a process is looked for. A process that works has one in the first of these."""


@dataclass(frozen=True)
class InFlight:
    """One value per request in each array. A request is judged up to its latest announcement, where `elapsed_ns` ends.

    `is_lost`: after its latest announcement was stored, none came for `lost_after_ns`; `lost_at_ns` is that moment.
    `no_progress`: its engine process ran no step for as long. A TTFT that is not known is -1. `unmeasured`: the
    request has ended since, and nobody measured its first token, so nobody knows whether it had one by then.
    """

    columns: Mapping[str, Sequence[Any]]
    """`trace_id`, `span_id`, those of `Process` and the columns that an SLO selects by."""
    began_ns: Ints
    seen_ns: Ints
    elapsed_ns: Ints
    ttft_ns: Ints
    unmeasured: Bools
    gap_ns: Ints
    """The longest wait between two tokens so far, or since the latest token; -1: not known, or no token came."""
    later_tokens: Ints
    """Output tokens after the first, at least 1: the divisor of TPOT so far."""
    last_step_ns: Ints
    """0: not known, or not asked for, because each request of the process is younger than `lost_after_ns`."""
    lost_at_ns: Ints
    is_lost: Bools
    no_progress: Bools

    @classmethod
    def nothing(cls) -> InFlight:
        """No requests."""
        columns: Mapping[str, Sequence[Any]] = defaultdict(tuple)
        return judge_in_flight(columns, {}, end_ns=0, lost_after_ns=0, heard_until_ns=0)

    @property
    def size(self) -> int:
        """The number of requests, lost ones included."""
        return len(self.is_lost)

    @property
    def first_token_ns(self) -> Ints:
        """TTFT, or the time that the request has waited for its first token; 0 if nobody measured it."""
        waited = np.where(self.ttft_ns >= 0, np.minimum(self.ttft_ns, self.elapsed_ns), self.elapsed_ns)
        return np.where(self.unmeasured, 0, waited)

    def longest_missed_ns(self, latency: str) -> Ints:
        """The largest whole threshold of a latency that each request is past and cannot meet any more; -1 for none.

        TPOT may recover while the engine process makes progress, so nothing is missed then. For a wait of 100 ns and 3
        later tokens: 100 > 3 · 33 and not 100 > 3 · 34, so it is (100 - 1) // 3 = 33. Nobody tells before the end
        which token was visible, but none is before the first.
        """
        match latency:
            case "tpot":
                stands = self.no_progress & (self.ttft_ns >= 0)
                return np.where(stands, (self.elapsed_ns - self.ttft_ns - 1) // self.later_tokens, -1)
            case "gap":
                return self.gap_ns - 1
            case "e2e":
                return self.elapsed_ns - 1
        return self.first_token_ns - 1

    def judged_behind(self, cells: Judged) -> Judged:
        """The judgement of cells, and behind them of these requests by the same promises."""
        missed_ns = {latency: self.longest_missed_ns(latency) for latency in Thresholds.model_fields}
        selected = np.array([self.selected(promise) for promise in cells.promises], bool)
        shape = len(cells.promises), self.size
        return cells.with_open(self.is_lost, missed_ns, selected.reshape(shape).T)

    def judged(self, promises: Sequence[Promise]) -> Judged:
        """The judgement of these requests."""
        return self.judged_behind(Cells(promises).judged([]))

    def selected(self, slo: Promise) -> Bools:
        """The requests that an SLO selects."""
        chosen = np.ones(self.size, bool)
        if not self.size:
            return chosen
        for column, values in slo.select.items():
            chosen &= np.array([value in values for value in self._labelled(column, slo.labels)], bool)
        return chosen

    def values(self, dimension: str) -> list[str]:
        """The value of each request in a column, or of the label that `label.NAME` names; '' without it."""
        if dimension == PROCESS:
            return [process.joined for process in self.processes]
        if not dimension.startswith(LABEL):
            return [*self.columns[dimension]]
        return [labels.get(dimension.removeprefix(LABEL), "") for labels in self.columns["labels"]]

    def having(self, dimension: str, value: str) -> Bools:
        """The requests with this value in a column or label."""
        return np.array([one == value for one in self.values(dimension)], bool)

    def _labelled(self, column: str, rules: Sequence[LabelRule]) -> Sequence[str]:
        """The values of a column; where they are empty, those that the first rule gives which holds."""
        values = self.values(column)
        for rule in (rule for rule in rules if getattr(rule, column, "")):
            for i, value in enumerate(values):
                if not value and all(self.columns[name][i] in listed for name, listed in rule.when.items()):
                    values[i] = getattr(rule, column)
        return values

    def where(self, chosen: Bools) -> InFlight:
        """These requests alone."""
        columns = defaultdict(list, {name: [*compress(values, chosen)] for name, values in self.columns.items()})
        arrays = {one.name: getattr(self, one.name)[chosen] for one in fields(self) if one.name != "columns"}
        return InFlight(columns=columns, **arrays)

    def key(self, i: int) -> str:
        """Trace id and span id of a request, as 48 hex digits, and the tenant of its process."""
        ids = bytes(self.columns["trace_id"][i] + self.columns["span_id"][i]).hex()
        return f"{ids}{self.columns['process_tenant'][i]}"

    @cached_property
    def processes(self) -> list[Process]:
        """The engine process of each request."""
        return processes_of(self.columns)

    def count_by_process(self, requests: Bools) -> Counter[Process]:
        """How many of these requests each engine process has."""
        return Counter(self.processes[i] for i in np.flatnonzero(requests))


Steps = Mapping[Process, int]
"""Unix ns at which each engine process began its last step."""


def processes_of(columns: Mapping[str, Sequence[Any]]) -> list[Process]:
    """The engine process of each row."""
    return [Process(*names) for names in zip(*(columns[name] for name in Process._fields), strict=True)]


def read_in_flight(
    queries: Queries,
    selection: Fragment,
    *,
    start_ns: int,
    end_ns: int,
    lost_after_ns: int,
    heard_until_ns: int,
) -> InFlight:
    """The requests that match and had not ended at `end_ns`, without those that were lost before `start_ns`.

    A process cannot have made no progress for longer than a request runs, so young requests need no steps.
    """
    columns = read_not_ended(queries, selection, start_ns=start_ns, end_ns=end_ns, lost_after_ns=lost_after_ns)
    judged = partial(
        judge_in_flight, columns, end_ns=end_ns, lost_after_ns=lost_after_ns, heard_until_ns=heard_until_ns
    )
    in_flight = judged({})
    old = {in_flight.processes[i] for i in np.flatnonzero(in_flight.elapsed_ns >= lost_after_ns)}
    return judged(last_steps(queries, old, end_ns)) if old else in_flight


def read_not_ended(queries: Queries, selection: Fragment, **bounds: int) -> Mapping[str, Sequence[Any]]:
    """The columns of these requests, among them those that have ended since `end_ns`.

    To know that there are none of the latter costs 1.8 ms, and their columns 4.3.
    """
    announced = read_announced(queries, selection, **bounds)
    if not len(queries.array("any_ended_since", {}, np.uint8, end_ns=bounds["end_ns"])):
        return announced
    ended_since = queries.columns("ended_since", {"filter": selection}, end_ns=bounds["end_ns"])
    both = {name: [*announced[name], *ended_since[name]] for name in announced.keys() | ended_since.keys()}
    return defaultdict(list, both)


def read_announced(queries: Queries, selection: Fragment, **bounds: int) -> Mapping[str, Sequence[Any]]:
    """The columns of the requests that were announced and of which no end is stored.

    Ends are looked for from the oldest announced request on. That bound is a number, so that the store leaves out the
    days before it. As a subquery it costs more than a query.
    """
    announced = queries.columns("announced", {"filter": selection}, **bounds)
    if not announced["began_ns"]:
        return defaultdict(list)
    ended = queries.array("ended_announced", {}, np.uint64, first_ns=min(announced["began_ns"]))
    is_open = ~np.isin(np.array(announced.pop("key"), np.uint64), ended)
    return defaultdict(list, {name: [*compress(values, is_open)] for name, values in announced.items()})


def known_ns(ns: np.int64) -> int | None:
    """A time of an `InFlight`; None for -1."""
    return int(ns) if ns >= 0 else None


def judge_in_flight(
    columns: Mapping[str, Sequence[Any]], steps: Steps, *, end_ns: int, lost_after_ns: int, heard_until_ns: int
) -> InFlight:
    """Judge rows of the queries `announced` and `ended_since`.

    Only silence before `heard_until_ns` counts against an engine. For one that was heard at 70 s, and a limit of 30 s:

        end_ns 120 s, heard until 120 s    lost since 100 s
        end_ns 120 s, heard until 90 s     in flight: an announcement of 95 s may wait in a log
    """
    began, seen, heard = (np.array(columns[name], np.int64) for name in ("began_ns", "seen_ns", "heard_ns"))
    until = np.minimum(seen, end_ns)
    last_step = np.array([_last_step(steps, process) for process in processes_of(columns)], np.int64)
    elapsed = np.maximum(until - began, 0)
    last_token, gap = (
        np.array([-1 if ns is None else ns for ns in columns[name]], np.int64) for name in ("last_token_ns", "gap_ns")
    )
    # What was announced after the end of the window may have happened after it.
    told = (last_token >= 0) & (seen <= end_ns)
    return InFlight(
        columns=columns,
        began_ns=began,
        seen_ns=seen,
        elapsed_ns=elapsed,
        ttft_ns=np.array([-1 if ns is None else ns for ns in columns["ttft_ns"]], np.int64),
        unmeasured=np.array(columns["unmeasured"], bool),
        gap_ns=np.where(told, np.maximum(gap, elapsed - last_token), -1),
        later_tokens=np.array([max(n or 0, 2) - 1 for n in columns["output_tokens"]], np.int64),
        last_step_ns=last_step,
        lost_at_ns=heard + lost_after_ns,
        is_lost=heard + lost_after_ns < min(end_ns, heard_until_ns),
        no_progress=(last_step > 0) & (until - np.maximum(last_step, began) >= lost_after_ns),
    )


def _last_step(steps: Steps, process: Process) -> int:
    return max(steps.get(process, 0), steps.get(process.of_all_tenants, 0))


def last_steps(queries: Queries, processes: Collection[Process], end_ns: int) -> dict[Process, int]:
    """When each process, and that of all tenants of its name, began its last step of the last day."""
    last: dict[Process, int] = {}
    asked = {*processes, *(process.of_all_tenants for process in processes)}
    for back_ns in _LOOK_BACK_NS:
        missing = sorted(asked - last.keys())
        if missing:
            rows = queries.rows("last_steps", processes=missing, since_ns=end_ns - back_ns, end_ns=end_ns)
            last |= {Process.of(row): row["last_ns"] for row in rows}
    return last
