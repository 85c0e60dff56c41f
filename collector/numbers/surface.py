"""Attainment as a function of the TTFT and TPOT thresholds, for all pairs at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.ask.times import SECOND_NS
from collector.base.answer import Answer
from collector.count.evaluation import Counted
from collector.count.population import Floats
from collector.slo.counts import judged
from collector.slo.judged import Ints
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


class Surface(Answer):
    """Attainment for every pair of thresholds: `attainment[i][j]` belongs to `ttft_s[i]` and `tpot_s[j]`."""

    ttft_s: list[float]
    tpot_s: list[float]
    attainment: list[list[float | None]]


GRID: Final = {"ttft": TTFT_GRID_NS, "tpot": TPOT_GRID_NS}


def surface(thresholds: Thresholds, counted: Counted) -> Surface:
    """Attainment at every pair of the two grids, which `counted` tells apart. Given thresholds join the grids.

    Other given thresholds apply to every pair. A cell is good at the pairs from those on that it does not meet, if it
    ended ok, and not bad at those from the ones on that it missed, unless it failed:

        TTFT 22 ms of thresholds 10, 20, 25, 30 ms    two missed: good and not bad at 25 and 30 ms
        TTFT not known                                four not met, none missed: good at none, not bad at all
    """
    ttft, tpot = (
        sorted({*grid, *([given] if given is not None else [])})
        for grid, given in ((TTFT_GRID_NS, thresholds.ttft), (TPOT_GRID_NS, thresholds.tpot))
    )
    shape = len(ttft) + 1, len(tpot) + 1
    population, requests = counted.population, counted.requests
    outcomes = population.judged.of_all_slos()
    in_time = ~(outcomes.failed | outcomes.lost)
    met = outcomes.ok.copy()
    for name, ns in thresholds.given().items():
        if name not in GRID:
            in_time &= ~population.judged.missed(name, ns)
            met &= population.judged.met(name, ns)
    (unmet_ttft, missed_ttft), (unmet_tpot, missed_tpot) = (population.judged.places(name) for name in GRID)
    n = np.bincount(population.cell, population.n, len(in_time))
    good = _up_to_each(shape, unmet_ttft, unmet_tpot, n * (in_time & met))
    not_bad = _up_to_each(shape, missed_ttft, missed_tpot, n * in_time)
    judged_counts = judged(
        total=requests.total,
        unselected=0,
        excused=0,
        undetermined=not_bad - good,
        in_flight_violations=requests.in_flight,
        lost=requests.lost,
    )
    return Surface(
        ttft_s=[ns / SECOND_NS for ns in ttft],
        tpot_s=[ns / SECOND_NS for ns in tpot],
        attainment=[
            [float(g / n) if n else None for g, n in zip(*pair, strict=True)]
            for pair in zip(good, judged_counts, strict=True)
        ],
    )


def _up_to_each(shape: tuple[int, int], ttft: Ints, tpot: Ints, n: npt.NDArray[Any]) -> Floats:
    """For every pair, how many requests have no more than its two places among the thresholds."""
    counts = np.zeros(shape)
    np.add.at(counts, (ttft, tpot), n)
    return counts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
