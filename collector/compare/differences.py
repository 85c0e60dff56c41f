"""What is different about some requests: values that are commoner among them than among the others, beyond chance.

A request is selected or not. Each value of each dimension is counted on both sides. The best one comes first, then the
best of those that say more where the first is taken as known, and so on; one that says no more stands behind it:

    bad: 80 of 100 of tenant acme, others: 90 of 900    tenant acme, also: model llama (acme uses no other)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from collector.ask.template import part
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.causes.answer.arrivals import (
    AT_ARRIVAL,
    MOST_REQUESTS,
    MOST_STEPS,
    UNKNOWN,
    Arrivals,
    own_processes,
    read_arrivals,
)
from collector.compare.candidates import NO_CLASS, SIDES, Candidate, Met, told
from collector.compare.chance import Ints
from collector.compare.strata import SESSIONS
from collector.compare.telling import Difference, Sides
from collector.count.answers import WindowOut
from collector.count.reader import Reader
from collector.numbers.values import dimensions, value_counts
from collector.slo.counts import Number, as_number
from collector.sql.fragment import TRUE, Fragment, all_of, merged
from tokentrail.shared.formatting import count as digits
from tokentrail.shared.formatting import percent
from tokentrail.shared.parameters import LABEL

_WAITS: Final = ("batch", "kv", "tokens", "priority")
_WAITED: Final = f"array({', '.join(f'ifNull(wait_{name}_ns, 0)' for name in _WAITS)})"
_FACTS: Final = {
    "preempted": f"multiIf(preemptions IS NULL, '{UNKNOWN}', preemptions > 0, 'yes', 'no')",
    "cold_start": "if(ifNull(cold_start_ns, 0) > 0, 'yes', '')",
    "pictures": f"multiIf(image_input_tokens IS NULL, '{UNKNOWN}', image_input_tokens > 0, 'yes', 'no')",
    "sound": f"multiIf(audio_input_tokens IS NULL, '{UNKNOWN}', audio_input_tokens > 0, 'yes', 'no')",
    "longest_wait": f"if(arrayMax({_WAITED}) = 0, '', {[*_WAITS]}[indexOf({_WAITED}, arrayMax({_WAITED}))])",
}
"""SQL of what happened to a request."""
_SIZES: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": part("answered_tokens", {}).sql,
    "cached_share": part("cached_share", {}).sql,
    **{name: name for name in AT_ARRIVAL},
}
"""SQL of numbers. Their values are the requests above or below a quantile."""
_MOST_LABELS: Final = 16
_BLOCKS: Final = 60
"""Blocks of time, by which one sees what was merely common in a bad moment."""
_MOST_VALUES: Final = 200


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
    """Dimensions that were not compared: the time has more than 100,000 requests or a million steps that the caller may
    see."""


def differences(
    reader: Reader, window: Window, selected: Fragment, compared: Fragment, *, whole: bool = True, by_time: bool = True
) -> Differences:
    """What is different about the `selected` ones of the requests of a window that are `compared`.

    Not `whole`: without what costs more, which is what the requests met when they came and what took their time. Not
    `by_time`: the others are of another time.
    """
    window = replace(window, filter=all_of(window.filter, compared))
    fragments = {"filter": window.filter, "visible": reader.tenant_filter, "own": own_processes(reader)}
    row = reader.queries.row("differences_edges", fragments, **window.bounds)
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
    together = _together(reader, window, arrivals.rows, selected, columns)

    def met(best: Sequence[Candidate]) -> Met:
        conditions = [_where(one, f"value_{i}", columns) for i, one in enumerate(best)]
        return _met(reader, window, arrivals.rows, selected, conditions, by_time=by_time)

    differing, everything, tried = told(rows, sizes, met, together)
    return Differences(
        window=WindowOut.of(window, reader.complete_ns),
        summary=_summary(differing, everything, tried),
        selected=as_number(everything.selected),
        others=as_number(everything.others),
        tried=tried,
        differences=differing,
        not_asked=[] if whole else [*AT_ARRIVAL, "cause"],
    )


def _classes(sizes: Mapping[str, Sequence[float]]) -> dict[str, Fragment]:
    """SQL of how many edges a number is not below, as text."""
    columns = {}
    for name, edges in sizes.items():
        above = " + ".join(f"ifNull({_SIZES[name]} >= {edge}, false)" for edge in edges) or "0"
        columns[name] = Fragment(f"toString(if({_SIZES[name]} IS NULL, {NO_CLASS}, toInt16({above})))")
    return columns


def _met(
    reader: Reader,
    window: Window,
    rows_of: Fragment,
    selected: Fragment,
    conditions: Sequence[Fragment],
    *,
    by_time: bool,
) -> Met:
    bits = " + ".join(f"bitShiftLeft(toUInt32({one.sql}), {i})" for i, one in enumerate(conditions))
    fragments = {
        "filter": window.filter,
        "rows": rows_of,
        "selected": selected,
        "bits": Fragment(bits, merged([*conditions])),
        "block": _block(window, selected) if by_time else Fragment("0"),
    }
    rows = reader.queries.columns("differences_together", fragments, **window.bounds)
    mask: Ints = np.array(rows["bits"], np.int64)
    met = (mask[:, None] >> np.arange(len(conditions))) & 1 == 1
    return Met(met, *(np.array(rows[name], float) for name in SIDES), block=np.array(rows["block"], np.int64))


def _block(window: Window, selected: Fragment) -> Fragment:
    """SQL of the block of time of a request: of one alone where the selected requests are those of a time."""
    if {"select_start_ns", "select_end_ns"} & {*selected.parameters}:
        return Fragment("0")
    width = max((window.end_ns - window.start_ns) // _BLOCKS, 1)
    since = f"toUnixTimestamp64Nano({part('counts_at', {}).sql}) - {window.start_ns}"
    return Fragment(f"toUInt8(least(greatest(intDiv({since}, {width}), 0), {_BLOCKS - 1}))")


def _together(
    reader: Reader, window: Window, rows_of: Fragment, selected: Fragment, columns: Mapping[str, Fragment]
) -> float:
    """How many times as much chance moves the number of selected requests, since those of a session go together.

    It is the variance by sessions ÷ that of as many independent requests; 1 where no label tells sessions.
    """
    name = next((f"{LABEL}{name}" for name in SESSIONS if f"{LABEL}{name}" in columns), None)
    if name is None:
        return 1.0
    fragments = {"filter": window.filter, "rows": rows_of, "selected": selected, "session": columns[name]}
    row = reader.queries.row("differences_sessions", fragments, **window.bounds)
    share = row["selected"] / row["requests"] if row["requests"] else 0.0
    alone = row["requests"] * share * (1 - share)
    by_session = row["selected_squares"] - 2 * share * row["products"] + share**2 * row["squares"]
    return max(float(by_session / alone), 1.0) if alone else 1.0


def _where(one: Candidate, key: str, columns: Mapping[str, Fragment]) -> Fragment:
    """SQL of what a candidate says."""
    name = one.condition.dimension
    if one.sign != "=":
        return Fragment(f"ifNull({_SIZES[name]} {one.sign} {one.bound}, false)")
    column = columns[name]
    return Fragment(f"{column.sql} = {{{key}:String}}", {**column.parameters, key: one.bound})


def _summary(differing: Sequence[Difference], everything: Sides, tried: int) -> str:
    n = f"{digits(everything.selected)} selected and {digits(everything.others)} other requests"
    if not everything.selected or not everything.others:
        return f"there is nothing to compare: {n}"
    if not differing:
        return f"none of the recorded dimensions differs beyond chance: {n}, {tried} values tried"
    first = differing[0]
    where = " and ".join(condition.text for condition in first.conditions)
    shares = [percent(part.share) for part in (first.selected, first.others)]
    return f"{shares[0]} of the selected requests have {where}, {shares[1]} of the others: {n}"
