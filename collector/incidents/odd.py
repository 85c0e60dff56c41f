"""What is odd though no SLO is broken by it: slow first tokens, requests that are cancelled or fail, a slow process.

The last day before the window's end tells what is usual (collector.incidents.usual). What lasted for an hour or longer
and reaches into the window is told, with numbers that are counted again as the list to which it leads counts them. A
process is found by the time of its tokens, and is told if its steps that only decode say so too, where it tells steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from collector.ask.times import DAY_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.causes.answer.request_times import of_causes
from collector.count.hops import without_doubles
from collector.count.reader import Reader
from collector.engines.processes import besides
from collector.engines.siblings import Beside
from collector.incidents.box import Box, BoxOut, Link
from collector.incidents.usual import BLOCK_NS, OddKind, Unusual, unusual_of_day
from collector.slo.judge import selected
from collector.sql.fragment import TRUE, Fragment, all_of
from tokentrail.shared.formatting import clock_text, count, counted, duration, named, percent, significant

MOST: Final = 6
_MOST_OF: Final = 0.6
_LIFT: Final = 2.0
"""A tenant is named that has so much of what is odd, and so many times its share of all requests."""
_STATUSES: Final[Mapping[OddKind, tuple[str, str]]] = {
    "cancelled": ("cancelled", "were cancelled"),
    "failed": ("error", "failed"),
}
_TOLD_BY: Final[Mapping[OddKind, Sequence[str]]] = {
    "slow": ("slo_burn", "kv_eviction", "kv_wait", "engine_hung", "cold_start"),
    "cancelled": ("slo_burn", "engine_hung", "engine_lost"),
    "failed": ("slo_burn", "engine_hung", "engine_lost"),
    "process": (),
}
"""Kinds of boxes that tell an odd thing of the same time already."""


class Odd(Answer):
    """Something unusual, beyond chance."""

    kind: OddKind
    sentence: str
    who: str | None
    """Whose requests these are, or whose prompts made them wait; null where nobody has most of it."""
    since_ns: int
    until_ns: int | None
    """Null while it lasts."""
    n: int
    """The requests of its list: those that are slow, were cancelled or failed, or all of the process."""
    of: int
    """The requests among which they were."""
    beside: Beside | None
    """A process beside its siblings; null of requests."""
    model: str | None
    tenant: str | None
    service: str | None
    instance: str | None
    links: list[Link]


@dataclass(frozen=True)
class _When:
    """The time of something odd, and its requests."""

    window: Window
    lasts: bool
    now_ns: int

    @property
    def text(self) -> str:
        since = clock_text(self.window.start_ns, self.now_ns)
        return f"Since {since}" if self.lasts else f"From {since} to {clock_text(self.window.end_ns, self.now_ns)}"

    @property
    def params(self) -> dict[str, str]:
        return {"start": rfc3339(self.window.start_ns), "end": rfc3339(self.window.end_ns)}

    @property
    def until_ns(self) -> int | None:
        return None if self.lasts else self.window.end_ns


def odd(reader: Reader, window: Window, vantage: Sequence[str], boxes: Sequence[BoxOut]) -> list[Odd]:
    """What was odd in the window, the latest first, without what the boxes tell. Six at most."""
    once = without_doubles(reader, window, vantage)
    day = replace(once, start_ns=max(0, window.end_ns - DAY_NS) // BLOCK_NS * BLOCK_NS)
    told: list[Odd] = []
    for one in unusual_of_day(reader, day):
        end_ns = (one.stretch.last + 1) * BLOCK_NS
        lasts = end_ns > day.end_ns - BLOCK_NS
        at = replace(day, start_ns=one.stretch.first * BLOCK_NS, end_ns=day.end_ns if lasts else end_ns)
        is_seen = at.end_ns > window.start_ns and not is_told(one, at, boxes)
        if not is_seen or (one.process and reader.tenant):  # no tenant has a process
            continue
        when = _When(at, lasts, window.end_ns)
        answer = _of_requests(reader, when, one) if one.process is None else _of_process(reader, when, one)
        told += [answer] if answer else []
        if len(told) == MOST:
            break
    return told


def is_told(one: Unusual, at: Window, boxes: Sequence[BoxOut]) -> bool:
    """Whether a box tells of half of the time or more: a fault that this comes with, or one of the same process."""

    def tells(box: Box) -> bool:
        process = box.service, box.instance, box.process_tenant or ""
        same = one.process is not None and process == one.process and box.kind != "process"
        if not same and box.kind not in _TOLD_BY[one.kind]:
            return False
        until_ns = at.end_ns if box.until_ns is None else box.until_ns
        return 2 * (min(until_ns, at.end_ns) - max(box.since_ns, at.start_ns)) >= at.end_ns - at.start_ns

    return any(tells(box) or any(map(tells, box.inside)) for box in boxes)


def _of_requests(reader: Reader, when: _When, one: Unusual) -> Odd:
    params: dict[str, str] = {} if one.model is None else {"model": one.model}
    own = TRUE if one.model is None else selected({"model": [one.model]}, "odd")
    if one.kind == "slow":
        params |= {"metric": "ttft", "at_least": f"{one.slow_us}us"}
        event = Fragment("ifNull(ttft_ns >= {odd_ns:Int64}, false)", {"odd_ns": one.slow_us * 1000})
        own = all_of(own, Fragment("ttft_ns IS NOT NULL"))
        did = f"waited {duration(one.slow_us / 1e6)} or longer for the first token"
        if one.p99_s is not None:
            did += " (P99 about {}, usual {})".format(*(duration(float(f"{p99:.2g}")) for p99 in one.p99_s))
    else:
        status, did = _STATUSES[one.kind]
        params |= {"status": status}
        event = Fragment("status = {odd_status:String}", {"odd_status": status})
    chosen = replace(when.window, filter=all_of(when.window.filter, own))
    top = reader.queries.row("odd_tenants", {"odd": event, "filter": chosen.filter}, **chosen.bounds)
    n, of = int(top["odd"]), int(top["total"])
    tenant, who = None, None
    if n and stands_out(top["n"] / n, top["requests"] / of):
        tenant, tokens = top["of_tenant"], top["prompt_tokens"]
        prompts = f", with prompts of {counted(tokens, 'token')} at the median" if isfinite(tokens) else ""
        who = f"{percent(top['n'] / n)} of them are of {_tenant(tenant)}{prompts}."
    elif one.kind == "slow":
        tenant, who = _inflicter(reader, when.window)
    model = "" if one.model is None else f" of {named(one.model) or 'no model'}"
    usual = f"at other times {count(one.others[0])} of {count(one.others[1])}"
    title = f"See the {count(n)} requests" if n != 1 else "See the request"
    return Odd(
        kind=one.kind, sentence=f"{when.text}. {count(n)} of {counted(of, 'request')}{model} {did}; {usual}.",
        who=who, since_ns=when.window.start_ns, until_ns=when.until_ns, n=n, of=of, beside=None,
        model=one.model, tenant=tenant, service=None, instance=None,
        links=[Link(title=title, page="explore", params=when.params | params)],
    )  # fmt: skip


def _of_process(reader: Reader, when: _When, one: Unusual) -> Odd | None:
    """The answer about a process; None where its steps are as quick as those of its siblings."""
    process, beside, what = one.process, one.beside, "time of a token after the first"
    if process is None or beside is None:
        return None
    by_steps = besides(reader, when.window).get(process)
    if by_steps is not None:
        beside, what = by_steps, "step time"
    if not beside.is_slow:
        return None
    own = selected({name: [value] for name, value in process._asdict().items()}, "odd")
    matching = all_of(when.window.filter, own)
    n = reader.queries.count("requests", "ended_in_window", matching, **when.window.bounds)
    interval = f" ({_times(beside.low)} to {_times(beside.high)})" if beside.low and beside.high else ""
    took = f"took × {_times(beside.ratio)} the {what} of its {counted(beside.siblings, 'sibling')}{interval}"
    params = when.params | process._asdict()
    return Odd(
        kind=one.kind, sentence=f"{when.text}. {named(process.title)} {took}.",
        who=None, since_ns=when.window.start_ns, until_ns=when.until_ns, n=n, of=n, beside=beside,
        model=None, tenant=None, service=process.service, instance=process.instance,
        links=[
            Link(title="Engine", page="engines", params=params),
            Link(title=f"See its {counted(n, 'request')}", page="explore", params=params),
        ],
    )  # fmt: skip


def _inflicter(reader: Reader, at: Window) -> tuple[str | None, str | None]:
    """The tenant whose prompts made others wait for most of the time, if one stands out."""
    for row in reader.queries.rows("odd_inflicters", {"filter": of_causes(at)}, **at.bounds):
        tenant, of_time = row["of_tenant"], row["us"] / row["total_us"]
        own = all_of(at.filter, selected({"tenant": [tenant]}, "odd_of"))
        n, of = (reader.queries.count("requests", "ended_in_window", one, **at.bounds) for one in (own, at.filter))
        if of and stands_out(of_time, n / of):
            return tenant, f"Prompts of {_tenant(tenant)} took {percent(of_time)} of what others waited for prompts."
    return None, None


def stands_out(of_odd: float, of_all: float) -> bool:
    """Whether who has these shares has most of what is odd, and not since most requests are theirs."""
    return of_odd >= max(_MOST_OF, _LIFT * of_all)


def _tenant(name: str) -> str:
    return f"tenant {named(name)}" if name else "no tenant"


def _times(ratio: float) -> str:
    return significant(ratio, 2)
