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
_ROUNDING: Final = 1e-9
_TINY: Final = 1e-300


@dataclass(frozen=True)
class Interval:
    """An estimate, and the bounds of its 95 % interval. An infinite bound: the values do not tell it."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Sample:
    """Numbers of requests, in arrays of one length. Numbers are not negative."""

    values: Floats
    weights: Floats
    """How many requests each stands for."""
    features: Floats
    """Shape (features, numbers): what the numbers are known to depend on. The first is 1."""
    blocks: Ints
    """The stretch of time in which each ended, counted from 0, and the same for all samples."""
    requests: Ints | None = None
    """The request of each number, counted from 0, where requests have several, such as waits for tokens. Those of one
    request are not independent. None: a number is a request."""

    @cached_property
    def _by_value(self) -> tuple[Floats, Floats, Floats]:
        order = np.argsort(self.values)
        weights = self.weights[order]
        return self.values[order], weights, weights.cumsum()

    @cached_property
    def n(self) -> int:
        """How many requests."""
        return len(self.values) if self.requests is None else int(np.count_nonzero(np.bincount(self.requests)))

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

    def moved(self, inside: Bools) -> tuple[Floats, Floats]:
        """The variances of weighted shares, and how far each block of time moves them.

        `inside` has shape (shares, numbers): which numbers a share counts. What the features tell is no chance, so
        deviations are from the weighted least-squares fit. The sum of their squares, each of a request, is the
        linearised variance of the share (Cochran: Sampling Techniques, 3rd edition, 7.3 and 9A.4).
        """
        weighed = self.features * self.weights
        fit = inside @ weighed.T @ np.linalg.pinv(weighed @ self.features.T, rcond=1e-10, hermitian=True)
        freedom = max(self.n - len(self.features), 1)
        scale = sqrt(self.n / freedom) / float(self.weights.sum())
        deviations = (inside - fit @ self.features) * (self.weights * scale)
        by_block = _sums(self.blocks, deviations)
        if self.requests is None:
            return (deviations**2).sum(axis=1), by_block
        squares = _sums(self.requests, deviations) ** 2
        variance = squares.sum(axis=1)
        effective = variance**2 / np.maximum((squares**2).sum(axis=1), _TINY)
        return variance * (_t_95(np.maximum(effective, 2.0)) / Z_95) ** 2, by_block


def _t_95(freedom: Floats) -> Floats:
    """Student's t in place of Z_95, by its expansion (Abramowitz and Stegun: Handbook, 26.7.5).

    Few requests with many tokens decide a high percentile, and their squares are a rough measure of their variance.
    Its degrees of freedom are the effective number of requests (Carter, Schnepel, Steigerwald: Asymptotic behavior of a
    t-test robust to cluster heterogeneity, Review of Economics and Statistics 99, 2017).
    """
    z = Z_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum((term / freedom**power for power, term in enumerate(terms, 1)), np.zeros(len(freedom)))


def _sums(of: Ints, values: Floats) -> Floats:
    """The sum of each row over the columns with each number of `of`."""
    return np.stack([np.bincount(of, row) for row in values])


class Ratios:
    """The ratios b ÷ a of percentiles.

    Each percentile lies between those at its level ± z standard errors of its share (Woodruff: Confidence intervals for
    medians and other position measures, JASA 47, 1952). The distances of the bounds add as squares, in logarithms, less
    what both sides share (Zou and Donner: Construction of confidence limits about effect measures, Statistics in
    Medicine 27, 2008).
    """

    def __init__(self, a: Sample, b: Sample, levels: Sequence[float]) -> None:
        self._sides = (a, b)
        self._levels = [*levels]
        self._estimates = [[side.quantile(level) for level in levels] for side in self._sides]
        inside = [
            side.values <= np.array(values)[:, None] for side, values in zip(self._sides, self._estimates, strict=True)
        ]
        self._errors, self._common = share_errors(self._sides, inside, np.array(levels))
        if a.requests is not None:  # more requests lie above the lower bounds, and tell how much they weigh
            inside = [
                side.values <= np.array([side.at(one) for one in np.array(levels) - Z_95 * errors])[:, None]
                for side, errors in zip(self._sides, self._errors, strict=True)
            ]
            at_low, _ = share_errors(self._sides, inside, np.array(levels))
            self._errors = [np.maximum(*pair) for pair in zip(self._errors, at_low, strict=True)]

    def interval(self, level: float, z: float = Z_95) -> Interval | None:
        """The ratio of one of the percentiles; None when it is 0 on a side."""
        at = self._levels.index(level)
        a, b = (estimate[at] for estimate in self._estimates)
        if min(a, b) <= 0:
            return None
        low, high = (
            [side.at(level + sign * z * errors[at]) for side, errors in zip(self._sides, self._errors, strict=True)]
            for sign in (-1, 1)
        )
        down, up = (_distance(low[0], a), _distance(low[1], b)), (_distance(a, high[0]), _distance(b, high[1]))
        middle, common = log(b / a), float(self._common[at])
        below, above = _added(down[1], up[0], common), _added(up[1], down[0], common)
        return Interval(exp(middle), exp(middle - below), exp(middle + above) if above < inf else inf)


def share_errors(sides: Sequence[Sample], inside: Sequence[Bools], expected: Floats) -> tuple[list[Floats], Floats]:
    """The standard errors of shares on each side, and the correlation of what moved both at the same times.

    `inside` has shape (shares, numbers) on each side. Where the values tell no error (all are inside, or they are too
    few for the features), it is that of as many independent requests of the `expected` share.
    """
    of_sides = [side.moved(which) for side, which in zip(sides, inside, strict=True)]
    most = max(by_block.shape[1] for _, by_block in of_sides)
    moved = [np.pad(by_block, ((0, 0), (0, most - by_block.shape[1]))) for _, by_block in of_sides]
    errors, common = [], np.zeros(len(expected))
    for side, (alone, _), by_block in zip(sides, of_sides, moved, strict=True):
        blocks = int(np.count_nonzero(np.bincount(side.blocks)))
        clustered = (by_block**2).sum(axis=1) * blocks / max(blocks - 1, 1)
        counts = (blocks >= _LEAST_BLOCKS) & is_clustered(clustered, alone, blocks)
        common = np.where(counts, (moved[0] * moved[1]).sum(axis=1), common)
        variance, independent = np.where(counts, clustered, alone), expected * (1 - expected) / side.n
        errors.append(np.sqrt(np.where(variance > _ROUNDING * independent, variance, independent)))
    return errors, np.clip(common / (errors[0] * errors[1]), 0.0, 1.0)


def is_clustered(by_block: Floats | float, variance: Floats | float, blocks: int) -> Bools | bool:
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
