"""What would be without some causes, or without a culprit: by the times of the requests, or by a replay of them all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

from collector.ask.window import Window
from collector.causes.answer.answer import HIDDEN_FROM, Culprit, WithoutOut
from collector.causes.answer.replayed import Replays, read_of_culprit, read_replays
from collector.causes.answer.request_times import Metric, Rows
from collector.causes.split.names import PARTS
from collector.count.evaluation import Counted
from collector.count.reader import Reader
from collector.slo.model import Promise, Slo

_WORST = {"tenant": 3, "request": 1}
_LEAST_REPLAYED = 0.01
_MOST_LEFT_OUT = 6
"""Culprits whose requests are left out of replays: so many of each cause, the largest causes first."""


@dataclass(frozen=True)
class Question:
    """Which requests are explained: those that are bad for the promises, or those in the tail of a metric."""

    promises: Sequence[Promise]
    metric: Metric | None = None
    quantile: float = 0.99
    without: Sequence[Collection[str]] = ()
    replay: bool | Literal["auto"] = False
    """Replay what would have been without a cause, where that can be. It is about one promise; `auto`: if it is."""
    replay_s: float | None = None
    """Replays may take so long; None: as long as one may."""
    slowest: int = 0
    """The requests that are told one by one, at most."""

    @property
    def slo(self) -> Slo | None:
        """The SLO, if one is asked about."""
        one = self.promises[0] if len(self.promises) == 1 else None
        return one if isinstance(one, Slo) else None


@dataclass(frozen=True)
class WhatIf:
    """What is known of the requests that are explained, where some causes or culprits are left out."""

    reader: Reader
    question: Question
    counted: Counted
    population: Window
    rows: Rows
    chosen: float
    """How many requests are asked about, explained or not."""
    unexplained: float
    """The share of the explained ones' time whose cause is not known."""

    @cached_property
    def hidden(self) -> str | None:
        """Why nothing is said about what would be without a cause; None where it is said."""
        if self.question.metric is not None:
            return "a percentile has no attainment: ask for verdict=bad, with slo=, ttft=, tpot= or e2e="
        if not self.question.promises:
            return "the collector was started without an SLO file: give ttft=, tpot= or e2e="
        if not self.rows.n:
            return "no request is explained" if self.chosen else None
        missing = 1 - float(self.rows.weight.sum()) / self.chosen
        share = missing + (1 - missing) * self.unexplained
        if share <= HIDDEN_FROM:
            return None
        return f"{100 * share:.0f} % of the time is not explained, which is more than {100 * HIDDEN_FROM:.0f} %"

    @cached_property
    def replays(self) -> Replays | str | None:
        """What replays need, if they were asked for and anything is to be said; or why there are none."""
        if not self.question.replay or self.hidden or not self.rows.n:
            return None
        if self.counted.errors is not None:
            return "some requests were sampled out, so nobody knows what came"
        if len(self.question.promises) != 1:
            return "it is about one promise, and several are asked about: name one SLO"
        (promise,) = self.question.promises
        return read_replays(self.reader, self.population, promise, self.question.replay_s)

    def without(self, causes: Collection[str], share: float | None = None) -> WithoutOut:
        """What the attainment would be. Without explained requests, it is what it is.

        `auto` replays no cause with a small `share` of the excess.
        """
        is_small = self.question.replay == "auto" and share is not None and share < _LEAST_REPLAYED
        if not is_small and isinstance(self.replays, Replays) and (replayed := self.replays.without(causes)):
            return replayed
        kept = self.rows.to_judge(self.question.promises).without(self.question.promises, causes)
        counts = self.counted.requests
        judged, good = float(counts.tally.judged), float(counts.good)
        likely, low, high = (
            None if one is None else one.attainment(good, judged) for one in (kept.likely, kept.low, kept.high)
        )
        now = counts.attainment
        return WithoutOut(
            causes=sorted(causes, key=PARTS.index),
            attainment=likely,
            points=None if likely is None or now is None else 100 * (likely - now),
            low=low,
            high=high,
        )

    def of_culprits(self, culprits: Sequence[Culprit]) -> list[Culprit]:
        """These; the worst of a kind with what would be without them, if replays can tell."""
        if not isinstance(self.replays, Replays):
            return [*culprits]
        told = []
        for by, of_kind in groupby(culprits, lambda one: one.by):
            for place, one in enumerate(of_kind):
                is_asked = place < _WORST.get(by, 0)
                told.append(self._without_culprit(self.replays, one) if is_asked else one)
        return told

    def _without_culprit(self, replays: Replays, culprit: Culprit) -> Culprit:
        key = culprit.by, culprit.span_id or culprit.name
        if key not in self._left_out and len(self._left_out) < _MOST_LEFT_OUT:
            self._left_out[key] = replays.without_requests(read_of_culprit(self.reader, replays, culprit))
        return culprit.model_copy(update={"without": self._left_out.get(key)})

    @cached_property
    def _left_out(self) -> dict[tuple[str, str], WithoutOut | None]:
        """What is known by culprit."""
        return {}
