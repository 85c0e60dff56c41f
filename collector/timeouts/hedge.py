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
from collector.timeouts.waits import ANSWERED, CENSORED, ENDLESS, LEFT_OUT, Requests, Waits, blocks_of

LEAST: Final = 500
"""Requests on each side."""
_SHARES: Final = (0.1, 0.05, 0.03, 0.02, 0.01)
"""A second request is tried after the waits that so many requests exceed."""
_DRAWS: Final = 8
_NEAR: Final = 40
"""Of so many requests before and after."""
_APART_MS: Final = 60_000
"""Requests that began farther apart are none of the same time."""
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

    @classmethod
    def of(cls, requests: Requests, waits: Waits, length: Ints, process: Ints) -> Sent:
        """The requests whose wait is known, or was broken off. What failed is left out: an error comes again."""
        kept = np.flatnonzero(np.isin(waits.kind, (ANSWERED, CENSORED, ENDLESS)) & (waits.kind != LEFT_OUT))
        kept = kept[np.argsort(requests.began_ms[kept], kind="stable")]
        us, kind, weight = waits.us[kept].astype(float), waits.kind[kept], requests.weight[kept]
        us[kind == ENDLESS] = np.inf
        open_ = kind == CENSORED
        if open_.any():
            alive = kind != ENDLESS
            block = blocks_of(requests.began_ms[kept], BLOCKS)
            curve = Survival.of(bins_of(us[alive]), kind[alive] == ANSWERED, block[alive], weight[alive])
            us[open_] = _longer(us[open_], curve)
        return cls(us, requests.began_ms[kept].astype(float), length[kept], process[kept], weight)


def _longer(us: Floats, curve: Survival) -> Floats:
    """Waits that were broken off, each as long as one of the answered ones that were longer."""
    if curve.last < 0:
        return us
    still = curve.longer[bins_of(us)]
    drawn = still * np.random.default_rng(len(us)).random(len(us))
    place = np.searchsorted(-curve.longer[: curve.last + 1], -drawn, "left")
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
    nearly as much, the one with fewer requests.
    """
    if min(len(first.us), len(to.us)) < LEAST:
        return None
    found: Hedged | None = None
    order = np.sort(first.us)
    for share in sorted(_SHARES):
        after = float(order[min(int((1 - share) * len(order)), len(order) - 1)])
        if not np.isfinite(after):
            continue
        one = hedged(first, to, after, same=same)
        if one is not None and (found is None or one.p99[1] < _BETTER * found.p99[1]):
            found = one
    return found


def hedged(first: Sent, to: Sent, after_us: float, *, same: bool) -> Hedged | None:
    """A second request after this time."""
    slow = np.flatnonzero(first.us > after_us)
    if not len(slow):
        return None
    random = np.random.default_rng(len(slow))
    partner, known = _partners(first, slow, to, first.began_ms[slow] + after_us / 1000, random, same=same)
    beside, told = _partners(first, slow, to, first.began_ms[slow], random, same=same)
    weight = first.weight[slow]
    if weight[known].sum() < _LEAST_NEAR * weight.sum():
        return None
    sooner = np.minimum(first.us[slow][:, None], after_us + to.us[partner])
    sooner[~known] = first.us[slow][~known][:, None]
    block = blocks_of(first.began_ms.astype(np.uint32), BLOCKS)
    quick = np.ones(len(first.us), bool)
    quick[slow] = False
    before = _histogram(block, first.us, first.weight)
    each = np.repeat(weight / _DRAWS, _DRAWS)
    after = _histogram(block[quick], first.us[quick], first.weight[quick])
    after += _histogram(np.repeat(block[slow], _DRAWS), sooner.ravel(), each)
    times = random.multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), _RESAMPLED).astype(float)
    with_it = _quantiles(times @ after, _LEVELS[1])
    slow_share = float(to.weight[to.us > after_us].sum() / to.weight.sum())
    also = float((to.us[beside[told]] > after_us).mean()) if told.any() else slow_share
    (p50, p99), (p50_after, p99_after) = (
        [float(_quantiles(part.sum(0, keepdims=True), level)[0]) for level in _LEVELS] for part in (before, after)
    )
    low, high = np.sort(with_it)[[int(0.025 * _RESAMPLED), int(0.975 * _RESAMPLED) - 1]]
    return Hedged(
        after_us=after_us,
        more=float(weight.sum() / first.weight.sum()),
        p50=(p50, p50_after),
        p99=(p99, p99_after),
        p99_low=float(min(low, p99_after)),
        p99_high=float(max(high, p99_after)),
        shared=max(0.0, (also - slow_share) / (1 - slow_share)) if slow_share < 1 else 1.0,
    )


def _histogram(block: Ints, us: Floats, weight: Floats) -> Floats:
    """The weights by block and bin; the last bin has what never came."""
    bins = np.where(np.isfinite(us), np.minimum(bins_of(np.where(np.isfinite(us), us, 1.0)), BINS - 2), BINS - 1)
    return np.bincount(block * BINS + bins, weight, BLOCKS * BINS).reshape(BLOCKS, BINS).astype(np.float64)


def _quantiles(weights: Floats, level: float) -> Floats:
    """The percentile of each row of weights by bin, in µs."""
    until = weights.cumsum(1)
    place = (until < level * until[:, -1:]).sum(1)
    return np.where(place >= BINS - 1, np.inf, upper_us(np.minimum(place, BINS - 1)))


def _partners(
    first: Sent, slow: Ints, to: Sent, at_ms: Floats, random: np.random.Generator, *, same: bool
) -> tuple[Ints, Bools]:
    """Of each slow request the places of eight others of its time, and whether it has such others.

    They have a prompt of its length where there are such, and for `same` are of its process.
    """
    partner = np.zeros((len(slow), _DRAWS), np.int64)
    known = np.zeros(len(slow), bool)
    for of_length in (True, False):
        mine = _keys(first, slow, same=same, of_length=of_length)
        theirs = _keys(to, np.arange(len(to.us)), same=same, of_length=of_length)
        for key in np.unique(mine[~known]):
            wanted = np.flatnonzero((mine == key) & ~known)
            there = np.flatnonzero(theirs == key)
            if len(there) < 2:
                continue
            place = np.searchsorted(to.began_ms[there], at_ms[wanted])
            drawn = place[:, None] + random.integers(-_NEAR, _NEAR, (len(wanted), _DRAWS))
            chosen = there[np.clip(drawn, 0, len(there) - 1)]
            if same:  # a request is not its own second one
                chosen = np.where(chosen == slow[wanted][:, None], there[np.clip(drawn - 1, 0, len(there) - 1)], chosen)
            near = (abs(to.began_ms[chosen] - at_ms[wanted][:, None]) <= _APART_MS).all(1)
            partner[wanted[near]] = chosen[near]
            known[wanted[near]] = True
    return partner, known


def _keys(of: Sent, places: Ints, *, same: bool, of_length: bool) -> Ints:
    process = of.process[places] if same else np.zeros(len(places), np.int64)
    return process * 16 + (of.length[places] + 1 if of_length else 0)
