"""Divides the duration of each step: what one sequence alone would take, the others, prompts, and what is not usual."""

from __future__ import annotations

from typing import Final

import numpy as np

from collector.causes.split.columns import Bools, Floats, Ints, Traffic, added
from collector.causes.split.model import FEATURES, LEAST_OF_CELL, LEAST_STEPS, RANGES, StepModel, ranges
from collector.causes.split.timeline import Steps
from collector.causes.split.work import Work

COMPONENTS: Final = (
    "base", "batch", "prompt", "drift", "stall", "copy", "unknown", "gap", "pause", "slower", "drafts",
)  # fmt: skip
"""What the time of a process goes into. Gaps are between steps, and a pause is what makes one longer than usual."""
OUTLIER: Final = 4.0
"""A step that is longer than usual by more than so many sigma is no ordinary variation."""
_TAILS: Final = 3.0
"""Where no law holds, a step is far beyond all others that is so many times as far from the usual one as the longest
twentieth, in logarithms, and"""
_TIMES: Final = 5.0
"""so many times as long as the usual one."""
_LEAST_STOP_NS: Final = 5e8
_WINDOWS: Final = (255, 31)
"""Steps whose median says how fast the device is."""
LEAST_DRIFT: Final = 0.05
"""A device or a law is slow from so much on, as a share."""
_LEAST_FALL: Final = 0.25
"""Steps give fewer tokens from so much on: texts differ in how well they can be drafted."""
MEDIAN_ERROR: Final = 1.2533
"""The standard error of a median of n values is this times sigma / √n."""


def between(steps: Steps, model: StepModel | None) -> Floats:
    """Steps × COMPONENTS, ns: the time since the end of the step before; unknown where steps are missing."""
    parts = np.zeros((len(steps), len(COMPONENTS)))
    length = steps.start[1:] - steps.end[:-1]
    pause = np.maximum(length - model.gap_ns, 0.0) if model else np.zeros(len(length))
    missing = ~steps.follows[1:]
    for name, value in (("gap", length - pause), ("pause", pause)):
        parts[1:, COMPONENTS.index(name)] = np.where(missing, 0.0, value)
    parts[1:, COMPONENTS.index("unknown")] = np.where(missing, length, 0.0)
    return parts


def split(
    recorded: Traffic, steps: Steps, done: Work, model: StepModel | None, slower: Floats | None = None
) -> tuple[Floats, Floats]:
    """Steps × COMPONENTS, ns: they add up to each step's duration. Then, by step, by how much the split may be wrong.

    Without a model, all is unknown but copies, and steps that are far beyond all others. `slower` is the share of each
    step's law that another law does without.
    """
    doubt = np.zeros(len(steps))
    parts = np.zeros((len(steps), len(COMPONENTS)))
    column = {name: index for index, name in enumerate(COMPONENTS)}
    copies = copied(recorded, steps)
    parts[:, column["copy"]] = copies
    duration = steps.duration - copies
    parts[:, column["unknown"]] = duration
    known = np.flatnonzero(np.isfinite(done.features).all(1) & (duration > 0))
    if model is None or not len(known):
        stall = np.zeros(len(steps))
        stall[known] = far_beyond(done.features[known], duration[known])
        parts[:, column["stall"]] = stall
        parts[:, column["unknown"]] -= stall
        return parts, doubt
    features, duration = done.features[known], duration[known]
    factor, count = model.calibration(features)
    law, work = law_of(model, features, factor)
    unsure = _unsure(model, features, count)
    # Steps that are judged by themselves have no earlier ones, compared with which the device could be slow.
    speed = np.ones(len(law)) if model.by_itself else lasting(np.maximum(duration - unsure, 0.0) / law, model.sigma)
    # A step that is far faster than the device is said to be was not slowed down: every second one may be.
    speed[duration < law * speed * (1 - OUTLIER * model.sigma)] = 1.0
    usual = law * speed
    over = duration > usual * (1 + OUTLIER * model.sigma)
    beyond = np.where(over, duration - usual, 0.0)
    unknown = np.minimum(beyond, unsure)
    ordinary = duration - beyond
    drift = ordinary * (1 - 1 / speed)
    usual = ordinary - drift
    excess = {"drift": drift, "stall": beyond - unknown, "unknown": unknown}
    if slower is not None:
        excess["slower"] = usual * slower[known]
        usual = usual - excess["slower"]
    work *= (usual / law)[:, None]
    if (fallen := _fallen(done, known, model)) is not None:
        drafts = work[:, :2] * (1 - 1 / fallen)[:, None]
        work[:, :2] -= drafts
        excess["drafts"] = drafts.sum(1)
    parts[known, : work.shape[1]] = work
    for name, value in excess.items():
        parts[known, column[name]] = value
    if unsure.any():
        doubt[known] = np.where(np.isfinite(unsure), np.minimum(unsure, np.maximum(duration - law, 0.0)), 0.0)
    return parts, doubt


def far_beyond(features: Floats, duration: Floats) -> Floats:
    """By how much steps are longer than the usual one with prompts, or without, where they are far beyond any scatter.

    Durations on a busy machine scatter by factors and to one side, so their logarithms are compared: three times as far
    as the longest twentieth, five times the usual duration, and half a second at least. A step with more prompt tokens
    than usual may take longer in proportion.
    """
    beyond = np.zeros(len(duration))
    tokens = features[:, FEATURES.index("prompt_tokens")]
    for kind in (tokens > 0, tokens == 0):
        if kind.sum() < LEAST_STEPS:
            continue
        times, more = duration[kind], np.maximum(tokens[kind] / max(float(np.median(tokens[kind])), 1.0), 1.0)
        usual = float(np.median(times / more)) * more
        distance = np.log(times / usual)
        least = max(_TAILS * float(np.quantile(distance, 0.95)), np.log(_TIMES))
        far = (distance > least) & (times - usual > _LEAST_STOP_NS)
        beyond[kind] = np.where(far, times - usual, 0.0)
    return beyond


def _fallen(done: Work, known: Ints, model: StepModel) -> Floats | None:
    """How many times fewer tokens the steps around each one give a sequence than usual, or 1; None without drafts."""
    tokens = done.tokens_a_step[known]
    if model.tokens_a_step <= 1 or not np.isfinite(tokens).any():
        return None
    return lasting(np.nan_to_num(model.tokens_a_step / tokens, nan=1.0), 0.0, least=_LEAST_FALL)


def law_of(model: StepModel, features: Floats, factor: Floats | None = None) -> tuple[Floats, Floats]:
    """The usual duration of steps, and its division into base, batch and prompt (ns), which add up to it.

    `factor` is the calibration of the steps, where it is known already.

    What the law misses in a cell belongs to the prompts in steps that have some, else to the batch; to the base in
    steps of one sequence.
    """
    each = features * np.array(model.coefficients)
    value = {name: each[:, index] for index, name in enumerate(FEATURES)}
    sequences = features[:, FEATURES.index("sequences")]
    decoding = value["sequences"] + value["context"] + value["drafted_tokens"]
    alone = np.where(sequences > 1, decoding / np.maximum(sequences, 1), decoding)
    base, batch = value["step"] + alone, decoding - alone
    prompt = sum(
        (value[name] for name in ("some_prompt", "prompts", "prompt_tokens", "long_prompt_tokens", "attention")),
        np.zeros(len(features)),
    )
    factor = model.calibration(features)[0] if factor is None else factor
    more = (base + batch + prompt) * (factor - 1)
    prompts, several = features[:, FEATURES.index("some_prompt")] > 0, sequences > 1
    # A factor below what the prompt, or the batch, makes up takes the rest from the base.
    prompt, more = _give(prompt, more, prompts)
    batch, more = _give(batch, more, several)
    base = np.maximum(base + more, 1.0)
    return base + batch + prompt, np.stack([base, batch, prompt], 1)


def _give(part: Floats, more: Floats, to: Bools) -> tuple[Floats, Floats]:
    changed = np.where(to, np.maximum(part + more, 0.0), part)
    return changed, more - (changed - part)


def _unsure(model: StepModel, features: Floats, count: Floats) -> Floats:
    """By how much the law may be too low (ns); 0 where it was seen to hold, and where enough steps were of its kind.

    Beyond the most sequences that the model knows: by half of what those beyond take. Beyond the most prompt tokens: by
    any time, since arithmetic and attention grow faster than smaller prompts tell. Steps of one kind have as many
    sequences, or, with prompts, as many tokens of these; beyond the most attention, context or drafts, their number
    says nothing: as if the whole step grew with the square of these.
    """
    each = features * np.array(model.coefficients)
    number = {name: features[:, index] for index, name in enumerate(FEATURES)}
    decoding = each[:, FEATURES.index("sequences")] + each[:, FEATURES.index("context")]
    more = np.maximum(1 - model.most_of("sequences") / np.maximum(number["sequences"], 1.0), 0.0)
    crowd = more * decoding / 2
    prompts = number["prompt_tokens"] > 0
    unsure = np.where((count >= LEAST_OF_CELL) & ~prompts, 0.0, crowd)
    unsure[(count < LEAST_OF_CELL) & (number["prompt_tokens"] > model.most_of("prompt_tokens"))] = np.inf
    far = np.ones(len(features))
    for name, work in zip(RANGES, ranges(features), strict=True):
        if work.max(initial=0.0) > model.most_of(name):
            far = np.maximum(far, work / max(model.most_of(name), 1.0))
            unsure = np.maximum(unsure, each.sum(1) * (far**2 - 1))
    return unsure


def lasting(ratio: Floats, sigma: float, least: float = LEAST_DRIFT) -> Floats:
    """How many times slower the device is than usual, around each step: the median of 255 ratios, then of 31; or 1.

    A median counts from `least` (5 %) on, and beyond three of its standard errors. Many steps tell a small slowness,
    and the few what is slower still. Most traffic has neither: the windows with a large median are found by counting.
    """
    speed = np.ones(len(ratio))
    for steps in _WINDOWS:
        width = min(steps, len(ratio) - (len(ratio) + 1) % 2)
        if width < 3:
            break
        most = 1 + max(least, 3 * MEDIAN_ERROR * sigma / np.sqrt(width))
        half = width // 2
        padded = np.pad(ratio / speed, half, mode="reflect")
        large = np.concatenate([[0], np.cumsum(padded > most)])
        slow = np.flatnonzero(large[width:] - large[:-width] > half)
        if len(slow):
            speed[slow] *= np.median(np.lib.stride_tricks.sliding_window_view(padded, width)[slow], 1)
    return speed


def copied(recorded: Traffic, steps: Steps) -> Floats:
    """The time of each step in which blocks moved between device and host, before it computed, ns."""
    start, end = recorded.copies
    step = np.searchsorted(steps.start, start, "right") - 1
    inside = (step >= 0) & (end > start)
    inside[inside] &= end[inside] <= steps.end[step[inside]]
    time = added(step[inside], (end - start)[inside], len(steps))
    return np.minimum(time, steps.duration)
