"""The phases of a request partition the time from its arrival to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tokentrail.clock import floored
from tokentrail.semconv import Phase


class PhaseInterval(NamedTuple):
    """One phase from start to end, unix ns; the end is after the start."""

    phase: Phase
    start: int
    end: int


class Partition(NamedTuple):
    """Intervals that neither overlap nor leave a gap, and the number of preemptions."""

    intervals: list[PhaseInterval]
    preemptions: int


def partition(arrival: int, end: int, marks: Sequence[tuple[Any, int]], unknown: Callable[[object], None]) -> Partition:
    """Splits [arrival, end] at `marks` (phase entered, unix ns). The first phase is `QUEUED`.

    Stamps are floored to microseconds and clamped between the mark before and `end`. A mark that is no `Phase` goes to
    `unknown`, and the phase before it goes on.
    """
    intervals: list[PhaseInterval] = []
    current, since, preemptions = Phase.QUEUED, arrival, 0
    for mark in marks:
        try:
            phase, at = Phase(mark[0]), min(max(floored(mark[1]), since), end)
        except (ValueError, TypeError):
            unknown(mark)
            continue
        if phase is current:
            continue
        if at > since:
            intervals.append(PhaseInterval(current, since, at))
        current, since = phase, at
        preemptions += phase is Phase.PREEMPTED
    if end > since:
        intervals.append(PhaseInterval(current, since, end))
    return Partition(intervals, preemptions)
