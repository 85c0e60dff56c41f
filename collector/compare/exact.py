"""Exact tails of counts that are too small for a normal distribution."""

from __future__ import annotations

from collections.abc import Iterable
from math import lgamma
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FEW: Final = 10.0
"""Below so many expected requests the normal tail is wrong by more than a little."""
_LEAST_P: Final = 1e-300
_LARGEST_Z: Final = 37.0


def tail_z(strata: Iterable[tuple[float, float, float, float]]) -> float:
    """How many standard deviations of a normal variable have the tail that a count has.

    Each stratum has the selected requests that meet a condition, all selected ones, all that meet it, and all. Their
    sum has hypergeometric summands. Its own probability counts half (mid-p: Lancaster: Significance tests in discrete
    distributions, JASA 56, 1961).
    """
    seen, pmf, least = 0, np.ones(1), 0
    for met_selected, selected, met, total in strata:
        a, m, k, n = (round(number) for number in (met_selected, selected, met, total))
        low, probabilities = _hypergeometric(m, min(k, n), n)
        seen, least = seen + a, least + low
        pmf = np.convolve(pmf, probabilities)
    at = min(max(seen - least, 0), len(pmf) - 1)
    tail = float(pmf[at + 1 :].sum() + pmf[at] / 2)
    return min(-NormalDist().inv_cdf(min(max(tail, _LEAST_P), 1 - 1e-12)), _LARGEST_Z)


def _hypergeometric(selected: int, met: int, total: int) -> tuple[int, Floats]:
    """The least count, and the probabilities of it and of those above it."""
    selected = min(selected, total)
    low, high = max(0, selected + met - total), min(selected, met)
    at = np.arange(low, high)
    ratios = np.log((met - at) * (selected - at)) - np.log((at + 1) * (total - met - selected + at + 1.0))
    first = _choose(met, low) + _choose(total - met, selected - low) - _choose(total, selected)
    probabilities: Floats = np.exp(first + np.concatenate([[0.0], ratios.cumsum()]))
    return low, probabilities


def _choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
