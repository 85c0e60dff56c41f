"""The time of slow requests beyond that of typical ones, and which would be good without a cause.

    TTFT          120 ms waiting for KV, 60 ms own prompt      typical requests: 10 ms and 55 ms
    beyond it     110 ms                 5 ms

After the first token a request is compared with a typical one of as many tokens, so that a longer answer is no delay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from collector.causes.split.names import PARTS
from collector.slo.model import Promise

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Of = Literal["ttft", "rest"]
"""The time before the first token, and the time after it."""

_PLACE: Final = {name: i for i, name in enumerate(PARTS)}
_UNEXPLAINED: Final = _PLACE["unexplained"]
_SIGMAS: Final = 1.96
"""The bounds of a counterfactual are those of 95 % of a normal error."""


@dataclass(frozen=True)
class Times:
    """Microseconds: a row for each cause of `PARTS`, a column for each request."""

    ttft: Floats
    rest: Floats
    later: Floats
    """Output tokens after the first; NaN: not known."""
    has_token: Bools
    """False: it ended without a token, and its TTFT is the time until then."""

    @property
    def total(self) -> Floats:
        """The time of each request."""
        total: Floats = self.ttft.sum(0) + self.rest.sum(0)
        return total


@dataclass(frozen=True)
class Typical:
    """Means of the middle half: of those with TTFT in P25 to P75, and of those with TPOT in P25 to P75.

    A row for each cause of `PARTS`, and a column for each of the requests that are compared with it.
    """

    ttft: Floats
    """Microseconds before the first token."""
    rate: Floats
    """Microseconds for each token after the first. Zeros where no request has two tokens."""

    def times(self, beside: Times) -> tuple[Floats, Floats]:
        """The times of typical requests in place of these: before the first token, and after it.

        One that ended without a token is compared with as much of a typical TTFT as it waited. After the first token,
        nothing is beyond the typical where the number of tokens is not known.
        """
        whole = self.ttft.sum(0)
        waited = np.minimum(beside.ttft.sum(0) / np.where(whole > 0, whole, np.inf), 1.0)
        first = self.ttft * np.where(beside.has_token, 1.0, waited)
        rest = np.where(np.isnan(beside.later), beside.rest, self.rate * np.nan_to_num(beside.later))
        return first, rest


@dataclass(frozen=True)
class Beyond:
    """Times of requests in causes, beside those of typical ones. A row for each cause, a column for each request."""

    time: Floats
    typical: Floats

    @classmethod
    def of(cls, times: Times, typical: Typical | None, parts: Collection[Of]) -> Beyond:
        """Compare the time before the first token, that after it, or both. Without typical ones, nothing is beyond."""
        first, rest = (times.ttft, times.rest) if typical is None else typical.times(times)
        before, after = float("ttft" in parts), float("rest" in parts)
        return cls(times.ttft * before + times.rest * after, first * before + rest * after)

    @cached_property
    def excess(self) -> Floats:
        """Negative where a request took less than a typical one."""
        return self.time - self.typical

    def most(self) -> npt.NDArray[np.int64]:
        """The place of each request's largest excess among `PARTS`; -1 for one that took no longer in any cause."""
        excess = np.round(self.excess, 3)
        if not excess.shape[1]:
            return np.empty(0, np.int64)
        return np.where(excess.max(0) > 0, excess.argmax(0), -1)


def shares(excess: Sequence[float]) -> list[float | None]:
    """The share of each cause in all excess; one that took less than typical has none. None without any excess."""
    whole = sum(max(one, 0.0) for one in excess)
    return [max(one, 0.0) / whole if whole else None for one in excess]


@dataclass(frozen=True)
class Bad:
    """Requests that are bad, with what judges them again. Latencies are microseconds, one for each request."""

    times: Times
    selected: Sequence[Bools]
    """Of each promise, the requests that it is for."""
    ttft: Floats
    """NaN: it cannot exist or is not known. Of one that left without a token, the time that it waited."""
    ttft_unknown: Bools
    tpot: Floats
    """NaN: it cannot exist or is not known."""
    tpot_unknown: Bools
    """`tpot` is at most this, or nothing is known."""
    e2e: Floats
    gap: Floats
    """The longest wait between two tokens; NaN: it cannot exist or is not known."""
    gap_unknown: Bools
    visible: Floats
    """The time to the first visible token, as `ttft`."""
    visible_unknown: Bools
    ok: Bools
    failed: Bools
    error: Floats
    """One standard deviation of its parts; NaN: not known."""
    weight: Floats

    def without(self, promises: Sequence[Promise], causes: Collection[str]) -> Without:
        """First order: each request's own time in these causes is taken away, and the others stay as they are."""
        places = sorted(_PLACE[name] for name in causes)
        first, rest = self.times.ttft[places].sum(0), self.times.rest[places].sum(0)
        likely = self._relieved(promises, first, rest)
        slack = _SIGMAS * self.error
        if np.isnan(slack[np.logical_or(first, rest)]).any():
            return Without(likely, None, None)
        slack = np.nan_to_num(slack)
        both = self.times.ttft[_UNEXPLAINED], self.times.rest[_UNEXPLAINED]
        doubt = (0.0, 0.0) if "unexplained" in causes else both
        least = (np.maximum(removed - slack, 0.0) for removed in (first, rest))
        most = (
            removed + np.where(removed, slack, 0.0) + unexplained
            for removed, unexplained in zip((first, rest), doubt, strict=True)
        )
        return Without(likely, self._relieved(promises, *least, at_least=True), self._relieved(promises, *most))

    def _relieved(
        self, promises: Sequence[Promise], first: Floats, rest: Floats, *, at_least: bool = False
    ) -> Relieved:
        """The weights of the requests that are good, and of those that nobody judges, when these times are removed.

        Nobody tells where between the tokens a time lies: all of it in the longest gap, or `at_least` anywhere.
        """
        later = np.maximum(np.nan_to_num(self.times.later), 1.0)
        latencies = {"ttft": self.ttft - first, "tpot": self.tpot - rest / later, "e2e": self.e2e - first - rest}
        latencies |= {"gap": self._gap_without(rest, later, at_least=at_least), "first_visible": self.visible - first}
        unknown = {"ttft": self.ttft_unknown, "tpot": self.tpot_unknown, "e2e": np.zeros(len(self.ok), bool)}
        unknown |= {"gap": self.gap_unknown, "first_visible": self.visible_unknown}
        meets, is_known = ~self.failed, np.ones(len(self.ok), bool)
        for promise, selected in zip(promises, self.selected, strict=True):
            others = ~selected
            for name, ns in promise.thresholds.given().items():
                over = latencies[name] > ns / 1000  # never for NaN
                meets = meets & (others | ~over | unknown[name])
                is_known = is_known & (others | ~unknown[name] | (latencies[name] <= ns / 1000))
        good = meets & self.ok & is_known
        return Relieved(float(self.weight[good].sum()), float(self.weight[meets & ~good].sum()))

    def _gap_without(self, removed: Floats, later: Floats, *, at_least: bool) -> Floats:
        """The longest wait when this time after the first token is removed. It is no shorter than the mean of all
        waits, and no longer than they are together.
        """
        left = np.maximum(self.times.rest.sum(0) - removed, 0.0)
        gap = left if at_least else np.maximum(self.gap - removed, left / later)
        return np.where(removed, np.minimum(self.gap, gap), self.gap)


@dataclass(frozen=True)
class Relieved:
    """Weights of bad requests that would be good, and of those that would not be judged: cancelled ones would be
    excused, and of others a value is not known."""

    good: float
    unjudged: float

    def attainment(self, good: float, judged: float) -> float | None:
        """The attainment with these, of so many good and judged requests. None where none is left to judge."""
        left = judged - self.unjudged
        return min(1.0, (good + self.good) / left) if left > 0 else None


@dataclass(frozen=True)
class Without:
    """What is bad would be so without some causes: most likely, at least and at most."""

    likely: Relieved
    low: Relieved | None
    """None: the error of the law of step times is not known."""
    high: Relieved | None
