"""Attainment as a function of the TTFT and TPOT thresholds, for all pairs at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from collector.api.context import Context
from collector.api.parameters import Window
from collector.api.times import SECOND_NS
from collector.slo.counts import judged
from collector.slo.judge import bad_already, good
from collector.slo.model import Thresholds

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


def surface(ctx: Context, window: Window, thresholds: Thresholds) -> Surface:
    """Attainment at every pair of the two grids. Given thresholds join the grids; a given E2E applies to every pair."""
    grids = {
        "ttft_grid": [0, *sorted({*TTFT_GRID_NS, *filter(None, [thresholds.ttft])})],
        "tpot_grid": [0, *sorted({*TPOT_GRID_NS, *filter(None, [thresholds.tpot])})],
    }
    e2e = Thresholds.model_construct(e2e=thresholds.e2e)
    ended = ctx.queries.rows(
        "surface",
        {"filter": window.filter, "good": good(e2e, "asked")},
        **window.bounds,
        **grids,
    )
    in_flight = ctx.queries.rows(
        "in_flight_surface",
        {"filter": window.filter, "bad_already": bad_already(e2e, "asked")},
        **window.bounds,
        **grids,
        lost_after_ns=ctx.lost_after_ns,
    )
    totals = ctx.queries.row(
        "surface_totals", {"filter": window.filter}, **window.bounds, lost_after_ns=ctx.lost_after_ns
    )
    good_counts = _met([row for row in ended if not row["undetermined"]], **grids)
    not_yet_bad = _met([row for row in in_flight if not row["lasts_too_long"]], **grids)
    judged_counts = judged(
        total=totals["total"],
        cancelled=totals["cancelled"],
        undetermined=_met([row for row in ended if row["undetermined"]], **grids),
        in_flight_violations=totals["in_flight"] - not_yet_bad,
        lost=totals["lost"],
    )
    return Surface(
        ttft_s=[ns / SECOND_NS for ns in grids["ttft_grid"][1:]],
        tpot_s=[ns / SECOND_NS for ns in grids["tpot_grid"][1:]],
        attainment=[
            [float(g / n) if n else None for g, n in zip(*pair, strict=True)]
            for pair in zip(good_counts, judged_counts, strict=True)
        ],
    )


def _met(rows: Sequence[dict[str, Any]], ttft_grid: Sequence[int], tpot_grid: Sequence[int]) -> npt.NDArray[np.int64]:
    """How many requests meet each pair: the largest thresholds that they miss are smaller than the pair's."""
    cells = np.zeros((len(ttft_grid), len(tpot_grid)), dtype=np.int64)
    for row in rows:
        cells[ttft_grid.index(row["ttft_missed"]), tpot_grid.index(row["tpot_missed"])] += row["n"]
    met: npt.NDArray[np.int64] = cells.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
    return met
