"""Stretches of time in which something is commoner than usual, beyond chance: pure functions over counts of blocks.

A block is high with three times the usual share or more, where so many would come by chance in less than 1 of 100
blocks. Chance is bounded by exp(-n · KL(share ‖ usual)) (Chernoff's bound of a binomial tail, Hoeffding 1963,
theorem 1). Requests are not independent, so one high block says little:

    block      0      1      2      3      4      5      6      7      8      9   …  143
    slow    1/90   0/95   1/90   9/92   8/90  11/95   1/91   8/90   9/96   9/91      1/90     high: 3 to 5 and 7 to 9

How often a block is high is learned from the blocks outside of a stretch: here (0 + 1) / (137 + 1). A stretch is told
if so many high blocks, with one other block at most between two of them, come by chance once in 20 such days or less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Final

FEWEST: Final = 6
"""A stretch has so many high blocks or more: what comes and goes by itself seldom lasts for an hour."""
_FEWEST_OF_A_BLOCK: Final = 3
TIMES: Final = 3.0
"""What has so many times the usual share is relevant."""
_BLOCK: Final = 0.01
_ERROR: Final = 0.05

Counts = tuple[int, int]
"""How many of a block's requests are of the kind that is counted, and how many requests it has."""


@dataclass(frozen=True)
class Stretch:
    """Blocks from the first to the last one, both included."""

    first: int
    last: int
    high: int
    """How many of them are high."""

    def has(self, block: int) -> bool:
        """Whether a block lies in it."""
        return self.first <= block <= self.last


def unusual(blocks: Mapping[int, Counts], tried: int = 1) -> list[Stretch]:
    """The stretches in which the share is unusually high. `tried`: how many such series are looked at."""
    high: set[int] = set()
    while True:
        usual = share(counts for block, counts in blocks.items() if block not in high)
        more = {block for block, (n, of) in blocks.items() if _is_high(n, of, usual)}
        if more <= high:
            return list(runs(high, blocks, len(high), len(blocks), tried))
        high |= more


def share(counts: Iterator[Counts]) -> float:
    """The share of all blocks together, as if there had been one more that is of the kind: it is never 0."""
    n = of = 1
    for block_n, block_of in counts:
        n, of = n + block_n, of + block_of
    return n / of


def runs(high: Collection[int], blocks: Collection[int], all_high: int, total: int, tried: int) -> Iterator[Stretch]:
    """The runs of high blocks that chance does not explain.

    `blocks` are those in which there could be a high one. Of these and those of other processes together, `all_high`
    are high, of `total`.
    """
    ordered = sorted(high)
    begins = [i for i, at in enumerate(ordered) if i == 0 or at > ordered[i - 1] + 2]
    for begin, end in pairwise([*begins, len(ordered)]):
        inside = ordered[begin:end]
        one = Stretch(inside[0], inside[-1], len(inside))
        known = sum(one.has(block) for block in blocks)
        often = (all_high - len(inside) + 1) / (total - known + 1)
        by_chance = tried * len(blocks) * 2 ** (len(inside) - 1) * often ** len(inside)
        if len(inside) >= FEWEST and by_chance <= _ERROR:
            yield one


def _is_high(n: int, of: int, usual: float) -> bool:
    found = n / of if of else 0.0
    if n < _FEWEST_OF_A_BLOCK or usual >= 1 or found < TIMES * usual:
        return False
    distance = found * log(found / usual) + ((1 - found) * log((1 - found) / (1 - usual)) if found < 1 else 0.0)
    return exp(-of * distance) <= _BLOCK
