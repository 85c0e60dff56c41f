"""The sentence of `/explain`: what took most time from requests beyond typical ones, and what would be without it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from collector.causes.answer.answer import Culprit, Group, Part, Selected, WaitingOut, WithoutOut
from collector.slo.counts import Number
from tokentrail.shared.formatting import named, percent

_WAITS: Final = frozenset({"wait_batch", "wait_kv", "wait_tokens", "wait_priority", "preempted"})
"""The consequences of a queue, which the first order leaves as it is."""
_MOST_WAITS: Final = 0.2
"""Where waits have more than this share of the excess, the first order says little about any cause."""
_FLOOR: Final = "alone"
"""Nothing runs without it."""
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
    groups: Sequence[Group],
    metric: str | None,
    quantile: float | None,
    value_s: float | None,
    attainment: float | None,
    replayed: float | None,
    not_ended: Sequence[WaitingOut] = (),
) -> str:
    """What explains most, in one sentence; where more bad requests have not ended than did, another about these."""
    if metric is None and (n := sum(one.bad for one in not_ended)) > selected.requests:
        texts = "; ".join(named(one.text, _LONGEST_TEXT) for one in [one for one in not_ended if one.bad][:_MOST_NAMED])
        first = f"{number_of_bad(n)} {'has' if n == 1 else 'have'} not ended: {texts}."
        rest = sentence(selected, parts, groups, metric, quantile, value_s, attainment, replayed)
        return f"{first} {rest}" if selected.requests else first
    if not selected.requests:
        if metric is not None:
            return f"No request has a {_OF[metric]}."
        return "No request is judged." if attainment is None else "No request is bad."
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
    then = without_sentence(parts, groups, attainment, replayed)
    return f"{told} {then}" if then else told


def without_sentence(
    parts: Sequence[Part], groups: Sequence[Group], attainment: float | None, replayed: float | None
) -> str | None:
    """What would be without the worst culprit, by a replay, or without the group with the largest share.

    None where only the first order can be had and waits are a large share: they would not be there without the cause.
    `replayed` is the recorded attainment of the requests that a replay is about.
    """
    culprit, best = best_culprit(parts)
    top = max((one for one in groups if one.share), key=lambda one: one.share or 0.0, default=None)
    of_top = top.without if top else None
    if best is not None and culprit is not None and (best.points or 0.0) > max(_points(of_top), 0.0):
        whose = "" if culprit.by == "request" else "the requests of "
        return _would(f"{whose}{culprit.by} {named(culprit.name)}", "of the others ", best, _recorded(best))
    if top is None or of_top is None or _FLOOR in top.causes:
        return None
    if of_top.kind == "first order" and not first_order_holds(parts):
        return None
    return _would(top.group, "", of_top, replayed if of_top.kind == "replay" else attainment)


def _recorded(without: WithoutOut) -> float | None:
    """The recorded attainment of the requests that a replay is about."""
    return None if without.attainment is None else without.attainment - (without.points or 0.0) / 100


def _points(without: WithoutOut | None) -> float:
    """What a replay gains; the first order is no match for it."""
    return (without.points or 0.0) if without and without.kind == "replay" else 0.0


def best_culprit(parts: Sequence[Part]) -> tuple[Culprit | None, WithoutOut | None]:
    """The culprit without whose requests a replay makes most of the others good."""
    found = [(one, one.without) for part in parts for one in part.culprits if one.without]
    return max(found, key=lambda pair: pair[1].points or 0.0, default=(None, None))


def first_order_holds(parts: Iterable[Part]) -> bool:
    """Whether waits are so small a share of the excess that the first order says something."""
    return sum(part.share or 0.0 for part in parts if part.cause in _WAITS) <= _MOST_WAITS


def _would(what: str, of: str, without: WithoutOut, attainment: float | None) -> str | None:
    if without.attainment is None or attainment is None:
        return None
    now, then = percent(attainment), percent(without.attainment)
    return None if now == then else f"Without {what}, {then} {of}would be good instead of {now} ({without.kind})."


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
