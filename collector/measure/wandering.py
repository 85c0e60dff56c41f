"""How far a share of requests may be off when the traffic wanders: a long-run variance from blocks of time.

Load, batch sizes and noisy neighbours move many requests together, for seconds or for minutes. With a share that
wanders around its mean by `cv` times the mean, and forgets after a time τ, the cosine coefficients of the share by
block have the spectrum of an autoregressive process:

    white · (1 + λ / (1 + (ω τ)²))        λ = 2 τ · (cv · share)² ÷ (variance of independent requests · time)

The likelihood of the coefficients weighs the possible τ and cv (Müller: HAC corrections for strongly autocorrelated
time series, Journal of Business & Economic Statistics 32, 2014, has the cosines). So noise that a short time cannot
show counts by how likely it is, and a long time without it rules it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import erfc, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

BLOCKS: Final = 40
"""Blocks of equal length into which a time is divided."""
_TAUS_S: Final = np.array([15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1500.0])
_CVS: Final = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
_TAU, _CV = (axis.ravel() for axis in np.meshgrid(_TAUS_S, _CVS, indexing="ij"))
STEADY: Final = 0.5
"""The probability, before any request was seen, that traffic does not wander."""
_LINKED: Final = 0.9
"""The probability that the tail wanders as all values do."""
_PLAUSIBLE: Final = np.concatenate([[1.0], (_CV <= 1.6) | (_TAU < 300)])
"""A share that is several times its mean for many minutes is a fault, and no noise."""
_SEEN: Final = 10.0
"""Fewer correlation times than this do not tell how far traffic wanders."""
_TINY: Final = 1e-300
_NEVER: Final = 1e-7


@dataclass(frozen=True)
class Wandering:
    """Of some shares: what may be their variance, each with its probability. Arrays have shape (shares, cases)."""

    probability: Floats
    variance: Floats
    slow: Bools
    """Shape (shares,): most of the variance is probably of noise that was seen for fewer than ten correlation times."""
    before: Floats
    """The probabilities of the cases before any request was seen."""

    def error(self, z: float) -> Floats:
        """The standard errors at which `z` of them leave out what a normal variable leaves out beyond `z`."""
        likely = (self.probability > _NEVER).any(axis=0)
        probability, variance = self.probability[:, likely], self.variance[:, likely]
        outside, deviation = erfc(z / sqrt(2)), np.sqrt(2 * np.maximum(variance, _TINY))
        low, high = np.zeros(len(variance)), z * np.sqrt(variance.max(axis=1))
        for _ in range(24):
            middle = (low + high) / 2
            is_more = (probability * _erfc(middle[:, None] / deviation)).sum(axis=1) > outside
            low, high = np.where(is_more, middle, low), np.where(is_more, high, middle)
        error: Floats = high / z
        return error

    @property
    def prior(self) -> Floats:
        """What the first share, of about a half, says about shares in the tail of the same requests.

        Where all values wander, a share in the tail does so by up to four times as much of itself.
        """
        told = self.probability[0, 1:].reshape(len(_TAUS_S), len(_CVS))
        farther = np.zeros_like(told)
        farther[:, 2:] = told[:, :-2]
        farther[:, -1] += told[:, -2:].sum(axis=1)
        linked = np.concatenate([self.probability[0, :1], ((told + farther) / 2).ravel()]) * _PLAUSIBLE
        prior: Floats = _LINKED * linked / linked.sum() + (1 - _LINKED) * self.before
        return prior


def wandering(
    moved: Floats,
    alone: Floats,
    shares: Floats,
    seconds: float,
    *,
    steady: float = STEADY,
    prior: Floats | None = None,
    if_true: tuple[Floats, Floats] | None = None,
) -> Wandering:
    """How shares wander that the blocks of a time have moved.

    `moved` has shape (shares, BLOCKS): the deviations of the blocks, which add up to the error of the share. `alone` is
    the variance by independent requests, `shares` how large the shares are, `seconds` how long the time is. `if_true`:
    the variance by independent requests and the shares of the hypothesis under which the variance is asked for.
    `steady`: the probability, before any request was seen, that traffic does not wander. `prior`: those of all cases,
    if other shares tell them.
    """
    before = np.concatenate([[steady], (1 - steady) * _PLAUSIBLE[1:] / _PLAUSIBLE[1:].sum()])
    coefficients = (moved @ _cosines().T) ** 2
    white = np.maximum(alone, _TINY)[:, None] / BLOCKS
    ratio = _TAU / max(seconds, 1e-3)
    spectrum, mean_of = _spectrum(ratio), 1 - ratio * (1 - np.exp(-1 / ratio))
    power = _power(ratio, shares, alone)
    g = np.concatenate([np.ones((len(moved), 1, BLOCKS - 1)), 1 + power[:, :, None] * spectrum], axis=1)
    level = np.maximum((coefficients[:, None] / g).mean(axis=2), white)
    likelihood = -0.5 * (np.log(g).sum(axis=2) + (coefficients[:, None] / g).sum(axis=2) / level) - (
        BLOCKS - 1
    ) / 2 * np.log(level)
    logs = likelihood + np.log(np.maximum(before if prior is None else prior, _TINY))
    probability = np.exp(logs - logs.max(axis=1, keepdims=True))
    probability /= probability.sum(axis=1, keepdims=True)
    level *= np.where(level > white, (BLOCKS - 1) / (BLOCKS - 3), 1.0)  # Student's t with 39 degrees
    if if_true is not None:
        level *= (if_true[0] / np.maximum(alone, _TINY))[:, None]
        power = _power(ratio, if_true[1], if_true[0])
    times = np.concatenate([np.ones((len(moved), 1)), 1 + power * mean_of], axis=1)
    is_slow = np.concatenate([[False], ratio * _SEEN >= 1])
    slow = (probability * is_slow * (1 - 1 / times)).sum(axis=1) > 0.5
    return Wandering(probability, BLOCKS * level * times, slow, before)


def _power(ratio: Floats, shares: Floats, alone: Floats) -> Floats:
    """λ of each share and case."""
    power: Floats = 2 * ratio * (_CV * shares[:, None]) ** 2 / np.maximum(alone, _TINY)[:, None]
    return power


def _spectrum(ratio: Floats) -> Floats:
    spectrum: Floats = 1 / (1 + (np.pi * np.arange(1, BLOCKS) * ratio[:, None]) ** 2)
    return spectrum


@cache
def _cosines() -> Floats:
    """Rows are orthonormal cosines over the blocks, without the constant one."""
    order, block = np.arange(1, BLOCKS)[:, None], np.arange(BLOCKS)
    cosines: Floats = sqrt(2 / BLOCKS) * np.cos(np.pi * order * (block + 0.5) / BLOCKS)
    return cosines


_ERFC: Final[Sequence[float]] = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
)  # fmt: skip


def _erfc(x: Floats) -> Floats:
    """The complementary error function, to 1.2e-7 of itself (Press and others: Numerical Recipes, 6.2)."""
    t = 1 / (1 + x / 2)
    polynomial = np.zeros_like(x)
    for coefficient in reversed(_ERFC):
        polynomial = coefficient + t * polynomial
    erfc_of: Floats = t * np.exp(-(x**2) + polynomial)
    return erfc_of
