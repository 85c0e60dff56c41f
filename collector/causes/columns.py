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


@dataclass(frozen=True)
class Limits:
    """The limits that an engine started with; None: not told."""

    max_seqs: int | None = None
    max_batched_tokens: int | None = None


@dataclass(frozen=True)
class Requests:
    """Requests by row. `first` is the end of TTFT: the first token, or the end of a request without one."""

    start: Floats
    end: Floats
    first: Floats
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
    """Pieces of phases, each wholly before or wholly after its request's first token, in order of start."""

    request: Ints
    """The row of its request."""
    start: Floats
    end: Floats
    name: NDArray[np.str_]
    tokens: Floats
    """Tokens that a prefill phase computed of its own request; NaN: not told."""
    after: Bools
    """It is after the first token."""


@dataclass(frozen=True)
class Traffic:
    """The rows of one process."""

    origin_ns: int
    requests: Requests
    phases: Phases
    steps: Mapping[str, Floats]
    copies: tuple[Floats, Floats]
    """Starts and ends of the times in which blocks moved between device and host."""


def traffic(requests: Columns, phases: Columns, steps: Columns, kv_events: Columns) -> Traffic:
    """Check and shift the columns of one process, which `explain_process` names.

    Raises ValueError for lengths that differ.
    """
    request_start, request_end = (_ints(requests, name) for name in ("start", "end"))
    step_start, phase_start, event_start = (_ints(table, "start") for table in (steps, phases, kv_events))
    starts = [column.min() for column in (request_start, step_start) if len(column)]
    origin = int(min(starts, default=0))
    rows = _requests(requests, request_start - origin, request_end - origin)
    start = (event_start - origin).astype(float)
    return Traffic(
        origin,
        rows,
        _phases(phases, phase_start - origin, _ints(requests, "key", np.uint64), rows),
        _steps(steps, step_start - origin),
        (start, start + numbers(kv_events, "duration_ns", len(start), unknown=0.0)),
    )


def numbers(table: Columns, name: str, length: int, *, unknown: float = np.nan) -> Floats:
    """A column as float64, `unknown` where it is NULL, NaN or absent. Raises ValueError for another length."""
    column = np.asarray(table.get(name, np.full(length, np.nan)), np.float64)
    if len(column) != length:
        raise ValueError(f"column {name} has {len(column)} rows, and the others of its table {length}")
    return column if np.isnan(unknown) else np.where(np.isnan(column), unknown, column)


def _ints(table: Columns, name: str, dtype: Any = np.int64) -> Any:
    return np.asarray(table.get(name, ()), dtype)


def _requests(table: Columns, start: Ints, end: Ints) -> Requests:
    count = len(start)
    ttft = numbers(table, "ttft_ns", count)
    whole = np.maximum(end - start, 0).astype(float)
    return Requests(
        start=start.astype(float),
        end=start + whole,
        first=start + np.minimum(np.where(np.isnan(ttft), whole, np.maximum(ttft, 0)), whole),
        input=numbers(table, "input_tokens", count),
        output=numbers(table, "output_tokens", count),
        cached=numbers(table, "cached_tokens", count, unknown=0.0),
        waited=np.stack([numbers(table, f"wait_{reason}_ns", count) for reason in WAITS], 1),
        wanted=np.asarray(table.get("wanted", np.ones(count)), np.bool_),
    )


def _phases(table: Columns, start: Ints, keys: NDArray[np.uint64], requests: Requests) -> Phases:
    """Pieces within their requests. One that goes on over the first token becomes two; phases of others are left out."""
    count = len(start)
    order = np.argsort(keys, kind="stable")
    own = _ints(table, "key", np.uint64)
    place = np.minimum(np.searchsorted(keys, own, sorter=order), max(len(keys) - 1, 0))
    row = order[place] if len(keys) else np.zeros(0, np.int64)
    known = keys[row] == own if len(keys) else np.zeros(count, np.bool_)
    row, begin = row[known], start[known].astype(float)
    stop = begin + numbers(table, "duration_ns", count, unknown=0.0)[known]
    begin, stop = np.maximum(begin, requests.start[row]), np.minimum(stop, requests.end[row])
    cut = np.clip(requests.first[row], begin, np.maximum(stop, begin))
    pieces = {
        "request": np.concatenate([row, row]),
        "start": np.concatenate([begin, cut]),
        "end": np.concatenate([cut, stop]),
        "name": np.tile(np.asarray(table.get("name", ()), np.str_)[known], 2),
        "tokens": np.tile(numbers(table, "tokens", count)[known], 2),
        "after": np.repeat([False, True], len(row)),
    }
    kept = np.flatnonzero(pieces["end"] > pieces["start"])
    kept = kept[np.argsort(pieces["start"][kept], kind="stable")]
    return Phases(**{name: column[kept] for name, column in pieces.items()})


def _steps(table: Columns, start: Ints) -> dict[str, Floats]:
    count = len(start)
    names = ("step", "prefill_tokens", "decode_tokens", "running", "waiting", "kv_blocks_used", "drafted_tokens")
    reasons = tuple(f"waiting_for_{reason}" for reason in WAITS)
    found = {name: numbers(table, name, count) for name in names + reasons}
    begin = start.astype(float)
    return {"start": begin, "end": begin + numbers(table, "duration_ns", count, unknown=0.0)} | found
