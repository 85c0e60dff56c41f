"""Attainment as a function of the TTFT and TPOT thresholds, for all pairs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from collector.measure.evaluation import Counted
from collector.measure.reader import Reader
from collector.measure.sums import Summand, slices, sums
from collector.measure.times import SECOND_NS
from collector.measure.window import Window
from collector.slo.counts import judged
from collector.slo.judge import CANCELLED, NO_TOKEN, OK, UNKNOWN, exceeds, missed
from collector.slo.model import Thresholds
from collector.sql.fragment import FALSE, Fragment, all_of, any_of, merged, negated

Cells = npt.NDArray[np.float64]

_MS = 1_000_000
TTFT_GRID_NS = tuple(
    ms * _MS
    for ms in (
        10,
        20,
        30,
        50,
        70,
        100,
        150,
        200,
        300,
        500,
        700,
        1000,
        1500,
        2000,
        3000,
        5000,
        7000,
        10000,
        20000,
        60000,
    )
)
TPOT_GRID_NS = tuple(
    ms * _MS for ms in (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 80, 100, 150, 200, 300, 500, 1000)
)
"""Evenly spaced in the logarithm, about: from latencies too short to notice to latencies too long to wait for."""


class Surface(BaseModel):
    """Attainment for every pair of thresholds: `attainment[i][j]` belongs to `ttft_s[i]` and `tpot_s[j]`."""

    ttft_s: list[float]
    tpot_s: list[float]
    attainment: list[list[float | None]]


_CELL_WIDTH = 32
_UNKNOWN = 31
_BOUND = 1024
"""As `surface_cell` of sql/schema/10_tables.sql has them."""
_WAITED = f"length(arrayFilter(us -> e2e_us > us, {[ns // 1000 for ns in TTFT_GRID_NS]}))"
_CELL = f"if({NO_TOKEN}, {_CELL_WIDTH} * {_WAITED} + surface_cell % {_CELL_WIDTH}, surface_cell)"
"""One that was cancelled before its first token has missed every TTFT threshold that it waited for longer than."""


def surface(reader: Reader, thresholds: Thresholds, counted: Counted) -> Surface:
    """Attainment at every pair of the two grids. Given thresholds join the grids; a given E2E applies to every pair."""
    ttft, tpot = _Axis.of("ttft", TTFT_GRID_NS, thresholds.ttft), _Axis.of("tpot", TPOT_GRID_NS, thresholds.tpot)
    good, undetermined, excused = _ended(reader, counted.window, thresholds, ttft, tpot)
    in_flight = counted.in_flight
    e2e = Thresholds.model_construct(e2e=thresholds.e2e)
    not_yet_bad = ~in_flight.is_lost & ~in_flight.bad(e2e)
    cells = np.zeros_like(good)
    np.add.at(
        cells,
        (
            np.searchsorted(ttft.grid_ns, in_flight.first_token_ns[not_yet_bad] - 1, side="right"),
            np.searchsorted(tpot.grid_ns, in_flight.longest_tpot_missed_ns[not_yet_bad], side="right"),
        ),
        1,
    )
    good, undetermined, excused, still_open = _met(good), _met(undetermined), _met(excused), _met(cells)
    judged_counts = judged(
        total=counted.requests.total,
        unselected=0,
        excused=excused,
        undetermined=undetermined,
        in_flight_violations=counted.requests.in_flight - still_open,
        lost=counted.requests.lost,
    )
    return Surface(
        ttft_s=[ns / SECOND_NS for ns in ttft.grid_ns],
        tpot_s=[ns / SECOND_NS for ns in tpot.grid_ns],
        attainment=[
            [float(g / n) if n else None for g, n in zip(*pair, strict=True)]
            for pair in zip(good, judged_counts, strict=True)
        ],
    )


@dataclass(frozen=True)
class _Axis:
    """The thresholds of one latency, ascending. `missed` is true for requests whose latency, or whose bound of it, is
    over a threshold of its own; NULL never."""

    grid_ns: Sequence[int]
    extra: int | None
    """The place of a given threshold that is not in the stored grid."""
    missed: Fragment

    @classmethod
    def of(cls, name: str, grid_ns: Sequence[int], given: int | None) -> _Axis:
        if given is None or given in grid_ns:
            return cls(grid_ns, None, FALSE)
        joined = sorted({*grid_ns, given})
        missed_it = Fragment(exceeds(name, given, if_unknown=True))
        return cls(joined, joined.index(given), missed_it)

    def place(self, cell: int, *, missed_extra: bool) -> int:
        """How many thresholds of the joined grid a request missed that missed `cell` of the stored one."""
        return cell + missed_extra if self.extra is not None else cell


def _ended(
    reader: Reader, window: Window, thresholds: Thresholds, ttft: _Axis, tpot: _Axis
) -> tuple[Cells, Cells, Cells]:
    """Requests by the number of thresholds missed: ended ok with all known, with one or the end unknown, and cancelled.

    Those that missed the given E2E are left out. A TPOT with a bound is known at thresholds from the bound on.

    A band of the query is a cell, whether the given thresholds were missed, and whether the request was cancelled, or
    its end is not known:

        stored grid [10, 20, 30] ms, given 25 ms    TTFT 22 ms: cell 2, not missed    2 of the joined grid missed
                                                    TTFT 28 ms: cell 2, missed        3 of the joined grid missed
    """
    missed_e2e = any_of(*missed(Thresholds.model_construct(e2e=thresholds.e2e)).values())
    shape = len(ttft.grid_ns) + 1, len(tpot.grid_ns) + 1
    known, undetermined, cancelled = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    flags = (
        f"2048 * ({ttft.missed.sql}) + 4096 * ({tpot.missed.sql}) + 8192 * ({CANCELLED.sql}) + 16384 * ({UNKNOWN.sql})"
    )
    band = Fragment(f"toUInt16({_CELL} + {flags})", merged([ttft.missed, tpot.missed]))
    parts = [replace(part, band=band) for part in slices([window.end_ns, window.start_ns])]
    matching = all_of(window.filter, any_of(OK, CANCELLED, UNKNOWN), negated(missed_e2e))
    for key, row in sums(reader.queries, matching, parts, {"n": Summand()}).by_band.items():
        flagged, cell = divmod(key, 2 * _BOUND)
        is_bound, cell = divmod(cell, _BOUND)
        first, each = divmod(cell, _CELL_WIDTH)
        where = (
            0 if first == _UNKNOWN else ttft.place(first, missed_extra=bool(flagged & 1)),
            0 if each == _UNKNOWN else tpot.place(each, missed_extra=bool(flagged & 2)),
        )
        is_unknown = bool(flagged & 8) or _UNKNOWN in (first, each)
        met = cancelled if flagged & 4 else undetermined if is_unknown else known
        if is_bound and met is not known:
            where = where[0], 0
        elif is_bound:
            undetermined[where[0], 0] += row["n"]
            undetermined[where] -= row["n"]
        met[where] += row["n"]
    return known, undetermined, cancelled


def _met(cells: Cells) -> Cells:
    """How many requests meet each pair: they missed no more thresholds than stand before the pair's."""
    return cells.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
