"""Why a request is not explained step by step: each row of `causes` has one reason, and the number that fell short."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

REASONS: Final = (
    "none", "client", "failed", "no_phases", "no_steps", "few_steps", "scatter", "fit", "outliers", "steps_missing",
    "steps_late",
)  # fmt: skip
"""In the order of the column `reason` of the table `causes`.

none           it is explained step by step
client         it was measured at a client, which knows no engine process
failed         its rows make no sense to the algorithm, or it is not explained yet
no_phases      it has no phases
no_steps       its process has no steps of its time
few_steps      there is no law, and fewer steps than LEAST_STEPS whose work is known
scatter        steps scatter around the law by `share`, more than MOST_SIGMA
fit            the law explains `share` of the variance of steps, less than LEAST_R2
outliers       of the steps, `share` is far longer than their own law, more than MOST_OUTLIERS
steps_missing  steps are there of `share` of its time only: they begin after it began
steps_late     likewise: when it was explained, its last ones had not come
"""


class Reason(NamedTuple):
    """Why no law holds, or why a request is outside of it."""

    name: str = "none"
    """One of REASONS."""
    share: float = np.nan
    """What fell short; NaN where the reason has no such number."""
    steps: float = np.nan
    """The number of steps that there were, or that made the law; NaN where nobody counted."""
