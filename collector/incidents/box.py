"""One box of `/verdict`: an incident or a change, with where to look next."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qsl

from collector.ask.times import rfc3339
from collector.base.answer import Answer
from collector.incidents.incident import Incident, TopCause
from collector.numbers.changes import Change
from collector.slo.counts import Number
from collector.slo.severity import Severity
from tokentrail.shared.formatting import clock_text, named, percent
from tokentrail.shared.moments import parse_moment

Page = Literal["now", "explore", "tail", "engines", "compare", "request", "runbook"]


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
    why: str | None
    """What took most time from the bad requests of a burn, or the error with which they ended; null: not known."""
    group: str | None = None
    """The name of that cause."""
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


def cause_of(top: TopCause | None) -> str | None:
    """What took most time from bad requests, as a sentence; None where nothing explains it."""
    if top is None or top.cause == "unexplained":
        return None
    what = f"{top.group}, {top.than}" if top.than else top.group
    return f"Cause: {what} ({percent(top.share)} of what they took beyond good requests)."


def of_incident(one: Incident, now_ns: int) -> BoxOut:
    """The box of an incident, with nothing inside."""
    since_ns = parse_moment(one.start).ns
    until_ns = None if one.end is None else parse_moment(one.end).ns
    when = f"Since {clock_text(since_ns, now_ns)}"
    if until_ns is not None:
        when = f"From {clock_text(since_ns, now_ns)} to {clock_text(until_ns, now_ns)}"
    links = [
        Link(
            title=f"See the {f'{of.total} requests' if of.total != 1 else 'request'}",
            page="explore",
            params=of.parameters,
        )
        for of in one.requests[:1]
    ]
    why = cause_of(one.top_cause)
    if one.slo is not None:
        params = {"slo": one.slo, "start": one.start, "end": one.end or rfc3339(now_ns)}
        params |= {} if one.tenant is None else {"tenant": one.tenant}
        links.append(Link(title="Where the time went", page="tail", params=params))
    if one.instance is not None:
        process = {"service": one.service or "", "instance": one.instance, "process_tenant": one.process_tenant or ""}
        links.append(Link(title="Engine", page="engines", params=process))
    links.append(Link(title="Runbook", page="runbook", params={}, url=one.runbook_url))
    return BoxOut(
        kind=one.cause,
        title=one.title,
        sentence=f"{when}. {one.detail}",
        why=why,
        group=one.top_cause.group if why and one.top_cause else None,
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


def of_change(one: Change, now_ns: int) -> BoxOut:
    """The box of a change, with nothing inside."""
    at_ns = parse_moment(one.at).ns
    before = f" Before: {', '.join(named(value or 'none') for value in one.before)}." if one.before else ""
    return BoxOut(
        kind="process" if one.dimension == "process" else "change",
        title=_title(one),
        sentence=f"Since {clock_text(at_ns, now_ns)}.{before}",
        why=None,
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
