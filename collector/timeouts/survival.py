"""The share of waits longer than T, when some were broken off before they ended: Kaplan-Meier by blocks of time.

A wait that was broken off after 5 s tells that it was longer than 5 s, and no more (it is censored). Of four waits:

    1 s, 2 s, more than 3 s, 4 s    longer than 1 s: 3/4    than 2 s: 3/4 · 2/3 = 1/2    than 4 s: 1/2 · 0/1 = 0

Waits are counted in bins of 0.8 % (128 for each power of two of µs). Requests of one time are slow together, so the
error is measured over blocks of time, and the larger of that and of Greenwood's error counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FRACTION_BITS: Final = 7
_ONE: Final = 127 << _FRACTION_BITS
BINS: Final = 32 << _FRACTION_BITS
BLOCKS: Final = 60
_WIDER: Final = (1, 3)
"""The error is measured over 60 blocks and over 20 of three each: slowness may last longer than a block."""
_T_95: Final = {1: 2.001, 3: 2.093}
"""Student's t for one degree of freedom less than there are blocks."""
_BY_CHANCE: Final = {1: 1.2, 3: 1.35}
"""So many times Greenwood's variance may that of independent waits be over blocks: by one standard deviation."""
_Z_95: Final = 1.959964


def bins_of(us: Floats) -> Ints:
    """The bins of waits in µs, of which less than 1 counts as 1."""
    bits = np.maximum(us, 1).astype(np.float32).view(np.uint32) >> (23 - _FRACTION_BITS)
    return np.minimum(bits.astype(np.int64) - _ONE, BINS - 1)


def upper_us(bins: Ints | int) -> Floats:
    """The µs at which the bins end."""
    bits = (np.asarray(bins, np.int64) + 1 + _ONE) << (23 - _FRACTION_BITS)
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def bin_of(seconds: float) -> int:
    """The bin of a wait."""
    return int(bins_of(np.array([seconds * 1e6]))[0])


@dataclass(frozen=True)
class Share:
    """A share from 0 to 1 with its 95 % interval. `share` is None where no request tells it."""

    share: float | None
    low: float
    high: float


def wilson(share: float, n: float, z: float = _Z_95) -> Share:
    """The interval of a share of `n` requests (Wilson, JASA 22, 1927). Without any, it is from 0 to 1."""
    if n <= 0:
        return Share(None, 0.0, 1.0)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(max(share * (1 - share), 0.0) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Share(share, max(middle - half, 0.0), min(middle + half, 1.0))


@dataclass(frozen=True)
class Survival:
    """The share of waits longer than the end of each bin, and what its error follows from: arrays by bin."""

    longer: Floats
    at_risk: Floats
    """Waits that were not over, nor broken off, at the beginning of the bin."""
    n: Floats
    """As many independent requests without censoring would have Greenwood's error."""
    effect: dict[int, Floats]
    """How many times as large the variance is over blocks, by how many of the blocks are taken as one; at least 1."""
    last: int
    """The bin of the longest wait that ended; -1 without any."""
    seen: int
    """The bin of the longest wait, ended or broken off; -1 without any."""

    @classmethod
    def of(cls, bins: Ints, ended: Bools, block: Ints, weight: Floats) -> Survival:
        """Of waits, each in a block of time from 0 to `BLOCKS` - 1; `ended`: what was waited for came."""
        place = block * BINS + bins
        shape = BLOCKS, BINS
        over = np.bincount(place[ended], weight[ended], BLOCKS * BINS).reshape(shape)
        every = np.bincount(place, weight, BLOCKS * BINS).reshape(shape)
        risk = every[:, ::-1].cumsum(1)[:, ::-1]
        d, y = over.sum(0), risk.sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            hazard = np.where(y > 0, d / y, 0.0)
            left = np.where((y - d) > 1e-9, y - d, np.inf)
            each = np.where(y > 0, d / (y * left), 0.0)
        longer = np.cumprod(1 - np.minimum(hazard, 1.0))
        longer[longer < 1e-12] = 0.0
        total, squares = float(weight.sum()), float((weight**2).sum())
        greenwood = each.cumsum() * (squares / total if total else 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            n = np.where((greenwood > 0) & (longer > 0), (1 - longer) / (longer * greenwood), np.nan)
        last, seen = _last(d), _last(y)
        moved = ((over - risk * hazard) / left).cumsum(1)
        effect = {of: _effect(moved, greenwood, of) for of in _WIDER}
        return cls(longer, y, _filled(n, total * total / squares if squares else 0.0), effect, last, seen)

    def at(self, index: int) -> Share:
        """The share of waits longer than the end of a bin.

        Beyond the longest wait that ended, it is known only if none was broken off later: else it lies between 0 and
        the last known bound.
        """
        index = max(0, min(index, BINS - 1))
        known = self.interval(min(index, max(self.last, 0)))
        if self.last < 0 or (index >= self.last and self.longer[self.last] > 0):
            return Share(None if self.last < 0 or index > self.last else known.share, 0.0, known.high)
        return known

    def interval(self, index: int) -> Share:
        """The share of waits longer than the end of a bin up to `last`, as the waits that were seen tell it."""
        share, n = float(self.longer[index]), float(self.n[index])
        found = [wilson(share, n)]
        effects = {of: float(self.effect[of][index]) for of in _WIDER}
        found += [wilson(share, n / by, _T_95[of]) for of, by in effects.items() if by > _BY_CHANCE[of]]
        return Share(found[0].share, min(one.low for one in found), max(one.high for one in found))

    def least(self, share: float) -> int | None:
        """The first bin at whose end at most this share of waits is longer; None where no wait tells it."""
        below = np.flatnonzero(self.longer[: self.last + 1] <= share)
        return int(below[0]) if len(below) else None

    def hides(self, share: float) -> bool:
        """Whether the waits that were broken off hide how long it takes until at most this share is longer."""
        return self.last >= 0 and bool(self.longer[self.last] > share)

    def decided(self, share: float) -> bool:
        """Whether the requests tell that a time-out cuts so few: with none cut, the interval would end below."""
        return self.last >= 0 and not self.hides(share) and self.needed(share) <= 0

    def needed(self, share: float) -> int:
        """How many more requests tell that a time-out cuts at most this share; 0 or less for enough."""
        enough = _Z_95**2 * (1 - share) / share
        index = max(self.last, 0)
        total, worst = float(self.at_risk[0]), max(float(of[index]) for of in self.effect.values())
        n = float(self.n[index]) / worst
        if n <= 0 or total <= 0:
            return int(np.ceil(enough))
        return int(np.ceil((enough - n) * total / n))


def _last(counts: Floats) -> int:
    found = np.flatnonzero(counts > 1e-9)
    return int(found[-1]) if len(found) else -1


def _filled(n: Floats, first: float) -> Floats:
    """Each missing value is that of the bin before it."""
    known = ~np.isnan(n)
    place = np.maximum.accumulate(np.where(known, np.arange(len(n)), -1))
    return np.where(place >= 0, n[place], first)


def _effect(moved: Floats, greenwood: Floats, of: int) -> Floats:
    """The variance over blocks of the logarithm of the share, in Greenwood's variances."""
    blocks = moved.reshape(-1, of, moved.shape[1]).sum(1)
    count = len(blocks)
    variance = ((blocks - blocks.mean(0)) ** 2).sum(0) * count / (count - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(greenwood > 0, np.maximum(variance / greenwood, 1.0), 1.0)
