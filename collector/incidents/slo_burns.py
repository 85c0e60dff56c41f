"""Finds the burns of error budgets in a window, those that last and those that are over, and their bad requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from collector.ask.window import LONGEST_NAME, Window
from collector.count.evaluation import burns, count_burns, open_requests
from collector.count.in_flight import Bools, InFlight
from collector.count.reader import Reader
from collector.count.summing import SloCounts, Windows, number_of
from collector.incidents.burn_history import Burned, EndedOfBurn, History, Key, ended_of_burns, longest_ns
from collector.incidents.incident import Incident, RequestList, incident, request_list
from collector.slo.burn import BurnRule, Tally, burn_rules
from collector.slo.burn_between import between
from collector.slo.burn_history import MINUTE_NS, Stretch, Watched, stretches
from collector.slo.model import Slo
from collector.slo.severity import SEVERITIES
from tokentrail.shared.durations import duration_text

MOST_TENANTS: Final = 10
"""Tenants of an SLO that have an incident: each one asks the store. The last one says how many more burn."""
MOST_PAST: Final = 50
"""Burns that are over and have lists of their requests, those that ended last. The others have numbers alone."""
Rules = Mapping[str, Sequence[BurnRule]]


def slo_burns(reader: Reader, window: Window) -> Iterator[Incident]:
    """An incident for each SLO of which a rule fires at the window's end, and one for each burn of the window before.

    The text of the former is about the most urgent rule. An SLO that is a promise to each tenant has one, too, for each
    tenant that burns worse than all of them together. Without a bad request that ended, a burn that lasts began when
    the oldest one arrived that is bad and has not ended.
    """
    if not reader.slos:
        return
    rules = {slo.name: burn_rules(slo, reader.windows) for slo in reader.slos}
    longest = max(slo.window for slo in reader.slos)
    oldest_ns = max(0, min(window.end_ns - longest, window.start_ns))
    in_flight = open_requests(reader, replace(window, start_ns=oldest_ns))
    counted = count_burns(reader, reader.slos, window, in_flight=in_flight)
    burning: list[_Burning] = []
    tenants: dict[str, list[str]] = {}
    for slo in reader.slos:
        tenants[slo.name] = [*counted[slo.name].groups]
        burning += _burning(slo, rules[slo.name], counted[slo.name])
    of_rules = max(map(longest_ns, rules.values()))
    history = History(reader, window, tenants, in_flight, of_rules)
    lasting, over = _lasting_and_over(history, window, rules, reader.slos, burning)
    searched = [*(one.searched for one in lasting), *(one.searched for one in over[:MOST_PAST])]
    ended = iter([*ended_of_burns(reader, window, searched), *[EndedOfBurn()] * len(over[MOST_PAST:])])
    for burns_now in lasting:
        yield _lasts(reader, window, burns_now, next(ended))
    for burned in over:
        yield _is_over(window, burned, next(ended), in_flight)


@dataclass(frozen=True)
class _Burning:
    """The most urgent rule that fires for an SLO, or for one of its tenants, the burn rates, and the counts of its long
    window. `others` are tenants that burn as well and have no incident: they are not `listed`.

    `slowest` is the last one of its severity that fires: it tells when the burn began. So the beginning does not move
    to a later time, and the requests do not become fewer, when a faster rule fires too.
    """

    slo: Slo
    rule: BurnRule
    slowest: BurnRule
    times: float
    peak: float
    tally: Tally
    tenant: str | None
    others: int = 0
    listed: bool = True
    began: int = 0
    """The minute of its change point."""

    @property
    def rank(self) -> int:
        """0: the most urgent severity."""
        return SEVERITIES.index(self.rule.severity)

    @property
    def key(self) -> Key:
        """Its place in the history."""
        return self.slo.name, self.tenant

    @property
    def searched(self) -> Burned:
        """By which its requests are looked for."""
        return Burned(self.slo, self.tenant, self.began, None)


@dataclass(frozen=True)
class _Over:
    """A burn that is over, and the requests of its minutes."""

    slo: Slo
    tenant: str | None
    stretch: Stretch
    first: int
    tally: Tally

    @property
    def rank(self) -> int:
        """0: the most urgent severity."""
        return SEVERITIES.index(self.stretch.rule.severity)

    @property
    def searched(self) -> Burned:
        """By which its requests are looked for."""
        return Burned(self.slo, self.tenant, self.first, self.stretch.last)


def _burning(slo: Slo, rules: Sequence[BurnRule], counts: SloCounts) -> list[_Burning]:
    """What burns now. The only tenant's requests are all there are: its incident is the SLO's."""
    of_slo = None if len(counts.groups) == 1 else _worst(slo, rules, counts.windows)
    of_tenants = [_worst(slo, rules, windows, tenant) for tenant, windows in counts.groups.items()]
    worse = [one for one in of_tenants if one and (of_slo is None or one.rank < of_slo.rank)]
    worse.sort(key=lambda one: (one.rank, -one.tally.bad))
    for place, one in enumerate(worse, 1):
        others = len(worse) - MOST_TENANTS if place == MOST_TENANTS else 0
        worse[place - 1] = replace(one, others=others, listed=place <= MOST_TENANTS)
    return [*([of_slo] if of_slo else []), *worse]


def _worst(slo: Slo, rules: Sequence[BurnRule], windows: Windows, tenant: str | None = None) -> _Burning | None:
    by_window = {length: counts for length, (counts, _) in windows.items()}
    firing = [burn for burn in burns(slo, rules, by_window) if burn.firing]
    if not firing:
        return None
    worst = firing[0]
    slowest = [burn.rule for burn in firing if burn.rule.severity == worst.rule.severity][-1]
    tally = by_window[worst.rule.long_ns].tally
    return _Burning(slo, worst.rule, slowest, worst.long or 0.0, worst.short or 0.0, tally, tenant)


def _lasting_and_over(
    history: History, window: Window, rules: Rules, slos: Sequence[Slo], burning: Sequence[_Burning]
) -> tuple[list[_Burning], list[_Over]]:
    """The burns that last, with their beginning, and those of the window that are over, the newest first."""
    lasting = [_with_beginning(history, one, rules[one.slo.name]) for one in burning if one.listed]
    unlisted = {one.key for one in burning if not one.listed}
    over: list[_Over] = []
    for slo in slos:
        keys = [key for key in history.keys if key[0] == slo.name]
        of_all: list[_Burning | _Over] = [one for one in lasting if one.key == keys[0]]
        for key in keys[1:] if len(keys) == 2 else keys:  # the only tenant's requests are all there are
            of_key = [one for one in lasting if one.key == key]
            past = [
                one
                for one in _past(history, window, slo, key[1], rules[slo.name], told=key in unlisted)
                if not any(_covers(other, one) for other in (*of_key, *(of_all if key[1] is not None else ())))
            ]
            over += past
            of_all += past if key[1] is None else []
    return lasting, sorted(over, key=lambda one: -one.stretch.last)


def _with_beginning(history: History, burning: _Burning, rules: Sequence[BurnRule]) -> _Burning:
    """The burn from its first minute on, also of what paged in the minutes before and overlaps it."""
    while True:
        minutes = history.minutes(burning.key)
        began = Watched(minutes, burning.slowest, burning.slo.budget).began()
        of_severity = [rule for rule in rules if rule.severity == burning.rule.severity]
        found = stretches(minutes, of_severity, burning.slo.budget)
        whole = [one for one in found if one.lasts or (began is not None and one.last >= began)]
        if began is not None and all(one.first is not None for one in whole):
            break
        history.go_back()
    peaks = [one.peak for one in whole if one.rule == burning.rule]
    return replace(
        burning, began=min([began, *(one.first for one in whole if one.first)]), peak=max([burning.peak, *peaks])
    )


def _past(
    history: History, window: Window, slo: Slo, tenant: str | None, rules: Sequence[BurnRule], *, told: bool
) -> Iterator[_Over]:
    """The burns of a window, without the one that lasts if the incident of all tenants tells of it (`told`).

    A page may fire by whole minutes, and a ticket alone at this second: then the page is over.
    """
    key = slo.name, tenant
    if history.bad()[key] < min(rule.least_bad for rule in rules):
        return
    asked = True
    while True:
        minutes = history.minutes(key, asked=asked)
        found = stretches(minutes, rules, slo.budget)
        more = between(minutes, rules, slo.budget, found, partial(history.steps, key))
        found = stretches(minutes, rules, slo.budget, more) if more else found
        over = [one for one in found if not (one.lasts and told)]
        inside = [one for one in over if (max(one.last, one.fired[1]) + 1) * MINUTE_NS > window.start_ns]
        if all(one.first is not None for one in inside) or not (asked or history.go_back()):
            break
        asked = False
    for one in inside:
        first = minutes.first if one.first is None else one.first
        of_burn = slice(first - minutes.first, one.last + 1 - minutes.first)
        tally = Tally(float(minutes.judged[of_burn].sum()), float(minutes.bad[of_burn].sum()))
        yield _Over(slo, tenant, one, first, tally)


def _covers(other: _Burning | _Over, one: _Over) -> bool:
    """Whether a burn has an incident that tells of another one too: at the same time, and as urgent or more."""
    if isinstance(other, _Burning):
        overlap = one.stretch.last >= other.began
    else:
        overlap = one.first <= other.stretch.last and other.first <= one.stretch.last
    return overlap and other.rank <= one.rank


def _fields(slo: Slo, tenant: str | None, rule: BurnRule, peak: float) -> dict[str, Any]:
    return {"slo": slo.name, "tenant": tenant, "severity": rule.severity, "rule": rule.name, "peak_burn": peak}


def _allowed(slo: Slo) -> str:
    return f"the SLO allows {(slo.budget * 100).normalize():f} %"


def _of_tenant(tenant: str | None) -> str:
    return "" if tenant is None else f" for {tenant or 'requests without a tenant'}"


def _lasts(reader: Reader, window: Window, burning: _Burning, ended: EndedOfBurn) -> Incident:
    slo, tenant, rule, tally, others = burning.slo, burning.tenant, burning.rule, burning.tally, burning.others
    since = replace(window, start_ns=ended.first_ns or window.end_ns - burning.slowest.long_ns)
    in_flight = open_requests(reader, since)
    judged = in_flight.judged([slo]).outcomes(0)
    bad = judged.bad & _of(in_flight, tenant)
    asked = _asked(slo, tenant)
    lists = [
        *request_list(since, ended.rows, **asked),
        *request_list(since, number_of(bad & judged.in_flight), **asked, status="in_flight"),
        *request_list(since, number_of(bad & judged.lost), **asked, status="lost"),
    ]
    return incident(
        "slo_burn",
        **_fields(slo, tenant, rule, burning.peak),
        title=f'SLO "{slo.name}" burns its error budget {burning.times:.1f} times as fast as allowed'
        f"{_of_tenant(tenant)}",
        detail=f"{tally.bad / tally.judged * 100:.3g} % of the requests of the last {duration_text(rule.long_ns)} "
        f"were bad; {_allowed(slo)}. {rule.name} fires above "
        f"{float(rule.threshold):.4g} times the allowed share, also over the last {duration_text(rule.short_ns)}."
        + (f" {others} more tenants burn their budgets too; `groups` of the SLO names them." if others else ""),
        start_ns=ended.first_ns or int(in_flight.began_ns[bad].min(initial=window.end_ns)),
        end_ns=None,
        requests_affected=ended.rows + number_of(bad),
        requests=_shown(tenant, lists),
    )


def _is_over(window: Window, over: _Over, ended: EndedOfBurn, in_flight: InFlight) -> Incident:
    slo, tenant, rule, tally = over.slo, over.tenant, over.stretch.rule, over.tally
    given_up = in_flight.lost_at_ns // MINUTE_NS
    lost = in_flight.is_lost & _of(in_flight, tenant) & (given_up >= over.first) & (given_up <= over.stretch.last)
    lost_ns = in_flight.lost_at_ns[lost & in_flight.judged([slo]).outcomes(0).lost].tolist()
    asked, lists = _asked(slo, tenant), []
    begins, ends = [*lost_ns], [ns + 1 for ns in lost_ns]
    if ended.first_ns is not None and ended.last_ns is not None:
        begins.append(ended.first_ns)
        ends.append(ended.last_ns)
        lists += request_list(replace(window, start_ns=ended.first_ns, end_ns=ended.last_ns), ended.rows, **asked)
    start_ns = min(begins, default=over.first * MINUTE_NS)
    end_ns = max(ends, default=min((over.stretch.last + 1) * MINUTE_NS, window.end_ns))
    if lists or not tally.bad > len(lost_ns):  # else it is one of the many that have no lists
        lists += request_list(replace(window, start_ns=start_ns, end_ns=end_ns), len(lost_ns), **asked, status="lost")
    return incident(
        "slo_burn",
        **_fields(slo, tenant, rule, over.stretch.peak),
        title=f'SLO "{slo.name}" burned its error budget up to {over.stretch.peak:.1f} times as fast as allowed'
        f"{_of_tenant(tenant)}",
        detail=f"{tally.bad / tally.judged * 100:.3g} % of its requests were bad; {_allowed(slo)}. {rule.name} fired: "
        f"more than {float(rule.threshold):.4g} times the allowed share over {duration_text(rule.long_ns)} and over "
        f"{duration_text(rule.short_ns)}.",
        start_ns=start_ns,
        end_ns=end_ns,
        requests_affected=sum(one.total for one in lists) if lists else round(tally.bad),
        requests=_shown(tenant, lists),
    )


def _asked(slo: Slo, tenant: str | None) -> dict[str, str]:
    return {"slo": slo.name, "verdict": "bad"} | ({} if tenant is None else {"tenant": tenant})


def _of(in_flight: InFlight, tenant: str | None) -> Bools:
    """The requests of a tenant; without one, all."""
    return np.ones(in_flight.size, bool) if tenant is None else in_flight.having("tenant", tenant)


def _shown(tenant: str | None, lists: list[RequestList]) -> list[RequestList]:
    """The lists, if a filter can ask for the tenant."""
    return lists if len(tenant or "") <= LONGEST_NAME else []
