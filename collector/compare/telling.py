"""Which of some conditions tell most about the selected requests: the best, then what says more beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import erfc, sqrt
from typing import Final

import numpy as np

from collector.base.answer import Answer
from collector.causes.answer.arrivals import AT_ARRIVAL
from collector.compare.chance import Bools, Floats, Ints
from collector.compare.exact import FEW, tail_z
from collector.slo.counts import Number, as_number

NUMBERS: Final = ("input_tokens", "output_tokens", "cached_share", *AT_ARRIVAL)
"""Dimensions whose values are the requests above or below a quantile."""
_MOST_SPECIFIC: Final = ("error_type", "variant", "model", "tenant", "instance", "service")
"""Of conditions that the same requests meet, that of the first of these is told: a reason stands before `status`."""
_KINDS: Final = (
    ("status", "error_type", "finish_reason", "preempted", "cold_start", "longest_wait", "cause"),
    ("output_tokens", "cached_share", *AT_ARRIVAL),
)
"""What became of a request, and what it met or made. All else was known when it came, and is told before these: what
follows from being slow would explain everything."""
_MOST_OF_KIND: Final = 3
ALPHA: Final = 0.05
"""The probability that anything is called a difference where nothing differs."""
_LEAST_LIFT: Final = 1.2
_LEAST_OF_TIME: Final = 0.5
_TIMES_USUAL: Final = 3.0
_INFORMS: Final = 0.3
"""Of the variance, so much must be left within blocks of time, or they have none to compare with."""
_LEAST_SHARE: Final = 0.05
"""A value that fewer of the selected requests have explains little of them."""


class Trait(Answer):
    """A value of a dimension."""

    dimension: str
    value: str
    """The value, or the bound of a number: `at least 3500`, `less than 120`. What is not known is never told."""

    @property
    def text(self) -> str:
        """The condition in words."""
        return f"{self.dimension} {self.value or 'not given'}"

    @property
    def kind(self) -> int:
        """0: known when the request came; the last one: what became of it."""
        return next((len(_KINDS) - i for i, names in enumerate(_KINDS) if self.dimension in names), 0)


class ShareOut(Answer):
    """How many requests of one side meet a condition."""

    requests: Number
    share: float


class Difference(Answer):
    """Conditions that are commoner among the selected requests."""

    conditions: list[Trait]
    """One, or two that say more together than each alone."""
    selected: ShareOut
    others: ShareOut
    lift: float | None
    """The share of the selected ÷ that of the others; null where none of the others meets it."""
    p: float
    """The probability of such a difference by chance, for all values that were tried."""
    also: list[str]
    """Conditions that say no more than this one."""


@dataclass(frozen=True)
class Sides:
    """The selected requests and the others, as so many that stand for themselves."""

    selected: float
    others: float

    def z(self, selected: Floats, others: Floats) -> Floats:
        """Two-proportion z values with Yates' correction, of those that meet a condition; negative for rarer ones.

        Where few are expected, they are those of the exact tail.
        """
        met, total = selected + others, self.selected + self.others
        expected = met * self.selected / total
        variance = expected * self.others / total * (total - met) / max(total - 1, 1)
        away = selected - expected
        z = np.sign(away) * np.maximum(np.abs(away) - 0.5, 0) / np.sqrt(np.where(variance > 0, variance, np.inf))
        for i in np.flatnonzero((z > 0) & (np.minimum(expected, self.selected - expected) < FEW)):
            z[i] = tail_z([(float(selected[i]), self.selected, float(met[i]), total)])
        return z


@dataclass(frozen=True)
class Table:
    """Requests by which conditions they meet."""

    met: Bools
    """Shape (groups, conditions)."""
    selected: Floats
    others: Floats
    block: Ints | None = None
    """The block of time of each group; None: not asked."""

    def where(self, inside: Bools) -> Table:
        """These groups alone."""
        return Table(self.met[inside], self.selected[inside], self.others[inside])

    def is_of_its_time(self, column: Bools, tried: int) -> bool:
        """Tell whether a condition is commoner among the selected requests since it was common when they came.

        At least half of its excess vanishes where requests are compared with those of their block of time, and what
        is left is chance where so many were tried. Not so what came with the bad time, and is three times as common in
        it as usual, or had nearly all requests in it, so that there are none to compare with: a burst, a new version.
        """
        if self.block is None:
            return False
        away, expected, variance = self._counted(column, np.zeros(len(column), np.int64))
        within, then, left = self._counted(column, self.block)
        if then - expected < _LEAST_OF_TIME * away or then >= _TIMES_USUAL * expected or left <= _INFORMS * variance:
            return False
        return not is_significant(within / sqrt(left), tried)

    def _counted(self, column: Bools, strata: Ints) -> tuple[float, float, float]:
        """How many more of the selected requests meet a condition than expected, how many are, and the variance."""
        a, m1 = np.bincount(strata, self.selected * column), np.bincount(strata, self.selected)
        n1 = a + np.bincount(strata, self.others * column)
        total = np.maximum(m1 + np.bincount(strata, self.others), 1.0)
        expected = n1 * m1 / total
        variance = expected * (total - n1) * (total - m1) / total / np.maximum(total - 1, 1.0)
        return float((a - expected).sum()), float(expected.sum()), float(np.maximum(variance, 0.0).sum())

    def conditional(self, column: Bools, known: Sequence[Bools]) -> float:
        """The z value of a condition where the requests that agree in the `known` ones are compared.

        Mantel and Haenszel: Statistical aspects of the analysis of data from retrospective studies of disease, Journal
        of the National Cancer Institute 22, 1959.
        """
        strata = sum((one.astype(np.int64) << i for i, one in enumerate(known)), np.zeros(len(column), np.int64))
        place = np.unique(strata, return_inverse=True)[1]
        a, m1 = np.bincount(place, self.selected * column), np.bincount(place, self.selected)
        n1 = a + np.bincount(place, self.others * column)
        total = m1 + np.bincount(place, self.others)
        informs = (total > 1) & (m1 > 0) & (n1 > 0) & (m1 < total) & (n1 < total)
        a, m1, n1, total = (of[informs] for of in (a, m1, n1, total))
        expected = n1 * m1 / total
        away, variance = (
            float((a - expected).sum()),
            float((expected * (total - n1) * (total - m1) / total / (total - 1)).sum()),
        )
        if variance <= 0:
            return 0.0
        if away > 0 and min(float(expected.sum()), float((m1 - expected).sum())) < FEW:
            return tail_z(zip(a.tolist(), m1.tolist(), n1.tolist(), total.tolist(), strict=True))
        return max(abs(away) - 0.5, 0.0) / sqrt(variance) * (1 if away > 0 else -1)


def chosen(table: Table, counts: Mapping[str, Floats], conditions: Sequence[Trait], tried: int) -> list[Difference]:
    """The differences, the one that tells most first, and those that say no more behind it."""
    columns: dict[tuple[int, ...], Bools] = {(i,): table.met[:, i] for i in range(len(conditions))}
    for i, j in combinations(range(len(conditions)), 2):
        if conditions[i].dimension != conditions[j].dimension and _more_together(table, i, j, tried):
            columns[i, j] = table.met[:, i] & table.met[:, j]
    kinds = {key: max(conditions[i].kind for i in key) for key in columns}
    left = {
        key: column
        for key, column in columns.items()
        if _matters(table, column) and not (kinds[key] == 0 and table.is_of_its_time(column, tried))
    }
    alone = {key: table.conditional(column, []) for key, column in left.items()}
    differences: list[Difference] = []
    known: list[Bools] = []
    for kind in range(len(_KINDS) + 1):
        for _ in range(_MOST_OF_KIND):
            z = {key: table.conditional(column, known) for key, column in left.items() if kinds[key] == kind}
            key = max(z, key=lambda key: (round(z[key], 6), -rank(conditions[key[0]]), -len(key)), default=())
            if not key or not is_significant(z[key], tried):
                break
            if kind == 0:  # a variant that is slow under a full KV cache alone is told with the cache
                met = [pair for pair in left if kinds[pair] == 1 and {*key} < {*pair}]
                z |= {pair: table.conditional(left[pair], known) for pair in met}
                key = max((key, *met), key=lambda pair: (round(z[pair], 6), -len(pair)))
            column = left.pop(key)
            known.append(column)
            behind = [
                other
                for other, its in left.items()
                if kinds[other] >= kind
                and is_significant(alone[other], tried)
                and not is_significant(table.conditional(its, known), tried)
            ]
            told = {*key}.union(*(other for other in behind if len(other) == 1))
            named = [other for other in behind if not {*other} & {*key} and (len(other) == 1 or not {*other} & told)]
            also = [" and ".join(conditions[i].text for i in other) for other in named]
            differences.append(_difference(key, column, counts, conditions, z[key], tried, also))
            bounded = {conditions[i].dimension for i in key} & {*NUMBERS}  # one bound of a number says enough
            left = {
                other: its
                for other, its in left.items()
                if other not in behind
                and not {*key} & {*other}
                and not bounded & {conditions[i].dimension for i in other}
            }
    return differences


def rank(condition: Trait) -> int:
    """0: the most specific."""
    return _MOST_SPECIFIC.index(condition.dimension) if condition.dimension in _MOST_SPECIFIC else len(_MOST_SPECIFIC)


def _more_together(table: Table, i: int, j: int, tried: int) -> bool:
    """Each of two conditions matters among the requests that meet the other."""
    return all(
        is_significant(table.where(inside).conditional(column[inside], []), tried)
        for inside, column in ((table.met[:, i], table.met[:, j]), (table.met[:, j], table.met[:, i]))
    )


def _matters(table: Table, column: Bools) -> bool:
    """Enough of the selected requests meet it, and clearly more than of the others."""
    share, of_others = (part[column].sum() / part.sum() for part in (table.selected, table.others))
    return bool(share >= _LEAST_SHARE and share >= _LEAST_LIFT * of_others)


def _difference(
    key: tuple[int, ...],
    column: Bools,
    counts: Mapping[str, Floats],
    conditions: Sequence[Trait],
    z: float,
    tried: int,
    also: list[str],
) -> Difference:
    parts = {
        name: ShareOut(requests=as_number(float(n[column].sum())), share=float(n[column].sum() / n.sum()))
        for name, n in counts.items()
    }
    return Difference(
        conditions=[conditions[i] for i in key],
        selected=parts["selected"],
        others=parts["others"],
        lift=parts["selected"].share / parts["others"].share if parts["others"].share else None,
        p=min(1.0, erfc(z / sqrt(2)) * tried),
        also=also,
    )


def is_significant(z: float, tried: int) -> bool:
    """Beyond chance when the best of so many values is looked at (Bonferroni, the first step of Holm's procedure)."""
    return erfc(max(z, 0.0) / sqrt(2)) * tried <= ALPHA
