"""Whose prompts delayed one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from collector.causes.split.columns import Bools, Columns, Floats, added, traffic
from collector.causes.split.judge import Judged, Laws, judged
from collector.causes.split.model import StepModel
from collector.causes.split.waits import step_end

Delay = tuple[Literal["others_prompts", "wait_tokens"], Literal["ttft", "rest"]]
"""A cause that is the prompts of others, before the first token or after it."""


@dataclass(frozen=True)
class Culprit:
    """A request whose prompt was computed while another one waited for it, or ran beside it."""

    row: int
    """Of the columns of requests."""
    time_ns: float
    """The time that the victim lost by it."""
    low_ns: float
    """It was at least this, and `high_ns` at most."""
    high_ns: float
    steps: int
    """In so many steps."""
    tokens: int
    """The prompt tokens that these steps computed of it."""


def culprits_of(
    victim: int,
    requests: Columns,
    phases: Columns,
    steps: Columns,
    *,
    kv_events: Columns | None = None,
    reference: StepModel | None = None,
    sister: StepModel | None = None,
) -> dict[Delay, list[Culprit]]:
    """The culprits of the request in the row `victim` by cause, the worst first. A cause without one is left out.

    The other arguments are those of `explain_process`, for all requests that overlap the victim. Their times add up to
    its `others_prompts`, and to what prompts have of its `wait_tokens` while it waited for nothing else. Where no law
    holds for the steps, times are those of steps with prompts beyond steps without, shared by tokens, and within a wide
    range. Empty where the engine does not tell which steps have prompts.
    """
    only = np.arange(len(np.asarray(requests["key"]))) == victim
    case = judged(traffic({**requests, "wanted": only}, phases, steps, kv_events or {}), Laws(reference, sister))
    if not len(case.steps):
        return {}
    by_delay = {delay: _within(case, victim, *times) for delay, times in _times(case).items()}
    return {delay: culprits for delay, culprits in by_delay.items() if culprits}


def _times(case: Judged) -> dict[Delay, tuple[Floats, Floats]]:
    """When the prompts of others count for which cause: in a queue, for its own only behind the step that ran then."""
    pieces = case.recorded.pieces
    queued = pieces.name == "queued"
    seen = np.where(queued, np.minimum(step_end(case.steps, pieces.start), pieces.end), pieces.end)
    running = np.isin(pieces.name, ("queued", "prefill", "decode"))

    def of(chosen: Bools, start: Floats, end: Floats) -> tuple[Floats, Floats]:
        return start[chosen], end[chosen]

    return {
        ("others_prompts", "ttft"): of(running & ~pieces.after, pieces.start, seen),
        ("others_prompts", "rest"): of(running & pieces.after, pieces.start, seen),
        ("wait_tokens", "ttft"): of(queued & ~pieces.after, seen, pieces.end),
        ("wait_tokens", "rest"): of(queued & pieces.after, seen, pieces.end),
    }


def _within(case: Judged, victim: int, start: Floats, end: Floats) -> list[Culprit]:
    chunks = case.done.chunks
    first, last = case.steps.start[chunks.step], case.steps.end[chunks.step]
    beside = np.zeros(len(first))
    for since, until in zip(start, end, strict=True):
        beside += np.clip(np.minimum(last, until) - np.maximum(first, since), 0, None)
    part = case.shares * beside / np.maximum(last - first, 1)
    time, low, high = (one[chunks.step] * part for one in case.prompt_ns())
    row = case.recorded.phases.request[chunks.phase]
    blamed = (time > 0) & (row != victim)
    count = len(case.recorded.requests)
    totals = added(row[blamed], time[blamed], count)
    numbers = added(row[blamed], np.ones(blamed.sum()), count), added(row[blamed], chunks.tokens[blamed], count)
    lows, highs = (added(row[blamed], one[blamed], count) for one in (low, high))
    worst = np.argsort(-totals, kind="stable")
    return [
        Culprit(
            int(one),
            float(totals[one]),
            float(lows[one]),
            float(highs[one]),
            int(numbers[0][one]),
            int(numbers[1][one]),
        )
        for one in worst
        if totals[one] > 0
    ]
