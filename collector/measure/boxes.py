"""The incidents and changes of a window, causes before symptoms: a burn that one of them explains stands inside it.

Of the bad requests since the burn began, 18 of 20 were of the process that hangs, while it hung:

    chat-a makes no progress        engine_hung
        "chat" burns its budget     slo_burn, inside: 90 % is at least 60 %
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

import numpy as np

from collector.answer import Answer
from collector.measure.changes import Change
from collector.measure.evaluation import open_requests
from collector.measure.in_flight import Bools, InFlight
from collector.measure.incident import Incident
from collector.measure.population import Floats, read_ended
from collector.measure.reader import Reader
from collector.measure.slices import slices
from collector.measure.times import DAY_NS, clock_text, parse_moment, rfc3339
from collector.measure.window import Window
from collector.slo.cells import Cells
from collector.slo.counts import Number, as_number
from collector.slo.model import Slo
from collector.slo.severity import Severity
from collector.sql.fragment import Fragment, merged
from tokentrail.shared.formatting import one_line

Page = Literal["now", "explore", "tail", "engines", "compare", "request", "runbook"]

LEAST_INSIDE: Final = 0.6
"""A burn stands inside a cause in whose process and time so many of its bad requests are."""
_LEAST_LIFT: Final = 2.0
"""Of a change, these must be so many times commoner among the bad than among the good: it does not end."""
_FIRST: Final = ("engine_lost", "engine_hung", "kv_eviction", "kv_wait")
_LASTING: Final = ("change", "process")
_LAST: Final = ("cold_start", *_LASTING, "slo_burn")
"""Causes before symptoms; any other kind is between the two."""
_MOST_CAUSES: Final = 20
"""The most causes that are asked whether they explain a burn."""
_MOST_BURNS: Final = 20
MOST_BOXES: Final = 50
_MOST_BACK_NS: Final = DAY_NS
"""Of a burn that began earlier, the bad requests of a day are looked at."""
_LONGEST_NAME: Final = 80


class Link(Answer):
    """Where to look next: a page of the dashboard with its parameters, or the runbook."""

    title: str
    page: Page
    params: dict[str, str]
    """Filters and times as the API takes them."""
    url: str | None = None
    """Of the runbook."""


class Box(Answer):
    """An incident or a change."""

    kind: str
    """The cause of an incident, or `change`."""
    title: str
    sentence: str
    firing: bool
    severity: Severity | None
    """Null for a change."""
    service: str | None
    instance: str | None
    process_tenant: str | None
    dimension: Literal["model", "variant", "process", "slo"] | None
    """What is new, of a change."""
    value: str | None
    """The new value, of a change."""
    slo: str | None
    tenant: str | None
    """To whom an SLO with `group_by: [tenant]` is broken."""
    since_ns: int
    until_ns: int | None
    """Null while it lasts; of a change always."""
    requests: Number
    """Of an incident, those it affected; of a change, those with the new value."""
    bad: Number | None
    """The bad requests of a burn; of a cause, those of the burn inside it of which most are its; null without any."""
    links: list[Link]


class BoxOut(Box):
    """An incident or a change, and the burns that it explains."""

    inside: list[Box]


def named(text: str, longest: int = _LONGEST_NAME) -> str:
    """A name of others in a sentence: on one line, and not longer than so many characters."""
    flat = one_line(text)
    return flat if len(flat) <= longest else f"{flat[: longest - 1]}…"


def boxes(reader: Reader, window: Window, incidents: Sequence[Incident], changes: Sequence[Change]) -> list[BoxOut]:
    """All that fires, causes before symptoms, then what is over, the newest first."""
    found = [_of_incident(one, window.end_ns) for one in incidents]
    burns = [one for one in found if one.slo is not None]
    told = [_of_change(one, window.end_ns) for one in changes]
    causes = [one for one in found if one.slo is None] + [one for one in told if one.slo is None]
    causes.sort(key=_order)
    outside = [*burns[_MOST_BURNS:], *(one for one in told if one.slo is not None)]
    for burn, place, bad in _places(reader, window, burns[:_MOST_BURNS], causes[:_MOST_CAUSES]):
        if place is None:
            outside.append(burn)
        else:
            causes[place].inside.append(burn)
            causes[place].bad = max(bad, causes[place].bad or 0)
    shown = [one for one in causes if one.inside or one.kind != "process"]  # processes come and go
    return sorted([*shown, *outside], key=_order)[:MOST_BOXES]


def _places(
    reader: Reader, window: Window, burns: Sequence[BoxOut], causes: Sequence[BoxOut]
) -> Iterator[tuple[BoxOut, int | None, Number]]:
    """For each burn, the place of the first cause that explains it, and how many of its bad requests that has."""
    if not (burns and causes):
        yield from ((burn, None, 0) for burn in burns)
        return
    slos = {slo.name: slo for slo in reader.slos}
    of_burns = [slos[burn.slo or ""] for burn in burns]
    oldest_ns = min(window.start_ns, max(0, window.end_ns - _MOST_BACK_NS))
    lasted = [(max(burn.since_ns, oldest_ns), burn.until_ns or window.end_ns) for burn in burns]
    moments = sorted({*(ns for pair in lasted for ns in pair), window.start_ns, window.end_ns}, reverse=True)
    moments = [ns for ns in moments if oldest_ns <= ns <= window.end_ns]
    own = [_within(cause, i) for i, cause in enumerate(causes)]
    counts = Fragment(f"[{', '.join(['sum(weight)', *(f'sumIf(weight, {one.sql})' for one in own)])}]", merged(own))
    cells = Cells(of_burns, tenants=[burn.tenant for burn in burns])
    ended = read_ended(reader.queries, window.filter, cells, slices(moments), others=counts)
    table = np.array(ended.others, np.float64).reshape(-1, 1 + len(causes))
    asked = ended.band <= moments.index(window.start_ns)
    for place, (burn, slo, (since_ns, until_ns)) in enumerate(zip(burns, of_burns, lasted, strict=True)):
        outcomes = ended.judged.outcomes(place)
        during = (ended.band <= moments.index(since_ns)) & (ended.band > moments.index(min(until_ns, window.end_ns)))
        bad = table[ended.having(outcomes.bad) & during].sum(0)
        if burn.until_ns is None:
            bad += _not_ended(open_requests(reader, replace(window, start_ns=since_ns)), slo, burn.tenant, causes)
        good = table[ended.having(outcomes.good) & asked].sum(0)
        fitting = (i for i, cause in enumerate(causes) if _explains(cause, burn, bad[[0, i + 1]], good[[0, i + 1]]))
        first = next(fitting, None)
        yield burn, first, 0 if first is None else as_number(round(float(bad[first + 1]), 3))


def _explains(cause: Box, burn: Box, bad: Floats, good: Floats) -> bool:
    """By (all, those of the cause) of the burn's bad requests, and of the good ones of the time asked for."""
    share = bad[1] / bad[0] if bad[0] else 0.0
    if cause.kind not in _LASTING:
        return bool(share >= LEAST_INSIDE)
    of_good = good[1] / good[0] if good[0] else 0.0
    return bool(share >= max(LEAST_INSIDE, _LEAST_LIFT * of_good))


def _values(cause: Box) -> dict[str, str]:
    """What requests of a cause have, by column."""
    if cause.kind in _LASTING:
        column = "instance" if cause.dimension == "process" else cause.dimension or ""
        return {"service": cause.service or "", column: cause.value or ""}
    process = {"service": cause.service, "instance": cause.instance, "process_tenant": cause.process_tenant}
    return {name: value or "" for name, value in process.items()}


def _within(cause: Box, place: int) -> Fragment:
    """SQL: a request was of a cause's process, or has its new value, and in its time."""
    names = {f"cause_{place}_{name}": (name, value) for name, value in _values(cause).items()}
    parts = [f"{name} = {{{key}:String}}" for key, (name, _) in names.items()]
    parts.append(f"end >= fromUnixTimestamp64Nano({{cause_{place}_since:Int64}})")
    parameters: dict[str, Any] = {key: value for key, (_, value) in names.items()}
    parameters[f"cause_{place}_since"] = cause.since_ns
    if cause.until_ns is not None:
        parts.append(f"start < fromUnixTimestamp64Nano({{cause_{place}_until:Int64}})")
        parameters[f"cause_{place}_until"] = cause.until_ns
    return Fragment(" AND ".join(parts), parameters)


def _not_ended(in_flight: InFlight, slo: Slo, tenant: str | None, causes: Sequence[Box]) -> Floats:
    """The bad requests of an SLO that have not ended: all, and those of each cause."""
    bad = in_flight.judged([slo]).outcomes(0).bad
    if tenant is not None:
        bad = bad & _has(in_flight, "tenant", tenant)
    counts = [bad.sum()]
    for cause in causes:
        own = bad if cause.until_ns is None else bad & (in_flight.began_ns < cause.until_ns)
        for name, value in _values(cause).items():
            own = own & _has(in_flight, name, value)
        counts.append(own.sum())
    return np.array(counts, np.float64)


def _has(in_flight: InFlight, name: str, value: str) -> Bools:
    return np.array([one == value for one in in_flight.columns[name]], bool)


def _order(box: BoxOut) -> tuple[bool, int, int]:
    """What fires first, by kind, then what is over by time. A box fires as what is inside it does."""
    firing = box.firing or any(one.firing for one in box.inside)
    kinds = {name: i for i, name in enumerate(_FIRST)} | {name: 100 + i for i, name in enumerate(_LAST)}
    return not firing, kinds.get(box.kind, 50) if firing else 0, -box.since_ns


def _of_incident(one: Incident, now_ns: int) -> BoxOut:
    since_ns = parse_moment(one.start).ns
    until_ns = None if one.end is None else parse_moment(one.end).ns
    ended = "" if until_ns is None else f" until {clock_text(until_ns, now_ns)}"
    links = [
        Link(title=f"See the {of.total} requests", page="explore", params=of.parameters) for of in one.requests[:1]
    ]
    if one.slo is not None:
        params = {"slo": one.slo, "start": one.start, "end": one.end or rfc3339(now_ns)}
        links.append(Link(title="Where the time went", page="tail", params=params))
    if one.instance is not None:
        process = {"service": one.service or "", "instance": one.instance, "process_tenant": one.process_tenant or ""}
        links.append(Link(title="Engine", page="engines", params=process))
    links.append(Link(title="Runbook", page="runbook", params={}, url=one.runbook_url))
    return BoxOut(
        kind=one.cause,
        title=one.title,
        sentence=f"Since {clock_text(since_ns, now_ns)}{ended}. {one.detail}",
        firing=one.firing,
        severity=one.severity,
        service=one.service,
        instance=one.instance,
        process_tenant=one.process_tenant,
        dimension=None,
        value=None,
        slo=one.slo,
        tenant=one.tenant,
        since_ns=since_ns,
        until_ns=until_ns,
        requests=one.requests_affected,
        bad=one.requests_affected if one.slo is not None else None,
        links=links,
        inside=[],
    )


def _title(one: Change) -> str:
    if one.slo is not None:
        return f'SLO "{one.slo}" {f"is now {one.value}" if one.value else "is gone"}'
    return f"{named(one.service)} has a new {one.dimension}: {named(one.value)}"


def _of_change(one: Change, now_ns: int) -> BoxOut:
    at_ns = parse_moment(one.at).ns
    before = f" Before: {', '.join(named(value or 'none') for value in one.before)}." if one.before else ""
    return BoxOut(
        kind="process" if one.dimension == "process" else "change",
        title=_title(one),
        sentence=f"Since {clock_text(at_ns, now_ns)}.{before}",
        firing=False,
        severity=None,
        service=one.service or None,
        instance=one.value if one.dimension == "process" else None,
        process_tenant=None,
        dimension=one.dimension,
        value=one.value,
        slo=one.slo,
        tenant=None,
        since_ns=at_ns,
        until_ns=None,
        requests=one.requests or 0,
        bad=None,
        links=[Link(title="Compare before and after", page="compare", params=dict(parse_qsl(one.compare)))],
        inside=[],
    )
