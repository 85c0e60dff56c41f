"""Counts of SLOs over several windows, and of each tenant, from cells of requests that no SLO can tell apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.measure.in_flight import InFlight
from collector.measure.sums import Sums
from collector.slo.cells import Bools, Judged, Outcomes
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
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


def counts_of(ended: Sums, not_ended: Mapping[str, int], *, sampled: bool) -> tuple[Counts, Errors | None]:
    """The counts of requests that ended and of others, and the standard errors where requests were sampled."""
    counts = Counts.model_validate({**ended, **not_ended})
    if not sampled:
        return counts, None
    variance = {name: ended.get(f"{name}_variance", 0.0) for name in WITH_VARIANCE}
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
    """Adds the cells of all bands that lie within a window.

    The cells are in the order of their bands, so that each band is a run of them. The sums of runs are those of bands,
    and their running sums are those of the windows:

        cells 5, 2 and 7 in bands 0, 1 and 1    runs begin at 0 and 1
        flags yes, no, yes                      [5, 0, 7] by cell, [5, 7] by band, [5, 12] by window
    """

    def __init__(
        self,
        judged: Judged,
        columns: Mapping[str, Sequence[Any]],
        sampled: bool,
        ends: Sequence[int],
        end_ns: int,
        in_flight: InFlight,
    ) -> None:
        self._judged = judged
        self._band_of = np.array(columns["band"], np.int64) - 1
        self.n = np.array(columns["n"], np.float64)
        self._sampled = np.array(columns["sampled"], np.float64)
        self._kind = np.float64 if sampled else np.int64
        self._places = {length: i for i, length in enumerate(ends)}
        self._variance = np.array(columns["variance"], np.float64) if sampled else None
        self._end_ns = end_ns
        self._in_flight = in_flight
        self._of_all = np.arange(len(self.n))

    @cached_property
    def _of_tenants(self) -> dict[str, Places]:
        """The places of each tenant's cells. To look for one tenant among all cells took a second with 200 of them."""
        return _places_of(self._judged.tenants)

    @cached_property
    def _open_of_tenants(self) -> dict[str, Places]:
        """The places of each tenant's requests in flight."""
        return _places_of(np.array(self._in_flight.columns["tenant"], object))

    def _up_to_each(
        self,
        flags: Sequence[Bools],
        values: npt.NDArray[np.float64],
        kind: type[np.int64 | np.float64],
        cells: Places,
    ) -> list[list[Number]]:
        """For each of the flags, the sums over the windows, the shortest first: each holds its band and all before.

        Only these cells are added, which are in the order of their bands.
        """
        by_band = np.zeros((len(flags), len(self._places)))
        bands, runs = np.unique(self._band_of[cells], return_index=True)
        if len(bands):
            some = np.array([flag[cells] for flag in flags]) * values[cells]
            by_band[:, bands] = np.add.reduceat(some, runs, axis=1)
        found: list[list[Number]] = by_band.cumsum(1).astype(kind).tolist()
        return found

    def ended(self) -> list[Number]:
        """The requests that ended in each window, the shortest first."""
        (found,) = self._up_to_each([np.ones(len(self.n), bool)], self.n, self._kind, self._of_all)
        return found

    def of(self, number: int, slo: Slo, lengths: Sequence[int], asked: Sequence[str] | None = None) -> SloCounts:
        """The counts of the SLO with this place among the SLOs, and of the tenants that are asked for."""
        outcomes = self._judged.outcomes(number)
        chosen = self._in_flight.selected(slo)
        bad = chosen & self._in_flight.bad(slo.thresholds)
        windows = self._windows(outcomes, chosen, bad, lengths, self._of_all, _ALL)
        if not slo.group_by:
            return SloCounts(windows, {})
        tenants, open_tenants = self._of_tenants, self._open_of_tenants
        sizes: Counter[str] = Counter()
        for tenant, cells in tenants.items():
            if outcomes.total[cells].any():
                sizes[tenant] = self.n[cells][outcomes.total[cells]].sum()
        for tenant, requests in open_tenants.items():
            if chosen[requests].any():
                sizes[tenant] += 0
        most = [tenant for tenant, _ in sizes.most_common(slo.most_groups)] if asked is None else asked
        groups = {t: (tenants.get(t, _NOTHING), open_tenants.get(t, _NOTHING)) for t in sorted(most)}
        by_tenant = {t: self._windows(outcomes, chosen, bad, lengths, *of) for t, of in groups.items()}
        return SloCounts(windows, by_tenant, len(sizes))

    def _windows(
        self,
        outcomes: Outcomes,
        chosen: Bools,
        bad: Bools,
        lengths: Sequence[int],
        cells: Places,
        requests: Places | slice,
    ) -> Windows:
        """The counts of these cells and of these `requests` in flight, by the length of their window."""
        flags = outcomes.items()
        sums = dict(zip(flags, self._up_to_each([*flags.values()], self.n, self._kind, cells), strict=True))
        if self._variance is not None:
            names = [f"{name}_variance" for name in WITH_VARIANCE]
            some = [flags[name] for name in WITH_VARIANCE]
            sums |= zip(names, self._up_to_each(some, self._variance, np.float64, cells), strict=True)
        (sampled,) = self._up_to_each([outcomes.total], self._sampled, np.int64, cells)
        in_flight, is_lost = self._in_flight, self._in_flight.is_lost[requests]
        lost_at_ns = in_flight.lost_at_ns[requests][chosen[requests] & is_lost]
        running = {
            "in_flight": number_of(chosen[requests] & ~is_lost),
            "in_flight_violations": number_of(bad[requests]),
        }
        windows: Windows = {}
        for length in lengths:
            place = self._places[length]
            ended = {name: values[place] for name, values in sums.items()}
            # A lost request belongs to the window in which it was given up, a request in flight to every window.
            not_ended = {**running, "lost": number_of(lost_at_ns >= self._end_ns - length)}
            # Where others were sampled, these are whole numbers all the same.
            whole = ended if sampled[place] else {name: int(n) for name, n in ended.items()}
            windows[length] = counts_of(whole, not_ended, sampled=bool(sampled[place]))
        return windows


def _places_of(tenants: npt.NDArray[np.object_]) -> dict[str, Places]:
    """The places in which each tenant stands: of b, a, b they are [1] for a, and [0, 2] for b."""
    names, number = np.unique(tenants, return_inverse=True)
    order = number.argsort(kind="stable")
    ends = np.bincount(number, minlength=len(names)).cumsum()
    return dict(zip(names.tolist(), np.split(order, ends[:-1]), strict=True)) if len(names) else {}
