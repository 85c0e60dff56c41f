"""The response models of `/explain`. Durations are sums over requests, by weight."""

from __future__ import annotations

from typing import Final, Literal

from collector.base.answer import Answer
from collector.causes.answer.shortfalls import ReasonOut
from collector.causes.answer.slower import SlowerOut
from collector.count.answers import WindowOut
from collector.slo.counts import Number
from tokentrail.shared.parameters import Threshold

Level = Literal["none", "phases", "estimated", "steps"]
"""How far a request can be explained, in the order in which the table `causes` numbers them."""
HIDDEN_FROM: Final = 0.15
"""From this share of unexplained time on, nothing is said about what would be without a cause."""


class WithoutOut(Answer):
    """The attainment if no request had spent time in some causes."""

    causes: list[str]
    attainment: float | None
    points: float | None
    """By how many hundredths that is more than the attainment of the window."""
    kind: Literal["first order", "replay"] = "first order"
    """First order: each bad request's own time is taken away, and all else stays as it is. Replay: all requests came
    again, through a simulation of the scheduler; `points` are beyond the attainment in `replay` of the answer, or,
    without a culprit's requests, beyond what was recorded of the others."""
    low: float | None
    """The attainment at least, by the error of the law of step times, null where it is not known; of a replay, in 95 of
    100 cases by the scatter of steps."""
    high: float | None
    """The attainment at most: by that error, and if all time that is not explained is of these causes too; of a replay,
    in 95 of 100 cases."""


class ReplayOut(Answer):
    """The requests that were replayed."""

    start: str
    end: str
    """The requests ended between these moments."""
    requests: int
    unknown: int
    """Of these, those that could not be replayed; their recorded verdict stands."""
    attainment: float | None
    """The recorded one of these requests."""
    note: str | None
    """What was left out, and why."""


class Culprit(Answer):
    """Who made requests wait: a request, those of a tenant, of a model or of a length, a process or a variant."""

    by: Literal["request", "tenant", "model", "length", "process", "variant"]
    name: str
    trace_id: str | None = None
    span_id: str | None = None
    time_s: float | None
    """What it cost others; of a process or a variant, what the selected requests lost there beyond the typical. Of a
    tenant that held places or KV blocks, its part of that."""
    low_s: float | None = None
    """Of a request whose prompt delayed another one: it was at least this, and `high_s` at most."""
    high_s: float | None = None
    share: float | None
    """Its part of all such time."""
    requests: Number | None = None
    """Of a tenant, those that came in one burst while others waited; null: there was none."""
    within_s: float | None = None
    """That burst came within so long."""
    without: WithoutOut | None = None
    """With `replay=true`, for the three worst tenants and the worst request of the largest causes: the attainment of
    all others, had these requests never come."""


class Exemplar(Answer):
    """A selected request that lost much time to the cause."""

    trace_id: str
    span_id: str
    time_s: float
    excess_s: float


class Part(Answer):
    """One cause. Durations are sums over the selected requests, by weight."""

    cause: str
    group: str
    """What people call it; some causes share one."""
    time_s: float
    typical_s: float | None
    """What typical requests in place of the selected ones would have spent on it."""
    excess_s: float | None
    share: float | None
    """Of all excess; a cause that took less than typical has 0."""
    requests: Number | None
    """The selected ones of which it is the largest excess."""
    without: WithoutOut | None
    culprits: list[Culprit]
    exemplars: list[Exemplar]
    advice: str


class Group(Answer):
    """What people call one cause: sums over the causes that share this name."""

    group: str
    colour: str
    """In charts: `#94a3b8`."""
    causes: list[str]
    """Causes that took time, in the order of causes.yaml."""
    time_s: float
    typical_s: float | None
    excess_s: float | None
    """What the selected requests took beyond typical ones."""
    share: float | None
    requests: Number | None
    without: WithoutOut | None
    """Without all of its causes together."""
    factor: float | None
    """Of a slow device, how many times as long steps took; null for another cause, or where nothing tells."""
    start: str | None
    """Of the time beyond the typical, 90 % is of requests that ended between this moment and `end`."""
    end: str | None


class Selected(Answer):
    """The requests that are explained."""

    requests: Number
    explained: Number
    """The causes of these are known by now."""
    failed: Number
    time_s: float
    """Of the explained ones, in all causes."""
    start: str | None
    """They ended between this moment and `end`; null without any."""
    end: str | None
    processes: list[str]
    """The engine processes of the explained ones, those with most of them first."""


class TypicalOut(Answer):
    """The requests that the selected ones are compared with, each with those of its model: the middle half of good ones
    in place of bad ones, and of those that ended ok in place of a tail. The ranges are over all of these models."""

    text: str
    """What they are: `the middle half of good requests of the same model`."""
    start: str
    """They ended between this moment and `end`: before the window too, if it has few good ones of a model."""
    end: str
    ttft_requests: int
    """The explained ones with a TTFT between the two."""
    ttft_from_s: float
    ttft_to_s: float


class LevelOut(Answer):
    """How far selected requests are explained."""

    level: Level
    requests: Number
    engines: list[str]
    reasons: list[ReasonOut]
    """Why not step by step, those of most requests first; none for the level `steps`."""
    more: str
    """How to get further: the texts of these reasons."""


class ModelOut(Answer):
    """The law of step times by which a process's requests were divided."""

    service: str
    instance: str
    process_tenant: str
    start: str
    end: str
    """It was fitted to steps between these moments."""
    steps: float | None
    """To so many; older ones count less."""
    r2: float | None
    """The share of the variance of step times that it explains."""
    sigma: float | None
    """The relative error of a step."""


class WaitingOut(Answer):
    """Requests of one process that have not ended, as their announcements tell. They are in no part."""

    service: str
    instance: str
    process_tenant: str
    requests: int
    lost: int
    bad: int
    without_token: int
    longest_wait_s: float | None
    """For a first token."""
    step_s_ago: float | None
    """Since the process began its last step; null if its steps are not known, or the caller may not see them."""
    running: int | None
    """In that step."""
    waiting: int | None
    text: str


class Slow(Answer):
    """A selected request, with the seconds that it spent in each cause."""

    trace_id: str
    span_id: str
    model: str
    tenant: str
    end: str
    time_s: float
    parts: dict[str, float]
    """By cause, in the order of causes.yaml; they add up to `time_s`."""


class OfModel(Answer):
    """The selected requests of one model. Durations are sums over them, by weight."""

    model: str
    requests: Number
    time_s: float
    parts: dict[str, float]
    """By cause, as those of one request."""


class Explanation(Answer):
    """`/explain`."""

    window: WindowOut
    slo: str | None
    metric: Threshold | None
    quantile: float | None
    value_s: float | None
    """The percentile of the metric, where the tail begins."""
    selected: Selected
    typical: TypicalOut | None
    attainment: float | None
    judged: Number
    """The requests of which that is the good share."""
    parts: list[Part]
    """The causes, the largest excess first."""
    groups: list[Group]
    """The parts by what people call them: what is worth most points first, then what took most time."""
    unexplained_s: float
    without: list[WithoutOut]
    """Of the causes that were asked for."""
    without_hidden: str | None
    """Why nothing is said about what would be without a cause."""
    replay: ReplayOut | None
    """Null unless `replay=true` was asked for, and possible."""
    levels: list[LevelOut]
    models: list[ModelOut]
    slower: list[SlowerOut]
    """The processes that take longer for the same work by themselves, the slowest first; none for a key of a tenant."""
    not_ended: list[WaitingOut]
    estimated: bool
    sentence: str
    wrong: str | None = None
    """What was wrong with the bad requests of one SLO (the error, or the threshold), and if no cause is known, why."""
    note: str | None
    """What is missing, and why."""
    slowest: list[Slow]
    """The selected requests with the longest time, as many as `slowest` asks for; the longest first."""
    by_model: list[OfModel]
    """The models with the longest time first."""
