"""What is different about some requests: values that are commoner among them than among the others, beyond chance.

A request is selected or not. Each value of each dimension is counted on both sides. The best one comes first, then the
best of those that say more where the first is taken as known, and so on; one that says no more stands behind it:

    bad: 80 of 100 of tenant acme, others: 90 of 900    tenant acme, also: model llama (acme uses no other)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from collector.answer import Answer
from collector.measure.answers import WindowOut
from collector.measure.arrivals import AT_ARRIVAL, MOST_REQUESTS, MOST_STEPS, UNKNOWN, Arrivals, read_arrivals
from collector.measure.chance import Ints
from collector.measure.reader import Reader
from collector.measure.telling import Difference, Sides, Table, Trait, chosen, is_significant
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
    "output_tokens": "if(status = 'ok', output_tokens, NULL)",
    "cached_share": "if(input_tokens > 0, cached_tokens / input_tokens, NULL)",
    **{name: name for name in AT_ARRIVAL},
}
"""SQL of numbers. Their values are the requests above or below a quantile. A failure made its answer short."""
_WRITTEN: Final = {"cached_share": percent, "kv_usage_at_arrival": percent, "idle_time": duration}
"""How a bound is written that is no count."""
_UNKNOWN: Final = "-1"
_MOST_LABELS: Final = 16
_MOST_VALUES: Final = 200
_MOST_OF_ONE: Final = 3
_MOST_CONDITIONS: Final = 14


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
            z[i] = min(z[i], own) if is_significant(own, len(candidates)) else 0.0
    taken: list[_Candidate] = []
    for place in np.argsort(-z, kind="stable"):
        one = candidates[int(place)]
        same = [other for other in taken if other.condition.dimension == one.condition.dimension]
        if z[place] <= 0 or len(taken) == _MOST_CONDITIONS:
            break
        of_kind = [other for other in taken if other.condition.kind == one.condition.kind]
        if len(same) < _MOST_OF_ONE and (not one.condition.kind or len(of_kind) < _MOST_CONDITIONS // 3):
            taken.append(one)
    return taken


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
    table = Table(met, *(counts[name] * min(effective[name], 1.0) for name in ("selected", "others")))
    return chosen(table, counts, [one.condition for one in best], tried)


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
