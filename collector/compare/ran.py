"""When the sides of a comparison ran, and the time in which both did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.ask.times import SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.count.reader import Reader

PAUSE_S: Final = 900.0
"""Without a request for so long, a side has not run."""
_LEAST_CUT_S: Final = 60.0
"""Less than this is not cut off, and no side is cut to less."""
_MINUTE_S: Final = 60
_LEAST_OF_EACH: Final = 0.1
"""Sides that ran together for less of the time of the one that ran shorter have times of their own."""


@dataclass(frozen=True)
class Ran:
    """When the requests of one side ran that ended in its window."""

    first_ns: int | None
    """When the first one began; None without any."""
    last_ns: int | None
    minutes: npt.NDArray[np.int64]
    """The minutes in which one ended, since 1970, ascending."""

    @classmethod
    def read(cls, reader: Reader, window: Window) -> Ran:
        """Read one side."""
        row = reader.queries.row("compare_time", {"filter": window.filter}, **window.bounds)
        return cls(row["first_ns"], row["last_ns"], np.array(row["minutes"], np.int64))

    def stretches(self) -> list[tuple[int, int]]:
        """From which minute to which it ran without a pause."""
        if not self.minutes.size:
            return []
        breaks = np.flatnonzero(np.diff(self.minutes) * _MINUTE_S > PAUSE_S)
        firsts, lasts = self.minutes[[0, *breaks + 1]], self.minutes[[*breaks, -1]]
        return [*zip(firsts.tolist(), lasts.tolist(), strict=True)]

    def seen_s(self, other: Ran | None = None) -> float:
        """The seconds in which it ran, and the other side too if there is one, to a minute."""
        beside = (other or self).stretches()
        both = [(max(a0, b0), min(a1, b1)) for a0, a1 in self.stretches() for b0, b1 in beside]
        return float(_MINUTE_S * sum(max(last - first, 0) for first, last in both))


@dataclass(frozen=True)
class CommonTime:
    """Both sides in the time in which both ran."""

    a: Window
    b: Window
    cut: str
    """What was cut, in words; '' for nothing."""
    seen_s: float
    """The seconds in which B ran; where the sides have one time, those in which both did."""
    first_ns: int | None
    """When the first request of B began; None without any."""


def common_time(reader: Reader, a: Window, b: Window) -> CommonTime:
    """The sides in the time in which both ran.

    Sides that have times of their own stay as they are. A variant that was started half an hour ago is compared with
    the half hour of the other one. What ran in turns, as v1, v2 and v1 again, stays as it is too.
    """
    of_b = Ran.read(reader, b)
    if (a.start_ns, a.end_ns) != (b.start_ns, b.end_ns):
        return CommonTime(a, b, "", of_b.seen_s(), of_b.first_ns)
    of_a = Ran.read(reader, a)
    if of_a.first_ns is None or of_a.last_ns is None or of_b.first_ns is None or of_b.last_ns is None:
        return CommonTime(a, b, "", 0.0, of_b.first_ns)
    first, last = max(of_a.first_ns, of_b.first_ns), min(of_a.last_ns, of_b.last_ns) + 1
    least = int(_LEAST_CUT_S * SECOND_NS)
    start = first if first - max(a.start_ns, min(of_a.first_ns, of_b.first_ns)) > least else a.start_ns
    end = last if max(of_a.last_ns, of_b.last_ns) - last > least else a.end_ns
    both_s, each_s = of_a.seen_s(of_b), min(of_a.seen_s(), of_b.seen_s())
    if start >= end or both_s < _LEAST_OF_EACH * each_s:
        told = "the sides ran at different times, so what else changed in time counts too"
        return CommonTime(a, b, told, of_b.seen_s(), of_b.first_ns)
    start = max(a.start_ns, min(start, end - least))
    if (start, end) == (a.start_ns, a.end_ns):
        return CommonTime(a, b, "", both_s, of_b.first_ns)
    told = f"both sides are of the time in which both ran, {rfc3339(start)} to {rfc3339(end)}"
    a, b = (replace(side, start_ns=start, end_ns=end) for side in (a, b))
    return CommonTime(a, b, told, both_s, of_b.first_ns)
