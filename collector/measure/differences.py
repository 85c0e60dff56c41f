"""What is different about some requests: values that are commoner among them than among the others, beyond chance.

A request is selected or not. Each value of each dimension is counted on both sides. The best one comes first, then the
best of those that say more where the first is taken as known, and so on; one that says no more stands behind it:

    bad: 80 of 100 of tenant acme, others: 90 of 900    tenant acme, also: model llama (acme uses no other)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import erfc, sqrt
from typing import Any, Final

import numpy as np

from collector.answer import Answer
from collector.measure.answers import WindowOut
from collector.measure.arrivals import AT_ARRIVAL, MOST_REQUESTS, MOST_STEPS, UNKNOWN, Arrivals, read_arrivals
from collector.measure.chance import Bools, Floats, Ints
from collector.measure.reader import Reader
from collector.measure.values import dimensions, value_counts
from collector.measure.window import Window
from collector.query.template import part
from collector.slo.counts import Number, as_number
from collector.sql.fragment import TRUE, Fragment, all_of, merged
from tokentrail.shared.formatting import count as digits
from tokentrail.shared.formatting import duration, percent

_WAITS: Final = ("batch", "kv", "tokens", "priority")
_WAITED: Final = f"array({', '.join(f'ifNull(wait_{name}_ns, 0)' for name in _WAITS)})"
_FACTS: Final = {
    "preempted": f"multiIf(preemptions IS NULL, '{UNKNOWN}', preemptions > 0, 'yes', 'no')",
    "cold_start": "if(ifNull(cold_start_ns, 0) > 0, 'yes', '')",
    "longest_wait": f"if(arrayMax({_WAITED}) = 0, '', {[*_WAITS]}[indexOf({_WAITED}, arrayMax({_WAITED}))])",
}
"""SQL of what happened to a request."""
_SIZES: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_share": "if(input_tokens > 0, cached_tokens / input_tokens, NULL)",
    **{name: name for name in AT_ARRIVAL},
}
"""SQL of numbers. Their values are the requests above or below a quantile."""
_WRITTEN: Final = {"cached_share": percent, "kv_usage_at_arrival": percent, "idle_time": duration}
"""How a bound is written that is no count."""
_MOST_SPECIFIC: Final = ("error_type", "variant", "model", "tenant", "instance", "service")
"""Of conditions that the same requests meet, that of the first of these is told: a reason stands before `status`."""
_KINDS: Final = (
    ("status", "error_type", "finish_reason", "cause", *_FACTS),
    ("output_tokens", "cached_share", *AT_ARRIVAL),
)
"""What became of a request, and what it met or made. All else was known when it came, and is told before these: what
follows from being slow would explain everything."""
_UNKNOWN: Final = "-1"
_MOST_LABELS: Final = 16
_MOST_VALUES: Final = 200
_MOST_OF_ONE: Final = 3
_MOST_CONDITIONS: Final = 14
_MOST_OF_KIND: Final = 3
ALPHA: Final = 0.05
"""The probability that anything is called a difference where nothing differs."""
_LEAST_LIFT: Final = 1.2
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


class Differences(Answer):
    """`/differences`."""

    window: WindowOut
    summary: str
    selected: Number
    others: Number
    tried: int
    """Values and pairs of values that were compared."""
    differences: list[Difference]
    not_asked: list[str]
    """Dimensions that were not compared: the time has more than 100,000 requests or a million steps."""


@dataclass(frozen=True)
class Sides:
    """The selected requests and the others, as so many that stand for themselves."""

    selected: float
    others: float

    def z(self, selected: Floats, others: Floats) -> Floats:
        """Two-proportion z values with Yates' correction, of those that meet a condition; negative for rarer ones."""
        met, total = selected + others, self.selected + self.others
        expected = met * self.selected / total
        variance = expected * self.others / total * (total - met) / max(total - 1, 1)
        away = selected - expected
        return np.sign(away) * np.maximum(np.abs(away) - 0.5, 0) / np.sqrt(np.where(variance > 0, variance, np.inf))


@dataclass(frozen=True)
class _Candidate:
    condition: Trait
    where: Fragment
    selected: float
    others: float
    among: Sides
    """The requests of which the dimension is known."""


def differences(
    reader: Reader, window: Window, selected: Fragment, compared: Fragment, *, whole: bool = True
) -> Differences:
    """What is different about the `selected` ones of the requests of a window that are `compared`.

    Not `whole`: without what costs more, which is what the requests met when they came and what took their time.
    """
    window = replace(window, filter=all_of(window.filter, compared))
    row = reader.queries.row("differences_edges", {"filter": window.filter}, **window.bounds)
    whole = whole and row["requests_of_all"] <= MOST_REQUESTS and row["steps_of_all"] <= MOST_STEPS
    arrivals = read_arrivals(reader, window) if whole else Arrivals(part("rows_of_requests", {}), {}, TRUE)
    edges = {name: row[f"of_{name}"] for name in _SIZES if f"of_{name}" in row} | {**arrivals.edges}
    sizes = {name: sorted({float(edge) for edge in of if edge == edge}) for name, of in edges.items()}
    columns = dimensions(reader, window, _MOST_LABELS) | {
        name: Fragment(f"toString({sql})") for name, sql in _FACTS.items()
    }
    if whole:
        columns["cause"] = arrivals.cause
    rows = value_counts(reader, window, columns | _classes(sizes), selected, _MOST_VALUES, arrivals.rows)
    everything = _sides([row for row in rows if row["name"] == "model"])
    candidates = [*_candidates(rows, columns, sizes)]
    best = _best(candidates, everything)
    tried = len(candidates) + len(best) * (len(best) - 1) // 2
    comparable = best and everything.selected and everything.others
    found = _found(reader, window, arrivals.rows, selected, best, tried) if comparable else []
    return Differences(
        window=WindowOut.of(window, reader.complete_ns),
        summary=_summary(found, everything, tried),
        selected=as_number(everything.selected),
        others=as_number(everything.others),
        tried=tried,
        differences=found,
        not_asked=[] if whole else [*AT_ARRIVAL, "cause"],
    )


def _sides(rows: Sequence[Mapping[str, Any]]) -> Sides:
    return Sides(sum(row["selected"] for row in rows), sum(row["others"] for row in rows))


def _classes(sizes: Mapping[str, Sequence[float]]) -> dict[str, Fragment]:
    """SQL of how many edges a number is not below, as text."""
    columns = {}
    for name, edges in sizes.items():
        above = " + ".join(f"ifNull({_SIZES[name]} >= {edge}, false)" for edge in edges) or "0"
        columns[name] = Fragment(f"toString(if({_SIZES[name]} IS NULL, {_UNKNOWN}, toInt16({above})))")
    return columns


def _candidates(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Fragment], sizes: Mapping[str, Sequence[float]]
) -> Iterator[_Candidate]:
    """All values that are known, with how many requests have each."""
    known = [row for row in rows if row["value"] != (_UNKNOWN if row["name"] in sizes else UNKNOWN)]
    among = {name: _sides([row for row in known if row["name"] == name]) for name in {row["name"] for row in known}}
    for i, row in enumerate(known):
        name, value = row["name"], row["value"]
        if name in sizes:
            continue
        key, column = f"value_{i}", columns[name]
        where = Fragment(f"{column.sql} = {{{key}:String}}", {**column.parameters, key: value})
        trait = Trait(dimension=name, value=value)
        yield _Candidate(trait, where, row["selected"], row["others"], among[name])
    for name, edges in sizes.items():
        counts = {int(row["value"]): (row["selected"], row["others"]) for row in known if row["name"] == name}
        classes = np.array([counts.get(i, (0.0, 0.0)) for i in range(len(edges) + 1)])
        for i, edge in enumerate(edges, 1) if counts else ():
            bound = _WRITTEN.get(name, digits)(edge)
            for word, sign, part_of in (("at least", ">=", classes[i:]), ("less than", "<", classes[:i])):
                where = Fragment(f"ifNull({_SIZES[name]} {sign} {edge}, false)")
                trait = Trait(dimension=name, value=f"{word} {bound}")
                one, rest = part_of.sum(axis=0).tolist()
                yield _Candidate(trait, where, one, rest, among[name])


def _best(candidates: Sequence[_Candidate], everything: Sides) -> list[_Candidate]:
    """The candidates that differ most, a few of each dimension."""
    if not (everything.selected and everything.others):
        return []
    z = everything.z(*(np.array([getattr(one, name) for one in candidates]) for name in ("selected", "others")))
    for i, one in enumerate(candidates):
        if one.among != everything:  # what is not known is never blamed: it must differ among those that are, too
            own = float(one.among.z(np.array([one.selected]), np.array([one.others]))[0])
            z[i] = min(z[i], own) if _is_significant(own, len(candidates)) else 0.0
    taken: list[_Candidate] = []
    for place in np.argsort(-z, kind="stable"):
        one = candidates[int(place)]
        same = [other for other in taken if other.condition.dimension == one.condition.dimension]
        if z[place] <= 0 or len(taken) == _MOST_CONDITIONS:
            break
        of_kind = [other for other in taken if _kind(other.condition) == _kind(one.condition)]
        if len(same) < _MOST_OF_ONE and (not _kind(one.condition) or len(of_kind) < _MOST_CONDITIONS // 3):
            taken.append(one)
    return taken


@dataclass(frozen=True)
class _Table:
    """Requests by which conditions they meet."""

    met: Bools
    """Shape (groups, conditions)."""
    selected: Floats
    others: Floats

    def conditional(self, column: Bools, known: Sequence[Bools]) -> float:
        """The z value of a condition where the requests that agree in the `known` ones are compared.

        Mantel and Haenszel: Statistical aspects of the analysis of data from retrospective studies of disease, Journal
        of the National Cancer Institute 22, 1959.
        """
        strata = sum((one.astype(np.int64) << i for i, one in enumerate(known)), np.zeros(len(column), np.int64))
        away = variance = 0.0
        for stratum in np.unique(strata):
            inside = strata == stratum
            chosen, rest = self.selected[inside], self.others[inside]
            has = column[inside]
            a, m1, m0 = chosen[has].sum(), chosen.sum(), rest.sum()
            n1, total = a + rest[has].sum(), m1 + m0
            if total > 1:
                away += a - n1 * m1 / total
                variance += n1 * (total - n1) * m1 * m0 / total**2 / (total - 1)
        return max(abs(away) - 0.5, 0.0) / sqrt(variance) * (1 if away > 0 else -1) if variance > 0 else 0.0


def _found(
    reader: Reader, window: Window, rows_of: Fragment, selected: Fragment, best: Sequence[_Candidate], tried: int
) -> list[Difference]:
    bits = " + ".join(f"bitShiftLeft(toUInt32({one.where.sql}), {i})" for i, one in enumerate(best))
    fragments = {
        "filter": window.filter,
        "rows": rows_of,
        "selected": selected,
        "bits": Fragment(bits, merged([one.where for one in best])),
    }
    rows = reader.queries.columns("differences_together", fragments, **window.bounds)
    mask: Ints = np.array(rows["bits"], np.int64)
    met = (mask[:, None] >> np.arange(len(best))) & 1 == 1
    counts = {name: np.array(rows[name], float) for name in ("selected", "others")}
    effective = {name: n.sum() / max(np.sum(rows[f"{name}_squares"]), 1e-9) for name, n in counts.items()}
    table = _Table(met, *(counts[name] * min(effective[name], 1.0) for name in ("selected", "others")))
    return _chosen(table, counts, [one.condition for one in best], tried)


def _chosen(table: _Table, counts: Mapping[str, Floats], conditions: Sequence[Trait], tried: int) -> list[Difference]:
    """The differences, the one that tells most first, and those that say no more behind it."""
    columns: dict[tuple[int, ...], Bools] = {(i,): table.met[:, i] for i in range(len(conditions))}
    for i, j in combinations(range(len(conditions)), 2):
        if conditions[i].dimension != conditions[j].dimension and _more_together(table, i, j, tried):
            columns[i, j] = table.met[:, i] & table.met[:, j]
    left = {key: column for key, column in columns.items() if _matters(table, column)}
    alone = {key: table.conditional(column, []) for key, column in left.items()}
    kinds = {key: max(_kind(conditions[i]) for i in key) for key in left}
    found: list[Difference] = []
    known: list[Bools] = []
    for kind in range(len(_KINDS) + 1):
        for _ in range(_MOST_OF_KIND):
            z = {key: table.conditional(column, known) for key, column in left.items() if kinds[key] == kind}
            key = max(z, key=lambda key: (round(z[key], 6), -_rank(conditions[key[0]]), -len(key)), default=())
            if not key or not _is_significant(z[key], tried):
                break
            column = left.pop(key)
            known.append(column)
            behind = [
                other
                for other, its in left.items()
                if kinds[other] >= kind
                and _is_significant(alone[other], tried)
                and not _is_significant(table.conditional(its, known), tried)
            ]
            told = {*key}.union(*(other for other in behind if len(other) == 1))
            named = [other for other in behind if not {*other} & {*key} and (len(other) == 1 or not {*other} & told)]
            also = [" and ".join(conditions[i].text for i in other) for other in named]
            found.append(_difference(key, column, counts, conditions, z[key], tried, also))
            bounded = {conditions[i].dimension for i in key} & {*_SIZES}  # one bound of a number says enough
            left = {
                other: its
                for other, its in left.items()
                if other not in behind
                and not {*key} & {*other}
                and not bounded & {conditions[i].dimension for i in other}
            }
    return found


def _kind(condition: Trait) -> int:
    """0: known when the request came; the last one: what became of it."""
    return next((len(_KINDS) - i for i, names in enumerate(_KINDS) if condition.dimension in names), 0)


def _rank(condition: Trait) -> int:
    """0: the most specific."""
    return _MOST_SPECIFIC.index(condition.dimension) if condition.dimension in _MOST_SPECIFIC else len(_MOST_SPECIFIC)


def _more_together(table: _Table, i: int, j: int, tried: int) -> bool:
    """Each of two conditions matters among the requests that meet the other."""
    return all(
        _is_significant(
            _Table(table.met[inside], table.selected[inside], table.others[inside]).conditional(column[inside], []),
            tried,
        )
        for inside, column in ((table.met[:, i], table.met[:, j]), (table.met[:, j], table.met[:, i]))
    )


def _matters(table: _Table, column: Bools) -> bool:
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


def _is_significant(z: float, tried: int) -> bool:
    """Beyond chance when the best of so many values is looked at (Bonferroni, the first step of Holm's procedure)."""
    return erfc(max(z, 0.0) / sqrt(2)) * tried <= ALPHA


def _summary(found: Sequence[Difference], everything: Sides, tried: int) -> str:
    n = f"{digits(everything.selected)} selected and {digits(everything.others)} other requests"
    if not everything.selected or not everything.others:
        return f"there is nothing to compare: {n}"
    if not found:
        return f"none of the recorded dimensions differs beyond chance: {n}, {tried} values tried"
    first = found[0]
    where = " and ".join(condition.text for condition in first.conditions)
    shares = [percent(part.share) for part in (first.selected, first.others)]
    return f"{shares[0]} of the selected requests have {where}, {shares[1]} of the others: {n}"
