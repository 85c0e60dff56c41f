"""How far chance alone may have moved a number: intervals of percentiles and shares, and evidence over time.

Requests of one minute are not independent: a burst makes many of them slow together. So the spread of a share is
measured over blocks of time too, and the larger spread counts where it is larger than chance explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, lgamma, log, log1p, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Z_95: Final = 1.959964
"""A normal variable lies within so many standard deviations of its mean in 95 % of cases."""
_LEAST_BLOCKS: Final = 10
_CLUSTERED: Final = 2.326
"""Blocks count when their spread is larger than in 99 % of samples of independent requests."""


@dataclass(frozen=True)
class Interval:
    """An estimate, and the bounds of its 95 % interval. An infinite bound: the values do not tell it."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Sample:
    """One number of each request, in arrays of one length. Numbers are not negative."""

    values: Floats
    weights: Floats
    """How many requests each stands for."""
    features: Floats
    """Shape (requests, features): what the numbers are known to depend on. The first is 1."""
    blocks: Ints
    """The stretch of time in which each ended, counted from 0, and the same for all samples."""

    @cached_property
    def _by_value(self) -> tuple[Floats, Floats, Floats]:
        order = np.argsort(self.values)
        weights = self.weights[order]
        return self.values[order], weights, weights.cumsum()

    @cached_property
    def _solved(self) -> Floats:
        """Gives the coefficients of a weighted least-squares fit on the features."""
        weighed = self.features.T * self.weights
        return np.linalg.pinv(weighed @ self.features, rcond=1e-10, hermitian=True) @ weighed

    def quantile(self, level: float) -> float:
        """The percentile, by inclusive interpolation."""
        values, weights, until = self._by_value
        middles = until - weights / 2
        span = middles[-1] - middles[0]
        return float(np.interp(level, (middles - middles[0]) / span, values)) if span > 0 else float(values[0])

    def at(self, share: float) -> float:
        """The value that this share of the requests does not exceed; 0 and infinite beyond the values."""
        values, weights, until = self._by_value
        if not 0 < share < 1:
            return 0.0 if share <= 0 else inf
        return float(np.interp(share, (until - weights / 2) / until[-1], values))

    def deviations(self, inside: Bools) -> Floats:
        """How far each request moves the weighted share of those for which `inside` is true.

        What the features tell is no chance, so the deviation is from the weighted least-squares fit. The sum of the
        squares is the linearised variance of the share (Cochran: Sampling Techniques, 3rd edition, 7.3).
        """
        freedom: int = max(len(self.values) - self.features.shape[1], 1)
        residuals = inside - self.features @ (self._solved @ inside)
        scale = sqrt(len(self.values) / freedom) / float(self.weights.sum())
        return self.weights * residuals * scale


def ratio(a: Sample, b: Sample, level: float, z: float = Z_95) -> Interval | None:
    """The ratio b ÷ a of a percentile; None when one of them is 0.

    Each percentile lies between those at `level` ± z standard errors of its share (Woodruff: Confidence intervals for
    medians and other position measures, JASA 47, 1952). The distances of the bounds add as squares, in logarithms, less
    what both sides share (Zou and Donner: Construction of confidence limits about effect measures, Statistics in
    Medicine 27, 2008).
    """
    estimates = [side.quantile(level) for side in (a, b)]
    if min(estimates) <= 0:
        return None
    errors, common = share_errors((a, b), [a.values <= estimates[0], b.values <= estimates[1]], level)
    low, high = ([side.at(level + sign * z * e) for side, e in zip((a, b), errors, strict=True)] for sign in (-1, 1))
    down = [_distance(low[i], estimates[i]) for i in (0, 1)]
    up = [_distance(estimates[i], high[i]) for i in (0, 1)]
    middle = log(estimates[1] / estimates[0])
    below, above = _added(down[1], up[0], common), _added(up[1], down[0], common)
    return Interval(exp(middle), exp(middle - below), exp(middle + above) if above < inf else inf)


def share_errors(sides: tuple[Sample, Sample], inside: Sequence[Bools], expected: float) -> tuple[list[float], float]:
    """The standard errors of a share on each side, and the correlation of what moved both at the same times.

    Where the values tell no error (all are inside, or they are too few for the features), it is that of as many
    independent requests of the `expected` share.
    """
    found = [side.deviations(which) for side, which in zip(sides, inside, strict=True)]
    variances = [float((deviations**2).sum()) for deviations in found]
    most = 1 + max(int(side.blocks.max()) for side in sides)
    by_block = [np.bincount(side.blocks, moved, minlength=most) for side, moved in zip(sides, found, strict=True)]
    covariance = 0.0
    for i, side in enumerate(sides):
        blocks = int(np.count_nonzero(np.bincount(side.blocks)))
        clustered = float((by_block[i] ** 2).sum()) * blocks / max(blocks - 1, 1)
        if blocks >= _LEAST_BLOCKS and is_clustered(clustered, variances[i], blocks):
            variances[i] = clustered
            covariance = float((by_block[0] * by_block[1]).sum())
    errors = [
        sqrt(variance or expected * (1 - expected) / len(side.values))
        for variance, side in zip(variances, sides, strict=True)
    ]
    return errors, min(max(covariance / (errors[0] * errors[1]), 0.0), 1.0) if covariance else 0.0


def is_clustered(by_block: float, variance: float, blocks: int) -> bool:
    """Tell whether the variance over blocks of time is larger than that of independent requests, beyond chance."""
    return by_block > variance * (1 + _CLUSTERED * sqrt(2 / blocks))


def _distance(low: float, high: float) -> float:
    return log(high / low) if low > 0 and high < inf else inf


def _added(one: float, other: float, correlation: float = 0.0) -> float:
    return sqrt(one**2 + other**2 - 2 * correlation * one * other) if max(one, other) < inf else inf


def share(good: float, n: float, z: float = Z_95) -> Interval:
    """The share of `good` in `n`, with Wilson's interval. Both may be numbers of requests that others stand for."""
    p = good / n
    middle, around = p + z**2 / (2 * n), z * sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    shrink = 1 + z**2 / n
    return Interval(p, max(0.0, (middle - around) / shrink), min(1.0, (middle + around) / shrink))


def difference(a: Interval, b: Interval) -> Interval:
    """The difference b - a of two independent shares.

    Newcombe: Interval estimation for the difference between independent proportions, Statistics in Medicine 17, 1998.
    """
    estimate = b.estimate - a.estimate
    down = _added(b.estimate - b.low, a.high - a.estimate)
    up = _added(b.high - b.estimate, a.estimate - a.low)
    return Interval(estimate, max(-1.0, estimate - down), min(1.0, estimate + up))


def evidence(hits: float, n: float, p: float) -> float:
    """The logarithm of the evidence that `hits` of `n` come from another share than `p`.

    The likelihood under shares around p (a beta distribution that `_PRIOR` earlier requests would leave), divided by
    that under p. While p is true, the evidence at some time reaches log(1/α) with a probability of α at most, however
    often it is looked at (Ville's inequality; Howard et al.: Time-uniform, nonparametric, nonasymptotic confidence
    sequences, Annals of Statistics 49, 2021, for mixtures). 0 without requests.
    """
    a, b = _PRIOR * p, _PRIOR * (1 - p)
    misses = n - hits
    mixed = _log_beta(a + hits, b + misses) - _log_beta(a, b)
    return mixed - (hits * log(p) + misses * log1p(-p))


_PRIOR: Final = 60.0
"""Strong evidence comes earliest for deviations of about sqrt(p(1 - p)/60): a share of a half that is 6 points off."""


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
