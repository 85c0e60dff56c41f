"""Counters of each SLO: judged, good and undetermined requests, by tenant where the SLO is a promise to each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.causes.split.names import PARTS
from collector.count.in_flight import InFlight
from collector.metrics import metrics
from collector.metrics.early import Early, EarlyRequests
from collector.metrics.metrics import Metric
from collector.metrics.series import OTHER, SECOND_NS, Labels, Series, fits, printable
from collector.slo.cells import Cells
from collector.slo.judged import Outcomes
from collector.slo.model import Slo
from collector.store.early_claims import EarlyCount


class SloCounters:
    """Adds requests to the counters when they end, or before, when they are known to be bad. The caller has a lock."""

    def __init__(self, series: Series, slos: Sequence[Slo], early: EarlyRequests, clock: Callable[[], int]) -> None:
        self.cells = Cells(slos)
        self._series, self._slos, self._early, self._clock = series, slos, early, clock
        self._names = {slo.name for slo in slos}
        # The alert on an SLO that nobody counts for asks whether it has counters.
        for name in {name for name, _ in series.counters.get(metrics.SLO_REQUESTS, ())} - self._names:
            series.drop(("slo",), (name,))
        for name in self._names:
            self._begin((name, ""))

    def add_ended(self, rows: Sequence[Mapping[str, Any]], early: Mapping[str, Sequence[Any]]) -> None:
        """Count the requests of `rows` that ended, without those of `early` that were counted before they ended."""
        if not self._slos:
            return
        ended, again = self.cells.judged([row["cell"] for row in rows]), self.cells.judged(early["cell"])
        known = [self._early.get(key) for key in early["key"]]
        sums: dict[tuple[Metric, str, str], float] = defaultdict(float)
        for i, slo in enumerate(self._slos):
            for metric, flags in _counted(ended.outcomes(i)):
                for row in compress(rows, flags):
                    sums[metric, slo.name, row["tenant_group"] if slo.group_by else ""] += row["n"]
            repeated = again.outcomes(i)
            for place, one in enumerate(known):
                if one is None or slo.name not in one.late | one.lost:
                    continue
                group = early["tenant_group"][place] if slo.group_by else ""
                for metric, flags in _counted(repeated):
                    if flags[place]:
                        sums[metric, slo.name, group] -= early["n"][place]
                # A late one that ended without a token is good. One stays bad when its end says less than it announced.
                is_well = repeated.good[place] if slo.name in one.late else not repeated.bad[place]
                if is_well and not one.is_over:
                    sums[metrics.SLO_GOOD, slo.name, group] += 1
        for one in known:
            if one is not None:
                one.is_over = True
        for (metric, name, group), total in sums.items():
            self._add(metric, name, group, total)

    def add_causes(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the times of the bad requests of `rows`, which are of the query `segment_causes`."""
        if not self._slos or not rows:
            return
        judged, at_s = self.cells.judged([row["cell"] for row in rows]), self._clock() / SECOND_NS
        times_us = np.array([row["before"] for row in rows]) + np.array([row["after"] for row in rows])
        for i, slo in enumerate(self._slos):
            for cause, us in zip(PARTS, times_us[judged.outcomes(i).bad].sum(0).tolist(), strict=True):
                if us:
                    self._series.add(metrics.SLO_CAUSE_TIME, (slo.name, cause), us / 1e6, at_s=at_s)

    def new_in_flight(self, in_flight: InFlight) -> list[EarlyCount]:
        """The requests that are bad by now or lost, and are not counted yet."""
        counts, now_ns = [], self._clock()
        judged = in_flight.judged_behind(self.cells.judged([]))
        for number, slo in enumerate(self._slos):
            outcomes = judged.outcomes(number)
            past = np.logical_or.reduce([judged.missed(*given) for given in slo.thresholds.given().items()])
            self._series.set(metrics.SLO_IN_FLIGHT, (slo.name,), int(np.count_nonzero(outcomes.in_flight_violations)))
            for i in np.flatnonzero(outcomes.bad).tolist():
                group = in_flight.columns["tenant"][i] if slo.group_by else ""
                count = EarlyCount(in_flight.key(i), slo.name, group, bool(past[i]), in_flight.processes[i], now_ns)
                early = self._early.get(count.key)
                if early is None or not (early.is_over or slo.name in early.late | early.lost):
                    counts.append(count)
                else:
                    early.seen_ns = now_ns
                    self.add_early(count, early, is_own=False)
        return counts

    def add_early(self, count: EarlyCount, early: Early, *, is_own: bool) -> None:
        """Remember that a request was counted before its end, by this collector or another one."""
        slo = count.slo
        if early.is_over or slo not in self._names:
            return
        if is_own and slo not in early.late | early.lost:
            self._add(metrics.SLO_REQUESTS, slo, count.tenant, 1)
        (early.late if count.is_late else early.lost).add(slo)

    def _add(self, metric: Metric, slo: str, group: str, n: float) -> None:
        group = printable(group)
        labels = self._labels(slo, group)
        self._series.add(metric, labels, n)
        if labels[1] != group and metric is metrics.SLO_REQUESTS:
            self._series.add(metrics.OVERFLOW, ("tenants",), n)

    def _labels(self, slo: str, group: str) -> Labels:
        """The labels of an SLO's series. Groups beyond its limit count together."""
        labels = slo, group
        known = self._series.counters[metrics.SLO_REQUESTS]
        if labels in known:
            return labels
        most = next(s.most_groups for s in self._slos if s.name == slo)
        has_room = sum(name == slo for name, _ in known) <= most and fits(group)
        return self._begin(labels if has_room else (slo, OTHER))

    def _begin(self, labels: Labels) -> Labels:
        """Counters start at 0, so that the first requests are an increase."""
        at_s = self._clock() / SECOND_NS
        for metric in (metrics.SLO_REQUESTS, metrics.SLO_GOOD, metrics.SLO_UNDETERMINED):
            self._series.add(metric, labels, at_s=at_s)
        return labels


def _counted(outcomes: Outcomes) -> tuple[tuple[Metric, npt.NDArray[np.bool_]], ...]:
    """By metric, the requests that it counts."""
    return (
        (metrics.SLO_REQUESTS, outcomes.good | outcomes.bad),
        (metrics.SLO_GOOD, outcomes.good),
        (metrics.SLO_UNDETERMINED, outcomes.undetermined),
    )
