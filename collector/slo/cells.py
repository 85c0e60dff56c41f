"""Judges ended requests for many SLOs in one pass: the store counts requests in cells, and arrays judge the cells.

A cell holds the requests that no SLO can tell apart. With two SLOs, over thresholds of 1 s and 2 s for TTFT:

    selected  status  ttft    n        meets 1 s    meets 2 s
    0b11      0       0       970      yes          yes
    0b11      0       1       20       no           yes
    0b01      1       2       10       failed
    0b11      0       3       5        not known (3 = number of thresholds + 1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.slo.judge import UNKNOWN_US, error_excluded, exceeds, selected
from collector.slo.model import Promise, Slo
from collector.sql.fragment import FALSE, Fragment, merged

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_LATENCIES: Final = ("ttft", "tpot", "e2e")
_STATUS: Final = Fragment("toUInt8(status = 'error') + 2 * toUInt8(status = 'cancelled')")
_OK, _FAILED, _CANCELLED = range(3)
MOST_PREDICATES: Final = 256
"""SLOs of one file may have so many different selections and lists of excluded errors together."""


class Cells:
    """The columns by which the store groups requests for these SLOs, and the judgement of such groups."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        """Raises ValueError for more than `MOST_PREDICATES` different selections and lists of errors."""
        self._slos = slos
        self._edges = {
            name: sorted({ns for slo in slos for key, ns in slo.thresholds.given().items() if key == name})
            for name in _LATENCIES
        }
        self._bits: dict[str, int] = {}
        self._places: list[tuple[int, int]] = []
        predicates: list[Fragment] = []
        for i, slo in enumerate(slos):
            asked = selected(slo.select, f"slo{i}"), error_excluded(slo, f"slo{i}")
            self._places.append(
                (self._bit(slo, "select", asked[0], predicates), self._bit(slo, "errors", asked[1], predicates))
            )
        if len(predicates) > MOST_PREDICATES:
            msg = f"the SLO file has {len(predicates)} different selections; at most {MOST_PREDICATES} can be watched"
            raise ValueError(msg)
        self.fragments: Mapping[str, Fragment] = {
            "selected": self._mask(predicates),
            "outcome": _STATUS,
            "tenant_group": Fragment("tenant" if any(slo.group_by for slo in slos) else "''"),
            **{name: Fragment(_cell(name, edges)) for name, edges in self._edges.items()},
        }
        """By the name in the queries `cells`, `segment_cells` and `segment_early`."""

    def _bit(self, slo: Promise, part: str, predicate: Fragment, predicates: list[Fragment]) -> int:
        """The place of a predicate in the mask. Equal ones of several SLOs share one; -1 for one that is never true."""
        if predicate == FALSE:
            return -1
        key = f"{part} {getattr(slo, part)!r}"
        if key not in self._bits:
            self._bits[key] = len(predicates)
            predicates.append(predicate)
        return self._bits[key]

    @staticmethod
    def _mask(predicates: Sequence[Fragment]) -> Fragment:
        kind = "UInt64" if len(predicates) <= 64 else "UInt256"
        bits = (f"bitShiftLeft(to{kind}({predicate.sql}), {i})" for i, predicate in enumerate(predicates))
        return Fragment(" + ".join(bits) or "toUInt64(0)", merged(predicates))

    def judged(self, columns: Mapping[str, Sequence[Any]]) -> Judged:
        """The judgement of cells, given as columns of a query's answer."""
        return Judged(self._slos, self._edges, self._places, columns)


def _cell(name: str, edges: Sequence[int]) -> str:
    """SQL: how many thresholds a latency exceeds; one more than there are for a latency that is not known."""
    over = [exceeds(name, ns, if_unknown=True) for ns in edges]
    unknown = f"{name}_us = {UNKNOWN_US}"
    return " + ".join(f"toUInt16({sql})" for sql in [*over, unknown]) if edges else "toUInt16(0)"


@dataclass(frozen=True)
class Outcomes:
    """One flag per cell."""

    total: Bools
    ok: Bools
    good: Bools
    undetermined: Bools
    failed: Bools
    cancelled: Bools
    excused: Bools

    @property
    def bad(self) -> Bools:
        """Judged and not good."""
        return self.total & ~self.good & ~self.undetermined & ~self.excused

    def items(self) -> Mapping[str, Bools]:
        """The flags by name."""
        return vars(self)


class Judged:
    """Cells with the judgement of each SLO."""

    def __init__(
        self,
        slos: Sequence[Slo],
        edges: Mapping[str, Sequence[int]],
        places: Sequence[tuple[int, int]],
        columns: Mapping[str, Sequence[Any]],
    ) -> None:
        self._slos = slos
        self._edges = edges
        self._places = places
        self._status = np.array(columns["outcome"], np.int64)
        self._cells = {name: np.array(columns[name], np.int64) for name in _LATENCIES}
        self.tenants = np.array(columns["tenant_group"], object)
        self._masks, self._of_mask = np.unique(np.array(columns["selected"], object), return_inverse=True)
        self._compared: dict[tuple[str, int], tuple[Bools, Bools]] = {}

    def outcomes(self, number: int) -> Outcomes:
        """The judgement of the SLO with this place in the file."""
        select, errors = self._places[number]
        chosen = self._has(select)
        ok, failed, cancelled = (self._status == status for status in (_OK, _FAILED, _CANCELLED))
        met, missed = np.ones(len(ok), bool), np.zeros(len(ok), bool)
        for name, ns in self._slos[number].thresholds.given().items():
            met_one, missed_one = self._against(name, ns)
            met, missed = met & met_one, missed | missed_one
        return Outcomes(
            total=chosen,
            ok=chosen & ok,
            good=chosen & ok & met,
            undetermined=chosen & ok & ~met & ~missed,
            failed=chosen & failed,
            cancelled=chosen & cancelled,
            excused=chosen & ((cancelled & ~missed) | (failed & self._has(errors))),
        )

    def _has(self, bit: int) -> Bools:
        if bit < 0:
            return np.zeros(len(self._status), bool)
        having: Bools = np.array([mask >> bit & 1 for mask in map(int, self._masks)], bool)
        return having[self._of_mask]

    def _against(self, name: str, ns: int) -> tuple[Bools, Bools]:
        """Which cells meet a threshold and which miss it. A latency that is not known does neither."""
        if (name, ns) not in self._compared:
            cell, edges = self._cells[name], self._edges[name]
            place = edges.index(ns)
            self._compared[name, ns] = cell <= place, (cell > place) & (cell <= len(edges))
        return self._compared[name, ns]
