"""Finds the SLOs that burn their error budgets, when each burn began, and its bad requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.measure.evaluation import burns, count_burns, open_requests
from collector.measure.incident import Incident, incident, request_list
from collector.measure.reader import Reader
from collector.measure.slices import ARRIVED, Arrays, slices
from collector.measure.summing import Windows, number_of
from collector.measure.times import DAY_NS
from collector.measure.verdicts import open_wanted
from collector.measure.window import LONGEST_NAME, Window
from collector.slo.burn import BurnRule, Tally, burn_rules
from collector.slo.durations import duration_text
from collector.slo.judge import selected, selects, verdict
from collector.slo.last_burn import PER_WINDOW, Cells, burn_began
from collector.slo.model import Promise, Slo
from collector.slo.severity import SEVERITIES
from collector.sql.fragment import Fragment, all_of, any_of

_CELL: Final = np.dtype(
    [("cell", "<u8"), ("judged", "<f8"), ("bad", "<f8"), ("bad_rows", "<u8"), ("first_bad_ns", "<u8")]
)
MOST_TENANTS: Final = 10
"""Tenants of an SLO that have an incident: each one asks the store. The last one says how many more burn."""


def slo_burns(reader: Reader, window: Window) -> Iterator[Incident]:
    """An incident for each SLO of which a rule fires at the window's end; its text is about the most urgent rule.

    An SLO that is a promise to each tenant has one, too, for each tenant that burns worse than all of them together.
    Without a bad request that ended, a burn began when the oldest one arrived that is bad and has not ended.
    """
    rules = {slo.name: burn_rules(slo, reader.windows) for slo in reader.slos}
    longest = max((slo.window for slo in reader.slos), default=0)
    in_flight = open_requests(reader, replace(window, start_ns=max(0, window.end_ns - longest)))
    counted = count_burns(reader, reader.slos, window, in_flight=in_flight)
    for slo in reader.slos:
        counts = counted[slo.name]
        # The only tenant's requests are all there are: its incident is the SLO's.
        together = None if len(counts.groups) == 1 else _worst(slo, rules[slo.name], counts.windows)
        found = [(tenant, _worst(slo, rules[slo.name], windows)) for tenant, windows in counts.groups.items()]
        worse = [(tenant, one) for tenant, one in found if one and (together is None or one.rank < together.rank)]
        worse.sort(key=lambda one: (one[1].rank, -one[1].tally.bad))
        if together:
            yield _incident(reader, window, slo, together)
        for place, (tenant, burning) in enumerate(worse[:MOST_TENANTS], 1):
            others = len(worse) - MOST_TENANTS if place == MOST_TENANTS else 0
            yield _incident(reader, window, slo, burning, tenant, others)


@dataclass(frozen=True)
class _Burning:
    """The most urgent rule that fires, the burn rate, and the counts of its long window.

    `slowest` is the last of all that fire: it tells when the burn began. So the beginning does not move to a later
    time, and the requests do not become fewer, when a faster rule fires too.
    """

    rule: BurnRule
    slowest: BurnRule
    times: float
    tally: Tally

    @property
    def rank(self) -> int:
        """0: the most urgent severity."""
        return SEVERITIES.index(self.rule.severity)


def _worst(slo: Slo, rules: Sequence[BurnRule], windows: Windows) -> _Burning | None:
    by_window = {length: counts for length, (counts, _) in windows.items()}
    firing = [burn for burn in burns(slo, rules, by_window) if burn.firing]
    if not firing:
        return None
    worst = firing[0]
    return _Burning(worst.rule, firing[-1].rule, worst.long or 0.0, by_window[worst.rule.long_ns].tally)


def _incident(
    reader: Reader, window: Window, slo: Slo, burning: _Burning, tenant: str | None = None, others: int = 0
) -> Incident:
    """The burn of an SLO, or of one of its tenants; `others` burn as well and have no incident."""
    rule, tally = burning.rule, burning.tally
    own = {} if tenant is None else {"tenant": tenant}
    of_group = selected({name: [value] for name, value in own.items()}, "burning")
    ended = _read_ended(reader, replace(window, filter=all_of(window.filter, of_group)), slo, burning.slowest)
    since = replace(window, start_ns=ended.first_ns or window.end_ns - burning.slowest.long_ns)
    in_flight = open_requests(reader, since)
    bad = open_wanted(in_flight, reader.slos, slo, "bad")
    if tenant is not None:
        bad &= np.array([one == tenant for one in in_flight.columns["tenant"]], bool)
    asked = {"slo": slo.name, "verdict": "bad", **own}
    lists = [
        *request_list(since, ended.rows, **asked),
        *request_list(since, number_of(bad & ~in_flight.is_lost), **asked, status="in_flight"),
        *request_list(since, number_of(bad & in_flight.is_lost), **asked, status="lost"),
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


@dataclass(frozen=True)
class _Ended:
    """Bad requests of a burn that ended: when the first did (None without any), and their number."""

    first_ns: int | None
    rows: int


def _read_ended(reader: Reader, window: Window, slo: Slo, rule: BurnRule) -> _Ended:
    """Looks back over more and more days until a calm is found; at most over the SLO's window.

    Requests burn when they arrive. Lists have those that ended since the first of the bad ones did.
    """
    cell_ns = rule.short_ns // PER_WINDOW
    first = max(0, window.end_ns - slo.window) // cell_ns
    read: list[Arrays] = []
    stretches = days_back(first * cell_ns, window.end_ns)
    while True:
        start_ns, end_ns = next(stretches)  # the last one has the oldest cell, with which every search ends
        read += _cells(reader, replace(window, start_ns=start_ns, end_ns=end_ns), slo, cell_ns, ARRIVED)
        cells = {name: np.concatenate([one[name] for one in read]) for name in _CELL.names or ()}
        order = cells["cell"].argsort(kind="stable")
        order = order[np.searchsorted(cells["cell"], first, sorter=order) :]
        number, judged, bad, rows, first_bad_ns = (cells[name][order] for name in _CELL.names or ())
        place = burn_began(
            Cells(
                max(first, -(-start_ns // cell_ns)), (window.end_ns - 1) // cell_ns, number.astype(np.int64),
                judged.astype(np.float64), bad.astype(np.float64),
            ),
            share=float(rule.threshold * slo.budget),
            most_apart=rule.long_ns // cell_ns,
            is_all=start_ns <= first * cell_ns,
        )  # fmt: skip
        if place is not None:
            of_burn = first_bad_ns[place:][rows[place:] > 0]
            if not len(of_burn):
                return _Ended(None, 0)
            since = replace(window, start_ns=int(of_burn.min()))
            ended = _cells(reader, since, slo, cell_ns, "end")
            return _Ended(since.start_ns, sum(int(one["bad_rows"].sum()) for one in ended))


def days_back(start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    """Stretches that reach back to a start or farther: the present day, then 1, 2, 4, … whole days before."""
    midnight, days = end_ns // DAY_NS * DAY_NS, 1
    yield max(start_ns, midnight), end_ns
    while midnight > start_ns:
        earlier = max(midnight - days * DAY_NS, start_ns // DAY_NS * DAY_NS)
        yield earlier, midnight
        midnight, days = earlier, 2 * days


def _cells(reader: Reader, window: Window, slo: Slo, cell_ns: int, column: str) -> list[Arrays]:
    """The cells of a stretch, by this time. A cell lies in one hour, so no two slices have a part of the same."""
    judged = verdict([Promise.to_all(slo.thresholds).model_copy(update={"errors": slo.errors})])
    fragments = {
        "cell": Fragment(
            f"intDiv(toUnixTimestamp64Nano(toDateTime64({column}, 9)), {{cell_ns:Int64}})", {"cell_ns": cell_ns}
        ),
        "good": judged.good,
        "unjudged": any_of(judged.undetermined, judged.excused),
    }
    matching = all_of(window.filter, selects(slo, "slo"))
    return [
        one.arrays(reader.queries, "burn_cells", fragments, matching, _CELL)
        for one in slices([window.end_ns, window.start_ns], column=column)
    ]
