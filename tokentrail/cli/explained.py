"""The text of an answer of `/explain`: lines made from its fields alone, for a terminal and for an agent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from tokentrail.shared.formatting import UNDEFINED, count, duration, instant, one_line, percent

Json = Mapping[str, Any]

_LEAST: Final = 0.01
"""Causes with a smaller share say nothing, and are told in one line."""
_LEAST_NAMED: Final = 0.05
"""A culprit with a smaller share is not named."""
_LEAST_TOLD: Final = 0.1
"""A cause of the headline has at least this share."""
_MOST_TOLD: Final = 2
_LEAST_MOST: Final = 0.3
_NEARLY_ALL: Final = 0.9
_MOST_NAMED: Final = 3
_PER_CENT: Final = 100
_OF_KV: Final = frozenset({"wait_kv", "preempted", "recompute"})
_HELD: Final = _OF_KV | {"wait_batch", "wait_priority", "busy", "batch"}
"""Causes whose tenants had the places or the KV blocks."""
_LEAST_POINTS: Final = 0.5
_LEVELS: Final = {
    "steps": "step by step",
    "estimated": "by estimates from their phases",
    "phases": "by their phases alone",
    "none": "not at all",
}


def lines(answer: Json) -> list[str]:
    """What, who and when; the cause; what would be without it; a row for each cause; what to do; how sure it is."""
    if not answer["selected"]["requests"] and not answer["not_ended"]:
        return [answer["sentence"]]
    told = [
        *_headline(answer),
        *_cause(answer),
        *(f"  {line}" for line in _without(answer)),
        *(f"not ended: {one['text']}" for one in answer["not_ended"]),
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
        good = f"{percent(answer['attainment'])} of {count(answer['judged'])} requests were good"
        bad = "1 bad one" if n == 1 else f"{count(n)} bad ones"
        yield f"{good}: {bad}{failed}, {when}{places}."
    else:
        slowest = f"{_PER_CENT * (1 - answer['quantile']):.4g} %" if answer["quantile"] else "all"
        least = f" ({duration(answer['value_s'])} or longer)" if answer["quantile"] else ""
        yield f"The slowest {slowest} by {answer['metric']}{least}: {count(n)} requests, {when}{places}."
    if not selected["explained"]:
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


def ordered(answer: Json) -> list[Json]:
    """The groups by their excess, the largest first; by their time where no typical request is known."""
    if _is_compared(answer):
        return sorted(answer["groups"], key=lambda one: -(one["excess_s"] or 0.0))
    return sorted(answer["groups"], key=lambda one: -one["time_s"])


def _is_compared(answer: Json) -> bool:
    return any(one["excess_s"] is not None for one in answer["groups"])


def _share(answer: Json, group: Json) -> float:
    """Of all excess, or of all time where no typical request is known."""
    if _is_compared(answer):
        return float(group["share"] or 0.0)
    return float(group["time_s"] / answer["selected"]["time_s"]) if answer["selected"]["time_s"] else 0.0


def culprits_of(answer: Json, group: Json) -> list[Json]:
    """The culprits of the largest cause of a group that has any."""
    parts = [part for part in answer["parts"] if part["cause"] in group["causes"]]
    parts.sort(key=lambda part: -(part["excess_s"] if part["excess_s"] is not None else part["time_s"]))
    return next((part["culprits"] for part in parts if part["culprits"]), [])


def _worst(culprits: Sequence[Json], by: str) -> Json | None:
    return next((one for one in culprits if one["by"] == by), None)


def _cause(answer: Json) -> Iterator[str]:
    """The largest causes as one sentence: the first, and what made it worse."""
    told = [one for one in ordered(answer) if _share(answer, one) >= _LEAST_TOLD and one["group"] != "unexplained"]
    words = [_words(answer, one) for one in told[:_MOST_TOLD]]
    if words:
        yield f"Cause: {', while '.join(words)}."


def _words(answer: Json, group: Json) -> str:
    culprits, name = culprits_of(answer, group), group["group"]
    tenant, process, request = (_worst(culprits, by) for by in ("tenant", "process", "request"))
    burst = next((one for one in culprits if one.get("within_s") is not None), None)
    when = f" ({_span(answer, group)})" if group["start"] else ""
    if burst:
        came = f"{count(burst['requests'])} requests of tenant {burst['name']} came within"
        return f"{name}: {came} {duration(burst['within_s'])}{when}"
    if "slower" in group["causes"] and answer["slower"]:
        one = answer["slower"][0]
        return f"{one['instance']} is slower by itself: {one['text']}{when}"
    if group["factor"] is not None:
        device = f"the device of {process['name']}" if process and _has_most(process) else "the device"
        return f"{device} was {group['factor']:.2g} times as slow{when}"
    if request and (request["share"] or 0.0) >= _LEAST_MOST:
        of = f" of tenant {tenant['name']}" if tenant and _has_most(tenant) else ""
        return f"{name}, most of it {request['name']}{of}{when}"
    if tenant and tenant["share"] is not None:
        if not {*group["causes"]} & _HELD:
            return f"{name}, {_part(tenant)} of it tenant {tenant['name']}'s{when}"
        return f"{name}: tenant {tenant['name']} had {_part(tenant)} of {_held(group)}{when}"
    if process and _has_most(process):
        return f"{name} in {process['name']}{when}"
    return f"{name}{when}"


def _has_most(culprit: Json) -> bool:
    return (culprit["share"] or 0.0) >= _NEARLY_ALL


def _held(group: Json) -> str:
    if _OF_KV & {*group["causes"]}:
        return "the KV blocks"
    return "the places"


def _part(culprit: Json) -> str:
    return UNDEFINED if culprit["share"] is None else f"{_PER_CENT * culprit['share']:.0f} %"


def _without(answer: Json) -> list[str]:
    """What would be good without the two that are worth most by a replay; else, by the first order, if that says it."""
    named = {f"the {one['group']}": (one["without"], "") for one in ordered(answer) if one["without"]}
    named |= {name: (one["without"], " of the others") for name, one in culprits_without(answer).items()}
    found = [(name, without, of) for name, (without, of) in named.items() if (without["points"] or 0.0) > 0]
    replayed = [one for one in found if one[1]["kind"] == "replay"]
    if not replayed and not first_order_holds(answer):
        return []
    best: list[tuple[str, Json, str]] = []
    for one in sorted(replayed or found, key=lambda one: -one[1]["points"]):
        is_news = one[1]["points"] >= _LEAST_POINTS and all(one[1]["points"] != other["points"] for _, other, _ in best)
        if (is_news or not best) and len(best) < _MOST_TOLD:
            best.append(one)
    asked = [(", ".join(one["causes"]), one, "") for one in answer["without"]]
    told = [(f"without {name}", f"{good_of(one)}{of} would be good", f"({one['kind']})") for name, one, of in
            [*best, *asked]]  # fmt: skip
    return aligned(told)


def culprits_without(answer: Json) -> dict[str, Json]:
    """The culprits that a replay left out, by their names in a sentence; each once."""
    known = [one for part in answer["parts"] for one in part["culprits"]]
    bursts = {one["name"] for one in known if one.get("within_s") is not None}
    return {_its_requests(one, bursts): one for one in known if one["without"]}


def _its_requests(culprit: Json, bursts: Collection[str]) -> str:
    if culprit["by"] != "tenant":
        return f"request {culprit['name']}"
    return f"the {'burst' if culprit['name'] in bursts else 'requests'} of tenant {culprit['name']}"


_WAITS: Final = frozenset({"wait_batch", "wait_kv", "wait_tokens", "wait_priority", "preempted"})
_MOST_WAITS: Final = 0.2


def first_order_holds(answer: Json) -> bool:
    """Whether waits are a fifth of the excess at most: they would not be there without what made the queue."""
    return sum(part["share"] or 0.0 for part in answer["parts"] if part["cause"] in _WAITS) <= _MOST_WAITS


def good_of(without: Json) -> str:
    """The attainment, of a replay with its interval."""
    told = percent(without["attainment"])
    if without["kind"] == "first order":
        return told
    return f"{told} ({percent(without['low'])} to {percent(without['high'])})"


def table(answer: Json) -> list[str]:
    """A row for each cause that says something, the largest first, and one line for the others."""
    is_compared, rows, usual, rest = _is_compared(answer), [], [], []
    for group in ordered(answer):
        share = _share(answer, group)
        time = duration(group["excess_s"] if is_compared else group["time_s"])
        if share >= _LEAST:
            worst = count(group["requests"]) if is_compared else ""
            rows.append((group["group"], time, f"{_PER_CENT * share:.0f} %", worst, who(answer, group)))
        elif group["group"] == "unexplained":
            of_all = group["time_s"] / answer["selected"]["time_s"] if answer["selected"]["time_s"] else 0.0
            rest.append(f"unexplained {duration(group['time_s'])} ({percent(of_all)})")
        else:
            usual.append(group["group"])
    heads = (
        ("cause", "beyond typical", "share", "worst for", "who")
        if is_compared
        else ("cause", "time", "share", "", "who")
    )
    folded = "; ".join(filter(None, (f"as usual: {', '.join(usual)}" if usual else "", *rest)))
    return [*(aligned([heads, *rows]) if rows else []), *([folded] if folded else [])]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with columns of one width each, two spaces apart."""
    if not rows:
        return []
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def who(answer: Json, group: Json) -> str:
    """The worst culprit of each kind, each with its scale."""
    culprits = culprits_of(answer, group)
    tenant, process, request, variant = (_worst(culprits, by) for by in ("tenant", "process", "request", "variant"))
    told = [one["text"] for one in answer["slower"][:1] if "slower" in group["causes"]]
    if tenant and tenant["share"] is not None and {*group["causes"]} & _HELD:
        meanwhile = "" if group["group"] == "others' answers" else " while they waited"
        told.append(f"tenant {tenant['name']}: {_part(tenant)} of {_held(group)}{meanwhile}")
        bursts = [one for one in culprits if one.get("within_s") is not None and one is not tenant]
        told += [f"tenant {one['name']}: {_part(one)}" for one in bursts[:1]]
    elif tenant:
        told.append(f"tenant {tenant['name']}" + (f": {_part(tenant)} of it" if tenant["share"] is not None else ""))
    if request and (request["share"] or 0.0) >= _LEAST_NAMED:
        told.append(f"{request['name']}: {_part(request)} of it")
    if (not told or "slower" in group["causes"]) and process:
        told.append(process["name"] if _has_most(process) else f"{process['name']}: {_part(process)} of it")
    if variant:
        told.append(f"variant {variant['name']}: {_part(variant)} of it")
    return ", ".join(told)


def _do(answer: Json) -> Iterator[str]:
    """What makes the largest causes less, the largest first."""
    told = [one for one in ordered(answer) if _share(answer, one) >= _LEAST_TOLD][:_MOST_TOLD]
    worth = {one["name"]: one["without"]["points"] or 0.0 for one in culprits_without(answer).values()}
    steps = []
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


def _sure(answer: Json) -> Iterator[str]:
    """How many are explained how far, by which law, and beside which typical requests."""
    n = answer["selected"]["requests"]
    if not n or not answer["levels"]:
        return
    told = [f"{count(one['requests'])} of {count(n)} {_LEVELS[one['level']]}" for one in answer["levels"]]
    if law := _law(answer):
        told[0] += law
    if typical := answer["typical"]:
        ttft = f"TTFT {duration(typical['ttft_from_s'])} to {duration(typical['ttft_to_s'])}"
        told.append(f"typical: {typical['text']}, {ttft}")
    yield f"sure: {'; '.join(told)}"


def _law(answer: Json) -> str:
    known = [one for one in answer["models"] if one["sigma"] is not None]
    if not known:
        return ""
    worst = max(known, key=lambda one: one["sigma"])
    of = f"by a law of {_span(answer, worst)}"
    if len(known) > 1:
        of = f"by {len(known)} laws, the worst of {worst['instance']}"
    explains = "" if worst["r2"] is None else f", explains {_PER_CENT * worst['r2']:.0f} %"
    return f", {of} (scatter {_PER_CENT * worst['sigma']:.0f} %{explains})"


def _notes(answer: Json) -> Iterator[str]:
    for level in answer["levels"]:
        if level["more"]:
            yield f"{count(level['requests'])} {_LEVELS[level['level']]}: {level['more']}"
    hidden = answer["without_hidden"] if answer["metric"] is None else None
    for note in (answer["note"], hidden and f"without a cause: {hidden}"):
        if note:
            yield f"note: {note}"
    if (replay := answer["replay"]) and replay["note"]:
        yield f"note: {count(replay['requests'])} requests were replayed: {replay['note']}"


_KINDS: Final = {"tenant": "tenant ", "variant": "variant ", "process": "", "request": ""}
"""The kinds of culprits that a line has, and the word before a name of each."""


def of_one(detail: Json) -> list[str]:
    """The causes of one request: a row for each that took longer than typical, or any time where none is known."""
    row, explained = detail["request"], detail["explained"]
    head = (
        f"{row['model'] or UNDEFINED} · {row['status']} · TTFT {duration(row['ttft_s'])} · E2E {duration(row['e2e_s'])}"
    )
    told = [f"{head} · trace {row['trace_id']}"]
    if explained is None:
        return [*told, "it has not ended: its causes are told after its end"]
    if explained["level"] is None:
        return [*told, "it is not explained yet: that takes up to two minutes after its end"]
    causes = sorted(
        explained["causes"], key=lambda one: -(one["time_s"] if one["excess_s"] is None else one["excess_s"])
    )
    whole_s = sum(one["time_s"] for one in causes)
    rows, usual = [], []
    for one in causes:
        is_more = one["excess_s"] is None or one["excess_s"] >= _LEAST * whole_s
        if not is_more or one["time_s"] < _LEAST * whole_s:
            usual.append(one["cause"])
            continue
        of = "TTFT" if one["of"] == "ttft" else "the rest"
        rows.append((one["cause"], of, duration(one["excess_s"]), duration(one["time_s"]), _by(one["culprits"])))
    told += aligned([("cause", "of", "beyond typical", "time", "who"), *rows]) if rows else []
    told += [f"as usual: {', '.join(dict.fromkeys(usual))}"] if usual else []
    return [*map(one_line, told), f"sure: explained {_LEVELS[explained['level']]}"]


def _by(culprits: Sequence[Json]) -> str:
    """The worst of each kind, tenants first: a name says more than an id."""
    worst = [_worst(culprits, kind) for kind in _KINDS]
    return ", ".join(f"{_KINDS[one['by']]}{one['name']} {duration(one['time_s'])}" for one in worst if one)
