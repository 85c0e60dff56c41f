"""The response models of `/explain`, and its one sentence. Durations are sums over requests, by weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from collector.answer import Answer
from collector.measure.answers import WindowOut
from collector.measure.box import named
from collector.measure.verdicts import Threshold
from collector.slo.counts import Number
from tokentrail.shared.formatting import percent

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
    again, through a simulation of the scheduler; `points` are beyond the attainment in `replay` of the answer."""
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
    share: float | None
    """Its part of all such time."""
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
    budget_share: float | None
    """These as a share of the bad requests that the objective allows among those of the window."""
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
    share: float | None
    requests: Number | None
    without: WithoutOut | None
    """Without all of its causes together."""
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
    rest_requests: int
    """The explained ones with a TPOT between the two."""
    tpot_from_s: float | None
    tpot_to_s: float | None


class LevelOut(Answer):
    """How far selected requests are explained."""

    level: Level
    requests: Number
    engines: list[str]
    more: str
    """How to get further with these engines."""


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
    not_ended: list[WaitingOut]
    estimated: bool
    sentence: str
    note: str | None
    """What is missing, and why."""
    slowest: list[Slow]
    """The selected requests with the longest time, as many as `slowest` asks for; the longest first."""
    by_model: list[OfModel]
    """The models with the longest time first."""


_MOST_NAMED: Final = 3
_LEAST_NAMED: Final = 0.05
_LONGEST_TEXT: Final = 240
_OF: Final = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e": "E2E",
    "gap": "longest gap between tokens",
    "first_visible": "first visible token",
}


def sentence(
    selected: Selected,
    parts: Sequence[Part],
    metric: str | None,
    quantile: float | None,
    value_s: float | None,
    attainment: float | None,
    not_ended: Sequence[WaitingOut] = (),
) -> str:
    """What explains most, in one sentence; where more bad requests have not ended than did, another about these."""
    if metric is None and (n := sum(one.bad for one in not_ended)) > selected.requests:
        texts = "; ".join(named(one.text, _LONGEST_TEXT) for one in [one for one in not_ended if one.bad][:_MOST_NAMED])
        first = f"{number_of_bad(n)} {'has' if n == 1 else 'have'} not ended: {texts}."
        rest = sentence(selected, parts, metric, quantile, value_s, attainment)
        return f"{first} {rest}" if selected.requests else first
    if not selected.requests:
        return "No request is bad." if metric is None else f"No request has a {_OF[metric]}."
    if metric is None:
        who = number_of_bad(selected.requests, selected.failed)
    else:
        slowest = f"the slowest {100 * (1 - (quantile or 0)):.4g} % of requests" if quantile else "all requests"
        who = f"the {_OF[metric]} of {slowest}" + (
            "" if not quantile or value_s is None else f" ({value_s:.3g} s or longer)"
        )
    if not selected.explained:
        return f"Nothing explains {who} yet."
    if all(part.excess_s is None for part in parts):
        return _without_typical(who, parts)
    told = beyond_typical(who, [(part.group, part.share or 0.0) for part in parts])
    top = parts[0]
    if not top.share or top.without is None or top.without.attainment is None or attainment is None:
        return told
    now, then = percent(attainment), percent(top.without.attainment)
    if now == then:
        return told
    return f"{told} Without {top.group} ({top.cause}), {then} would be good instead of {now} ({top.without.kind})."


def number_of_bad(n: Number, failed: Number = 0) -> str:
    """The number of bad requests, as a sentence names it. Those that failed are bad by their error, however quick."""
    who = "1 bad request" if n == 1 else f"{n} bad requests"
    return f"{who} ({'all' if failed == n > 1 else failed} failed)" if failed else who


def beyond_typical(who: str, shares: Iterable[tuple[str, float]]) -> str:
    """In which groups they took most time beyond typical requests, by pairs of a cause's group and its share."""
    groups: defaultdict[str, float] = defaultdict(float)
    for group, share in shares:
        groups[group] += share
    largest = sorted(groups.items(), key=lambda item: -item[1])[:_MOST_NAMED]
    named = [f"{100 * share:.0f} % {group}" for group, share in largest if share >= _LEAST_NAMED]
    if not named:
        return f"In no cause did {who} take longer than typical requests."
    return f"What {who} took beyond typical requests was {', '.join(named)}."


def _without_typical(who: str, parts: Sequence[Part]) -> str:
    """Where the time went, if no typical request is explained as far."""
    groups: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        groups[part.group] += part.time_s
    total = sum(groups.values())
    largest = sorted(groups.items(), key=lambda item: -item[1])[:_MOST_NAMED]
    named = ", ".join(f"{100 * time_s / total:.0f} % {group}" for group, time_s in largest if time_s)
    return f"Time of {who}: {named or 'none'}. There is no typical request to compare with."
