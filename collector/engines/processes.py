"""Engine processes, one by one: their state, their requests and steps, and curves of their batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from collector.ask.times import DAY_NS, SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.base.process import PROCESS, Process, by_turns
from collector.count import samples
from collector.count.answers import Distribution, WindowOut
from collector.count.evaluation import Counted, count_by, open_requests, process_filter
from collector.count.in_flight import Bools
from collector.count.reader import Reader
from collector.engines.engines import only_sampled
from collector.engines.kv import Cache, caches
from collector.engines.siblings import Beside, beside
from collector.engines.signs import processes_of, signs_of_life
from collector.numbers.latencies import exact_by
from collector.slo.counts import Number

MOST: Final = 300
POINTS: Final = 40
"""Buckets of the curves."""
_FEWEST_STEPS: Final = 5
"""Fewer steps that only decode, of one bucket and size, say nothing of a process."""
_QUIET_NS: Final = 300 * SECOND_NS

State = Literal["hangs", "lost", "ok", "quiet"]
Curve = Sequence[float | None]


class ProcessNumbers(Answer):
    """One engine process. Null: it does not tell, or nothing of it is in the window."""

    service: str
    instance: str
    process_tenant: str
    engine: str
    variant: str
    models: list[str]
    state: State
    """`hangs`: requests are open and there is no step. `lost`: it announced requests and went silent. `quiet`: no sign
    of life in the last five minutes of the window, as of an engine without requests, or of one that was stopped."""
    since: str | None
    """Of `hangs`, `lost` and `quiet`: its last step, announcement or sign."""
    first_seen: str
    last_seen: str
    requests: Number
    in_flight: int
    """Requests open at the window's end, those of a process that hangs among them."""
    attainment: float | None
    ttft_p99_s: float | None
    output_tokens_per_s: float | None
    """While it was there: from its first sign of life in the window to its last one."""
    running: int | None
    waiting: int | None
    kv_usage: float | None
    preemptions: int | None
    step_p50_s: float | None
    step_p99_s: float | None
    running_curve: Curve
    """The largest batch of each bucket."""
    waiting_curve: Curve
    kv_curve: Curve
    beside: Beside | None
    """Null: no other process of its service made steps in the same time."""


class Processes(Answer):
    """`/processes`."""

    window: WindowOut
    step_s: float
    """Width of a bucket of the curves; the first begins with the window."""
    processes: list[ProcessNumbers]
    """The processes in trouble first, then slow ones, the slowest first, then the latest: 300 at most, of which each
    tenant has a part."""
    processes_total: int


def processes(reader: Reader, window: Window, vantage: Sequence[str]) -> Processes:
    """The processes that gave a sign of life in the window, with their numbers."""
    told = WindowOut.of(window, reader.complete_ns)
    known = processes_of(signs_of_life(reader, window))
    known += only_sampled(known, samples.sampled(reader, window, ("up", "running")))
    read = _Read(reader, window, known)
    known.sort(key=read.order)
    listed = {id(row) for row in by_turns(known, lambda row: row["process_tenant"])[:MOST]}
    shown = [row for row in known if id(row) in listed]
    read.count(vantage, shown)
    return Processes(
        window=told,
        step_s=read.step_ns / SECOND_NS,
        processes=[read.numbers(row) for row in shown],
        processes_total=len(known),
    )


def besides(reader: Reader, window: Window) -> dict[Process, Beside]:
    """Each process of a window beside its siblings, of those whose steps are told."""
    return _besides(_batches(reader, window, _width_ns(window)))


def _width_ns(window: Window) -> int:
    return max(1, -(-(window.end_ns - window.start_ns) // POINTS))


def _batches(reader: Reader, window: Window, step_ns: int) -> Mapping[Process, Sequence[dict[str, Any]]]:
    """The buckets of each process."""
    of_process: dict[Process, list[dict[str, Any]]] = defaultdict(list)
    fragments = {"process_filter": process_filter(window)}
    for row in reader.queries.rows("process_batches", fragments, **window.bounds, step_ns=step_ns):
        of_process[Process.of(row)].append(row)
    return of_process


def _besides(batches: Mapping[Process, Sequence[Mapping[str, Any]]]) -> dict[Process, Beside]:
    decoded: dict[Process, dict[int, dict[int, float]]] = defaultdict(dict)
    for process, of in batches.items():
        for row in of:
            if sizes := {size: p50_ns for size, n, p50_ns in row["decoded"] if n >= _FEWEST_STEPS}:
                decoded[process][row["bucket"]] = sizes
    return beside({process: (process.service, process.process_tenant) for process in batches}, decoded)


class _Read:
    """What was read of all processes of a window."""

    def __init__(self, reader: Reader, window: Window, known: Sequence[dict[str, Any]]) -> None:
        self._reader, self._window = reader, window
        self.step_ns = _width_ns(window)
        of_process = {"process_filter": process_filter(window)}
        day = replace(window, start_ns=min(window.start_ns, window.end_ns - DAY_NS))
        self._open = open_requests(reader, day)
        self._open_of: dict[Process, list[int]] = defaultdict(list)
        for place, process in enumerate(self._open.processes):
            self._open_of[process].append(place)
        self._caches = caches(reader, window)
        self._steps = {
            Process.of(row): row for row in reader.queries.rows("process_steps", of_process, **window.bounds)
        }
        self._batches = _batches(reader, window, self.step_ns)
        self._beside = _besides(self._batches)
        self._requests: dict[str, tuple[Counted, Distribution | None]] = {}

    def order(self, row: Mapping[str, Any]) -> tuple[int, float]:
        """The place of a process: in trouble first, then slow, the slowest first."""
        process = Process.of(row)
        state, _ = self._state(process, row["last_seen_ns"])
        if state in ("hangs", "lost"):
            return ("hangs", "lost").index(state), 0.0
        siblings = self._beside.get(process)
        return (2, -siblings.ratio) if siblings and siblings.is_slow else (3, 0.0)

    def count(self, vantage: Sequence[str], shown: Sequence[Mapping[str, Any]]) -> None:
        """Read what became of the requests of these processes."""
        names = [Process.of(row).joined for row in shown]
        groups = count_by(self._reader, self._window, vantage, self._reader.slos, PROCESS, names)
        latencies = exact_by(self._reader, groups.window, PROCESS)
        self._requests = {
            name: (counted, latencies.get(name, {}).get("ttft")) for name, counted in groups.by_value.items()
        }

    def numbers(self, row: Mapping[str, Any]) -> ProcessNumbers:
        """The numbers of one process."""
        process = Process.of(row)
        cache, steps = self._caches.get(process, Cache()), self._steps.get(process)
        counted, ttft = self._requests.get(process.joined, (None, None))
        state, since_ns = self._state(process, row["last_seen_ns"])
        p50, p99 = steps["quantiles"] if steps else (None, None)
        return ProcessNumbers(
            **process._asdict(),
            engine=row["engine"],
            variant=row["variant"],
            models=row["models"],
            state=state,
            since=None if since_ns is None else rfc3339(since_ns),
            first_seen=rfc3339(row["first_seen_ns"]),
            last_seen=rfc3339(row["last_seen_ns"]),
            requests=row["requests"],
            in_flight=len(self._rows(process, ~self._open.is_lost)),
            attainment=None if counted is None else counted.requests.attainment,
            ttft_p99_s=None if ttft is None else ttft.p99,
            output_tokens_per_s=_tokens_per_s(
                counted, row["last_seen_ns"] - max(row["first_seen_ns"], self._window.start_ns)
            ),
            **cache._asdict(),
            step_p50_s=None if p50 is None else p50 / SECOND_NS,
            step_p99_s=None if p99 is None else p99 / SECOND_NS,
            **self._curves(process),
            beside=self._beside.get(process),
        )

    def _rows(self, process: Process, chosen: Bools) -> list[int]:
        return [i for i in self._open_of.get(process, ()) if chosen[i]]

    def _state(self, process: Process, last_seen_ns: int) -> tuple[State, int | None]:
        in_flight, end_ns = self._open, self._window.end_ns
        if rows := self._rows(process, in_flight.no_progress & ~in_flight.is_lost):
            return "hangs", int(np.maximum(in_flight.began_ns, in_flight.last_step_ns)[rows].min())
        if rows := self._rows(process, in_flight.is_lost):
            seen_ns = int(in_flight.seen_ns[rows].max())
            if seen_ns >= last_seen_ns - SECOND_NS:
                return "lost", seen_ns
        return ("ok", None) if last_seen_ns > end_ns - _QUIET_NS else ("quiet", last_seen_ns)

    def _curves(self, process: Process) -> dict[str, Any]:
        curves: dict[str, list[float | None]] = {
            name: [None] * POINTS for name in ("running_curve", "waiting_curve", "kv_curve")
        }
        for row in self._batches.get(process, ()):
            for curve, name in zip(curves.values(), ("most_running", "most_waiting", "most_usage"), strict=True):
                curve[min(row["bucket"], POINTS - 1)] = row[name]
        return curves


def _tokens_per_s(counted: Counted | None, there_ns: int) -> float | None:
    tokens = None if counted is None else counted.sums.get("tokens_out")
    return None if tokens is None or there_ns <= 0 else float(tokens) * SECOND_NS / there_ns
