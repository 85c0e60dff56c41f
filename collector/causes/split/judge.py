"""The steps of a process, judged: their work, the law that holds for them, and what each one's time is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.causes.split.columns import Bools, Floats, Traffic
from collector.causes.split.fit import MOST_SIGMA
from collector.causes.split.learn import updated
from collector.causes.split.model import FEATURES, LEAST_STEPS, StepModel
from collector.causes.split.reasons import Reason
from collector.causes.split.slower import ENOUGH, Slower, always, has_slowed, scatters, than_another, than_earlier
from collector.causes.split.steps import COMPONENTS, OUTLIER, law_of, split
from collector.causes.split.timeline import Steps, line_up
from collector.causes.split.work import Work, work

MOST_OUTLIERS: Final = 0.1
"""Of steps that are judged by themselves, no larger share may be far longer than their law."""


@dataclass(frozen=True)
class Judged:
    """The rows of a process, and what is known of its steps."""

    recorded: Traffic
    steps: Steps
    done: Work
    model: StepModel | None
    """None: no law holds for the steps."""
    components: Floats
    """Steps × COMPONENTS, ns."""
    reason: Reason
    """Why no law holds."""
    doubt: Floats
    """By how much the split of each step may be wrong because its work is beyond what the law has seen, ns."""
    slower: Slower | None
    """What the process is slower than, if anything."""

    @property
    def usual(self) -> Floats:
        """The time of each step without what is unusual, ns."""
        names = ("base", "batch", "prompt", "slower", "drafts")
        time: Floats = self.components[:, [COMPONENTS.index(name) for name in names]].sum(1)
        return time

    @property
    def knows_prompts(self) -> bool:
        """Whether it can be told what prompts took: by a law, or by steps that say which have some."""
        if self.model is not None:
            return True
        told = np.isfinite(self.steps.numbers["prefill_tokens"])
        plain = self.done.features[:, FEATURES.index("prompt_tokens")] == 0
        return bool(plain.sum() >= LEAST_STEPS and 2 * told.sum() >= len(told))

    def prompt_ns(self) -> tuple[Floats, Floats, Floats]:
        """By step, the time that its prompts took, and the least and the most that it may be, ns.

        By the law, within its scatter. Where none holds, what a step with prompts took beyond the median of those
        without: which steps carry whose prompts is known, and what they took as a range, by the middle eight of ten.
        Nothing where fewer than LEAST_STEPS have none, or the engine does not tell which have some.
        """
        if self.model is not None:
            prompt = self.components[:, COMPONENTS.index("prompt")]
            either = np.minimum(2 * self.model.sigma * self.usual, prompt)
            return prompt, prompt - either, prompt + either
        tokens = self.done.features[:, FEATURES.index("prompt_tokens")]
        time = self.steps.duration - self.components[:, COMPONENTS.index("stall")]
        if not self.knows_prompts:
            nothing = np.zeros(len(time))
            return nothing, nothing, nothing
        low, middle, high = np.quantile(time[tokens == 0], [0.1, 0.5, 0.9])
        least, prompt, most = (np.where(tokens > 0, np.maximum(time - one, 0.0), 0.0) for one in (high, middle, low))
        return prompt, least, most

    @property
    def shares(self) -> Floats:
        """The share of each chunk in the prompt work of its step: by the law, or by tokens if it gives them no time."""
        chunks, law = self.done.chunks, np.array(self.model.coefficients if self.model else np.zeros(len(FEATURES)))
        shared = [FEATURES.index(name) for name in ("some_prompt", "prompt_tokens", "long_prompt_tokens")]
        prompts, attention = FEATURES.index("prompts"), FEATURES.index("attention")
        features = self.done.features[chunks.step]
        by_tokens = chunks.tokens / np.maximum(features[:, FEATURES.index("prompt_tokens")], 1e-9)
        by_all = features[:, shared] @ law[shared]
        whole = by_all + features[:, [prompts, attention]] @ law[[prompts, attention]]
        of_chunk = by_all * by_tokens + law[prompts] + law[attention] * chunks.attention
        return np.where(whole > 0, of_chunk / np.where(whole > 0, whole, 1.0), by_tokens)


@dataclass(frozen=True)
class Laws:
    """The laws of earlier traffic that may judge a process."""

    own: StepModel | None = None
    sister: StepModel | None = None
    """Of another process of its service, variant, model and tenant: it judges a process that has no law of its own."""
    version: StepModel | None = None
    """Of another variant, with which the process is compared."""


def judged(recorded: Traffic, laws: Laws) -> Judged:
    """Judge the steps by a law of earlier ones, or by themselves."""
    steps = line_up(recorded)
    done = work(recorded, steps)
    known = np.isfinite(done.features).all(1) & (steps.duration > 0)
    law, fact = _law(recorded, steps, done, laws, known)
    reason = _reason(law, steps, done)
    if law is None or reason.name != "none":
        components, doubt = split(recorded, steps, done, None)
        return Judged(recorded, steps, done, None, components, reason, doubt, fact)
    share = None
    for found, of_step in _comparisons(law, laws, done, known):
        if found is not None and found.is_sure:
            fact, share = found, np.zeros(len(steps))
            share[known] = of_step
            break
    components, doubt = split(recorded, steps, done, law, share)
    return Judged(recorded, steps, done, law, components, reason, doubt, fact)


def _law(
    recorded: Traffic, steps: Steps, done: Work, laws: Laws, known: Bools
) -> tuple[StepModel | None, Slower | None]:
    """The law that judges the steps, and how much slower they are than a sister's, which for that reason does not."""
    law = laws.own or laws.sister
    some = np.flatnonzero(known)
    some = some[:: max(len(some) // ENOUGH, 1)]
    pace = always(law, done.features[some], steps.duration[some]) if law else "unknown"
    if laws.own is None and laws.sister and scatters(laws.sister, done.features[some], steps.duration[some]):
        return updated(recorded, steps, done, None), None
    if not pace or (laws.own and pace == "slower"):
        return law, None
    mine = updated(recorded, steps, done, None)
    if laws.own:  # faster than its own law: a fault has ended that was taken for what is usual
        before = replace(laws.own, coefficients=laws.own.anchor or laws.own.coefficients, cells={}, cell_steps={})
        if not always(before, done.features[some], steps.duration[some]):
            return before, None
        return (mine if mine and mine.holds else laws.own), None
    if not (mine and mine.holds and laws.sister):
        return mine, None
    found, _ = than_another(mine, laws.sister, done.features[known], "sister")
    return mine, found if found and found.is_sure else None


def _comparisons(law: StepModel, laws: Laws, done: Work, known: Bools) -> Iterator[tuple[Slower | None, Floats]]:
    if laws.version and laws.version.holds:
        yield than_another(law, laws.version, done.features[known], "version")
    if law is laws.own and has_slowed(law):
        yield than_earlier(law, done.features[known])


def _reason(law: StepModel | None, steps: Steps, done: Work) -> Reason:
    """Why a law does not hold for the steps, or is none; `none` where it does."""
    if law is None:
        return Reason("few_steps" if len(steps) else "no_steps", steps=np.isfinite(done.features).all(1).sum())
    if not law.holds:
        return Reason("scatter", law.sigma, law.n) if law.sigma > MOST_SIGMA else Reason("fit", law.r2, law.n)
    if not len(steps):
        return Reason("no_steps", steps=0)
    if law.by_itself and (beyond := _share_beyond(law, steps, done)) > MOST_OUTLIERS:
        return Reason("outliers", beyond, law.n)
    return Reason()


def _share_beyond(model: StepModel, steps: Steps, done: Work) -> float:
    """The share of the steps that are far longer than the law: if many that made it are, they follow another law."""
    known = np.isfinite(done.features).all(1) & (steps.duration > 0)
    law, _ = law_of(model, done.features[known])
    return float(np.mean(steps.duration[known] > law * (1 + OUTLIER * model.sigma)))
