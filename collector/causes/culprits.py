"""Whose prompts delayed one request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collector.causes.columns import Columns, added, traffic
from collector.causes.judge import judged
from collector.causes.model import StepModel
from collector.causes.split import COMPONENTS


@dataclass(frozen=True)
class Culprit:
    """A request whose prompt was computed while another one waited for it, or ran beside it."""

    row: int
    """Of the columns of requests."""
    time_ns: float
    """The time that the victim lost by it."""
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
) -> list[Culprit]:
    """The culprits of the request in the row `victim`, the worst first.

    The other arguments are those of `explain_process`, for all requests that overlap the victim. Empty where no law
    holds for the steps, since nothing is blamed without proof. Their times add up to its `others_prompts`, and to what
    prompts have of its `wait_tokens`.
    """
    case = judged(traffic(requests, phases, steps, kv_events or {}), reference)
    phases_of_it = np.flatnonzero(case.found.phases.request == victim)
    there = phases_of_it[np.isin(case.found.phases.name[phases_of_it], ("queued", "prefill", "decode"))]
    start, end = case.found.phases.start[there], case.found.phases.end[there]
    chunks = case.done.chunks
    first, last = case.steps.start[chunks.step], case.steps.end[chunks.step]
    beside = sum(
        (
            np.clip(np.minimum(last, until) - np.maximum(first, since), 0, None)
            for since, until in zip(start, end, strict=True)
        ),
        np.zeros(len(first)),
    )
    prompt = case.components[chunks.step, COMPONENTS.index("prompt")]
    time = prompt * case.shares * beside / np.maximum(last - first, 1)
    row = case.found.phases.request[chunks.phase]
    blamed = (time > 0) & (row != victim)
    count = len(case.found.requests)
    totals = added(row[blamed], time[blamed], count)
    numbers = added(row[blamed], np.ones(blamed.sum()), count), added(row[blamed], chunks.tokens[blamed], count)
    worst = np.argsort(-totals, kind="stable")
    return [
        Culprit(int(one), float(totals[one]), int(numbers[0][one]), int(numbers[1][one]))
        for one in worst
        if totals[one] > 0
    ]
