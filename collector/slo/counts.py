"""Counts of requests in a window, and the one formula for how many of them an SLO judges."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from collector.base.answer import Answer
from collector.slo.burn import Tally

Number = int | float
"""A count: an integer, or a sum of weights when requests were sampled."""


def as_number(value: float) -> Number:
    """A sum of weights as a count: an integer where it is one."""
    return int(value) if value == int(value) else value


N = TypeVar("N", int | float, npt.NDArray[np.float64])
_LEFT_OVER: Final = 0.5


def judged(
    *,
    total: Number,
    unselected: Number,
    excused: N | Number,
    undetermined: N,
    in_flight_violations: N | Number,
    lost: int,
) -> N:
    """The denominator of attainment: requests that ended good or bad, are in flight and bad already, or were lost.

    A kept request stands for one or more. Less than half a request is what rounded sums of weights leave over.
    """
    n: N = total - unselected - excused - undetermined + in_flight_violations + lost
    return n * (n > _LEFT_OVER)


def good_is_known(judged: Number, *, unselected: Number, undetermined: Number) -> bool:
    """Tell whether the number of good requests says something: one is judged, or none could have been good."""
    return bool(judged or not (unselected or undetermined))


class Counts(Answer):
    """Requests that ended in the window, or are in flight at its end."""

    total: Number
    """Requests that ended in the window: ok, failed, cancelled and `unknown` ones."""
    ok: Number
    good: Number
    """Ended ok, and met every threshold of every SLO that selects it."""
    undetermined: Number
    """Missed no threshold that is known, but a threshold needs a value that is not known, or its end is `unknown`."""
    failed: Number
    cancelled: Number
    unknown: Number
    """Ended, and nobody tells whether well."""
    excused: Number
    """Not judged: the client cancelled it before it missed a threshold, or the SLO excludes its error."""
    unselected: Number
    """Not judged: no SLO selects it, whether it ended or was lost. None in the counts of one SLO."""
    in_flight: int
    """Announced, and not ended at the end of the window."""
    in_flight_violations: int
    """Of those in flight, past a threshold already."""
    lost: int
    """Not ended, and not announced again for `TOKENTRAIL_LOST_AFTER_S`: the engine process died."""

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

    @property
    def attainment(self) -> float | None:
        """Good ÷ judged; None when there is nothing to judge."""
        return self.good / self.tally.judged if self.tally.judged else None
