"""The split of prefill and decoding where no law holds for steps, or there are none: by regression over requests.

Sums over a whole request average out what single steps scatter. A rate of 3 ms a token alone, 0.2 ms for each other
answer and 0.01 ms for each token of others' prompts may hold for requests where nothing holds for steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collector.causes.split.columns import Bools, Floats, Traffic, added
from collector.causes.split.fit import LEAST_R2, MOST_SIGMA, r_squared, robust, scatter
from collector.causes.split.names import PARTS
from collector.causes.split.parts import Parts
from collector.causes.split.steps import OUTLIER

_LEAST_REQUESTS: Final = 30
_LEAST_TOKENS: Final = 5
"""An answer of fewer tokens says little about the time of one."""
_UNEXPLAINED: Final = PARTS.index("unexplained")


@dataclass(frozen=True)
class Estimate:
    """How well a law over requests tells the time of their phases."""

    r2: float
    """Share of the variance of durations that it explains."""
    sigma: float
    """Scatter around it, as a share."""
    n: int
    """Requests that it was made of: earlier ones if there are enough, else the very ones that it divides."""

    @property
    def holds(self) -> bool:
        """Whether it tells enough to be shown."""
        return self.n >= _LEAST_REQUESTS and self.r2 >= LEAST_R2 and self.sigma <= MOST_SIGMA


def estimate(
    recorded: Traffic, parts: Parts, level: NDArray[np.str_]
) -> tuple[Floats, NDArray[np.str_], Estimate | None]:
    """Divide what is unexplained of prefill and decoding of requests of the level `phases`.

    Returns the parts of pieces, the levels, and the quality of the law of decoding; None if no law holds.
    """
    out, new = parts.of_pieces.copy(), level.copy()
    if not (level == "phases").any():
        return out, new, None
    meanwhile = _Meanwhile(recorded)
    quality = None
    for name, features, causes, usable in (meanwhile.decoding(), meanwhile.prefill()):
        law, expected = _law(features, meanwhile.time[name], usable, _earlier(recorded, usable))
        if law is None or not law.holds:
            continue
        quality = law if name == "decode" else quality
        rows = np.flatnonzero((parts.pieces.name == name) & (level[parts.pieces.request] == "phases"))
        row = parts.pieces.request[rows]
        told = usable[row] & (expected.sum(1)[row] > 0)
        rows, row = rows[told], row[told]
        unknown = np.maximum((parts.pieces.end - parts.pieces.start)[rows] - out[rows, :_UNEXPLAINED].sum(1), 0)
        usual = expected.sum(1)[row] * (1 + OUTLIER * law.sigma)
        share = np.minimum(1.0, usual / np.maximum(meanwhile.time[name][row], 1))
        portions = expected[row] / expected[row].sum(1, keepdims=True) * (unknown * share)[:, None]
        for index, cause in enumerate(causes):
            out[rows, PARTS.index(cause)] += portions[:, index]
        out[rows, _UNEXPLAINED] = unknown * (1 - share)
        new[row] = "estimated" if name == "decode" else new[row]
    return out, new, quality


def _earlier(recorded: Traffic, usable: Bools) -> Bools:
    """The usable requests that ended before the wanted ones began, if they are enough; else all usable ones.

    A law that is fitted to the very requests of a fault gives its time to prompts and answers.
    """
    requests = recorded.requests
    earlier = usable & (requests.end <= requests.start[requests.wanted].min(initial=np.inf))
    return earlier if earlier.sum() >= _LEAST_REQUESTS else usable


def _law(features: Floats, time: Floats, usable: Bools, fitted: Bools) -> tuple[Estimate | None, Floats]:
    """The law of the fitted requests, and each usable request's time by feature."""
    if fitted.sum() < _LEAST_REQUESTS:
        return None, np.zeros_like(features)
    fit = robust(features[fitted], time[fitted])
    ratio = time[fitted] / fit.expected
    quality = Estimate(r_squared(time[fitted], fit.expected), scatter(ratio), int(fitted.sum()))
    return quality, np.nan_to_num(features) * fit.coefficients


class _Meanwhile:
    """What went on in the process while each request was computed, by its phases alone."""

    def __init__(self, recorded: Traffic) -> None:
        self._requests, phases = recorded.requests, recorded.phases
        count = len(recorded.requests)
        decode, prefill = np.flatnonzero(phases.name == "decode"), np.flatnonzero(phases.name == "prefill")
        prefill = prefill[phases.start[prefill] < recorded.requests.first[phases.request[prefill]]]
        length = phases.end - phases.start
        row = phases.request
        self._own = np.maximum(recorded.requests.input - recorded.requests.cached, 1)
        self.time = {
            "decode": added(row[decode], length[decode], count),
            "prefill": added(row[prefill], length[prefill], count),
        }
        rate = np.nan_to_num(self._own[row[prefill]]) / np.maximum(self.time["prefill"][row[prefill]], 1)
        decoding = _integral(phases.start[decode], phases.end[decode], np.ones(len(decode)))
        prompts = _integral(phases.start[prefill], phases.end[prefill], rate)

        def during(rows: NDArray[np.int64], integral: Callable[[Floats], Floats]) -> Floats:
            return added(row[rows], integral(phases.end[rows]) - integral(phases.start[rows]), count)

        self._beside = {
            name: during(rows, decoding) / np.maximum(self.time[name], 1)
            for name, rows in (("decode", decode), ("prefill", prefill))
        }
        self._prompts = {"decode": during(decode, prompts), "prefill": during(prefill, prompts)}

    def decoding(self) -> tuple[str, Floats, tuple[str, ...], Bools]:
        """The phase, its features, the cause of each of them, and the requests that tell something."""
        tokens = self._requests.output - 1
        others = np.maximum(self._beside["decode"] - 1, 0)
        features = np.stack([tokens, tokens * others, self._prompts["decode"]], 1)
        usable = (tokens >= _LEAST_TOKENS) & (self.time["decode"] > 0)
        return "decode", features, ("alone", "batch", "others_prompts"), usable

    def prefill(self) -> tuple[str, Floats, tuple[str, ...], Bools]:
        """The phase of the prompt, its features, their causes, and the requests that tell something."""
        others = np.maximum(self._prompts["prefill"] - np.nan_to_num(self._own), 0)
        features = np.stack([np.ones(len(others)), self._own, others, self._beside["prefill"]], 1)
        usable = np.isfinite(self._own) & (self.time["prefill"] > 0)
        return "prefill", features, ("own_prompt", "own_prompt", "others_prompts", "batch"), usable


def _integral(start: Floats, end: Floats, height: Floats) -> Callable[[Floats], Floats]:
    """The integral over time of the sum of heights of the intervals that are open."""
    if not len(start):
        return np.zeros_like
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    level = np.cumsum(np.concatenate([height, -height])[order])
    sums = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    return lambda time: np.interp(time, times, sums)
