"""What took most time from the bad requests of each burning SLO, and where, by the numbers of `/explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from collector.ask.times import HOUR_NS, SECOND_NS
from collector.ask.window import Window
from collector.causes.answer.answer import Culprit
from collector.causes.answer.beyond import Beyond, Bools, shares
from collector.causes.answer.culprits import (
    OF_PROMPTS,
    inflicting_tenants,
    lost_at,
    of_holders,
    of_processes,
    read_inflicted,
)
from collector.causes.answer.holders import HELD, Victims, read_held
from collector.causes.answer.request_times import Explained, Weighed, parts_of, read_judged
from collector.causes.answer.sentence import beyond_typical, number_of_bad
from collector.causes.answer.served import read_processes
from collector.causes.answer.slower import CAUSE, read_slower
from collector.causes.answer.typical import good_ones, typical_of
from collector.causes.split.names import PARTS, load_causes
from collector.count.evaluation import open_requests
from collector.count.reader import Reader
from collector.incidents.incident import Incident, TopCause
from collector.incidents.wrong import NONE_ENDED, NOT_YET, unexplained, what_was_wrong
from collector.numbers.slos import Evaluation, SloOut
from collector.slo.cells import Cells
from collector.slo.judged import Judged
from collector.slo.model import Slo
from tokentrail.shared.moments import parse_moment

_AT_ALL: Final = 1
"""Levels from this one on name causes (`Level`). A client's report of a request that its server explains names none."""
MOST_PAST: Final = 6
"""Burns that are over whose causes are looked for: each reads its time."""
MOST_BACK_NS: Final = 6 * HOUR_NS
"""Of a burn that lasts longer, the requests of its last six hours are looked at: no rule's short window is longer."""
_MINUTE_NS: Final = 60 * SECOND_NS
_BYTES: Final = 1000
"""Of a remembered answer, about."""
MOST_BLAMED: Final = 20
"""SLOs, or tenants of one, whose causes are looked for: SLOs first, and those that burn fastest."""
_LEAST_NS: Final = 300 * SECOND_NS
"""Requests are explained about a minute after their end, so those of the last minute say little."""


@dataclass(frozen=True)
class Burning:
    """An SLO that burns, its tenant if only that one's promise is broken, and when its requests ended.

    If more bad requests have not ended than are explained, these say nothing: their cause is that of the others by
    chance. So nothing is blamed while a process hangs.
    """

    slo: Slo
    tenant: str | None
    since_ns: int
    until_ns: int
    not_ended: int = 0
    """Bad requests in flight, and lost ones."""


@dataclass(frozen=True)
class Blamed:
    """What the bad requests took beyond typical ones."""

    top: TopCause
    shares: Mapping[str, float]
    """By cause, the largest first, without those of which they took no more."""
    lost: Weighed
    """The bad requests, and their times beside typical ones."""
    beyond: Beyond


def with_top_causes(reader: Reader, window: Window, incidents: Sequence[Incident]) -> list[Incident]:
    """These incidents, those of SLOs with the top cause of their requests while they lasted.

    Of those that are over, the newest ones.
    """
    slos = {slo.name: slo for slo in reader.slos}
    burns = {
        place: Burning(
            slos[one.slo],
            one.tenant,
            parse_moment(one.start).ns,
            window.end_ns if one.end is None else parse_moment(one.end).ns,
            sum(of.total for of in one.requests if of.parameters.get("status") in ("in_flight", "lost")),
        )
        for place, one in enumerate(incidents)
        if one.slo in slos
    }
    with_causes = [*incidents]
    lasting = {place: one for place, one in burns.items() if incidents[place].end is None}
    for place, blamed in zip(lasting, blame(reader, window, [*lasting.values()]), strict=True):
        with_causes[place] = with_causes[place].model_copy(update={"top_cause": blamed.top if blamed else None})
    past = sorted(burns.keys() - lasting.keys(), key=lambda place: -burns[place].until_ns)
    for place in past[:MOST_PAST]:
        with_causes[place] = with_causes[place].model_copy(update={"top_cause": _of_past(reader, window, burns[place])})
    return with_causes


def _of_past(reader: Reader, window: Window, one: Burning) -> TopCause | None:
    """The top cause of a burn that is over, remembered for a minute, since its requests may be explained later."""

    def answer() -> TopCause | None:
        (blamed,) = blame(reader, replace(window, end_ns=one.until_ns), [one])
        return blamed.top if blamed else None

    asked = ("top cause", one.slo.hash, one.tenant, one.since_ns, one.until_ns, one.not_ended, repr(window.filter))
    minute = {("top cause", "minute"): (reader.now_ns // _MINUTE_NS,)}
    return reader.queries.remembered(asked, [*minute], answer, lambda _: _BYTES, minute)


def burning(reader: Reader, slos: Sequence[SloOut], end_ns: int) -> list[Burning]:
    """The SLOs and tenants that lose budget faster than allowed, since the shortest window in which they do.

    In gauges, no tenant stands for an SLO as a whole.
    """
    by_name = {slo.name: slo for slo in reader.slos}
    rated: list[tuple[bool, float, Burning]] = []
    for slo in slos:
        of_tenants = ((group.tenant, group) for group in slo.groups if group.tenant)
        promises: list[tuple[str | None, Evaluation]] = [(None, slo), *of_tenants]
        for tenant, numbers in promises:
            over = [(rule.short_s, rule.short_burn) for rule in numbers.burn if (rule.short_burn or 0) > 1]
            if over:
                short_s, rate = min(over)
                since_ns = end_ns - max(_LEAST_NS, round(short_s * SECOND_NS))
                rated.append((tenant is not None, -(rate or 0.0), Burning(by_name[slo.name], tenant, since_ns, end_ns)))
    return [one for *_, one in sorted(rated, key=lambda item: item[:2])[:MOST_BLAMED]]


def blame(reader: Reader, window: Window, burns: Sequence[Burning]) -> list[Blamed | None]:
    """What took time from the bad requests of each; None where none is explained."""
    return [one.blamed for one in _looked_at(reader, window, burns)]


@dataclass(frozen=True)
class _LookedAt:
    """What the causes of the bad requests of a burn tell."""

    blamed: Blamed | None
    told: bool
    """A cause of one of them is known."""
    is_any: bool
    """One of them was looked at, whether or not anything is known of it."""


def _looked_at(reader: Reader, window: Window, burns: Sequence[Burning]) -> list[_LookedAt]:
    """What took time from the bad requests of each, since it burns or in the last `MOST_BACK_NS`.

    The store is read once for all burns of about one length, so that a short one has its share of the requests that
    are read of very many.
    """
    by_length: dict[int, list[int]] = {}
    for number, one in enumerate(burns):
        by_length.setdefault(_length_ns(window.end_ns - one.since_ns), []).append(number)
    found: dict[int, _LookedAt] = {}
    for length_ns, numbers in by_length.items():
        recent = Window(max(0, window.end_ns - length_ns), window.end_ns, window.filter)
        found |= zip(numbers, _looked_at_in(reader, recent, [burns[number] for number in numbers]), strict=True)
    return [found[number] for number in range(len(burns))]


def _length_ns(burns_ns: int) -> int:
    """How long a time is read for a burn that began so long ago: 1, 2, 4 or 6 hours."""
    length_ns = HOUR_NS
    while length_ns < min(burns_ns, MOST_BACK_NS):
        length_ns *= 2
    return min(length_ns, MOST_BACK_NS)


def _looked_at_in(reader: Reader, window: Window, burns: Sequence[Burning]) -> list[_LookedAt]:
    """What took time from the bad requests of each that ended in this window, beyond good ones of the same, or of
    before it.
    """
    cells = Cells([one.slo for one in burns], tenants=[one.tenant for one in burns])
    known = read_judged(reader, window, cells)
    different, cell = np.unique(known.rows["cell"], return_inverse=True)
    judged, told = cells.judged(different), _told(known)
    of_before: dict[int, Explained] = {}

    def read(before: Window) -> Explained:
        if before.start_ns not in of_before:
            of_before[before.start_ns] = _told(read_judged(reader, before, cells))
        return of_before[before.start_ns]

    found = []
    for number, one in enumerate(burns):
        outcomes, end_ns = judged.outcomes(number), known.rows["end_ns"]
        of_burn = outcomes.bad[cell] & (end_ns >= one.since_ns) & (end_ns < one.until_ns)
        is_bad = of_burn & (known.rows["level"] >= _AT_ALL)
        bad, blamed = known.at(np.flatnonzero(is_bad)), None
        if bad.n and bad.rows["weight"].sum() >= one.not_ended:
            models, good_of = np.unique(bad.rows["model"]), partial(_good, number)
            good, _ = good_ones(read, window, told, cells, good_of, models)
            failed = round(float(known.rows["weight"][is_bad & outcomes.failed[cell]].sum()))
            blamed = _cause_of(bad, good, failed)
        found.append(_LookedAt(blamed and _with_slower(reader, window, blamed), bool(bad.n), bool(of_burn.any())))
    return found


def _told(known: Explained) -> Explained:
    """The requests of which a cause is known."""
    return known.at(np.flatnonzero(known.rows["level"] >= _AT_ALL))


def _good(number: int, judged: Judged) -> Bools:
    return judged.outcomes(number).good


def _with_slower(reader: Reader, window: Window, blamed: Blamed) -> Blamed:
    """Of processes that are slower by themselves, by how much and than what."""
    if blamed.top.cause != CAUSE:
        return blamed
    processes = lost_at(blamed.lost, blamed.beyond, CAUSE)
    than = next((one.text for one in read_slower(reader, window, processes)), None)
    return replace(blamed, top=blamed.top.model_copy(update={"than": than}))


@dataclass(frozen=True)
class Reason:
    """Why an SLO, or the promise to one of its tenants, burns."""

    slo: str
    tenant: str | None
    text: str
    """What was wrong with the requests, and why no cause is known, where none is."""
    shares: Mapping[str, float]
    """As `Blamed` has them."""
    culprits: Sequence[Culprit]
    """By the top cause: the process of which the bad requests lost most, the variant where there are several, and the
    tenant whose prompts, or whose requests in the places or KV blocks, made others wait the longest."""


def reasons(reader: Reader, window: Window, slos: Sequence[SloOut]) -> list[Reason]:
    """Why each of these SLOs burns, of those that do; without shares where no bad request is explained yet."""
    burns = [_with_not_ended(reader, window, one) for one in burning(reader, slos, window.end_ns)]
    looked = _looked_at(reader, window, burns)
    told = [(one, found, _text(reader, window, one, found)) for one, found in zip(burns, looked, strict=True)]
    unknown = [Reason(one.slo.name, one.tenant, text, {}, []) for one, found, text in told if not found.blamed]
    explained = [(one, found.blamed, text) for one, found, text in told if found.blamed]
    if not explained:
        return unknown
    of_cause = [
        (blamed.top.cause, Victims.of(blamed.lost, blamed.beyond, blamed.top.cause)) for _, blamed, _ in explained
    ]
    inflicted = read_inflicted(reader, [of for cause, of in of_cause if cause in OF_PROMPTS])
    held = read_held(reader, [of for cause, of in of_cause if cause in HELD])
    # Soon after a deployment, no process of the variant before has requests any more.
    processes = read_processes(reader, replace(window, start_ns=max(0, window.end_ns - HOUR_NS)))

    def culprits(blamed: Blamed, victims: Victims) -> Iterator[Culprit]:
        cause = blamed.top.cause
        lost = lost_at(blamed.lost, blamed.beyond, cause)
        yield from of_processes(lost, processes, cause)
        if cause in OF_PROMPTS:
            yield from inflicting_tenants(inflicted, lost)
        elif cause in HELD:
            yield from of_holders(held, victims, cause)

    known = (
        Reason(one.slo.name, one.tenant, text, blamed.shares, [*worst.values()])
        for (one, blamed, text), (_, victims) in zip(explained, of_cause, strict=True)
        for worst in [{who.by: who for who in reversed([*culprits(blamed, victims)])}]
    )
    return [*unknown, *known]


def _text(reader: Reader, window: Window, one: Burning, found: _LookedAt) -> str:
    recent = replace(window, start_ns=one.since_ns, end_ns=one.until_ns)
    wrong = what_was_wrong(reader, recent, one.slo, one.tenant)
    if wrong is None:
        return NONE_ENDED if one.not_ended else NOT_YET
    more = unexplained(found.blamed.top if found.blamed else None)
    is_blamed = found.blamed is not None and more is None
    return wrong.with_cause("" if is_blamed else None, is_told=found.told, is_any=found.is_any, more=more)


def _with_not_ended(reader: Reader, window: Window, one: Burning) -> Burning:
    since = open_requests(reader, replace(window, start_ns=one.since_ns))
    bad = since.judged([one.slo]).outcomes(0).bad
    return replace(one, not_ended=int((bad if one.tenant is None else bad & since.having("tenant", one.tenant)).sum()))


def _cause_of(bad: Explained, good: Explained, failed: int) -> Blamed | None:
    """What took time from the bad requests beyond the middle half of the good ones; `failed` of the bad ones failed.

    None without good ones, or where the bad ones took no longer than these.
    """
    typical = typical_of(good)
    if typical is None:
        return None
    victims = Weighed(bad, bad.rows["weight"])
    beyond = Beyond.of(victims.times, typical.like(bad.rows["model"]), parts_of(None))
    excess = (beyond.excess * victims.weight).sum(1)
    found = [(name, share) for name, share in zip(PARTS, shares(np.round(excess, 3).tolist()), strict=True) if share]
    if not found:
        return None
    found.sort(key=lambda item: -item[1])
    groups = [(load_causes()[name].group, share) for name, share in found]
    sentence = beyond_typical(number_of_bad(round(float(victims.weight.sum())), failed), groups)
    cause, share = found[0]
    top = TopCause(cause=cause, group=groups[0][0], share=share, sentence=sentence)
    return Blamed(top, dict(found), victims, beyond)
