"""The steps of a process as one line of time, and sums along it that can be read at any two moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collector.causes.split.columns import Bools, Floats, Ints, Traffic


@dataclass(frozen=True)
class Steps:
    """Steps one behind the other. Where two overlap (asynchronous scheduling), the later begins as the former ends."""

    start: Floats
    end: Floats
    numbers: Mapping[str, Floats]
    """Columns of the same steps, with NaN for what is not told."""
    follows: Bools
    """Whether a step is the next one after the step before it: False when steps between them are missing."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Floats:
        """The time of each step beyond the end of the one before, ns."""
        return self.end - self.start

    def within(self, start: Floats, end: Floats) -> tuple[Ints, Ints]:
        """The steps of intervals: from the first to before the last number, those whose middle is inside.

        A token's stamp may be some time after the end of its step (vLLM's are those of its API server), so the middle
        tells more than the ends.
        """
        middle = (self.start + self.end) / 2
        return np.searchsorted(middle, start), np.searchsorted(middle, end)


# Two API servers of one vLLM engine both record a step, and one of them has the engine's numbers:
#     rank 0    |----running 8----|  |---running 9---|
#     rank 1      |--------------|     |------------|        the same steps: left out
def line_up(recorded: Traffic) -> Steps:
    """The steps in order of time, without those that another row tells with more numbers."""
    steps = recorded.steps
    order = np.argsort(steps["start"], kind="stable")
    partial = np.isnan(steps["running"][order])
    shared = bool(partial.any() and not partial.all())
    if shared:
        told = order[~partial]
        covered = _Covered(steps["start"][told], steps["end"][told])
        start, end = steps["start"][order], steps["end"][order]
        order = order[~(partial & (2 * covered.between(start, end) >= end - start))]
    numbers = {name: column[order] for name, column in steps.items()}
    end = np.maximum.accumulate(numbers["end"]) if len(order) else numbers["end"]
    start = np.maximum(numbers["start"], np.concatenate([numbers["start"][:1], end[:-1]]))
    stride = np.diff(numbers["step"], prepend=np.nan)
    usual = np.nanmedian(stride) if np.isfinite(stride).any() else np.nan
    return Steps(start, end, numbers, ~(stride > usual) | shared)


class _Covered:
    """How much of a time is covered by intervals in order of start."""

    def __init__(self, start: Floats, end: Floats) -> None:
        end = np.maximum.accumulate(end)
        start = np.maximum(start, np.concatenate([start[:1], end[:-1]]))
        self._times = np.stack([start, end], 1).ravel()
        self._sums = np.repeat(np.cumsum(end - start), 2)
        self._sums[::2] -= end - start

    def between(self, start: Floats, end: Floats) -> Floats:
        return np.interp(end, self._times, self._sums) - np.interp(start, self._times, self._sums)


class RunningSums:
    """Sums of columns along the steps, linear within a step and between two steps.

    `in_steps` (steps × columns) grows during the steps, `between_steps` from the end of the step before. So the sums of
    two moments differ by what happened between them, and columns that add up to the steps' durations and to the gaps
    add up to any time between the first step and the last.
    """

    def __init__(self, steps: Steps, in_steps: Floats, between_steps: Floats) -> None:
        self._count = in_steps.shape[1]
        self._some = np.flatnonzero(in_steps.any(0) | between_steps.any(0))
        growth = np.empty((2 * len(steps), len(self._some)))
        growth[0::2], growth[1::2] = between_steps[:, self._some], in_steps[:, self._some]
        self._times = np.stack([steps.start, steps.end], 1).ravel()
        self._sums = np.cumsum(growth, 0)

    def at(self, time: Floats) -> Floats:
        """Times × columns; constant before the first step and after the last."""
        result = np.zeros((len(time), self._count))
        if not len(self._times):
            return result
        time = np.clip(time, self._times[0], self._times[-1])
        left = np.clip(np.searchsorted(self._times, time, "right") - 1, 0, len(self._times) - 2)
        span = self._times[left + 1] - self._times[left]
        share = (time - self._times[left]) / np.where(span, span, 1)
        before = self._sums[left]
        result[:, self._some] = before + (self._sums[left + 1] - before) * share[:, None]
        return result

    def between(self, start: Floats, end: Floats) -> Floats:
        """Intervals × columns: what each sum gained."""
        gained: Floats = self.at(end) - self.at(start)
        return gained
