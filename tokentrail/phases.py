"""The phases of a request as a partition of its life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tokentrail.clock import floored
from tokentrail.semconv import Phase


class Stretch(NamedTuple):
    """A phase from start to end, unix ns, never empty."""

    phase: Phase
    start: int
    end: int


class Partition(NamedTuple):
    """Phases that neither overlap nor leave a gap, and how often the request was preempted."""

    stretches: list[Stretch]
    preemptions: int


def partition(arrival: int, end: int, marks: Sequence[tuple[Any, int]], unknown: Callable[[object], None]) -> Partition:
    """Splits [arrival, end] at `marks` (phase entered, when), starting in `QUEUED`.

    Stamps are floored to microseconds and clamped into what is left; `unknown` gets each mark that is no `Phase`, and
    the phase before it goes on.
    """
    stretches: list[Stretch] = []
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
            stretches.append(Stretch(current, since, at))
        current, since = phase, at
        preemptions += phase is Phase.PREEMPTED
    if end > since:
        stretches.append(Stretch(current, since, end))
    return Partition(stretches, preemptions)
