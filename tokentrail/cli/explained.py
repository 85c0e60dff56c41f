"""The text of an answer of `/explain`: lines made from its fields alone, for a terminal and for an agent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from tokentrail.cli.explained_table import (
    HELD,
    LEAST,
    LEVELS,
    aligned,
    culprits_of,
    has_most,
    is_compared,
    ordered,
    part_of,
    share_of,
    table,
    what_was_held,
    worst,
)
from tokentrail.shared.formatting import UNDEFINED, count, counted, duration, instant, one_line, percent

Json = Mapping[str, Any]

_LEAST_TOLD: Final = 0.1
"""A cause of the headline has at least this share."""
_MOST_TOLD: Final = 2
_LEAST_MOST: Final = 0.3
_LEAST_TENANT: Final = 2 / 3
"""A tenant of the headline has twice as much of it as all others together: each has its usual part in any queue."""
_MOST_NAMED: Final = 3
_PER_CENT: Final = 100
_LEAST_POINTS: Final = 0.5
_FLOOR: Final = "alone"
_NAMED: Final = {"slower by itself": "that slowness", "fewer drafts accepted": "the fall of accepted drafts"}
"""Groups whose name is no noun, behind `without`."""


def lines(answer: Json) -> list[str]:
    """What, who and when; the cause; what would be without it; a row for each cause; what to do; how sure it is."""
    if not answer["selected"]["requests"] and not answer["not_ended"]:
        return [answer["sentence"]]
    told = [
        *_headline(answer),
        *_cause(answer),
        *(f"  {line}" for line in _without(answer)),
        *(f"not ended at {_clock(answer, answer['window']['end'])}: {one['text']}" for one in answer["not_ended"]),
        *table(answer),
        *_do(answer),
        *_sure(answer),
        *_notes(answer),
    ]
    return [one_line(line).rstrip() for line in told]


def _headline(answer: Json) -> Iterator[str]:
    selected, n = answer["selected"], answer["selected"]["requests"]
    if not n:
        yield answer["sentence"]
        return
    failed = f" ({count(selected['failed'])} failed)" if selected["failed"] else ""
    when = f"from {_span(answer, selected)}" if n > 1 else f"at {_clock(answer, selected['end'])}"
    places = f", {where}" if (where := _where(selected["processes"])) else ""
    if answer["metric"] is None:
        good = f"{percent(answer['attainment'])} of {counted(answer['judged'], 'request')} were good"
        bad = "1 bad one" if n == 1 else f"{count(n)} bad ones"
        yield f"{good}: {bad}{failed}, {when}{places}."
    else:
        slowest = f"{_PER_CENT * (1 - answer['quantile']):.4g} %" if answer["quantile"] else "all"
        least = f" ({duration(answer['value_s'])} or longer)" if answer["quantile"] else ""
        yield f"The slowest {slowest} by {answer['metric']}{least}: {counted(n, 'request')}, {when}{places}."
    if answer["wrong"]:
        yield answer["wrong"]
    elif not selected["explained"]:
        yield "None of them is explained yet."


def _where(processes: Sequence[str]) -> str:
    if not processes:
        return ""
    if len(processes) > _MOST_NAMED:
        return f"in {len(processes)} processes"
    return f"{'all ' if len(processes) == 1 else ''}in {', '.join(processes)}"


def _clock(answer: Json, text: str | None) -> str:
    """A time of day; with the day, if it is not that of the window's end."""
    moment, end = instant(text), instant(answer["window"]["end"])
    if moment is None:
        return UNDEFINED
    return f"{moment:%H:%M:%S}" if end and moment.date() == end.date() else f"{moment:%Y-%m-%d %H:%M:%S}"


def _span(answer: Json, of: Json) -> str:
    return f"{_clock(answer, of['start'])} to {_clock(answer, of['end'])}"


def _cause(answer: Json) -> Iterator[str]:
    """The largest causes as one sentence: the first, and what made it worse."""
    told = [one for one in ordered(answer) if share_of(answer, one) >= _LEAST_TOLD and one["group"] != "unexplained"]
    words = [_words(answer, one) for one in told[:_MOST_TOLD]]
    if words:
        (first, _), *more = words
        yield f"Cause: {''.join([first, *(f', {joint} {then}' for then, joint in more)])}."


def _words(answer: Json, group: Json) -> tuple[str, str]:
    """A cause, and what joins it to the one before: `while` a sentence, `and` a noun."""
    culprits, name = culprits_of(answer, group), group["group"]
    tenant, process, request = (worst(culprits, by) for by in ("tenant", "process", "request"))
    burst = next((one for one in culprits if one.get("within_s") is not None), None)
    when = f" ({_span(answer, group)})" if group["start"] else ""
    if burst:
        came = f"{counted(burst['requests'], 'request')} of tenant {burst['name']} came within"
        return f"{name}: {came} {duration(burst['within_s'])}{when}", "while"
    if "slower" in group["causes"] and answer["slower"]:
        one = answer["slower"][0]
        return f"{one['instance']} is slower by itself: {one['text']}{when}", "while"
    if group["factor"] is not None:
        device = f"the device of {process['name']}" if process and has_most(process) else "the device"
        return f"{device} was {group['factor']:.2g} times as slow{when}", "while"
    if request and (request["share"] or 0.0) >= _LEAST_MOST:
        of = f" of tenant {tenant['name']}" if tenant and has_most(tenant) else ""
        return f"{name}, most of it {request['name']}{of}{when}", "and"
    if tenant and (tenant["share"] or 0.0) >= _LEAST_TENANT:
        if not {*group["causes"]} & HELD:
            return f"{name}, {part_of(tenant)} of it tenant {tenant['name']}'s{when}", "and"
        return f"{name}: tenant {tenant['name']} had {part_of(tenant)} of {what_was_held(group)}{when}", "while"
    if process and has_most(process):
        return f"{name} in {process['name']}{when}", "and"
    return f"{name}{when}", "and"


def _without(answer: Json) -> list[str]:
    """What would be good without the two that are worth most by a replay; else, by the first order, if that says it."""
    named = {
        _NAMED.get(one["group"], f"the {one['group']}"): (one["without"], "")
        for one in ordered(answer)
        if _is_worth_telling(answer, one)
    }
    named |= {name: (one["without"], " of the others") for name, one in culprits_without(answer).items()}
    found = [(name, without, of) for name, (without, of) in named.items() if without["points"] is not None]
    replayed = [one for one in found if one[1]["kind"] == "replay"]
    if not replayed and not first_order_holds(answer):
        return []
    best: list[tuple[str, Json, str]] = []
    for one in sorted(replayed or found, key=lambda one: -one[1]["points"]):
        is_news = one[1]["points"] >= _LEAST_POINTS or not one[2]
        is_news = is_news and all(one[1]["points"] != other["points"] for _, other, _ in best)
        if (is_news or not best) and len(best) < _MOST_TOLD:
            best.append(one)
    asked = [(", ".join(one["causes"]), one, "") for one in answer["without"]]
    told = [(f"without {name}", f"{good_of(one)}{of} would be good", f"({one['kind']})") for name, one, of in
            [*best, *asked]]  # fmt: skip
    return aligned(told)


def _is_worth_telling(answer: Json, group: Json) -> bool:
    """A large cause, also one without which nothing would be better, or one that is worth something.

    Nothing runs without the floor. The first order says of a cause that takes as long as usual what no fault took.
    """
    without, share = group["without"], share_of(answer, group)
    if not without or _FLOOR in group["causes"]:
        return False
    is_excess = without["kind"] == "replay" or share >= LEAST or not is_compared(answer)
    return bool(share >= _LEAST_TOLD or (is_excess and (without["points"] or 0.0) >= _LEAST_POINTS))


def culprits_without(answer: Json) -> dict[str, Json]:
    """The culprits that a replay left out, by their names in a sentence; each once.

    Of tenants those that sent a burst or had most of some cause: fewer requests of anybody make any queue shorter.
    """
    known = [one for part in answer["parts"] for one in part["culprits"]]
    bursts = {one["name"] for one in known if one.get("within_s") is not None}
    most = {one["name"] for one in known if one["by"] != "tenant" or (one["share"] or 0.0) >= _LEAST_TENANT}
    return {_its_requests(one, bursts): one for one in known if one["without"] and one["name"] in most | bursts}


def _its_requests(culprit: Json, bursts: Collection[str]) -> str:
    if culprit["by"] != "tenant":
        return f"request {culprit['name']}"
    return f"the {'burst' if culprit['name'] in bursts else 'requests'} of tenant {culprit['name']}"


_WAITS: Final = frozenset({"wait_batch", "wait_kv", "wait_tokens", "wait_priority", "preempted"})
_MOST_WAITS: Final = 0.2


def first_order_holds(answer: Json) -> bool:
    """Whether waits are a fifth of the excess at most: they would not be there without what made the queue."""
    return sum(share_of(answer, part) for part in answer["parts"] if part["cause"] in _WAITS) <= _MOST_WAITS


def good_of(without: Json) -> str:
    """The attainment, of a replay with its interval."""
    told = percent(without["attainment"])
    if without["kind"] == "first order":
        return told
    return f"{told} ({percent(without['low'])} to {percent(without['high'])})"


def _do(answer: Json) -> Iterator[str]:
    """What makes the largest causes less, the largest first."""
    large = [one for one in ordered(answer) if share_of(answer, one) >= _LEAST_TOLD]
    told = [one for one in large if not _is_in_vain(one)][:_MOST_TOLD] if _gains(answer) else large[:_MOST_TOLD]
    worth = {one["name"]: one["without"]["points"] or 0.0 for one in culprits_without(answer).values()}
    steps: list[str] = []
    for group in told:
        part = next((one for one in answer["parts"] if one["cause"] in group["causes"] and one["advice"]), None)
        tenants = [one for one in culprits_of(answer, group) if one["by"] == "tenant"]
        burst = next((one["name"] for one in tenants if one.get("within_s") is not None), None)
        best = max(
            (one["name"] for one in tenants if worth.get(one["name"], 0.0) > 0), key=worth.__getitem__, default=burst
        )
        if part is not None:
            limit = f"limit tenant {best}, or: " if best and not any(best in step for step in steps) else ""
            steps.append(f"{limit}{part['advice'][0].lower()}{part['advice'][1:]}".rstrip("."))
    if steps:
        yield f"do: {'; then '.join(steps)}"


def _gains(answer: Json) -> bool:
    """Whether some replay without a cause or a culprit makes more requests good: else none says what is in vain."""
    known = [
        *(one["without"] for one in answer["groups"]),
        *(one["without"] for one in culprits_without(answer).values()),
    ]
    return any((one["points"] or 0.0) >= _LEAST_POINTS for one in known if one and one["kind"] == "replay")


def _is_in_vain(group: Json) -> bool:
    """A replay without it makes nothing better."""
    without = group["without"]
    return bool(without) and without["kind"] == "replay" and (without["points"] or 0.0) < _LEAST_POINTS


def _sure(answer: Json) -> Iterator[str]:
    """How many are explained how far, by which law, and beside which typical requests."""
    n = answer["selected"]["requests"]
    if not n or not answer["levels"]:
        return
    told = [f"{count(one['requests'])} of {count(n)} {LEVELS[one['level']]}" for one in answer["levels"]]
    if law := _law(answer):
        told[0] += law
    if typical := answer["typical"]:
        ttft = f"TTFT {duration(typical['ttft_from_s'])} to {duration(typical['ttft_to_s'])}"
        told.append(f"typical: {typical['text']}, {ttft}")
    yield f"sure: {'; '.join(told)}"


def _law(answer: Json) -> str:
    known = [one for one in answer["models"] if one["sigma"] is not None]
    if not known:
        is_stepwise = any(one["level"] == "steps" for one in answer["levels"])
        return ", by a law of their own time or of a sister process" if is_stepwise else ""
    least_sure = max(known, key=lambda one: one["sigma"])
    of = f"by a law of {_span(answer, least_sure)}"
    if len(known) > 1:
        of = f"by {len(known)} laws, the worst of {least_sure['instance']}"
    explains = "" if least_sure["r2"] is None else f", explains {_PER_CENT * least_sure['r2']:.0f} %"
    return f", {of} (scatter {_PER_CENT * least_sure['sigma']:.0f} %{explains})"


def _notes(answer: Json) -> Iterator[str]:
    for level in answer["levels"]:
        if level["more"]:
            yield f"{count(level['requests'])} {LEVELS[level['level']]}: {level['more']}"
    hidden = answer["without_hidden"] if answer["metric"] is None else None
    for note in (answer["note"], hidden and f"without a cause: {hidden}"):
        if note:
            yield f"note: {note}"
    if (replay := answer["replay"]) and replay["note"]:
        yield f"note: {count(replay['requests'])} requests were replayed: {replay['note']}"
