"""Reads what happened in engine processes: their requests, phases, steps and copies, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from clickhouse_connect.driver.query import QueryResult
from numpy.typing import NDArray

from collector.ask.template import render
from collector.causes.split.columns import Columns, Limits
from collector.causes.split.simulate import Scheduling
from collector.store.insert import behind_inserts
from tokentrail.semconv import Phase

SECOND_NS: Final = 1_000_000_000
SETTINGS: Final = {"max_execution_time": 60, "max_memory_usage": 2 * 1024**3, **behind_inserts(15)}
"""Of the explainer's queries. Inserts, scrapes and the API's queries go before them."""
_MOST_ROWS: Final = 1_000_000
"""Of one answer: 100 MB of steps."""
_MOST_PROCESS_NS: Final = 3600 * SECOND_NS
"""Of a longer window, the end is read. Processes with windows of no more in all are read together."""
_ROWS_TOGETHER: Final = 200_000
_PROCESSES_TOGETHER: Final = 300
"""Their names stand in the SQL, which may have 256 KiB."""
_ENOUGH_REQUESTS: Final = 300
"""Where no model judges a process, so many requests are looked at, of its last ten minutes."""
_MOST_MORE_NS: Final = 600 * SECOND_NS
_LEAST_NS: Final = 10 * SECOND_NS
_PHASES: Final = np.array(["", *Phase])

_NUMBER: Final = "<f8"
_COPIES: Final = np.dtype([("process", "<u8"), ("start", "<i8"), ("duration_ns", "<i8")])
_REQUESTS: Final = np.dtype(
    [
        ("process", "<u8"), ("key", "<u8"), ("start", "<i8"), ("end", "<i8"),
        *((name, _NUMBER) for name in (
            "ttft_ns", "input_tokens", "output_tokens", "cached_tokens",
            "wait_batch_ns", "wait_kv_ns", "wait_tokens_ns", "wait_priority_ns",
        )),
    ]
)  # fmt: skip
_PHASE_ROWS: Final = np.dtype(
    [("key", "<u8"), ("start", "<i8"), ("duration_ns", "<i8"), ("name", "u1"), ("tokens", _NUMBER)]
)
_STEPS: Final = np.dtype(
    [
        *_COPIES.descr,
        *((name, _NUMBER) for name in (
            "step", "prefill_tokens", "decode_tokens", "running", "waiting", "drafted_tokens",
            "waiting_for_batch", "waiting_for_kv", "waiting_for_tokens", "waiting_for_priority",
        )),
    ]
)  # fmt: skip


class Asked(Protocol):
    """What answers SQL: the store, or the queries of one answer of the API, with the limits of its caller."""

    def query(self, sql: str, parameters: dict[str, Any], settings: Mapping[str, Any]) -> QueryResult:
        """Run one statement."""

    def binary(self, sql: str, parameters: dict[str, Any], settings: Mapping[str, Any]) -> bytes:
        """Run one statement, for rows in ClickHouse's RowBinary format."""


class Process(NamedTuple):
    """An engine process, and the time of it that is read: from `low_ns` to `high_ns`, unix ns."""

    key: int
    service: str
    instance: str
    low_ns: int
    high_ns: int


@dataclass(frozen=True)
class Happened:
    """What happened in one engine process: columns as `collector.causes` takes them."""

    requests: Columns
    phases: Columns
    steps: Columns
    copies: Columns
    limits: Limits
    scheduling: Scheduling | None
    """How the engine admits requests; None: it has not told its limits."""


def happened(store: Asked, processes: Sequence[Process]) -> Iterator[tuple[Process, Happened]]:
    """Read what happened in each process, of many processes at a time. A window is cut at its begin if it is too long.

    Raises the store's errors.
    """
    for batch in _batches(store, [process._replace(low_ns=_low_ns(process)) for process in processes]):
        yield from _read(store, batch)


def with_more(process: Process, requests: int) -> Process:
    """A window that has enough requests for a law of its own, at the rate of these: earlier ones, and later ones.

    The later ones are there when requests are explained again.
    """
    length_ns = max(process.high_ns - process.low_ns, _LEAST_NS)
    missing = max(_ENOUGH_REQUESTS - requests, 0)
    more_ns = min(length_ns * missing // requests, _MOST_MORE_NS)
    return process._replace(low_ns=process.low_ns - more_ns, high_ns=process.high_ns + more_ns)


def _low_ns(process: Process) -> int:
    return max(process.low_ns, process.high_ns - _MOST_PROCESS_NS)


def _batches(store: Asked, processes: Sequence[Process]) -> Iterator[Sequence[Process]]:
    """Processes that are read together: thousands with a request each are no more work than a busy one."""
    for first in range(0, len(processes), _PROCESSES_TOGETHER):
        some = processes[first : first + _PROCESSES_TOGETHER]
        if sum(process.high_ns - process.low_ns for process in some) <= _MOST_PROCESS_NS:
            yield some
            continue
        counted = store.query(render("causes/stage/rows_there", {}), _parameters(some), SETTINGS)
        rows = dict(zip(*counted.result_columns, strict=True)) if counted.result_rows else {}
        batch: list[Process] = []
        together = 0
        for process in some:
            n = rows.get(process.key, 0)
            if batch and together + n > _ROWS_TOGETHER:
                yield batch
                batch, together = [], 0
            batch.append(process)
            together += n
        yield batch


def _parameters(batch: Sequence[Process]) -> dict[str, Any]:
    return {
        "processes": [process.key for process in batch],
        "names": sorted({(process.service, process.instance) for process in batch}),
        "lows_ns": [process.low_ns for process in batch],
        "highs_ns": [process.high_ns for process in batch],
    }


def _read(store: Asked, batch: Sequence[Process]) -> Iterator[tuple[Process, Happened]]:
    parameters = {**_parameters(batch), "names_of_phases": list(Phase), "limit": _MOST_ROWS}

    def rows(name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        packed = store.binary(render(f"causes/stage/{name}", {}), parameters, SETTINGS)
        return np.frombuffer(packed, dtype)

    requests, steps = _ByProcess(rows("requests", _REQUESTS)), _ByProcess(rows("steps", _STEPS))
    copies = _ByProcess(rows("copies", _COPIES))
    told = store.query(render("causes/stage/limits", {}), parameters, SETTINGS).result_rows
    limits = {process: Limits(*numbers[:2]) for process, *numbers in told}
    scheduling = {process: _scheduling(*numbers[:-1]) for process, *numbers in told}
    starts = {process: numbers[-1] for process, *numbers in told}
    phases = np.sort(rows("phases", _PHASE_ROWS), order="key")
    for process in batch:
        of_process, steps_of = requests.of(process.key), steps.of(process.key)
        phases_of = _named(phases[_places(phases["key"], of_process["key"])])
        yield (
            process,
            Happened(
                _columns(of_process),
                with_starts(phases_of, starts.get(process.key, ()), steps_of["start"]),
                _columns(steps_of),
                _columns(copies.of(process.key)),
                limits.get(process.key, Limits()),
                scheduling.get(process.key),
            ),
        )


def _scheduling(
    max_seqs: int | None,
    max_batched_tokens: int | None,
    block_size: int | None,
    kv_blocks: int | None,
    watermark_blocks: int | None,
    chunked_prefill: bool | None,
    policy: str,
) -> Scheduling | None:
    """None where a limit is not known without which nothing can be simulated, or with which no engine could run."""
    known = {
        "block_size": block_size,
        "kv_blocks": kv_blocks,
        "watermark_blocks": watermark_blocks,
        "chunked_prefill": chunked_prefill,
    }
    if max_seqs is None or max_batched_tokens is None:
        return None
    told: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    try:
        return Scheduling(max_seqs, max_batched_tokens, static_batching=policy == "static", **told)
    except ValueError:
        return None


class _ByProcess:
    """Rows in the order of their processes."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = rows

    def of(self, process: int) -> NDArray[Any]:
        key = np.uint64(process)
        first, last = (np.searchsorted(self._rows["process"], key, side) for side in ("left", "right"))
        return self._rows[first:last]


def _places(ordered: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The places of the rows that have one of the keys.

    1 1 3 5 5 5, keys 5 and 1     3 4 5 0 1
    """
    first, last = np.searchsorted(ordered, keys), np.searchsorted(ordered, keys, "right")
    count = last - first
    places: NDArray[np.int64] = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    return places


def with_starts(phases: Columns, starts: Sequence[tuple[int, int]], steps: NDArray[np.int64]) -> Columns:
    """Phases of one process, in which requests that were queued while it started waited for its cold start.

    `starts` are the begins and ends of its cold starts, `steps` the ordered begins of its steps, all in unix ns. A
    start is over when a step begins: a model that is loaded beside one that serves makes nobody wait for sure.
    """
    for begin, end in starts:
        first = np.searchsorted(steps, begin)
        phases = _cut(phases, begin, min(end, int(steps[first])) if first < len(steps) else end)
    return phases


def _cut(phases: Columns, begin: int, end: int) -> Columns:
    """Phases, the queued ones cut where a cold start begins and ends, and named by it within."""
    columns = {name: np.asarray(column) for name, column in phases.items()}
    since = columns["start"].astype(np.int64)
    until = since + columns["duration_ns"].astype(np.int64)
    cold = (columns["name"] == Phase.QUEUED) & (since < end) & (until > begin)
    if end <= begin or not cold.any():
        return phases
    bounds = [
        (np.where(cold, begin, until), since, None),
        (np.full(len(since), end), np.full(len(since), begin), cold),
        (until, np.full(len(since), end), cold),
    ]
    kept = []
    for place, (stop, start, only) in enumerate(bounds):
        start, stop = np.maximum(start, since), np.minimum(stop, until)
        rows = (stop > start) | ~cold if only is None else only & (stop > start)
        named = np.where(rows, Phase.COLD_START, "") if place == 1 else columns["name"]
        part = {**columns, "start": start, "duration_ns": stop - start, "name": named}
        kept.append({name: column[rows] for name, column in part.items()})
    return {name: np.concatenate([part[name] for part in kept]) for name in columns}


def _columns(rows: NDArray[Any]) -> Columns:
    return {name: rows[name] for name in rows.dtype.names or ()}


def _named(phases: NDArray[Any]) -> Columns:
    return {**_columns(phases), "name": _PHASES[phases["name"]]}
