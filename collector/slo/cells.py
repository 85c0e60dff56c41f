"""Judges ended requests for many SLOs in one pass: the store counts requests in cells, and arrays judge the cells.

A cell holds the requests that no SLO can tell apart. With two SLOs, over thresholds of 1 s and 2 s for TTFT:

    selected  status  ttft    n        meets 1 s    meets 2 s
    0b11      0       0       970      yes          yes
    0b11      0       1       20       no           yes
    0b01      1       2       10       failed
    0b11      0       3       5        not known (3 = number of thresholds + 1)

A TPOT that is not known may have a bound, whose place is added to that 3. It meets what the bound meets. (A first
visible token that is not known has one too, TTFT, and misses what that misses.)

    0b11      0       3       4        yes          yes
    0b11      0       4       3        not known    yes
    0b11      0       5       2        not known    not known

The store packs the columns of a cell into one number, because a key of 16 bits needs no hash table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.slo.judge import LARGEST_US, LATENCY_US, exceeds, is_unknown, labelled, parameter
from collector.slo.judged import ENDED, Bools, Judged, unknown_place
from collector.slo.model import LabelRule, Promise, Slo, Thresholds
from collector.sql.fragment import Fragment, merged

_LATENCIES: Final = tuple(Thresholds.model_fields)
_STATUS: Final = "transform(status, ['error', 'cancelled', 'unknown'], [1, 2, 3]::Array(UInt8), 0::UInt8)"
_FEW: Final = 24
"""Comparisons with so many thresholds are faster than a search among them. With 20, it takes 36 ns a row, and 120."""


@dataclass(frozen=True)
class _Digit:
    """One place of a packed cell: SQL of a number from 0 to `size` - 1."""

    sql: Fragment
    size: int


class Cells:
    """The columns by which the store groups requests for these promises, and the judgement of such groups."""

    def __init__(
        self,
        promises: Sequence[Promise],
        tenants: Sequence[str | None] = (),
    ) -> None:
        """`tenants` has for each promise the tenant of which it judges the requests alone; None: of all."""
        self._promises = promises
        self._edges = {name: sorted({getattr(p.thresholds, name) for p in promises} - {None}) for name in _LATENCIES}
        self._selected = [
            *_columns([p.select for p in promises], promises[0].labels if promises else ()),
            *_columns([{} if tenant is None else {"tenant": (tenant,)} for tenant in tenants], name="own"),
        ]
        excluded = any(p.errors.exclude for p in promises)
        self._excluded = _columns([{"error_type": p.errors.exclude} for p in promises]) if excluded else []
        self._digits = [
            _Digit(Fragment(_STATUS), len(ENDED)),
            *(
                _Digit(Fragment(_place(name, edges)), len(edges) + 1 + unknown_place(name, edges) if edges else 1)
                for name, edges in self._edges.items()
            ),
            *(_Digit(column.place, len(column.selections)) for column in (*self._selected, *self._excluded)),
        ]
        self.cell = _packed([digit for digit in self._digits if digit.size > 1])
        """SQL: the cell of a request."""
        self.fragments: Mapping[str, Fragment] = {
            "cell": self.cell,
            "tenant_group": Fragment("tenant" if any(isinstance(p, Slo) and p.group_by for p in promises) else "''"),
        }
        """By the name in queries that tell the tenants apart to which an SLO is a promise each."""

    def judged(self, cells: npt.ArrayLike) -> Judged:
        """The judgement of cells."""
        numbers = rest = np.asarray(cells, np.uint64)
        places = []
        for digit in self._digits:
            rest, place = np.divmod(rest, np.uint64(digit.size))
            places.append(place.astype(np.int64))
        n = 1 + len(_LATENCIES)
        status, latencies, selections = places[0], places[1:n], places[n:]
        chosen = np.ones((len(rest), len(self._promises)), bool)
        for column, place in zip(self._selected, selections, strict=False):
            chosen &= column.selections[place]
        excluded = np.zeros_like(chosen)
        for column, place in zip(self._excluded, selections[len(self._selected) :], strict=True):
            excluded = column.selections[place]
        by_name = dict(zip(_LATENCIES, latencies, strict=True))
        return Judged(self._promises, self._edges, numbers, status, by_name, chosen, excluded)


def _packed(digits: Sequence[_Digit]) -> Fragment:
    """SQL: the digits as one number, the first one times 1.

    digits 2 of 3, 1 of 4, 0 of 2    2 + 3 · (1 + 4 · 0) = 5, below 3 · 4 · 2 = 24, so 8 bits hold it
    """
    size = prod(digit.size for digit in digits)
    bits = next((bits for bits in (8, 16, 32, 64) if size <= 2**bits), None)
    if bits is None:
        msg = "the SLOs select by too many different values to be judged together"
        raise ValueError(msg)
    sql, stride = [], 1
    for digit in digits:
        sql.append(f"{stride} * ({digit.sql.sql})" if stride > 1 else digit.sql.sql)
        stride *= digit.size
    return Fragment(f"toUInt{bits}({' + '.join(sql) or '0'})", merged([digit.sql for digit in digits]))


@dataclass(frozen=True)
class _Column:
    """A column by which promises select, with the place of its value among those that select differently.

    Of three selections, the first by model a, the second by model b, the third by no model:

        place 0: any other model    [no, no, yes]
        place 1: model a            [yes, no, yes]
        place 2: model b            [no, yes, yes]
    """

    place: Fragment
    selections: Bools
    """For each place, and each promise: the promise selects such a request."""


def _columns(
    selections: Sequence[Mapping[Any, Sequence[str]]], labels: Sequence[LabelRule] = (), name: str = "values"
) -> list[_Column]:
    """`name` keeps the parameters of two lists apart that have one column."""
    columns = sorted({column for select in selections for column in select})
    return [_column(column, selections, labels, parameter(name, column, i)) for i, column in enumerate(columns)]


def _column(
    column: str, selections: Sequence[Mapping[Any, Sequence[str]]], labels: Sequence[LabelRule], name: str
) -> _Column:
    values = sorted({value for select in selections for value in select.get(column, ())})
    by_value = {value: tuple(column not in s or value in s[column] for s in selections) for value in values}
    other = tuple(column not in select for select in selections)
    different = [other, *sorted(set(by_value.values()) - {other})]
    stored = labelled(column, labels, f"{name}_of")
    places = [different.index(by_value[value]) for value in values]
    parameters = {**stored.parameters, name: values, f"{name}_places": places}
    lists = f"{{{name}:Array(String)}}, {{{name}_places:Array(UInt32)}}"
    return _Column(Fragment(f"transform({stored.sql}, {lists}, 0::UInt32)", parameters), np.array(different, bool))


def _place(name: str, edges: Sequence[int]) -> str:
    """SQL: how many thresholds a latency, or its bound, exceeds, and `unknown_place` for one that is not known."""
    if not edges:
        return "0"
    unknown = f"{unknown_place(name, edges)} * ({is_unknown(name)})"
    if len(edges) > _FEW and all(ns % 1000 == 0 and ns // 1000 < LARGEST_US for ns in edges):
        places = [0, *(ns // 1000 + 1 for ns in edges)]
        return f"toUInt16(indexOf({places}, roundDown({LATENCY_US[name]}, {places})) - 1 + {unknown})"
    return " + ".join([*(f"({exceeds(name, ns)})" for ns in edges), unknown])
