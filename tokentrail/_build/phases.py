"""The phases of a request partition the time from its arrival to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokentrail._host.clock import floored
from tokentrail.semconv import Phase

_Mark = tuple[Phase, int]


Interval = tuple[Phase, int, int]
"""A phase, its start and its end (unix ns), which is after the start. A named tuple would take longer to make."""
Partition = tuple[list[Interval], int]
"""Intervals that neither overlap nor leave a gap, and the number of preemptions."""


_QUEUED, _DECODE, _PREEMPTED = Phase.QUEUED, Phase.DECODE, Phase.PREEMPTED  # a member takes long to look up


def partition(
    arrival: int,
    end: int,
    marks: Sequence[tuple[Any, int]],
    unknown: Callable[[object], None],
    first_token: int | None = None,
) -> Partition:
    """Splits [arrival, end] at `marks` (phase entered, unix ns). The first phase is `QUEUED`.

    Stamps are floored to microseconds and clamped between the mark before and `end`. A mark that is no `Phase` goes to
    `unknown`, and the phase before it goes on. `first_token` (unix ns) ends prefill where no mark says so.
    """
    entered, decodes = _checked(arrival, end, marks, unknown)
    if first_token is not None and not decodes:
        entered = _derived(entered, arrival, first_token)
    intervals: list[Interval] = []
    current, since, preemptions = _QUEUED, arrival, 0
    for phase, at in entered:
        if phase is current:
            continue
        if at > since:
            intervals.append((current, since, at))
        current, since = phase, at
        preemptions += phase is _PREEMPTED
    if end > since:
        intervals.append((current, since, end))
    return intervals, preemptions


def _checked(
    arrival: int, end: int, marks: Sequence[tuple[Any, int]], unknown: Callable[[object], None]
) -> tuple[list[_Mark], bool]:
    """The usable marks, with stamps between the mark before and `end`, and whether one of them is DECODE."""
    entered: list[_Mark] = []
    since, decodes = arrival, False
    for mark in marks:
        try:
            phase, stamp = mark
            if type(phase) is not Phase:
                phase = Phase(phase)
            at = floored(stamp)
        except (ValueError, TypeError, OverflowError):
            unknown(mark)
            continue
        if at > since:
            since = min(at, end)
        decodes = decodes or phase is _DECODE
        entered.append((phase, since))
    return entered, decodes


def _derived(marks: list[_Mark], arrival: int, first_token: int) -> list[_Mark]:
    """Adds the DECODE that no mark names: prefill ends with the first token.

    no marks, arrival 10, first token 30                       PREFILL at 10, DECODE at 30
    PREFILL at 12, PREEMPTED at 40, first token 30             PREFILL at 12, DECODE at 30, PREEMPTED at 40
    the first token is not in PREFILL                          nothing is added
    """
    if not marks:
        return [(Phase.PREFILL, arrival), (Phase.DECODE, first_token)]
    before = sum(at <= first_token for _, at in marks)
    if not before or marks[before - 1][0] is not Phase.PREFILL:
        return marks
    return [*marks[:before], (Phase.DECODE, first_token), *marks[before:]]
