"""The steps of a process, judged: their work, the law that holds for them, and what each one's time is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.causes.columns import Floats, Traffic
from collector.causes.fit import MOST_SIGMA
from collector.causes.learn import updated
from collector.causes.model import FEATURES, StepModel
from collector.causes.reasons import Reason
from collector.causes.split import OUTLIER, law_of, split
from collector.causes.timeline import Steps, line_up
from collector.causes.work import Work, work

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


def judged(recorded: Traffic, reference: StepModel | None) -> Judged:
    """Judge the steps by a reference, or by themselves."""
    steps = line_up(recorded)
    done = work(recorded, steps)
    law = reference or updated(recorded, steps, done, None)
    reason = _reason(law, steps, done, by_itself=reference is None)
    model = law if reason.name == "none" else None
    return Judged(recorded, steps, done, model, split(recorded, steps, done, model), reason)


def _reason(law: StepModel | None, steps: Steps, done: Work, *, by_itself: bool) -> Reason:
    """Why a law does not hold for the steps, or is none; `none` where it does."""
    if law is None:
        return Reason("few_steps" if len(steps) else "no_steps", steps=np.isfinite(done.features).all(1).sum())
    if not law.holds:
        return Reason("scatter", law.sigma, law.n) if law.sigma > MOST_SIGMA else Reason("fit", law.r2, law.n)
    if not len(steps):
        return Reason("no_steps", steps=0)
    if by_itself and (beyond := _share_beyond(law, steps, done)) > MOST_OUTLIERS:
        return Reason("outliers", beyond, law.n)
    return Reason()


def _share_beyond(model: StepModel, steps: Steps, done: Work) -> float:
    """The share of the steps that are far longer than the law: if many that made it are, they follow another law."""
    known = np.isfinite(done.features).all(1) & (steps.duration > 0)
    law, _ = law_of(model, done.features[known])
    return float(np.mean(steps.duration[known] > law * (1 + OUTLIER * model.sigma)))
