"""Why requests are not explained step by step, in words: from the reasons that their rows of `causes` have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from collector.base.answer import Answer
from collector.causes.answer.beyond import Bools, Floats
from collector.causes.split.fit import LEAST_R2, MOST_SIGMA
from collector.causes.split.judge import MOST_OUTLIERS
from collector.causes.split.model import LEAST_STEPS
from collector.causes.split.names import load_causes
from collector.causes.split.reasons import REASONS
from collector.slo.counts import Number
from tokentrail.shared.formatting import count, percent

_UNKNOWN_STEPS: Final = "too few"
_DETAILS: Final = {
    "vllm": "vllm: --enable-logging-iteration-details, unless it is on, tells each step's tokens and exact time"
}
"""What makes a law hold better with an engine whose steps do not tell all of their work."""
_NOT_RECORDED: Final = ("no_phases", "no_steps")
_TEXTS: Final = {
    "client": "they were measured at a client, which knows nothing of the engine",
    "failed": "the rules of causes could not read their rows (docs/metrics.md#explain-failures)",
    "few_steps": "{steps} steps with known work were there by then, and a law needs {least_steps}; they are explained"
    " again when there are more",
    "scatter": "steps scatter by {share} around their law, of {most_sigma} allowed: something else takes the device or"
    " the CPU now and then",
    "fit": "the law explains {share} of how steps differ, of {least_r2} needed: steps do not tell all of their work",
    "outliers": "{share} of the steps are far longer than their own law, of {most_outliers} allowed: a law of earlier"
    " traffic would judge them, and there is none",
    "steps_missing": "steps are there of {share} of their time only",
    "steps_late": "the last steps of their time had not come when they were explained: steps were there of {share} of"
    " it; they are explained again when these come",
}
_ACTIONS: Final = {
    "client": "export the spans of its server too",
    "steps_missing": "look for spans that were dropped (docs/sdk.md)",
}
"""What somebody can do about a reason. The others need more steps, which come by themselves, or a steadier engine."""


class ReasonOut(Answer):
    """Why requests are not explained step by step."""

    reason: str
    """One of `client`, `failed`, `no_phases`, `no_steps`, `few_steps`, `scatter`, `fit`, `outliers`, `steps_missing`
    and `steps_late`."""
    requests: Number
    share: float | None
    """What fell short, the median over the requests: the scatter of steps, the variance that the law explains, the
    outliers among steps, or the part of a request's time that has steps."""
    text: str
    """The reason with its number, and what to do about it."""
    action: str
    """What to do about it; empty: nothing but to wait, or nothing that is known."""


def reasons_of(
    reason: np.ndarray[tuple[int], np.dtype[np.uint8]],
    share: Floats,
    steps: Floats,
    weight: Floats,
    engines: Sequence[str],
) -> list[ReasonOut]:
    """The reasons of some requests, those of most first. `share` and `steps` may be NaN."""
    told = []
    for number in np.unique(reason).tolist():
        of: Bools = reason == number
        name, n = REASONS[number], float(weight[of].sum())
        if name == "none":
            continue
        shares, counts = (_median(values[of]) for values in (share, steps))
        text, action = words(name, shares, counts, engines), action_of(name, engines)
        told.append(ReasonOut(reason=name, requests=round(n, 3), share=shares, text=text, action=action))
    return sorted(told, key=lambda one: -one.requests)


def words(reason: str, share: float | None, steps: float | None, engines: Sequence[str]) -> str:
    """A reason as a sentence. What is recorded is not asked for: steps that are there without a law need no plugin."""
    action = action_of(reason, engines)
    if reason in _NOT_RECORDED:
        return action
    text = _TEXTS[reason].format(
        share=percent(None if share is None else round(share, 4)),
        steps=_UNKNOWN_STEPS if steps is None else f"only {count(steps)}",
        least_steps=LEAST_STEPS,
        most_sigma=percent(MOST_SIGMA),
        least_r2=percent(LEAST_R2),
        most_outliers=percent(MOST_OUTLIERS),
    )
    return f"{text}{': ' if reason in _ACTIONS else '. '}{action}" if action else text


def action_of(reason: str, engines: Sequence[str]) -> str:
    """What to do so that requests are explained step by step; empty where nothing but time helps."""
    if reason in _NOT_RECORDED:
        known = load_causes()["unexplained"].advice
        return " ".join([known["any"], *(f"{engine}: {known[engine]}" for engine in engines if engine in known)])
    more = [_DETAILS[engine] for engine in engines if engine in _DETAILS and reason in ("scatter", "fit")]
    return ". ".join([_ACTIONS[reason]] if reason in _ACTIONS else more)


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None
