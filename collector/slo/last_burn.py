"""When the latest burn of an error budget began, from counts of short cells of time.

A rule's short window is `PER_WINDOW` cells. It slides: after each cell that changes it, it burns or is calm. The burn
began with the first bad request of the first window that burned after the last calm one. With windows of 3 cells, and
more than half of the requests bad as a burn:

    cell                     1      2      3      4      5      6
    bad of all requests      1/1           0/9    5/9    9/9    9/9
    of the last 3 cells      1/1    1/1    1/10   5/18   14/27  23/27
    the window               burns  burns  calm   calm   burns  burns      began with the first bad request of cell 4

Cells are the same whenever they are counted, so the beginning does not move while the burn lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PER_WINDOW: Final = 60
"""Cells of a short window."""


@dataclass(frozen=True)
class Cells:
    """Requests by the cell in which they ended. `numbers` ascend; cells without requests are left out."""

    first: int
    """The first cell that was counted."""
    last: int
    """The cell of now."""
    numbers: Ints
    judged: Floats
    bad: Floats


def burn_began(cells: Cells, *, share: float, most_apart: int, is_all: bool) -> int | None:
    """The place in `cells.numbers` of the cell with the first bad request of the burn that lasts now.

    A window burns when more than `share` of its requests are bad. More than `most_apart` cells without a request are
    calm. The result is the number of cells when no ended request of the burn was bad. None: the burn is older than the
    first cell, and that is not the oldest that may be asked for (`is_all`).
    """
    numbers, none = cells.numbers, len(cells.numbers)
    before = np.concatenate([[cells.first - 1], numbers])
    in_pause = numbers[np.diff(before) > most_apart] - 1
    if cells.last - before[-1] > most_apart:
        return none
    ends, left, right = _windows(numbers)
    until = np.searchsorted(ends, cells.last, "right")
    ends, left, right = ends[:until], left[:until], right[:until]
    judged, bad = (_between(counts, left, right) for counts in (cells.judged, cells.bad))
    is_whole = (ends - PER_WINDOW + 1 >= cells.first) | is_all
    calm = np.concatenate([ends[is_whole & (right > left) & (bad <= share * judged)], in_pause])
    if not len(calm) and not is_all:
        return None
    last_calm = calm.max() if len(calm) else cells.first - 1
    burning = ends[(ends > last_calm) & (right > left)]
    window_ends = burning[0] if len(burning) else cells.last
    of_burn = (numbers > window_ends - PER_WINDOW) & (cells.bad > 0)
    return int(np.argmax(of_burn)) if of_burn.any() else none


def _windows(numbers: Ints) -> tuple[Ints, Ints, Ints]:
    """The ends of the windows that hold different cells, and the places in `numbers` between which these cells are.

    A window changes with each cell that it begins to hold, and with each that it no longer holds. Windows of 3 cells:

        cells 1, 2, 9    ends 1, 2, 4, 5, 9, 12    left 0, 0, 1, 2, 2, 3    right 1, 2, 2, 2, 3, 3
    """
    edges = np.concatenate([numbers, numbers + PER_WINDOW])
    order = edges.argsort(kind="stable")  # two sorted runs, which it merges
    ends, entered = edges[order], np.cumsum(order < len(numbers))
    left_behind = np.arange(1, len(order) + 1) - entered
    last_of_equal = np.append(ends[1:] != ends[:-1], np.ones(min(len(ends), 1), bool))
    return ends[last_of_equal], left_behind[last_of_equal], entered[last_of_equal]


def _between(counts: Floats, left: npt.NDArray[np.intp], right: npt.NDArray[np.intp]) -> Floats:
    """The sums of counts[left] to counts[right - 1]."""
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    found: Floats = sums[right] - sums[left]
    return found
