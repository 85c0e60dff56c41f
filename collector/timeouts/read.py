"""Reads the requests that began in a window, and what is known of those that have not ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.ask.window import Window
from collector.base.process import Process
from collector.count.evaluation import open_requests
from collector.count.in_flight import InFlight
from collector.count.reader import Reader
from collector.timeouts.waits import DEAD, OPEN, Requests

MOST_ROWS: Final = 400_000
"""Of more requests, one of two, three, … is read."""
MOST_KINDS: Final = 10_000
_MS: Final = 1_000_000
COLUMNS: Final = ("model", "slo_class", "vantage", "operation")
_ROW: Final = np.dtype(
    [
        ("began_ms", "<u4"), ("kind", "<u2"), ("ended", "u1"), ("ttft_us", "<f8"), ("tpot_us", "<f8"),
        ("e2e_us", "<f8"), ("gap_us", "<f8"), ("first_visible_us", "<f8"), ("input_tokens", "<f8"), ("reasons", "u1"),
        ("weight", "<f8"),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Read:
    """The requests of a window, and the kinds that they are of: `requests.kind` is the place of each one's."""

    requests: Requests
    kinds: Mapping[str, npt.NDArray[np.object_]]
    """Of each kind its value of each of `COLUMNS`, and its `process`."""
    one_in: int
    """Of so many requests that ended, one was read."""
    left_out: int
    """Requests of kinds beyond the 10,000 with the most."""


def read(reader: Reader, window: Window) -> Read:
    """The requests that began in a window: those that ended in it, and those in flight at its end or lost in it.

    Those that began before are left out: only the long ones among them would be seen.
    """
    groups = reader.queries.rows("timeouts_groups", {"filter": window.filter}, **window.bounds)
    known, rest = groups[:MOST_KINDS], groups[MOST_KINDS:]
    one_in = max(1, -(-sum(row["n"] for row in groups) // MOST_ROWS))
    rows = reader.queries.array(
        "timeouts_rows", {"filter": window.filter}, _ROW, **window.bounds, one_in=one_in, most=MOST_KINDS,
        kinds=[row["kind"] for row in known], places=[*range(len(known))],
    )  # fmt: skip
    if rest:
        rows = rows[rows["kind"] < MOST_KINDS]
    kinds: dict[tuple[Any, ...], int] = {_kind(row): i for i, row in enumerate(known)}
    in_flight = open_requests(reader, window)
    in_flight = in_flight.where(in_flight.began_ns >= window.start_ns)
    own = _in_flight(in_flight, _lengths(reader, window, in_flight), window, kinds)
    columns = {name: np.concatenate([rows[name], own[name]]) for name in own}
    values = list(kinds)
    told = {name: np.array([kind[i] for kind in values], object) for i, name in enumerate(COLUMNS)}
    told["process"] = np.array([kind[-1].title for kind in values], object)
    return Read(Requests(**columns), told, one_in, sum(row["n"] for row in rest))


def _kind(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in COLUMNS), Process.of(row))


def _lengths(reader: Reader, window: Window, in_flight: InFlight) -> Mapping[str, int]:
    """The prompt tokens of requests in flight, by their ids."""
    if not in_flight.size:
        return {}
    rows = reader.queries.rows("timeouts_lengths", {"filter": window.filter}, **window.bounds)
    return {row["ids"]: row["tokens"] for row in rows}


def _in_flight(
    of: InFlight, lengths: Mapping[str, int], window: Window, kinds: dict[tuple[Any, ...], int]
) -> dict[str, npt.NDArray[Any]]:
    """The columns of `Requests` of those that had not ended. New kinds get the next numbers."""
    n = of.size
    places = [
        kinds.setdefault((*(of.columns[name][i] for name in COLUMNS), of.processes[i]), len(kinds)) for i in range(n)
    ]
    has_token = of.ttft_ns >= 0
    ttft = np.where(has_token, np.minimum(of.ttft_ns, of.elapsed_ns) / 1000, 0.0)
    return {
        "began_ms": ((of.began_ns - window.start_ns) // _MS).astype(np.uint32),
        "kind": np.array(places, np.uint16),
        "ended": np.where(of.is_lost | of.no_progress, DEAD, OPEN).astype(np.uint8),
        "ttft_us": np.where(of.unmeasured, np.nan, ttft),
        "first_visible_us": np.where(has_token | of.unmeasured, np.nan, 0.0),
        "gap_us": np.where(of.gap_ns >= 0, of.gap_ns / 1000, np.where(has_token, np.nan, 0.0)),
        "e2e_us": np.maximum(of.elapsed_ns / 1000, 1.0),
        "input_tokens": np.array([lengths.get(of.key(i), np.nan) for i in range(n)], float),
        "reasons": np.full(n, 2, np.uint8),
        "weight": np.ones(n),
    }
