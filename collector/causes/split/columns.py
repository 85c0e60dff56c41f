"""The columns of one process's rows, checked and brought to one clock that starts at its earliest row.

Times are ns. float64 holds unix ns to 256 ns only, and ns since the earliest row exactly for 104 days.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Columns = Mapping[str, ArrayLike]
"""Columns by name, all of one length. A column that is absent is unknown."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WAITS: Final = ("batch", "kv", "tokens", "priority")
"""The reasons to wait, in the order of the columns of arrays (tokentrail.semconv.Wait)."""
STEP_NUMBERS: Final = (
    "step", "prefill_tokens", "decode_tokens", "running", "waiting", "drafted_tokens",
    *(f"waiting_for_{reason}" for reason in WAITS),
)  # fmt: skip
"""What is read of a step besides its times."""


@dataclass(frozen=True)
class Limits:
    """The limits that an engine started with; None: not told."""

    max_seqs: int | None = None
    max_batched_tokens: int | None = None


@dataclass(frozen=True)
class Requests:
    """Requests by row. `first` is the end of TTFT: the first token, or the end of a request without one.

    `ttft` and `e2e` are exact where the times are rounded: in a window of more than 104 days.
    """

    start: Floats
    end: Floats
    first: Floats
    ttft: Floats
    e2e: Floats
    input: Floats
    output: Floats
    cached: Floats
    waited: Floats
    """Requests × WAITS, ns before the first step; NaN: not told."""
    wanted: Bools
    """The rows that are explained; the others are there because they ran beside them."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Phases:
    """Phases within their requests, in order of start."""

    request: Ints
    """The row of its request."""
    start: Floats
    end: Floats
    name: NDArray[np.str_]
    tokens: Floats
    """Tokens that a prefill phase computed of its own request; NaN: not told."""


@dataclass(frozen=True)
class Pieces:
    """Phases of wanted requests, cut at the first token: each is wholly before or after it."""

    phase: Ints
    request: Ints
    start: Floats
    end: Floats
    name: NDArray[np.str_]
    after: Bools


@dataclass(frozen=True)
class Traffic:
    """The rows of one process."""

    origin_ns: int
    requests: Requests
    phases: Phases
    steps: Mapping[str, Floats]
    """Starts, ends and STEP_NUMBERS."""
    copies: tuple[Floats, Floats]
    """Starts and ends of the times in which blocks moved between device and host."""

    @property
    def pieces(self) -> Pieces:
        """The phases of the wanted requests, cut at their first tokens."""
        phases = self.phases
        wanted = np.flatnonzero(self.requests.wanted[phases.request])
        start, end = phases.start[wanted], phases.end[wanted]
        cut = np.clip(self.requests.first[phases.request[wanted]], start, end)
        start, end = np.concatenate([start, cut]), np.concatenate([cut, end])
        after = np.repeat([False, True], len(wanted))
        kept = end > start
        phase = np.tile(wanted, 2)[kept]
        return Pieces(phase, phases.request[phase], start[kept], end[kept], phases.name[phase], after[kept])


def traffic(requests: Columns, phases: Columns, steps: Columns, kv_events: Columns) -> Traffic:
    """Check and shift the columns of one process, which `explain_process` names.

    Raises ValueError for lengths that differ.
    """
    request_start, request_end = (_ints(requests, name) for name in ("start", "end"))
    step_start, phase_start, event_start = (_ints(table, "start") for table in (steps, phases, kv_events))
    origin = int(min((column.min() for column in (request_start, step_start) if len(column)), default=0))
    rows = _requests(requests, request_start - origin, request_end - origin)
    start = (event_start - origin).astype(float)
    return Traffic(
        origin,
        rows,
        _phases(phases, phase_start - origin, _ints(requests, "key", np.uint64), rows),
        _steps(steps, (step_start - origin).astype(float)),
        (start, start + numbers(kv_events, "duration_ns", len(start), unknown=0.0)),
    )


def numbers(table: Columns, name: str, length: int, *, unknown: float = np.nan) -> Floats:
    """A column as float64, `unknown` where it is NULL, NaN or absent. Raises ValueError for another length."""
    if name not in table:
        return np.full(length, unknown)
    column = np.asarray(table[name], np.float64)
    if len(column) != length:
        raise ValueError(f"column {name} has {len(column)} rows, and the others of its table {length}")
    return column if np.isnan(unknown) else np.where(np.isnan(column), unknown, column)


def added(index: Ints, value: Floats, count: int) -> Floats:
    """The sums of values by index, from 0 to before `count`."""
    return np.bincount(index.astype(np.int64), value.astype(float), count).astype(float)


def _ints(table: Columns, name: str, dtype: Any = np.int64) -> Any:
    return np.asarray(table.get(name, ()), dtype)


def _requests(table: Columns, start: Ints, end: Ints) -> Requests:
    count = len(start)
    ttft = numbers(table, "ttft_ns", count)
    e2e = np.maximum(end - start, 0).astype(float)
    ttft = np.minimum(np.where(np.isnan(ttft), e2e, np.maximum(ttft, 0)), e2e)
    return Requests(
        start=start.astype(float),
        end=start + e2e,
        first=start + ttft,
        ttft=ttft,
        e2e=e2e,
        input=numbers(table, "input_tokens", count),
        output=numbers(table, "output_tokens", count),
        cached=numbers(table, "cached_tokens", count, unknown=0.0),
        waited=np.stack([numbers(table, f"wait_{reason}_ns", count) for reason in WAITS], 1),
        wanted=np.asarray(table.get("wanted", np.ones(count)), np.bool_),
    )


def _phases(table: Columns, start: Ints, keys: NDArray[np.uint64], requests: Requests) -> Phases:
    """The phases of these requests, each within its request, in order of start."""
    order = np.argsort(keys, kind="stable")
    wanted = _ints(table, "key", np.uint64)
    row = np.zeros(len(wanted), np.int64)
    if len(keys):
        row = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    begin = start.astype(float)
    stop = begin + numbers(table, "duration_ns", len(start), unknown=0.0)
    known = np.flatnonzero(keys[row] == wanted) if len(keys) else np.zeros(0, np.int64)
    begin, stop, row = begin[known], stop[known], row[known]
    begin, stop = np.maximum(begin, requests.start[row]), np.minimum(stop, requests.end[row])
    kept = np.flatnonzero(stop > begin)
    kept = kept[np.argsort(begin[kept], kind="stable")]
    names = np.asarray(table.get("name", ()), np.str_)
    tokens = numbers(table, "tokens", len(start))
    return Phases(row[kept], begin[kept], stop[kept], names[known[kept]], tokens[known[kept]])


def _steps(table: Columns, start: Floats) -> dict[str, Floats]:
    count = len(start)
    times = {"start": start, "end": start + numbers(table, "duration_ns", count, unknown=0.0)}
    return times | {name: numbers(table, name, count) for name in STEP_NUMBERS}
