"""Finds the SLOs that burn their error budgets, when each burn began, and its bad requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.measure.burn_start import Burn, EndedOfBurn, ended_of_burns
from collector.measure.evaluation import burns, count_burns, open_requests
from collector.measure.incident import Incident, incident, request_list
from collector.measure.reader import Reader
from collector.measure.summing import Windows, number_of
from collector.measure.window import LONGEST_NAME, Window
from collector.slo.burn import BurnRule, Tally, burn_rules
from collector.slo.durations import duration_text
from collector.slo.model import Slo
from collector.slo.severity import SEVERITIES

MOST_TENANTS: Final = 10
"""Tenants of an SLO that have an incident: each one asks the store. The last one says how many more burn."""


def slo_burns(reader: Reader, window: Window) -> Iterator[Incident]:
    """An incident for each SLO of which a rule fires at the window's end; its text is about the most urgent rule.

    An SLO that is a promise to each tenant has one, too, for each tenant that burns worse than all of them together.
    Without a bad request that ended, a burn began when the oldest one arrived that is bad and has not ended.
    """
    burning = [*_burning(reader, window)]
    found = ended_of_burns(reader, window, [one.search for one in burning])
    for one, ended in zip(burning, found, strict=True):
        yield _incident(reader, window, one, ended)


def _burning(reader: Reader, window: Window) -> Iterator[_Burning]:
    rules = {slo.name: burn_rules(slo, reader.windows) for slo in reader.slos}
    longest = max((slo.window for slo in reader.slos), default=0)
    in_flight = open_requests(reader, replace(window, start_ns=max(0, window.end_ns - longest)))
    counted = count_burns(reader, reader.slos, window, in_flight=in_flight)
    for slo in reader.slos:
        counts = counted[slo.name]
        # The only tenant's requests are all there are: its incident is the SLO's.
        together = None if len(counts.groups) == 1 else _worst(slo, rules[slo.name], counts.windows)
        found = [_worst(slo, rules[slo.name], windows, tenant) for tenant, windows in counts.groups.items()]
        worse = [one for one in found if one and (together is None or one.rank < together.rank)]
        worse.sort(key=lambda one: (one.rank, -one.tally.bad))
        if together:
            yield together
        for place, one in enumerate(worse[:MOST_TENANTS], 1):
            yield replace(one, others=len(worse) - MOST_TENANTS if place == MOST_TENANTS else 0)


@dataclass(frozen=True)
class _Burning:
    """The most urgent rule that fires for an SLO, or for one of its tenants, the burn rate, and the counts of its long
    window. `others` are tenants that burn as well and have no incident.

    `slowest` is the last of all that fire: it tells when the burn began. So the beginning does not move to a later
    time, and the requests do not become fewer, when a faster rule fires too.
    """

    slo: Slo
    rule: BurnRule
    slowest: BurnRule
    times: float
    tally: Tally
    tenant: str | None
    others: int = 0

    @property
    def rank(self) -> int:
        """0: the most urgent severity."""
        return SEVERITIES.index(self.rule.severity)

    @property
    def search(self) -> Burn:
        """By which its beginning is looked for."""
        return Burn(self.slo, self.slowest, self.tenant)


def _worst(slo: Slo, rules: Sequence[BurnRule], windows: Windows, tenant: str | None = None) -> _Burning | None:
    by_window = {length: counts for length, (counts, _) in windows.items()}
    firing = [burn for burn in burns(slo, rules, by_window) if burn.firing]
    if not firing:
        return None
    worst = firing[0]
    return _Burning(slo, worst.rule, firing[-1].rule, worst.long or 0.0, by_window[worst.rule.long_ns].tally, tenant)


def _incident(reader: Reader, window: Window, burning: _Burning, ended: EndedOfBurn) -> Incident:
    slo, tenant, rule, tally, others = burning.slo, burning.tenant, burning.rule, burning.tally, burning.others
    own = {} if tenant is None else {"tenant": tenant}
    since = replace(window, start_ns=ended.first_ns or window.end_ns - burning.slowest.long_ns)
    in_flight = open_requests(reader, since)
    judged = in_flight.judged([slo]).outcomes(0)
    bad = judged.bad
    if tenant is not None:
        bad &= np.array([one == tenant for one in in_flight.columns["tenant"]], bool)
    asked = {"slo": slo.name, "verdict": "bad", **own}
    lists = [
        *request_list(since, ended.rows, **asked),
        *request_list(since, number_of(bad & judged.in_flight), **asked, status="in_flight"),
        *request_list(since, number_of(bad & judged.lost), **asked, status="lost"),
    ]
    of_tenant = "" if tenant is None else f" for {tenant or 'requests without a tenant'}"
    return incident(
        "slo_burn",
        severity=rule.severity,
        title=f'SLO "{slo.name}" burns its error budget {burning.times:.1f} times as fast as allowed{of_tenant}',
        detail=f"{tally.bad / tally.judged * 100:.3g} % of the requests of the last {duration_text(rule.long_ns)} "
        f"were bad; the SLO allows {(slo.budget * 100).normalize():f} %. {rule.name} fires above "
        f"{float(rule.threshold):.4g} times the allowed share, also over the last {duration_text(rule.short_ns)}."
        + (f" {others} more tenants burn their budgets too; `groups` of the SLO names them." if others else ""),
        start_ns=ended.first_ns or int(in_flight.began_ns[bad].min(initial=window.end_ns)),
        end_ns=None,
        slo=slo.name,
        tenant=tenant,
        requests_affected=ended.rows + number_of(bad),
        requests=lists if len(tenant or "") <= LONGEST_NAME else [],
    )
