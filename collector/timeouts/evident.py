"""Time-outs that clients evidently use: many requests were given up after the same time.

given up after    12.1 s  31.0 s  60.01 s  60.02 s  60.02 s  60.03 s …  (314 of them)    a time-out of 60 s
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.timeouts.survival import BINS, BLOCKS, Bools, Floats, Share, Survival, bins_of, upper_us
from collector.timeouts.waits import ANSWERED, CENSORED, ENDLESS, FAILED, GIVEN_UP, Requests, Waits, blocks_of

_WIDTH: Final = 0.004
_WIDTH_US: Final = 60_000
"""A client's timer and its network spread what it gives up at one time over so much."""
_SHORTEST_US: Final = 1e6
"""Nobody sets a shorter time-out, and many waits are shorter."""
_LEAST: Final = 5
_LEAST_SHARE: Final = 0.02
_TIMES: Final = 5.0
"""A pile has this many times as many requests as as long a time before and after it."""
_BESIDE: Final = 5
_MOST: Final = 4
_ROUND_S: Final = (60.0, 30.0, 15.0, 10.0, 5.0, 1.0, 0.5, 0.25, 0.1)
_WAITED_LONGER: Final = 10
"""With fewer requests that waited longer, nobody knows what would have become of the others."""
_NEARLY_ALL: Final = 0.9


@dataclass(frozen=True)
class Pile:
    """Requests that were given up at one time: which, and what would have become of them."""

    timeout_s: float
    of: Bools
    answered: Share | None
    """The share that would have been answered. None: too few requests waited longer."""
    within_s: float | None
    """Nearly all of those that are answered are so within this time."""


def piles(requests: Requests, waits: Waits) -> Iterator[Pile]:
    """The evident time-outs of one wait, the one with the most requests first."""
    given_up = (requests.ended == GIVEN_UP) & np.isin(waits.kind, (CENSORED, ENDLESS))
    total = np.count_nonzero(given_up)
    left = np.sort(waits.us[given_up & (waits.us >= _SHORTEST_US)])
    for _ in range(_MOST):
        found = _most_alike(left)
        if found is None or found[2] < max(_LEAST, _LEAST_SHARE * total):
            return
        low, high, _ = found
        of = given_up & (waits.us >= low) & (waits.us <= high)
        middle = float(np.median(waits.us[of]))
        yield Pile(_rounded(middle / 1e6), of, *_would_have(requests, waits, of, low))
        left = left[(left < low) | (left > high)]


def _width(us: Floats) -> Floats:
    return np.maximum(_WIDTH * us, _WIDTH_US)


def _most_alike(us: Floats) -> tuple[float, float, int] | None:
    """The bounds of the shortest stretch with the most values, and their number; None where none stands out."""
    if len(us) < _LEAST:
        return None
    width = _width(us)
    until = np.searchsorted(us, us + width, "right")
    n = until - np.arange(len(us))
    before = np.arange(len(us)) - np.searchsorted(us, us - _BESIDE * width, "left")
    after = np.searchsorted(us, us + (1 + _BESIDE) * width, "right") - until
    expected = np.maximum(before + after, 1) / (2 * _BESIDE)
    stands_out = n >= np.maximum(_TIMES * expected, _LEAST)
    if not stands_out.any():
        return None
    first = int(np.argmax(np.where(stands_out, n, 0)))
    return float(us[first]), float(us[until[first] - 1]), int(n[first])


def _rounded(seconds: float) -> float:
    """The roundest number of seconds within the width of a pile."""
    width = max(_WIDTH * seconds, _WIDTH_US / 1e6)
    for unit in _ROUND_S:
        near = round(seconds / unit) * unit
        if near > 0 and abs(near - seconds) <= width:
            return round(near, 2)
    return float(f"{seconds:.3g}")


def _would_have(requests: Requests, waits: Waits, of: Bools, low: float) -> tuple[Share | None, float | None]:
    """What became of those that waited longer: the share that was answered, and when nearly all of these were."""
    longer = (waits.us > low) & ~of & np.isin(waits.kind, (ANSWERED, CENSORED, FAILED, ENDLESS))
    if np.count_nonzero(longer & (waits.kind != CENSORED)) < _WAITED_LONGER:
        return None, None
    kind = waits.kind[longer]
    never = np.isin(kind, (FAILED, ENDLESS))
    bins = np.where(never, BINS - 1, bins_of(waits.us[longer]))
    block = blocks_of(requests.began_ms[longer], BLOCKS)
    curve = Survival.of(bins, kind == ANSWERED, block, requests.weight[longer])
    if curve.told < 0:
        return Share(0.0, 0.0, curve.at(0).high), None
    end = curve.interval(curve.told)
    answered = 1 - curve.longer[: curve.told - curve.first + 1]
    nearly = curve.first + int(np.argmax(answered >= _NEARLY_ALL * answered[-1]))
    return Share(1 - (end.share or 0.0), 1 - end.high, 1 - end.low), float(upper_us(nearly)) / 1e6
