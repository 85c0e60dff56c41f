"""The answer of `/timeouts`."""

from __future__ import annotations

from typing import Final

from collector.base.answer import Answer
from collector.count.answers import WindowOut
from collector.slo.counts import Number
from collector.timeouts.survival import Share
from collector.timeouts.waits import WaitName

OF: Final = {
    "first_token": "first token",
    "first_visible": "first visible token",
    "gap": "gap between tokens",
    "e2e": "whole request",
}
"""What is waited for, in sentences."""


class ShareOut(Answer):
    """A share from 0 to 1 with its 95 % interval."""

    share: float | None
    """Null: no request tells it."""
    low: float
    high: float

    @classmethod
    def of(cls, share: Share) -> ShareOut:
        """The share as answers have it."""
        return cls(share=share.share, low=share.low, high=share.high)


class TimeoutPoint(Answer):
    """What a time-out would do."""

    timeout_s: float
    """A time-out that is chosen is rounded up to three digits."""
    healthy_cut: ShareOut
    """Of the requests that would be answered, those that it cuts."""
    dead_caught: ShareOut | None
    """Of the requests that never were, those that it ends. Null: there was none."""
    saved_s: float | None
    """Seconds that it saves for each of these."""
    beyond_observed: bool
    """No request waited so long and was answered: `healthy_cut` is a bound."""


class EvidentTimeout(Answer):
    """A time-out that clients evidently use: many of them gave up at this time."""

    timeout_s: float
    requests: Number
    would_have: ShareOut | None
    """Of these, those that would have been answered, by requests that were not cut. Null: too few waited longer."""
    within_s: float | None
    """The time in which nine of ten of these would have come."""


class WaitOut(Answer):
    """One wait: `first_token`, `first_visible` (that is no hidden reasoning), `gap` between tokens, `e2e`."""

    wait: WaitName
    answered: Number
    censored: Number
    """Broken off by their clients, or going on: they tell that the wait was longer."""
    dead: Number
    """Errors later than half of the answers, lost, hung, or given up after twice the longest answered wait."""
    longest_s: float | None
    """The longest wait that was answered."""
    curve: list[TimeoutPoint]
    """The time-outs of `at`; without it those that cut 10 % to 0.05 % of the healthy requests, and those in use."""
    suggested: TimeoutPoint | None
    """The shortest time-out that cuts at most `kill` of the healthy requests. Null: it is not decided."""
    more_requests: int | None
    """How many more requests would decide it. Null: it is decided, or the longest waits were broken off."""
    evident: list[EvidentTimeout]
    summary: str


class Percentile(Answer):
    """A percentile without and with a second request. Null: that of requests that hung."""

    before_s: float | None
    after_s: float | None


class Hedging(Answer):
    """A second request for those that waited too long, and the sooner answer of both."""

    wait: WaitName
    to: str
    """`same process`, `another process` of the model, or the name of another model."""
    after_s: float
    more_requests: float
    """The share of requests that get a second one."""
    p50: Percentile
    p99: Percentile
    p99_low_s: float | None
    p99_high_s: float | None
    shared: float
    """Of the slowness, the part that other requests of the same time have too, which a second request meets again."""
    summary: str


class TimeoutGroup(Answer):
    """Requests of one model, and of one value of what tells most about their waits."""

    model: str
    split: str
    """What divides the requests: `slo_class`, `vantage`, `operation`, `reasoning`, `input_tokens`; empty: nothing."""
    value: str
    requests: Number
    waits: list[WaitOut]
    hedging: list[Hedging]


class Timeouts(Answer):
    """`/timeouts`."""

    window: WindowOut
    kill: float
    read_one_in: int
    """Of so many requests, one was read: there were more than 400,000."""
    left_out: int
    """Requests of models that have fewer requests than the twenty with the most."""
    groups: list[TimeoutGroup]
    summary: str
