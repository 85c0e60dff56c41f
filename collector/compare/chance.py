"""How far chance alone may have moved a number: intervals of percentiles and shares.

Requests of one minute are not independent: a burst makes many of them slow together, and load wanders for minutes. So
the error of a share is measured over blocks of time too (`wandering`), and over the sessions or tenants whose requests
go together; the largest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.compare.wandering import BLOCKS, STEADY, Wandering, wandering

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Z_95: Final = 1.959964
"""A normal variable lies within so many standard deviations of its mean in 95 % of cases."""
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
    """The block of time in which each ended, of `BLOCKS` equal ones. Two samples of one time share its blocks; those of
    a second one that has another time are numbered from `BLOCKS` on."""
    requests: Ints | None = None
    """The request of each number, counted from 0, where requests have several, such as waits for tokens. Those of one
    request are not independent. None: a number is a request."""
    clusters: Ints | None = None
    """The session or tenant of each number, counted from 0, whose requests are not independent. None: not known."""
    seconds: float = 3600.0
    """The length of the time that the blocks divide."""

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
        by_block = _sums(self.blocks % BLOCKS, deviations, BLOCKS)
        variance = (deviations**2).sum(axis=1)
        for together in (self.requests, self.clusters):
            if together is not None:
                squares = _sums(together, deviations) ** 2
                of_them = squares.sum(axis=1)
                effective = of_them**2 / np.maximum((squares**2).sum(axis=1), _TINY)
                of_them *= (_t_95(np.maximum(effective, 2.0)) / Z_95) ** 2
                variance = of_them if together is self.requests else np.maximum(variance, of_them)
        return variance, by_block


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


def _sums(of: Ints, values: Floats, least: int = 0) -> Floats:
    """The sum of each row over the columns with each number of `of`."""
    return np.stack([np.bincount(of, row, least) for row in values])


class Ratios:
    """The ratios b ÷ a of percentiles.

    Each percentile lies between those at its level ± z standard errors of its share (Woodruff: Confidence intervals for
    medians and other position measures, JASA 47, 1952). The distances of the bounds add as squares, in logarithms (Zou
    and Donner: Construction of confidence limits about effect measures, Statistics in Medicine 27, 2008).
    """

    def __init__(self, a: Sample, b: Sample, levels: Sequence[float]) -> None:
        self._sides = (a, b)
        self._levels = [*levels]
        self._estimates = [[side.quantile(level) for level in levels] for side in self._sides]
        inside = [
            side.values <= np.array(values)[:, None] for side, values in zip(self._sides, self._estimates, strict=True)
        ]
        self._errors = [ShareErrors(self._sides, inside, np.array(levels))]
        if a.requests is not None:  # more requests lie above the lower bounds, and tell how much they weigh
            inside = [
                side.values <= np.array([side.at(one) for one in np.array(levels) - Z_95 * errors])[:, None]
                for side, errors in zip(self._sides, self._errors[0].at(Z_95), strict=True)
            ]
            self._errors.append(ShareErrors(self._sides, inside, np.array(levels)))

    @property
    def slow(self) -> bool:
        """The traffic wanders too slowly to tell what the time has shown by chance."""
        return bool(self._errors[0].slow.any())

    def interval(self, level: float, z: float = Z_95) -> Interval | None:
        """The ratio of one of the percentiles; None when it is 0 on a side."""
        at = self._levels.index(level)
        a, b = (estimate[at] for estimate in self._estimates)
        if min(a, b) <= 0:
            return None
        errors = [max(float(one.at(z)[side][at]) for one in self._errors) for side in (0, 1)]
        low, high = (
            [side.at(level + sign * z * error) for side, error in zip(self._sides, errors, strict=True)]
            for sign in (-1, 1)
        )
        down, up = (_distance(low[0], a), _distance(low[1], b)), (_distance(a, high[0]), _distance(b, high[1]))
        middle = log(b / a)
        below, above = _added(down[1], up[0]), _added(up[1], down[0])
        return Interval(exp(middle), exp(middle - below), exp(middle + above) if above < inf else inf)


class ShareErrors:
    """The standard errors of shares on two sides.

    What moved both sides in one block of time counts for neither: the difference of the sides by block tells the error
    of the difference, and each side has its part of it. Sides of different times wander on their own.
    """

    def __init__(
        self,
        sides: Sequence[Sample],
        inside: Sequence[Bools],
        expected: Floats,
        around: Floats | None = None,
        steady: float = STEADY,
    ) -> None:
        """`inside` has shape (shares, numbers) on each side. Where the values tell no error (all are inside, or they
        are too few for the features), it is that of as many independent requests of the `expected` share. Shares wander
        `around` these, without them the expected ones, and are `steady` with such a probability.
        """
        moved = [side.moved(which) for side, which in zip(sides, inside, strict=True)]
        self._alone = []
        for side, (variance, _) in zip(sides, moved, strict=True):
            independent = expected * (1 - expected) / side.n
            self._alone.append(np.where(variance > _ROUNDING * independent, variance, independent))
        shares, times = (
            np.minimum(expected, 1 - expected) if around is None else around,
            [side.seconds for side in sides],
        )
        if min(side.blocks.max() for side in sides[1:]) < BLOCKS:
            apart = moved[1][1] - moved[0][1]
            self._wander = [_together(apart, self._alone[0] + self._alone[1], sqrt(2) * shares, max(times), steady)]
        else:
            self._wander = [
                _together(by_block, alone, shares, seconds, steady)
                for (_, by_block), alone, seconds in zip(moved, self._alone, times, strict=True)
            ]
        self.slow = np.logical_or.reduce([one.slow for one in self._wander])
        """Of each share, whether the traffic wanders too slowly for this time."""
        self.apart = len(self._wander) > 1
        """The sides have other times."""
        self._at: dict[float, list[Floats]] = {}

    def at(self, z: float) -> list[Floats]:
        """The standard error of each share on each side, at which `z` of them leave out what they should."""
        if z not in self._at:
            of = [one.error(z) ** 2 for one in self._wander]
            whole = [sum(self._alone)] if len(of) == 1 else self._alone
            more = [np.maximum(1.0, error / alone) for error, alone in zip(of, whole, strict=True)]
            self._at[z] = [np.sqrt(alone * more[min(i, len(more) - 1)]) for i, alone in enumerate(self._alone)]
        return self._at[z]


def _together(moved: Floats, alone: Floats, shares: Floats, seconds: float, steady: float) -> Wandering:
    """How shares of the same requests wander: the one nearest to a half tells most, and the others believe it."""
    first = int(np.argmax(shares))
    told = wandering(moved[[first]], alone[[first]], shares[[first]], seconds, steady=steady)
    if len(shares) == 1:
        return told
    others = wandering(moved, alone, shares, seconds, prior=told.prior)
    for mine, its in ((others.probability, told.probability), (others.variance, told.variance)):
        mine[first] = its[0]
    return others


def _distance(low: float, high: float) -> float:
    return log(high / low) if low > 0 and high < inf else inf


def _added(one: float, other: float) -> float:
    return sqrt(one**2 + other**2) if max(one, other) < inf else inf


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
