"""Fits a law, a sum of features times coefficients ≥ 0, to durations of which some are far too long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.causes.split.columns import Bools, Floats

LEAST_R2: Final = 0.5
MOST_SIGMA: Final = 0.3
_ROUNDS: Final = 12
_BIWEIGHT: Final = 4.685
_MAD: Final = 1.4826


@dataclass(frozen=True)
class Fit:
    """A law and the sums that it was made of."""

    coefficients: Floats
    xtx: Floats
    """Weighted sums of products of features."""
    xty: Floats
    """Weighted sums of features times duration."""
    expected: Floats
    """The durations by the law, at least 1 ns."""


def robust(features: Floats, duration: Floats) -> Fit:
    """The law of durations (ns, more than 0) whose relative errors are least.

    Where the error is large, a duration counts less and less (Tukey's biweight), so that slow ones do not bend the law.
    """
    weight = np.ones(len(duration))
    expected, former = duration, np.zeros(features.shape[1])
    for _ in range(_ROUNDS):
        coefficients = not_negative(*sums(features, duration, weight / expected**2))
        expected = np.maximum(features @ coefficients, 1.0)
        weight = _biweight(duration / expected - 1)
        if np.allclose(coefficients, former, rtol=1e-4):
            break
        former = coefficients
    return Fit(coefficients, *sums(features, duration, weight / expected**2), expected)


def sums(features: Floats, duration: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """The weighted sums of products of features, and of features times duration."""
    weighted = features * weight[:, None]
    return weighted.T @ features, weighted.T @ duration


def scatter(ratio: Floats) -> float:
    """The scatter of durations over those of the law: 1.4826 × the median absolute deviation."""
    return max(_MAD * float(np.median(np.abs(ratio - np.median(ratio)))), 1e-4)


def r_squared(duration: Floats, law: Floats) -> float:
    """The share of the variance that a law explains, of durations near it: one long stall would hide that it holds."""
    near = _biweight(duration / law - 1)
    mean = np.average(duration, weights=near)
    whole = float(near @ (duration - mean) ** 2)
    return 1 - float(near @ (duration - law) ** 2) / whole if whole > 0 else 0.0


def _biweight(error: Floats) -> Floats:
    middle = np.median(error)
    scale = max(_MAD * float(np.median(np.abs(error - middle))), 1e-4)
    far = (error - middle) / (_BIWEIGHT * scale)
    return np.where(np.abs(far) < 1, (1 - far**2) ** 2, 0.0)


def not_negative(xtx: Floats, xty: Floats) -> Floats:
    """The w ≥ 0 with the least w·xtx·w − 2·w·xty (Lawson and Hanson's active set, on normal equations).

    Columns are scaled to one size first. A feature that never occurs, or that others make up, gets 0 or its share.
    """
    size = np.sqrt(np.maximum(np.diag(xtx), 1e-300))
    square = xtx / np.outer(size, size) + 1e-9 * np.eye(len(xty))
    goal = xty / size
    weights, free = np.zeros(len(xty)), np.zeros(len(xty), np.bool_)
    for _ in range(10 * len(xty)):
        slope = np.where(free, -np.inf, goal - square @ weights)
        if slope.max() <= 1e-12 * np.abs(goal).max():
            break
        free[slope.argmax()] = True
        weights = _feasible(square, goal, weights, free)
    result: Floats = weights / size
    return result


def _feasible(square: Floats, goal: Floats, weights: Floats, free: Bools) -> Floats:
    """Go from `weights` towards the best free weights, and give up those that would be negative."""
    while True:
        best = np.zeros(len(goal))
        some = np.flatnonzero(free)
        best[some] = np.linalg.solve(square[np.ix_(some, some)], goal[some])
        below = free & (best <= 0)
        if not below.any():
            return best
        step = np.min(weights[below] / np.maximum(weights[below] - best[below], 1e-300))
        weights = weights + step * (best - weights)
        free &= weights > 1e-15
        weights = np.where(free, weights, 0.0)
