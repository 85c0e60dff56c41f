"""What a second request after T would do: pairs are drawn from the requests that were made at the same time.

A request that waited 9 s, beside others of its time that waited 1 s, 2 s and 8 s; a second one after 3 s:

    first: 9 s    second: 3 s + 1 s, 3 s + 2 s, 3 s + 8 s    the sooner of both: 4 s, 5 s, 9 s

Requests of one time are slow together, and a second one meets the same. So requests of another time tell nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.timeouts.survival import BINS, BLOCKS, Bools, Floats, Ints, Survival, bins_of, upper_us
from collector.timeouts.waits import ANSWERED, CENSORED, ENDLESS, FAILED, LEFT_OUT, Requests, Waits, blocks_of

LEAST: Final = 500
"""Requests on each side."""
_SHARES: Final = (0.01, 0.02, 0.05, 0.1)
"""A second request is tried after the waits that so many requests exceed, the rarest first."""
_DRAWS: Final = 8
"""The nearest in time, as many before as after."""
_APART_MS: Final = 60_000
"""Requests that began farther apart are none of the same time."""
_FEWEST: Final = 3
"""Others of the same time. Of fewer than eight, each tells several times."""
_LEAST_NEAR: Final = 0.5
"""Of the slow requests, so many have others of their time."""
_RESAMPLED: Final = 200
_LEVELS: Final = (0.5, 0.99)
_BETTER: Final = 0.95
"""More requests are worth it if they make the P99 so much lower."""


@dataclass(frozen=True)
class Sent:
    """Requests as hedging sees them. Arrays have a value for each, in the order in which they began."""

    us: Floats
    """How long they waited; infinite: for ever. Who was given up waited as long as one of those that waited longer."""
    began_ms: Floats
    length: Ints
    process: Ints
    weight: Floats
    block: Ints

    @classmethod
    def of(cls, requests: Requests, waits: Waits, length: Ints, process: Ints) -> Sent:
        """The requests whose wait is known, or was broken off. What failed is left out: an error comes again."""
        kept = np.flatnonzero((waits.kind != LEFT_OUT) & (waits.kind != FAILED))
        kept = kept[np.argsort(requests.began_ms[kept], kind="stable")]
        us, kind, weight = waits.us[kept].astype(float), waits.kind[kept], requests.weight[kept]
        us[kind == ENDLESS] = np.inf
        open_ = kind == CENSORED
        block = blocks_of(requests.began_ms[kept], BLOCKS)
        if open_.any():
            alive = kind != ENDLESS
            curve = Survival.of(bins_of(us[alive]), kind[alive] == ANSWERED, block[alive], weight[alive])
            us[open_] = _longer(us[open_], curve)
        return cls(us, requests.began_ms[kept].astype(float), length[kept], process[kept], weight, block)


def _longer(us: Floats, curve: Survival) -> Floats:
    """Waits that were broken off, each as long as one of the answered ones that were longer."""
    if curve.last < 0:
        return us
    drawn = curve.longer_than(bins_of(us)) * np.random.default_rng(len(us)).random(len(us))
    place = curve.first + np.searchsorted(-curve.longer, -drawn, "left")
    found = upper_us(np.minimum(place, curve.last))
    return np.maximum(us, found)


@dataclass(frozen=True)
class Hedged:
    """A second request after `after_us`: the percentiles with and without it. Infinite: the wait of hung requests."""

    after_us: float
    more: float
    """The share of requests that get a second one."""
    p50: tuple[float, float]
    """Without and with it."""
    p99: tuple[float, float]
    p99_low: float
    p99_high: float
    shared: float
    """Of the slow requests, how many more than usual of others of their time are slow: 0 none, 1 all."""


def best(first: Sent, to: Sent, *, same: bool) -> Hedged | None:
    """The second request that helps the P99 most, to others of `to`; None where too few requests tell.

    `same`: `first` and `to` are the same requests, and a second one goes to the process of the first. Of two that help
    nearly as much, the one with fewer requests. That none helps is said only where each could be tried.
    """
    if min(len(first.us), len(to.us)) < LEAST:
        return None
    chosen: _Pairs | None = None
    order = np.sort(first.us)
    untried = False
    for share in _SHARES:
        after = float(order[min(int((1 - share) * len(order)), len(order) - 1)])
        pairs = _pairs(first, to, after, same=same) if np.isfinite(after) else None
        untried |= pairs is None and bool((first.us > after).any())
        if pairs is not None and (chosen is None or pairs.p99 < _BETTER * chosen.p99):
            chosen = pairs
    if chosen is None or (untried and chosen.p99 >= _BETTER * _quantile(first.us, first.weight, _LEVELS[1])):
        return None
    return _hedged(first, to, chosen, same=same)


@dataclass(frozen=True)
class _Pairs:
    """The waits when those longer than `after_us` have a second request, each by block with its weight."""

    after_us: float
    slow: Ints
    us: Floats
    block: Ints
    weight: Floats
    p99: float


def _pairs(first: Sent, to: Sent, after_us: float, *, same: bool) -> _Pairs | None:
    """None: too few of the slow requests have others of their time."""
    slow = np.flatnonzero(first.us > after_us)
    partner, known = _partners(first, slow, to, first.began_ms[slow] + after_us / 1000, same=same)
    weight = first.weight[slow]
    if not len(slow) or weight[known].sum() < _LEAST_NEAR * weight.sum():
        return None
    alone = first.us[slow][:, None]
    sooner = np.where(known[:, None], np.minimum(alone, after_us + to.us[partner]), alone)
    quick = np.flatnonzero(first.us <= after_us)
    us = np.concatenate([first.us[quick], sooner.ravel()])
    block = np.concatenate([first.block[quick], np.repeat(first.block[slow], _DRAWS)])
    each = np.concatenate([first.weight[quick], np.repeat(weight / _DRAWS, _DRAWS)])
    return _Pairs(after_us, slow, us, block, each, _quantile(us, each, _LEVELS[1]))


def _hedged(first: Sent, to: Sent, pairs: _Pairs, *, same: bool) -> Hedged:
    random = np.random.default_rng(len(pairs.slow))
    times = random.multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), _RESAMPLED).astype(float)
    bins, place = np.unique(_bins(pairs.us), return_inverse=True)
    weights = np.bincount(pairs.block * len(bins) + place, pairs.weight, BLOCKS * len(bins)).reshape(BLOCKS, -1)
    # Four rows at a time: a larger product wakes the threads of BLAS, which cost twenty times as much CPU as it.
    drawn: Floats = np.matmul(times.reshape(-1, 4, BLOCKS), weights).reshape(_RESAMPLED, -1)
    resampled = np.sort(_quantiles(drawn, bins, _LEVELS[1]))
    low, high = resampled[[int(0.025 * _RESAMPLED), int(0.975 * _RESAMPLED) - 1]]
    beside, known = _partners(first, pairs.slow, to, first.began_ms[pairs.slow], same=same)
    usual = float(to.weight[to.us > pairs.after_us].sum() / to.weight.sum())
    also = float((to.us[beside[known]] > pairs.after_us).mean()) if known.any() else usual
    p50, p99 = (_quantile(first.us, first.weight, level) for level in _LEVELS)
    return Hedged(
        after_us=pairs.after_us,
        more=float(first.weight[pairs.slow].sum() / first.weight.sum()),
        p50=(p50, _quantile(pairs.us, pairs.weight, _LEVELS[0])),
        p99=(p99, pairs.p99),
        p99_low=float(min(low, pairs.p99)),
        p99_high=float(max(high, pairs.p99)),
        shared=max(0.0, (also - usual) / (1 - usual)) if usual < 1 else 1.0,
    )


def _bins(us: Floats) -> Ints:
    """The bins of waits; the last bin has what never came."""
    finite = np.isfinite(us)
    return np.where(finite, np.minimum(bins_of(np.where(finite, us, 1.0)), BINS - 2), BINS - 1)


def _quantile(us: Floats, weight: Floats, level: float) -> float:
    """The percentile of waits, in µs."""
    weights = np.bincount(_bins(us), weight, BINS).astype(np.float64)
    return float(_quantiles(weights[None, :], np.arange(BINS), level)[0])


def _quantiles(weights: Floats, bins: Ints, level: float) -> Floats:
    """The percentile of each row of weights, which are those of these bins, in µs."""
    until = weights.cumsum(1)
    place = bins[np.minimum((until < level * until[:, -1:]).sum(1), len(bins) - 1)]
    return np.where(place >= BINS - 1, np.inf, upper_us(place))


def _partners(first: Sent, slow: Ints, to: Sent, at_ms: Floats, *, same: bool) -> tuple[Ints, Bools]:
    """Of each slow request the places of eight others of its time, and whether it has three such others or more.

    They have a prompt of its length where there are such. For `same` they are of its process, and else of none that it
    is of.
    """
    partner = np.zeros((len(slow), _DRAWS), np.int64)
    known = np.zeros(len(slow), bool)
    for of_length in (True, False):
        mine = first.process[slow] * 16 + (first.length[slow] + 1 if of_length else 0)
        for key in np.unique(mine[~known]):
            wanted = np.flatnonzero((mine == key) & ~known)
            others = to.process == key // 16
            there = np.flatnonzero((others if same else ~others) & (not of_length or to.length == key % 16 - 1))
            if len(there) <= _DRAWS:
                continue
            place = np.searchsorted(to.began_ms[there], at_ms[wanted])
            nearest = np.clip(place - _DRAWS // 2, 0, len(there) - _DRAWS - 1)[:, None] + np.arange(_DRAWS + 1)
            chosen = there[nearest]
            own = chosen == slow[wanted][:, None] if same else np.zeros(chosen.shape, bool)
            own[~own.any(1), -1] = True  # who is not among the nine goes without the last
            chosen = chosen[~own].reshape(-1, _DRAWS)
            apart = abs(to.began_ms[chosen] - at_ms[wanted][:, None])
            nearest_first = np.take_along_axis(chosen, apart.argsort(1, kind="stable"), 1)
            of_the_time = (apart <= _APART_MS).sum(1)
            near = of_the_time >= _FEWEST
            again = np.arange(_DRAWS) % np.maximum(of_the_time, 1)[:, None]
            partner[wanted[near]] = np.take_along_axis(nearest_first, again, 1)[near]
            known[wanted[near]] = True
    return partner, known
