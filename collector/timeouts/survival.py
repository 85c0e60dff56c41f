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
"""The variance of independent waits over blocks is up to this many times Greenwood's, by one standard deviation."""
_Z_95: Final = 1.959964
_TINY: Final = 1e-9
_FEW: Final = 20
_MOSTLY: Final = 0.5
"""Fewer waits than 20 tell nothing of what is longer, where half of such waits were broken off before."""


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
    """The share of waits longer than the end of each bin from `first` on, and what its error follows from."""

    first: int
    longer: Floats
    at_risk: Floats
    """Waits that were not over, nor broken off, at the beginning of the bin."""
    n: Floats
    """As many independent requests without censoring would have Greenwood's error."""
    effect: dict[int, Floats]
    """How many times as large the variance is over blocks, by how many of the blocks are taken as one; at least 1."""
    last: int
    """The bin of the longest wait that ended; -1 without any."""
    told: int
    """The last bin at which the share is told: of the waits of later ones, all but a few were broken off before."""

    @classmethod
    def of(cls, bins: Ints, ended: Bools, block: Ints, weight: Floats) -> Survival:
        """Of waits, each in a block of time from 0 to `BLOCKS` - 1; `ended`: what was waited for came."""
        first = int(bins.min()) if len(bins) else 0
        width = int(bins.max()) - first + 1 if len(bins) else 1
        place = block * width + (bins - first)
        over = np.bincount(place[ended], weight[ended], BLOCKS * width).reshape(BLOCKS, width)
        risk = np.bincount(place, weight, BLOCKS * width).reshape(BLOCKS, width)[:, ::-1].cumsum(1)[:, ::-1]
        d, y = over.sum(0), risk.sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            hazard = np.where(y > 0, d / y, 0.0)
            left = np.where((y - d) > _TINY, y - d, np.inf)
            each = np.where(y > 0, d / (y * left), 0.0)
        longer = np.cumprod(1 - np.minimum(hazard, 1.0))
        longer[longer < _TINY] = 0.0
        total, squares = float(weight.sum()), float((weight**2).sum())
        greenwood = each.cumsum() * (squares / total if total else 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            n = np.where((greenwood > 0) & (longer > 0), (1 - longer) / (longer * greenwood), np.nan)
        moved = ((over - risk * hazard) / left).cumsum(1)
        effect = {of: _effect(moved, greenwood, of) for of in _WIDER}
        last = _last(d)
        few = (y < _FEW * squares / total) & (y < _MOSTLY * total * np.append(1.0, longer[:-1])) if total else y < 0
        told = min(last, int(np.argmax(few)) - 1) if few.any() else last
        known = _filled(n, total * total / squares if squares else 0.0)
        return cls(
            first, longer, y, known, effect, first + last if last >= 0 else -1, first + told if told >= 0 else -1
        )

    def at(self, index: int) -> Share:
        """The share of waits longer than the end of a bin.

        Beyond the last bin that tells, it lies between 0 and the last known bound, unless no wait is longer.
        """
        if self.told < 0:
            return Share(None, 0.0, 1.0)
        if index <= self.told:
            return self.interval(index)
        end = self.interval(self.told)
        return end if end.share == 0 else Share(None, 0.0, end.high)

    def interval(self, index: int) -> Share:
        """The share of waits longer than the end of a bin up to `told`, as the waits that were seen tell it."""
        if index < self.first:
            return wilson(1.0, float(self.n[0]))
        place = index - self.first
        share, n = float(self.longer[place]), float(self.n[place])
        found = [wilson(share, n)]
        effects = {of: float(self.effect[of][place]) for of in _WIDER}
        found += [wilson(share, n / by, _T_95[of]) for of, by in effects.items() if by > _BY_CHANCE[of]]
        return Share(found[0].share, min(one.low for one in found), max(one.high for one in found))

    def longer_than(self, bins: Ints) -> Floats:
        """The share of waits longer than the end of each of these bins up to `last`."""
        place = np.clip(bins - self.first, -1, max(self.last - self.first, 0))
        return np.where(place < 0, 1.0, self.longer[np.maximum(place, 0)])

    def least(self, share: float) -> int | None:
        """The first bin at whose end at most this share of waits is longer; None where no wait tells it."""
        if self.told < 0:
            return None
        below = np.flatnonzero(self.longer[: self.told - self.first + 1] <= share)
        return self.first + int(below[0]) if len(below) else None

    def hides(self, share: float) -> bool:
        """Whether the waits that were broken off hide how long it takes until at most this share is longer."""
        return self.last >= 0 and self.least(share) is None

    def decided(self, share: float) -> bool:
        """Whether the requests tell that a time-out cuts so few: with none cut, the interval would end below."""
        return self.last >= 0 and not self.hides(share) and self.needed(share) <= 0

    def needed(self, share: float) -> int:
        """How many more requests tell that a time-out cuts at most this share; 0 or less for enough."""
        enough = _Z_95**2 * (1 - share) / share
        least = self.least(share)
        place = max((self.told if least is None else least) - self.first, 0)
        total, effects = float(self.at_risk[0]), {of: float(self.effect[of][place]) for of in _WIDER}
        n = float(self.n[place]) / max(by if by > _BY_CHANCE[of] else 1.0 for of, by in effects.items())
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
