"""Counts of requests in a window, and the one formula for how many of them an SLO judges."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from collector.slo.burn import Tally

Number = int | float
"""A count: an integer, or a sum of weights when requests were sampled."""
N = TypeVar("N", int | float, npt.NDArray[np.float64])
_LEFT_OVER: Final = 0.5


def judged(
    *, total: Number, unselected: Number, excused: N | Number, undetermined: N, in_flight_violations: N, lost: int
) -> N:
    """The denominator of attainment: requests that ended good or bad, are in flight and bad already, or were lost.

    A kept request stands for one or more. Less than half a request is what rounded sums of weights leave over.
    """
    n: N = total - unselected - excused - undetermined + in_flight_violations + lost
    return n * (n > _LEFT_OVER)


def good_is_known(judged: Number, *, unselected: Number, undetermined: Number) -> bool:
    """Tell whether the number of good requests says something: one is judged, or none could have been good."""
    return bool(judged or not (unselected or undetermined))


class Counts(BaseModel):
    """Requests: ended in the window, and in flight at its end.

    `unknown`: ended, and nobody tells whether well.
    `undetermined`: missed no threshold that is known, but a threshold needs a value that is not known, or its end is
    `unknown`.
    `excused`: not judged, because the client cancelled it before it missed a threshold, or the SLO excludes its error.
    `unselected`: not judged, because no SLO selects it; lost ones among them. None of the counts of one SLO is.
    """

    total: Number
    ok: Number
    good: Number
    undetermined: Number
    failed: Number
    cancelled: Number
    unknown: Number
    excused: Number
    unselected: Number
    in_flight: int
    in_flight_violations: int
    lost: int

    @property
    def tally(self) -> Tally:
        """The requests that an SLO judges, and the bad ones among them."""
        n = judged(
            total=self.total,
            unselected=self.unselected,
            excused=self.excused,
            undetermined=self.undetermined,
            in_flight_violations=self.in_flight_violations,
            lost=self.lost,
        )
        return Tally(n, n - self.good)

    @property
    def good_is_known(self) -> bool:
        """Tell whether `good` says something."""
        return good_is_known(self.tally.judged, unselected=self.unselected, undetermined=self.undetermined)

    def goodput(self, seconds: float) -> float | None:
        """Good requests per second of a window that is so long; None when that is not known."""
        return self.good / seconds if self.good_is_known else None

    @property
    def attainment(self) -> float | None:
        """Good ÷ judged; None when there is nothing to judge."""
        return self.good / self.tally.judged if self.tally.judged else None
