"""Standard errors of numbers that are estimated from sampled requests.

Every request was kept on its own with probability 1 / weight (Poisson sampling), so a sum of weights has the
Horvitz-Thompson variance Σ w(w - 1), and a ratio of two sums that of its linearisation (Särndal, Swensson, Wretman:
Model Assisted Survey Sampling, 1992, 3.5 and 5.6).
"""

from __future__ import annotations

from math import sqrt

from collector.base.answer import Answer
from collector.slo.counts import Counts


class Errors(Answer):
    """Standard errors of estimates. The true value is within two of them 95 times of 100."""

    requests_total: float
    requests_good: float
    attainment: float | None

    @classmethod
    def of(cls, counts: Counts, *, total_variance: float, good_variance: float, judged_variance: float) -> Errors:
        """The errors of counts, from the variances of their sums over requests that ended."""
        return cls(
            requests_total=sqrt(total_variance),
            requests_good=sqrt(good_variance),
            attainment=attainment_error(counts, good_variance, judged_variance - good_variance),
        )


def attainment_error(counts: Counts, good_variance: float, bad_variance: float) -> float | None:
    """√((1 - R)² · V(good) + R² · V(bad)) ÷ judged, where R is the attainment; None when there is nothing to judge.

    That is Σ w(w - 1)(g - R)² of the ratio's linearisation, with g = 1 for good requests and 0 for bad ones.
    """
    ratio = counts.attainment
    if ratio is None:
        return None
    variance = (1 - ratio) ** 2 * good_variance + ratio**2 * max(bad_variance, 0.0)
    return sqrt(variance) / counts.tally.judged
