"""The incidents and changes of a window, causes before symptoms: a burn that one of them explains stands inside it.

Of the bad requests since the burn began, 18 of 20 were of the process that hangs, while it hung:

    chat-a makes no progress        engine_hung
        "chat" burns its budget     slo_burn, inside: 90 % is at least 60 %
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from collector.ask.slices import slices
from collector.ask.times import DAY_NS, HOUR_NS, SECOND_NS
from collector.ask.window import Window
from collector.count.evaluation import open_requests
from collector.count.in_flight import InFlight
from collector.count.population import Floats, read_ended
from collector.count.reader import Reader
from collector.incidents.box import Box, BoxOut, of_change, of_incident
from collector.incidents.incident import Incident
from collector.numbers.changes import Change
from collector.slo.cells import Cells
from collector.slo.counts import Number, as_number
from collector.slo.model import Slo
from collector.sql.fragment import Fragment, merged

LEAST_INSIDE: Final = 0.6
"""A burn stands inside a cause in whose process and time so many of its bad requests are."""
_LEAST_LIFT: Final = 2.0
"""Of a change, these must be so many times commoner among the bad than among the good: all may have the new value."""
_FIRST: Final = ("engine_lost", "engine_hung", "kv_eviction", "kv_wait")
_LASTING: Final = ("change", "process")
_LAST: Final = ("cold_start", *_LASTING, "slo_burn")
"""Causes before symptoms; any other kind is between the two."""
SOON_NS: Final = HOUR_NS
"""A change explains burns that begin so soon after it."""
_APART_NS: Final = 300 * SECOND_NS
"""The beginning of a burn is known to some minutes."""
_MOST_CAUSES: Final = 20
"""The most causes that are asked whether they explain a burn."""
_MOST_BURNS: Final = 20
MOST_BOXES: Final = 50
_MOST_BACK_NS: Final = DAY_NS
"""Of a burn that began earlier, the bad requests of a day are looked at."""


def boxes(reader: Reader, window: Window, incidents: Sequence[Incident], changes: Sequence[Change]) -> list[BoxOut]:
    """All that fires, causes before symptoms, then what is over, the newest first."""
    of_incidents = [of_incident(one, window.end_ns) for one in incidents]
    burns = [one for one in of_incidents if one.slo is not None]
    of_changes = [of_change(one, window.end_ns) for one in changes if one.kind != "gone"]
    causes = [one for one in of_incidents if one.slo is None] + [one for one in of_changes if one.slo is None]
    causes.sort(key=lambda one: (_rank(one), -one.since_ns, one.title))
    tried = [one for one in causes if any(_meets(one, burn) for burn in burns)][:_MOST_CAUSES]
    outside = [*burns[_MOST_BURNS:], *(one for one in of_changes if one.slo is not None)]
    for burn, place, bad in _places(reader, window, burns[:_MOST_BURNS], tried):
        if place is None:
            outside.append(burn)
        else:
            tried[place].inside.append(burn)
            tried[place].bad = max(bad, tried[place].bad or 0)
    shown = [one for one in [*causes, *outside] if one.inside or _is_told_alone(one, window)]
    return sorted(shown, key=_order)[:MOST_BOXES]


def _is_told_alone(box: BoxOut, window: Window) -> bool:
    """Processes come and go, and a change before the window is told only for the burn that goes on."""
    return box.kind != "process" and (box.kind != "change" or box.since_ns >= window.start_ns)


def _meets(cause: BoxOut, burn: BoxOut) -> bool:
    """A cause may explain a burn: it was there while that lasted. What does not end has its effect soon."""
    if cause.kind in _LASTING:
        return cause.since_ns - _APART_NS <= burn.since_ns <= cause.since_ns + SOON_NS
    ended = burn.until_ns is not None and burn.until_ns < cause.since_ns
    return not ended and (cause.until_ns is None or cause.until_ns + _APART_NS >= burn.since_ns)


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
    before = [cause.since_ns - SOON_NS for cause in causes if cause.kind in _LASTING]
    first_ns = max(oldest_ns, min(window.start_ns, *before, window.end_ns))
    lasted = [
        tuple(min(max(ns, oldest_ns), window.end_ns) for ns in (burn.since_ns, burn.until_ns or window.end_ns))
        for burn in burns
    ]
    moments = sorted({*(ns for pair in lasted for ns in pair), first_ns, window.end_ns}, reverse=True)
    parts = [_within(cause, i) for i, cause in enumerate(causes)]
    counts = Fragment(f"[{', '.join(['sum(weight)', *(f'sumIf(weight, {one.sql})' for one in parts)])}]", merged(parts))
    cells = Cells(of_burns, tenants=[burn.tenant for burn in burns])
    ended = read_ended(reader.queries, window.filter, cells, slices(moments), others=counts)
    table = np.array(ended.others, np.float64).reshape(-1, 1 + len(causes))
    asked = ended.band <= moments.index(first_ns)
    for place, (burn, slo, (since_ns, until_ns)) in enumerate(zip(burns, of_burns, lasted, strict=True)):
        outcomes = ended.judged.outcomes(place)
        during = (ended.band <= moments.index(since_ns)) & (ended.band > moments.index(until_ns))
        bad = table[ended.having(outcomes.bad) & during].sum(0)
        if burn.until_ns is None:
            bad += _not_ended(open_requests(reader, replace(window, start_ns=since_ns)), slo, burn.tenant, causes)
        good = table[ended.having(outcomes.good) & asked].sum(0)
        fitting = (
            i
            for i, cause in enumerate(causes)
            if _meets(cause, burn) and _explains(cause, bad[[0, i + 1]], good[[0, i + 1]])
        )
        first = next(fitting, None)
        yield burn, first, 0 if first is None else as_number(round(float(bad[first + 1]), 3))


def _explains(cause: Box, bad: Floats, good: Floats) -> bool:
    """By (all, those of the cause) of the burn's bad requests, and of the good ones since an hour before the change."""
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
        bad = bad & in_flight.having("tenant", tenant)
    counts = [bad.sum()]
    for cause in causes:
        of_cause = bad if cause.until_ns is None else bad & (in_flight.began_ns < cause.until_ns)
        for name, value in _values(cause).items():
            of_cause = of_cause & in_flight.having(name, value)
        counts.append(of_cause.sum())
    return np.array(counts, np.float64)


def _rank(box: Box) -> int:
    """Causes before symptoms."""
    kinds = {name: i for i, name in enumerate(_FIRST)} | {name: 100 + i for i, name in enumerate(_LAST)}
    return kinds.get(box.kind, 50)


def _order(box: BoxOut) -> tuple[bool, int, int, int, str]:
    """What fires first, by kind, then what is over by time. A box fires as what is inside it does."""
    firing = box.firing or any(one.firing for one in box.inside)
    return not firing, _rank(box) if firing else 0, -box.since_ns, _rank(box), box.title
