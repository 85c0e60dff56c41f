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

from collector.slo.judge import LARGEST_US, NO_TOKEN, UNKNOWN_US, exceeds, labelled
from collector.slo.model import LabelRule, Slo
from collector.sql.fragment import Fragment, merged

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_LATENCIES: Final = ("ttft", "tpot", "e2e")
_STATUS: Final = Fragment("toUInt8(status = 'error') + 2 * toUInt8(status = 'cancelled')")
_OK, _FAILED, _CANCELLED = range(3)
_BITS: Final = 64
_FEW: Final = 8
"""Comparisons with so many thresholds are faster than a search among them."""


class Cells:
    """The columns by which the store groups requests for these SLOs, and the judgement of such groups."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self._slos = slos
        self._edges = {
            name: sorted({ns for slo in slos for key, ns in slo.thresholds.given().items() if key == name})
            for name in _LATENCIES
        }
        self.fragments: Mapping[str, Fragment] = {
            "selected": _selected([slo.select for slo in slos], slos[0].labels if slos else ()),
            "excluded": _selected([{"error_type": slo.errors.exclude} for slo in slos])
            if any(slo.errors.exclude for slo in slos)
            else Fragment("0"),
            "outcome": _STATUS,
            "tenant_group": Fragment("tenant" if any(slo.group_by for slo in slos) else "''"),
            **{name: Fragment(_cell(name, edges)) for name, edges in self._edges.items()},
        }
        """By the name in the queries `cells`, `segment_cells` and `segment_early`."""

    def judged(self, columns: Mapping[str, Sequence[Any]]) -> Judged:
        """The judgement of cells, given as columns of a query's answer."""
        return Judged(self._slos, self._edges, columns)


def _selected(selections: Sequence[Mapping[Any, Sequence[str]]], labels: Sequence[LabelRule] = ()) -> Fragment:
    """SQL: a number with a bit for each selection that has the request; a list of numbers for more than 64.

    Each column is looked up once. Of three selections, the first by model a, the others by tenants t and u:

        model a: 0b111    any other model: 0b110        tenant t: 0b011    tenant u: 0b101    any other: 0b001
        model a, tenant u                               0b111 & 0b101 = 0b101: the first and the third
    """
    words = [_word(selections[i : i + _BITS], i, labels) for i in range(0, len(selections), _BITS)]
    if len(words) == 1:
        return words[0]
    return Fragment(f"[{', '.join(word.sql for word in words) or '0'}]", merged(words))


def _word(selections: Sequence[Mapping[Any, Sequence[str]]], first: int, labels: Sequence[LabelRule]) -> Fragment:
    sql = str(2 ** len(selections) - 1)
    parameters: dict[str, Any] = {}
    for column in sorted({column for select in selections for column in select}):
        always = sum(1 << i for i, select in enumerate(selections) if column not in select)
        having: dict[str, int] = {}
        for i, select in enumerate(selections):
            for value in set(select.get(column, ())):
                having[value] = having.get(value, always) | 1 << i
        values, words = f"values{first}_{column}", f"words{first}_{column}"
        stored = labelled(column, labels, f"label{first}")
        parameters |= {**stored.parameters, values: [*having], words: [*having.values()]}
        lists = f"{{{values}:Array(String)}}, {{{words}:Array(UInt64)}}"
        found = f"transform(toString({stored.sql}), {lists}, toUInt64({always}))"
        sql = f"bitAnd({sql}, {found})"
    return Fragment(f"toUInt64({sql})", parameters)


def _cell(name: str, edges: Sequence[int]) -> str:
    """SQL: how many thresholds a latency exceeds; one more than there are for a latency that is not known."""
    if len(edges) > _FEW and all(ns % 1000 == 0 and ns // 1000 < LARGEST_US for ns in edges):
        latency = f"if({NO_TOKEN}, e2e_us, ttft_us)" if name == "ttft" else f"{name}_us"
        places = [0, *(ns // 1000 + 1 for ns in edges), UNKNOWN_US]
        return f"toUInt16(indexOf({places}, roundDown({latency}, {places})) - 1)"
    over = [exceeds(name, ns, if_unknown=True) for ns in edges]
    return " + ".join(f"toUInt16({sql})" for sql in [*over, f"{name}_us = {UNKNOWN_US}"]) if edges else "toUInt16(0)"


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
        self, slos: Sequence[Slo], edges: Mapping[str, Sequence[int]], columns: Mapping[str, Sequence[Any]]
    ) -> None:
        self._slos = slos
        self._edges = edges
        self._status = np.array(columns["outcome"], np.int64)
        self._cells = {name: np.array(columns[name], np.int64) for name in _LATENCIES}
        self.tenants = np.array(columns["tenant_group"], object)
        self._selected = _words(columns["selected"])
        self._excluded = _words(columns["excluded"])
        self._compared: dict[tuple[str, int], tuple[Bools, Bools]] = {}

    def outcomes(self, number: int) -> Outcomes:
        """The judgement of the SLO with this place in the file."""
        chosen = _bit(self._selected, number)
        ok, failed, cancelled = (self._status == status for status in (_OK, _FAILED, _CANCELLED))
        met, missed = np.ones(len(ok), bool), np.zeros(len(ok), bool)
        for name, ns in self._slos[number].thresholds.given().items():
            met_one, missed_one = self._against(name, ns)
            met, missed = met & met_one, missed | missed_one
        excluded = failed & _bit(self._excluded, number) if self._slos[number].errors.exclude else False
        return Outcomes(
            total=chosen,
            ok=chosen & ok,
            good=chosen & ok & met,
            undetermined=chosen & ok & ~met & ~missed,
            failed=chosen & failed,
            cancelled=chosen & cancelled,
            excused=chosen & ((cancelled & ~missed) | excluded),
        )

    def _against(self, name: str, ns: int) -> tuple[Bools, Bools]:
        """Which cells meet a threshold and which miss it. A latency that is not known does neither."""
        if (name, ns) not in self._compared:
            cell, edges = self._cells[name], self._edges[name]
            place = edges.index(ns)
            self._compared[name, ns] = cell <= place, (cell > place) & (cell <= len(edges))
        return self._compared[name, ns]


def _words(column: Sequence[Any]) -> npt.NDArray[np.uint64]:
    """One row of numbers per cell."""
    return np.array(column, np.uint64).reshape(len(column), -1) if len(column) else np.zeros((0, 1), np.uint64)


def _bit(words: npt.NDArray[np.uint64], number: int) -> Bools:
    if not len(words):
        return np.zeros(0, bool)
    found: Bools = (words[:, number // _BITS] >> np.uint64(number % _BITS) & np.uint64(1)).astype(bool)
    return found
