"""The evidence of a gate that one number is worse, or is not: it may be asked as often as one likes.

Each question is about a share of requests: those that are bad, or those that are slower than a common percentile. The
evidence against a share is a likelihood ratio that grows to 1/α with a probability of α at most while the share is
true, so a gate that is asked every minute errs as rarely as one that is asked once.

Traffic that wanders tells less than as many independent requests (`wandering`). Before anything is seen, a gate expects
steady traffic where it looks for worse, which a release should show early, and doubts it where it looks for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log, log1p, sqrt
from typing import Final, Literal

import numpy as np
from pydantic import Field

from collector.base.answer import Answer
from collector.compare.chance import Bools, Floats, Sample, ShareErrors
from collector.compare.wandering import wandering

ALPHA: Final = 0.05
"""The probability that something that is as good as asked for is ever called worse, or something worse good."""
_Z: Final = 2.5
"""Errors are those at which so many leave out what a normal variable leaves out: evidence is about rare chances."""
_SHIFTS: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Logarithms of how many times as large the odds may be: small shifts and large ones."""
_BODY: Final = (0.9, 0.5)
"""Percentiles that tell early that all values of a side moved."""
_MOST_EVIDENCE: Final = 700.0
"""The logarithm of the largest number that JSON readers take."""

Verdict = Literal["good", "worse", "not decided"]


@dataclass(frozen=True)
class _Wish:
    """What is to be shown."""

    sign: int
    """1: a share is larger, -1: smaller."""
    steady: float
    """The probability, before any request was seen, that traffic does not wander."""


_WORSE: Final = _Wish(1, 0.75)
_GOOD: Final = _Wish(-1, 0.25)


class Judged(Answer):
    """One number that the gate looks at."""

    name: str
    verdict: Verdict
    a: float | None = Field(description="Of the other side, or what the objective allows")
    b: float | None = Field(description="Of the requests that are checked")
    evidence_of_worse: float = Field(description="How many times likelier the requests are if it is not as good as A")
    evidence_of_good: float = Field(description="How many times likelier if it is not worse by the relevant difference")

    @classmethod
    def of(cls, name: str, a: float | None, b: float | None, worse: float, good: float, *, numbers: int) -> Judged:
        """The verdict by logarithms of evidence. Worse must be shown against all numbers, good for each of them."""
        verdict: Verdict = "not decided"
        if good >= log(1 / ALPHA):
            verdict = "good"
        elif worse >= log(numbers / ALPHA):
            verdict = "worse"
        worse, good = (exp(min(one, _MOST_EVIDENCE)) for one in (worse, good))
        return cls(name=name, verdict=verdict, a=a, b=b, evidence_of_worse=worse, evidence_of_good=good)


@dataclass(frozen=True)
class Share:
    """A share of requests."""

    hits: float
    n: float
    moved: Floats | None = None
    """By how much each block of time moves it; None: the requests are independent."""
    seconds: float = 0.0
    """The length of the blocks together."""
    judged: Floats | None = None
    """The requests in each block."""
    more: float = 0.0
    """Variance that comes from sampling."""

    @property
    def share(self) -> float | None:
        """The share; None without requests."""
        return self.hits / self.n if self.n else None

    def wanders_slowly(self, limit: float) -> bool:
        """Tell whether the traffic wanders too slowly for this time to show that the share is below a limit."""
        return self._if_true(limit, _GOOD.steady)[1]

    def beside(self, limit: float, wish: _Wish) -> float:
        """The logarithm of the evidence that the share is on the wished side of a limit; 0: none."""
        if not self.n:
            return 0.0
        told, _ = self._if_true(limit, wish.steady)
        return evidence(told.hits, told.n, limit, wish.sign)

    def _if_true(self, limit: float, steady: float) -> tuple[Share, bool]:
        """As that of so many independent requests as tell as much, if the share is this limit; and whether it wanders
        too slowly to know that.
        """
        if self.moved is None or not self.n:
            return self, False
        seen = min(sqrt((self.hits + 1) / (self.n + 2) * limit), limit)
        alone, expected = (p * (1 - p) / self.n + self.more for p in (seen, limit))
        found = wandering(
            self.moved[None], np.array([alone]), np.array([seen]), self.seconds,
            steady=steady, if_true=(np.array([expected]), np.array([limit])),
        )  # fmt: skip
        n = min(self.n, limit * (1 - limit) / float(found.error(_Z)[0]) ** 2)
        return Share(self.hits / self.n * n, n), bool(found.slow[0])


def evidence(hits: float, n: float, p: float, sign: int) -> float:
    """The logarithm of the evidence that `hits` of `n` come from a share above p (`sign` 1), or below it (-1).

    The mean of the likelihoods under shares whose odds are `_SHIFTS` from those of p, divided by that under p. While
    the share is p or on its other side, the evidence at some time reaches log(1/α) with a probability of α at most,
    however often it is looked at (Ville's inequality; Howard et al.: Time-uniform, nonparametric, nonasymptotic
    confidence sequences, Annals of Statistics 49, 2021, for mixtures). 0 where there is none.
    """
    odds = log(p) - log1p(-p)
    others = [1 / (1 + exp(-(odds + sign * shift))) for shift in _SHIFTS]
    return max(_mean([hits * log(one / p) + (n - hits) * (log1p(-one) - log1p(-p)) for one in others]), 0.0)


def _mean(logs: Sequence[float]) -> float:
    """The logarithm of the mean of evidence: while nothing differs, it grows as rarely as each."""
    largest = max(logs)
    return largest + log(sum(exp(one - largest) for one in logs) / len(logs))


def against_objective(
    checked: Share,
    budget: float,
    relevant: float,
    *,
    young: bool = False,
    least: Share | None = None,
    most: Share | None = None,
) -> Judged:
    """The bad share against the budget, and against a budget that is larger by the relevant share.

    `young`: it was not seen for long enough to be good. `least` and `most`: the shares if all undetermined requests are
    good, or bad.
    """
    good = 0.0 if young else (most or checked).beside(larger(budget, relevant), _GOOD)
    return Judged.of("bad share", budget, checked.share, (least or checked).beside(budget, _WORSE), good, numbers=1)


def larger(budget: float, relevant: float) -> float:
    """The budget that is larger by the relevant share."""
    return min(budget * (1 + relevant), 1 - 1e-9)


def drifts(pairs: Iterable[tuple[Sample, Sample]]) -> bool:
    """Tell whether the sides have times of their own in which some latency wanders too slowly for them.

    What is slower at another time then may be so without a release, and decides nothing.
    """
    for pair in pairs:
        middle = float(np.median(np.concatenate([side.values for side in pair])))
        found = ShareErrors(pair, [(side.values > middle)[None] for side in pair], np.array([0.5]))
        if found.apart and found.slow.any():
            return True
    return False


def against_share(
    pairs: Sequence[tuple[Sample, Sample]],
    b: Share,
    budget: float,
    relevant: float,
    of: int,
    *,
    young: bool = False,
    drifts: bool = False,
) -> Judged:
    """The bad share of two sides, like for like. It is good, too, where nothing says that B is worse and B keeps the
    objective: `b` is its bad share, if all undetermined requests are bad. A side that has too few requests to compare
    with is no release to be as good as.

    `pairs`: see `bad_samples`. The evidence is that of the supposition under which it is the least.
    """
    worse = good = 0.0
    shares: list[float | None] = [None, b.share]
    if pairs:
        bad = [[side.values > 0 for side in pair] for pair in pairs]
        shares = [*_shares(pairs[0], bad[0])]
        worse = min(0.0 if drifts else _differ(pair, inside, _WORSE) for pair, inside in zip(pairs, bad, strict=True))
        good = min(_differ(pair, inside, _GOOD, 1 + relevant) for pair, inside in zip(pairs, bad, strict=True))
        if worse < log(of / ALPHA):
            good = max(good, b.beside(larger(budget, relevant), _GOOD))
    return Judged.of("bad share", shares[0], shares[1], worse, 0.0 if young or drifts else good, numbers=of)


def against_latency(
    name: str,
    pair: tuple[Sample, Sample],
    level: float,
    relevant: float,
    of: int,
    *,
    young: bool = False,
    drifts: bool = False,
) -> Judged:
    """A percentile of two sides: how many requests of each are above a percentile of both.

    While the percentiles are equal, the requests above it are B's as often as requests are B's. For a relevant
    difference, the same is asked of B's latencies divided by 1 + relevant. Where the percentile of B is larger, lower
    percentiles tell with it whether all values moved: the evidence is the mean of all.
    """
    a, b = pair
    levels = [level, *(lower for lower in _BODY if lower < level)]
    is_larger = not drifts and b.quantile(level) > a.quantile(level)
    worse = _mean([_above(a, b, each, _WORSE) for each in levels]) if is_larger else 0.0
    good = 0.0 if young or drifts else _above(a, replace(b, values=b.values / (1 + relevant)), level, _GOOD)
    return Judged.of(name, a.quantile(level) / 1e9, b.quantile(level) / 1e9, worse, good, numbers=of)


def _above(a: Sample, b: Sample, level: float, wish: _Wish) -> float:
    """The evidence that a percentile of B is larger than that of A, or smaller."""
    weights = [side.weights / side.weights.sum() for side in (a, b)]
    values, pooled = np.concatenate([a.values, b.values]), np.concatenate(weights)
    order = np.argsort(values)
    limit, middle = values[order][np.searchsorted(pooled[order].cumsum(), [2 * level, 1.0])]
    above = [side.values > limit if limit < values[order[-1]] else side.values >= limit for side in (a, b)]
    return _differ((a, b), above, wish, body=[side.values > middle for side in (a, b)])


def _shares(pair: tuple[Sample, Sample], inside: Sequence[Bools]) -> list[float]:
    return [float(side.weights[in_].sum() / side.weights.sum()) for side, in_ in zip(pair, inside, strict=True)]


def _differ(
    pair: tuple[Sample, Sample],
    inside: Sequence[Bools],
    wish: _Wish,
    times: float = 1.0,
    body: Sequence[Bools] | None = None,
) -> float:
    """The evidence that B's weighted share is on the wished side of so many times that of A.

    `body`: the upper half of the values, which tells most of how they wander.
    """
    shares = _shares(pair, inside)
    if not 0 < sum(shares) < 2:
        return 0.0
    expected = min(sum(shares) / 2, 1 - 1e-9)
    rows = [np.stack(some) for some in (zip(inside, body, strict=True) if body else ((one,) for one in inside))]
    seen = max(min(shares), 1 / pair[0].n)  # sides that are as good as the better one wander around its share
    around = np.array([sqrt(seen * expected), 0.5][: len(rows[0])])
    found = ShareErrors(pair, rows, np.array([expected, 0.5][: len(rows[0])]), around, wish.steady)
    errors = [float(side[0]) for side in found.at(_Z)]
    a, b = (min(expected * (1 - expected) / e**2, float(side.n)) for side, e in zip(pair, errors, strict=True))
    hits = shares[0] * a, shares[1] * b
    return evidence(hits[1], sum(hits), b * times / (a + b * times), wish.sign)
