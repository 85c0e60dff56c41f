"""The sentence of the moment: are the promises kept, since when, who is hit, by what cause, and what without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from collector.ask.times import DAY_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import WindowOut
from collector.count.evaluation import count
from collector.count.reader import Reader
from collector.incidents.box import BoxOut, Link
from collector.incidents.boxes import SOON_NS, boxes
from collector.incidents.hit import Hit, hit
from collector.incidents.incident import Incident
from collector.incidents.incidents import incidents
from collector.incidents.odd import Odd, odd
from collector.incidents.standing import State, burn_of, slo_of, stands
from collector.incidents.wrong import MOSTLY_FAILED, what_was_wrong
from collector.numbers.changes import changes
from collector.numbers.slos import SloOut, slos
from collector.sql.fragment import all_of
from tokentrail.shared.moments import parse_moment

_NOTHING: Final = Hit(None, None, None)
_MOST_TOLD: Final = 5
"""Burns without a known cause that are asked for their errors, by a query each."""


class VerdictOut(Answer):
    """`/verdict`. Times in sentences are UTC, with the day if it is not today."""

    window: WindowOut
    state: State
    sentence: str
    who: str | None
    """What most of the bad requests have and few good ones; of an SLO of which a rule fires."""
    why: str | None
    """The largest cause of their time, or why it is not known."""
    without: str | None
    """What the attainment would be without it."""
    slo: str | None
    """The SLO that the sentence is about."""
    tenant: str | None
    """The tenant that it is about, of an SLO with `group_by: [tenant]`."""
    since_ns: int | None
    """Since when that is so; null where it is not known."""
    last_request_ns: int | None
    """Of a window in which no request ended: when the last one before its end did. Null without any."""
    links: list[Link]
    boxes: list[BoxOut]
    """What fires, causes before symptoms, then what is over and the changes, the newest first; 50 at most."""
    odd: list[Odd]
    """What was unusual in the window beyond chance, of the last day before its end, the latest first; without what a
    box tells. Six at most."""
    slos: list[SloOut]
    """Every SLO over its own window, as `/slos` with the same parameters has it."""
    slo_file_problem: str | None
    """Why the newest SLO file is not in use, as `file_problem` of `/slos`."""
    firing_outside: int
    """Incidents that fire and that the filters leave out, as `/incidents` counts them."""


def verdict(reader: Reader, window: Window, vantage: Sequence[str]) -> VerdictOut:
    """The answer of `/verdict`: numbers of SLOs at the window's end, incidents and changes inside it."""
    evaluated = slos(reader, window).slos
    counted = count(reader, window, vantage, reader.slos)
    told_incidents = incidents(reader, window)
    listed = told_incidents.incidents
    boxed = boxes(reader, window, listed, changes(reader, _since_before_burns(window, listed)).changes)
    last_ns = None if counted.requests.total else _last_ended_ns(reader, window)
    _tell_errors(reader, window, boxed)
    is_filtered = window.filter != all_of(reader.tenant_filter)
    told = stands(reader, window, evaluated, counted, listed, last_ns, is_filtered=is_filtered)
    burn = burn_of(listed, told.slo, told.tenant)
    more, links = _NOTHING, []
    if burn is not None and told.slo is not None:
        more = hit(reader, window, vantage, slo_of(reader, told.slo), burn, told.tenant)
        links = _links(burn, boxed)
    elif told.slo is not None and told.state in ("spent", "danger"):
        since_ns = window.start_ns if told.since_ns is None else told.since_ns
        asked = {"slo": told.slo.name, "start": rfc3339(since_ns), "end": rfc3339(window.end_ns)}
        bad = Link(title="See the bad requests", page="explore", params={**asked, "verdict": "bad"})
        links = [bad, Link(title="Where the time went", page="tail", params=asked)]
    return VerdictOut(
        window=WindowOut.of(window, reader.complete_ns),
        state=told.state,
        sentence=told.sentence,
        who=more.who,
        why=told.why or more.why,
        without=more.without,
        slo=told.slo.name if told.slo else None,
        tenant=told.tenant,
        since_ns=told.since_ns,
        last_request_ns=last_ns,
        links=links,
        boxes=boxed,
        odd=odd(reader, window, vantage, boxed),
        slos=evaluated,
        slo_file_problem=reader.slo_file_problem or None,
        firing_outside=told_incidents.firing_outside,
    )


def _tell_errors(reader: Reader, window: Window, boxed: Sequence[BoxOut]) -> None:
    """Burns of which most bad requests failed say with which error, in place of what the others took time for.

    Where most have not ended, that says nothing.
    """
    burns = [one for box in boxed for one in (box, *box.inside) if one.kind == "slo_burn"]
    slos_of = {slo.name: slo for slo in reader.slos}
    for one in burns[:_MOST_TOLD]:
        until_ns = window.end_ns if one.until_ns is None else one.until_ns
        ended = replace(window, start_ns=one.since_ns, end_ns=until_ns)
        wrong = what_was_wrong(reader, ended, slos_of[one.slo or ""], one.tenant)
        if wrong and wrong.failed >= MOSTLY_FAILED and 2 * wrong.requests >= (one.bad or 0):
            one.why, one.group = wrong.text, None


def _since_before_burns(window: Window, told_incidents: Sequence[Incident]) -> Window:
    """The window, and the time in which a change would explain a burn that goes on; of a day at most."""
    began = [parse_moment(one.start).ns - SOON_NS for one in told_incidents if one.slo is not None and one.firing]
    return replace(
        window, start_ns=min(window.start_ns, max(window.end_ns - DAY_NS, min(began, default=window.end_ns)))
    )


def _links(burn: Incident, boxed: Sequence[BoxOut]) -> list[Link]:
    """To the bad requests, to what explains them, to where their time went, and to the runbook."""
    holders = [(box, one) for box in boxed for one in (box, *box.inside) if one.firing]
    box, held = next((box, one) for box, one in holders if (one.slo, one.tenant) == (burn.slo, burn.tenant))
    cause = [link for link in box.links if box is not held and link.page in ("engines", "compare")]
    first, rest = ([link for link in held.links if (link.page == "explore") == is_first] for is_first in (True, False))
    return [*first, *cause, *rest]


def _last_ended_ns(reader: Reader, window: Window) -> int | None:
    """When the last request before the window's end ended; None without any."""
    (row,) = reader.queries.rows("last_ended", {"filter": window.filter}, end_ns=window.end_ns) or ({"last_ns": 0},)
    return row["last_ns"] or None
