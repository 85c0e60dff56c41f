"""Counts of SLOs over several windows, and of each tenant, from cells of requests that no SLO can tell apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.measure.population import Floats, Population
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.judged import Bools, Outcomes
from collector.slo.model import Slo

UNJUDGED: Final = ("unselected", "excused", "undetermined")
"""Ended requests that are not in the denominator of attainment."""
WITH_VARIANCE: Final = ("total", "good", *UNJUDGED)
Places = npt.NDArray[np.intp]
_NOTHING: Final = np.empty(0, np.intp)
_ALL: Final = slice(None)

Windows = dict[int, tuple[Counts, Errors | None]]
"""Counts by the length of their window, in nanoseconds."""


@dataclass(frozen=True)
class SloCounts:
    """One SLO's counts. `groups` has those of each tenant with the most requests, for an SLO that groups by tenant."""

    windows: Windows
    groups: Mapping[str, Windows]
    groups_total: int = 0
    """All tenants, also those that are not among `groups`."""


def counts_of(sums: Mapping[str, Number], *, sampled: bool) -> tuple[Counts, Errors | None]:
    """The counts of requests, and the standard errors where they were sampled."""
    counts = Counts.model_validate(sums)
    if not sampled:
        return counts, None
    variance = {name: sums.get(f"{name}_variance", 0.0) for name in WITH_VARIANCE}
    return counts, Errors.of(
        counts,
        total_variance=variance["total"],
        good_variance=variance["good"],
        judged_variance=variance["total"] - sum(variance[name] for name in UNJUDGED),
    )


def number_of(requests: Bools) -> int:
    """The number of requests with this flag."""
    return int(np.count_nonzero(requests))


class Summing:
    """Adds the cells of all bands within a window: cells 5, 2 and 7 in bands 1, 2 and 2 are [5, 14] by window."""

    def __init__(self, population: Population, ends: Sequence[int]) -> None:
        self._population = population
        self._kind = np.float64 if population.sampled else np.int64
        self._places = {length: i for i, length in enumerate(ends)}

    @cached_property
    def _of_tenants(self) -> dict[str, Places]:
        """The places of each tenant's cells. To look for one tenant among all cells took a second with 200 of them."""
        return _places_of(self._population.group)

    def _up_to_each(
        self, flags: Bools, values: Floats, kind: type[np.int64 | np.float64], cells: Places | slice
    ) -> list[Number]:
        """The sums of these cells over the windows, the shortest first: each holds its band and all before."""
        by_band = np.bincount(self._population.band[cells] - 1, flags[cells] * values[cells], len(self._places))
        found: list[Number] = by_band.cumsum().astype(kind).tolist()
        return found[: len(self._places)]

    def total(self) -> list[Number]:
        """The requests in each window, the shortest first."""
        n = self._population.n
        return self._up_to_each(np.ones(len(n), bool), n, self._kind, _ALL)

    def of(self, number: int, slo: Slo, lengths: Sequence[int], asked: Sequence[str] | None = None) -> SloCounts:
        """The counts of the SLO with this place among the SLOs, and of the tenants that are asked for."""
        outcomes = self._population.judged.outcomes(number).at(self._population.cell)
        windows = self._windows(outcomes, lengths, _ALL)
        if not slo.group_by:
            return SloCounts(windows, {})
        ended, chosen = outcomes.total * self._population.n, outcomes.selected
        tenants = {tenant: cells for tenant, cells in self._of_tenants.items() if chosen[cells].any()}
        if asked is None:
            sizes = Counter({tenant: ended[cells].sum() for tenant, cells in tenants.items()})
            asked = [tenant for tenant, _ in sizes.most_common(slo.most_groups)]
        by_tenant = {t: self._windows(outcomes, lengths, tenants.get(t, _NOTHING)) for t in sorted(asked)}
        return SloCounts(windows, by_tenant, len(tenants))

    def _windows(self, outcomes: Outcomes, lengths: Sequence[int], cells: Places | slice) -> Windows:
        """The counts of these cells, by the length of their window."""
        flags, population = outcomes.items(), self._population
        sums = {name: self._up_to_each(flag, population.n, self._kind, cells) for name, flag in flags.items()}
        if population.sampled:
            for name in WITH_VARIANCE:
                sums[f"{name}_variance"] = self._up_to_each(flags[name], population.variance, np.float64, cells)
        sampled = self._up_to_each(outcomes.total, population.of_sampled, np.int64, cells)
        windows: Windows = {}
        for length in lengths:
            place = self._places[length]
            found = {name: values[place] for name, values in sums.items()}
            # Where others were sampled, these are whole numbers all the same.
            whole = found if sampled[place] else {name: int(n) for name, n in found.items()}
            windows[length] = counts_of(whole, sampled=bool(sampled[place]))
        return windows


def _places_of(tenants: npt.NDArray[np.object_]) -> dict[str, Places]:
    """The places in which each tenant stands: of b, a, b they are [1] for a, and [0, 2] for b."""
    names, number = np.unique(tenants, return_inverse=True)
    order = number.argsort(kind="stable")
    ends = np.bincount(number, minlength=len(names)).cumsum()
    return dict(zip(names.tolist(), np.split(order, ends[:-1]), strict=True)) if len(names) else {}
