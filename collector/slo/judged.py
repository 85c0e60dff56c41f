"""The judgement of cells of requests (collector.slo.cells) and of requests that have not ended, by several promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.slo.model import Promise

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

ENDED: Final = range(4)
"""ok, failed, cancelled, unknown: the numbers of statuses."""
_IN_FLIGHT, _LOST = len(ENDED), len(ENDED) + 1


def unknown_place(name: str, edges: Sequence[int]) -> int:
    """What a latency that is not known adds to its place. Without a bound it exceeds all thresholds."""
    return len(edges) + 1 if name in ("tpot", "first_visible") else 1


@dataclass(frozen=True)
class Outcomes:
    """One flag per cell. Under TTFT ≤ 1 s and E2E ≤ 9 s:

    ok, TTFT 0.5 s, E2E 5 s          met both                                    good
    ok, TTFT NULL, E2E 5 s           met one, and the other one is not known     undetermined
    ok, TTFT NULL, E2E 20 s          missed one                                  bad
    cancelled after 0.5 s            missed none before                          excused
    cancelled after 5 s, no token    waited for longer than 1 s                  bad
    unknown, TTFT 0.5 s, E2E 5 s     met both, if it ended well                  undetermined
    unknown, TTFT 0.5 s, E2E 20 s    missed one                                  bad
    in flight for 5 s, no token      waited for longer than 1 s                  bad, one of `in_flight_violations`
    in flight for 5 s, TTFT 0.5 s    missed none until now                       pending
    lost                             nobody knows                                bad
    """

    total: Bools
    ok: Bools
    good: Bools
    undetermined: Bools
    failed: Bools
    cancelled: Bools
    unknown: Bools
    excused: Bools
    unselected: Bools
    in_flight: Bools
    in_flight_violations: Bools
    lost: Bools

    @property
    def selected(self) -> Bools:
        """Ended or not."""
        return self.total | self.in_flight | self.lost

    @property
    def pending(self) -> Bools:
        """In flight and not past a threshold."""
        return self.in_flight & ~self.in_flight_violations

    @property
    def bad(self) -> Bools:
        """Judged and not good."""
        ended = self.total & ~self.good & ~self.undetermined & ~self.excused
        return (ended | self.in_flight_violations | self.lost) & ~self.unselected

    def items(self) -> Mapping[str, Bools]:
        """The flags by name."""
        return vars(self)


class Judged:
    """Cells with the judgement of each SLO."""

    def __init__(
        self,
        promises: Sequence[Promise],
        edges: Mapping[str, Sequence[int]],
        numbers: npt.NDArray[np.uint64],
        status: Ints,
        cells: Mapping[str, Ints],
        selected: Bools,
        excluded: Bools,
    ) -> None:
        """`selected` and `excluded` have a row for each cell and a column for each promise."""
        self.promises = promises
        self._edges = edges
        self.numbers = numbers
        """The cells, as the store has them; 0 for a request that has not ended."""
        self._status = status
        self._ok, self._failed, self._cancelled, self._unknown = (status == one for one in ENDED)
        self._in_flight, self._lost = status == _IN_FLIGHT, status == _LOST
        self.ended = status < len(ENDED)
        self._cells = cells
        self._selected = selected
        self._excluded = excluded
        self._compared: dict[tuple[str, int], tuple[Bools, Bools]] = {}

    def with_open(self, is_lost: Bools, missed_ns: Mapping[str, Ints], selected: Bools) -> Judged:
        """These cells, and behind them requests that have not ended.

        `missed_ns` is the largest threshold of each latency that a request has missed, `selected` as above.
        """
        missed = {name: np.searchsorted(edges, missed_ns[name], side="right") for name, edges in self._edges.items()}
        return Judged(
            self.promises,
            self._edges,
            np.append(self.numbers, np.zeros(len(is_lost), np.uint64)),
            np.append(self._status, np.where(is_lost, _LOST, _IN_FLIGHT)),
            {name: np.append(self._cells[name], places) for name, places in missed.items()},
            np.concatenate([self._selected, selected]),
            np.concatenate([self._excluded, np.zeros_like(selected)]),
        )

    def __len__(self) -> int:
        """The number of cells."""
        return len(self._status)

    def outcomes(self, number: int) -> Outcomes:
        """The judgement of the SLO with this place in the file."""
        chosen = self._selected[:, number]
        ok, failed, cancelled = self._ok, self._failed, self._cancelled
        met, missed = np.ones(len(ok), bool), np.zeros(len(ok), bool)
        for name, ns in self.promises[number].thresholds.given().items():
            met_one, missed_one = self._against(name, ns)
            met, missed = met & met_one, missed | missed_one
        excluded = failed & self._excluded[:, number]
        return Outcomes(
            total=chosen & self.ended,
            ok=chosen & ok,
            good=chosen & ok & met,
            undetermined=chosen & ((ok & ~met) | self._unknown) & ~missed,
            failed=chosen & failed,
            cancelled=chosen & cancelled,
            unknown=chosen & self._unknown,
            excused=chosen & ((cancelled & ~missed) | excluded),
            unselected=np.zeros_like(chosen),
            in_flight=chosen & self._in_flight,
            in_flight_violations=chosen & self._in_flight & missed,
            lost=chosen & self._lost,
        )

    def of_all_slos(self) -> Outcomes:
        """The judgement by all promises at once: good for each that selects a request, bad for one is bad, undetermined
        for one and bad for none is undetermined.
        """
        each = [self.outcomes(i) for i in range(len(self.promises))]
        chosen = self.selected_by_any
        ok, failed, cancelled = self._ok, self._failed, self._cancelled

        def for_all(names: Sequence[str]) -> Bools:
            """Some promise selects it, and each that does says one of these."""
            says_so = chosen
            for one in each:
                says_so = says_so & (~one.total | np.logical_or.reduce([getattr(one, name) for name in names]))
            return says_so

        good = ok & for_all(["good"])
        return Outcomes(
            total=self.ended,
            ok=ok,
            good=good,
            undetermined=(ok | self._unknown) & ~good & for_all(["good", "undetermined"]),
            failed=failed,
            cancelled=cancelled,
            unknown=self._unknown,
            excused=(failed | cancelled) & for_all(["excused"]),
            unselected=~chosen & ~self._in_flight,
            in_flight=self._in_flight,
            in_flight_violations=np.logical_or.reduce(
                [np.zeros_like(chosen), *(one.in_flight_violations for one in each)]
            ),
            lost=self._lost,
        )

    @cached_property
    def selected_by_any(self) -> Bools:
        """Which cells one of the promises selects, or more."""
        selected: Bools = np.logical_or.reduce(self._selected, axis=1)
        return selected

    def met(self, name: str, ns: int) -> Bools:
        """Which cells are known to meet a threshold of one of the promises."""
        return self._against(name, ns)[0]

    def missed(self, name: str, ns: int) -> Bools:
        """Which cells are known to have missed a threshold of one of the promises."""
        return self._against(name, ns)[1]

    def missed_of(self, name: str, numbers: Iterable[int]) -> Bools:
        """Which cells missed this threshold of one of the promises with these places that selects them."""
        missed = np.zeros(len(self), bool)
        for i in numbers:
            if (ns := self.promises[i].thresholds.given().get(name)) is not None:
                missed |= self._selected[:, i] & self.missed(name, ns)
        return missed

    def places(self, name: str) -> tuple[Ints, Ints]:
        """How many thresholds of a latency, the shortest first, each cell does not meet, and how many it missed.

        A latency that is not known misses none, and meets those that its bound meets. The bound of a first visible
        token is the least that it can be: it misses what its bound misses, and meets none.
        """
        cell, edges = self._cells[name], self._edges[name]
        is_known = cell <= len(edges)
        bound = np.where(is_known, cell, cell - unknown_place(name, edges))
        if name == "first_visible":
            return np.where(is_known, cell, len(edges)), bound
        return bound, np.where(is_known, cell, 0)

    def _against(self, name: str, ns: int) -> tuple[Bools, Bools]:
        """Which cells meet a threshold and which miss it."""
        if (name, ns) not in self._compared:
            place, (unmet, missed) = self._edges[name].index(ns), self.places(name)
            self._compared[name, ns] = unmet <= place, missed > place
        return self._compared[name, ns]
