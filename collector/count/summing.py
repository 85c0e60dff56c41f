"""Counts of SLOs over several windows, and of each tenant, from cells of requests that no SLO can tell apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.count.population import Floats, Population
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.judged import Bools, Ints, Outcomes
from collector.slo.model import Slo

UNJUDGED: Final = ("unselected", "excused", "undetermined")
"""Ended requests that are not in the denominator of attainment."""
WITH_VARIANCE: Final = ("total", "good", *UNJUDGED)
Places = npt.NDArray[np.intp]

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


@dataclass(frozen=True)
class _Totals:
    """How many requests of each of these different cells are in each window: a row for each cell, the shortest window
    first. A window holds its band and all before: cell 4 with 5, 2 and 7 requests in bands 1, 2 and 2 has [5, 14].
    """

    cells: Ints
    """Places among the population's different cells."""
    n: Floats
    variance: Floats
    of_sampled: Floats

    @classmethod
    def of(cls, population: Population, places: Places | slice, windows: int) -> _Totals:
        """The totals of the cells at these places. The band behind the last window has requests that are in none."""
        cells, place = np.unique(population.cell[places], return_inverse=True)
        bands = windows + 1
        at = place * bands + population.band[places] - 1

        def up_to_each(values: Floats) -> Floats:
            by_band = np.bincount(at, values[places], len(cells) * bands)
            return by_band.reshape(-1, bands)[:, :windows].cumsum(axis=1)

        return cls(cells, *map(up_to_each, (population.n, population.variance, population.of_sampled)))

    def having(self, flag: Bools) -> Bools:
        """Which of the cells have a flag."""
        return flag[self.cells]


class Summing:
    """Adds the requests of many SLOs over windows, each of which holds the shorter ones."""

    def __init__(self, population: Population, ends: Sequence[int]) -> None:
        self._population = population
        self._kind = np.float64 if population.sampled else np.int64
        self._places = {length: i for i, length in enumerate(ends)}
        self._of_all = _Totals.of(population, slice(None), len(ends))

    @cached_property
    def _of_tenants(self) -> dict[str, _Totals]:
        """Of each tenant. To look for one tenant among all cells took a second with 200 of them."""
        places = _places_of(self._population.group)
        return {tenant: _Totals.of(self._population, some, len(self._places)) for tenant, some in places.items()}

    def total(self) -> list[Number]:
        """The requests in each window, the shortest first."""
        totals: list[Number] = self._of_all.n.sum(axis=0).astype(self._kind).tolist()
        return totals

    def of(self, number: int, slo: Slo, lengths: Sequence[int], asked: Sequence[str] | None = None) -> SloCounts:
        """The counts of the SLO with this place among the SLOs, and of the tenants that are asked for."""
        outcomes = self._population.judged.outcomes(number)
        windows = self._windows(outcomes, lengths, self._of_all)
        if not slo.group_by:
            return SloCounts(windows, {})
        tenants = {name: one for name, one in self._of_tenants.items() if one.having(outcomes.selected).any()}
        if asked is None:
            sizes = Counter({name: one.n[one.having(outcomes.total), -1].sum() for name, one in tenants.items()})
            asked = [name for name, _ in sizes.most_common(slo.most_groups)]
        by_tenant = {name: self._windows(outcomes, lengths, tenants.get(name, self._nothing)) for name in sorted(asked)}
        return SloCounts(windows, by_tenant, len(tenants))

    @cached_property
    def _nothing(self) -> _Totals:
        return _Totals.of(self._population, slice(0), len(self._places))

    def _windows(self, outcomes: Outcomes, lengths: Sequence[int], totals: _Totals) -> Windows:
        """The counts of these cells, by the length of their window."""

        def summed(names: Iterable[str], values: Floats) -> dict[str, list[float]]:
            flags = np.array([totals.having(getattr(outcomes, name)) for name in names], np.float64)
            return dict(zip(names, (flags @ values).tolist(), strict=True))

        sums = summed(outcomes.items(), totals.n)
        if self._population.sampled:
            variances = summed(WITH_VARIANCE, totals.variance)
            sums |= {f"{name}_variance": values for name, values in variances.items()}
        (sampled,) = summed(["total"], totals.of_sampled).values()
        windows: Windows = {}
        for length in lengths:
            place = self._places[length]
            counts = {name: values[place] for name, values in sums.items()}
            # Where others were sampled, these are whole numbers all the same.
            whole = counts if sampled[place] else {name: int(n) for name, n in counts.items()}
            windows[length] = counts_of(whole, sampled=bool(sampled[place]))
        return windows


def _places_of(tenants: npt.NDArray[np.object_]) -> dict[str, Places]:
    """The places in which each tenant stands: of b, a, b they are [1] for a, and [0, 2] for b."""
    names, number = np.unique(tenants, return_inverse=True)
    order = number.argsort(kind="stable")
    ends = np.bincount(number, minlength=len(names)).cumsum()
    return dict(zip(names.tolist(), np.split(order, ends[:-1]), strict=True)) if len(names) else {}
