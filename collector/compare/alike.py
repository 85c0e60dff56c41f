"""Like for like: weights that give two sets of requests the same mix of lengths, tenants, models and times.

The weights are overlap weights: a request of one side counts by the probability that a request with its lengths would
be of the other side (Li, Morgan, Zaslavsky: Balancing covariates via propensity score weighting, JASA 113, 2018). With
logistic regression, the weighted means of all columns are then equal on both sides, and lengths that one side lacks
count little:

    a: prompts of 100, 200, 400 tokens    b: 200, 400, 800 tokens    100 and 800 count little, 200 and 400 most
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from collector.compare.chance import Floats, Ints

_KNOTS: Final = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Between these quantiles of a length, the logarithm of the odds is a straight line of it."""
_REQUESTS_A_KNOT: Final = 50
_FITTED: Final = 10_000
"""Requests of each side that the regression looks at. Its last step looks at all."""
_MOST_TIMES: Final = 10
_LEAST_OF_KIND: Final = 20
"""Fewer requests of a value are compared together with those of the commonest one."""
_STEPS: Final = 12
_RIDGE: Final = 0.01
_LEAST_DISTANCE: Final = 0.1


@dataclass(frozen=True)
class Alike:
    """The factor of each request's weight, and what the weights look at, for two sides."""

    factors: tuple[Floats, Floats]
    features: tuple[Floats, Floats]
    """Shape (features, requests). The first is 1. Without the times, since what moves in time is chance."""


def alike(
    a: Sequence[Floats],
    b: Sequence[Floats],
    weights: tuple[Floats, Floats],
    kinds: Sequence[tuple[Ints, Ints]] = (),
    times: tuple[Ints, Ints] | None = None,
) -> Alike:
    """Weigh by columns, such as prompt and output tokens (NaN: not known), each an array with a number per request.

    `kinds` are columns of values without an order, such as tenants, and `times` the block of time of each request.
    """
    sizes = len(weights[0]), len(weights[1])
    knots = _KNOTS[:: max(1, round(6 * _REQUESTS_A_KNOT * max(len(a), 1) / max(min(sizes), 1)))]
    pooled = [np.concatenate([one, other]) for one, other in zip(a, b, strict=True)]
    most = max(min(sizes) // _REQUESTS_A_KNOT, 1)
    of_kinds = [line for pair in kinds for line in _flags(np.concatenate(pair), most)]
    lines = [np.ones(sum(sizes)), *(line for column in pooled for line in _lines(column, knots)), *of_kinds]
    of_times = [] if times is None else _flags(_merged(np.concatenate(times), min(most, _MOST_TIMES)), _MOST_TIMES)
    matrix = np.stack([*lines, *of_times])
    of_b = np.repeat([0.0, 1.0], sizes)
    balanced = np.concatenate([side / side.sum() for side in weights])  # both sides weigh the same
    chosen = np.concatenate([np.arange(0, n, -(-n // _FITTED)) + i * sizes[0] for i, n in enumerate(sizes)])
    coefficients = np.zeros(len(matrix))
    for some, steps in ((chosen, _STEPS), (slice(None), 1)):
        weighed = balanced[some] / balanced[some].sum() * len(balanced[some])
        coefficients = _logistic(matrix[:, some], of_b[some], weighed, coefficients, steps)
    odds = coefficients @ matrix
    share_of_b = 1 / (1 + np.exp(-np.clip(odds, -30, 30)))
    n = sizes[0]
    matrix = matrix[: len(lines)]
    return Alike((share_of_b[:n], 1 - share_of_b[n:]), (matrix[:, :n], matrix[:, n:]))


def _flags(values: Ints, most: int) -> list[Floats]:
    """A row for each of the commonest values but the first of them, which tells the requests that have it."""
    found, place, n = np.unique(values, return_inverse=True, return_counts=True)
    common = np.argsort(-n, kind="stable")[1 : most + 1]
    return [(place == i).astype(np.float64) for i in common if n[i] >= _LEAST_OF_KIND and len(found) > 1]


def _merged(times: Ints, parts: int) -> Ints:
    """Blocks of time as fewer and longer ones."""
    longest = int(times.max()) + 1
    return times * parts // longest


def distance(a: Floats, b: Floats) -> float:
    """The largest difference of two sides in the share up to a value (Kolmogorov and Smirnov), without NaN."""
    a, b = np.sort(a[~np.isnan(a)]), np.sort(b[~np.isnan(b)])
    if not a.size or not b.size:
        return 0.0
    both = np.concatenate([a, b])
    below = (np.searchsorted(side, both, side="right") / side.size for side in (a, b))
    return float(np.abs(next(below) - next(below)).max())


def mix_differs(a: Floats, b: Floats) -> bool:
    """Tell whether the values of two sides differ by more than chance (1 %), and by more than a little."""
    spread = sum(1 / max(int(np.count_nonzero(~np.isnan(side))), 1) for side in (a, b))
    return distance(a, b) > max(_LEAST_DISTANCE, 1.63 * sqrt(spread))


def _lines(values: Floats, knots: Sequence[float]) -> list[Floats]:
    """Rows that add up to any line of the logarithm that bends at the knots; and one for what is not known."""
    known = ~np.isnan(values)
    if not known.any():
        return []
    logs = np.log1p(np.where(known, values, 0.0))
    of_known = logs[known]
    scale = of_known.std()
    lines = [] if known.all() else [(~known).astype(np.float64)]
    if scale > 0:
        bends = np.unique(np.quantile(of_known[:: -(-len(of_known) // (4 * _FITTED))], knots))
        middle = of_known.mean()
        lines.append((logs - middle) / scale * known)
        lines += [np.maximum(logs - bend, 0.0) / scale * known for bend in bends if bend < of_known.max()]
    return lines


def _logistic(matrix: Floats, of_b: Floats, weights: Floats, coefficients: Floats, steps: int) -> Floats:
    """Better coefficients of a logistic regression, by Newton's method, with a little ridge on all but the first."""
    ridge = np.full(len(matrix), _RIDGE)
    ridge[0] = 1e-9
    for _ in range(steps):
        p = 1 / (1 + np.exp(-np.clip(coefficients @ matrix, -30, 30)))
        gradient = matrix @ (weights * (of_b - p)) - ridge * coefficients
        curvature = (matrix * (weights * p * (1 - p))) @ matrix.T + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        coefficients = coefficients + step
        if np.abs(step).max() < 1e-6:
            break
    return coefficients
