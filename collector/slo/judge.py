"""What SLOs ask of a row of `requests`, as SQL. collector.slo.cells groups rows by it and judges the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from collector.base.process import PROCESS, Process
from collector.slo.model import LabelRule, Promise
from collector.sql.fragment import Fragment, all_of, merged
from tokentrail.shared.parameters import LABEL


def selected(select: Mapping[Any, Sequence[str]], prefix: str, rules: Sequence[LabelRule] = ()) -> Fragment:
    """The request has one of the listed values in every listed column, which `rules` fill where they are empty.

    `prefix` keeps parameter names apart.
    """
    parts = []
    for i, (column, values) in enumerate(select.items()):
        name = parameter(prefix, column, i)
        value = labelled(column, rules, name)
        parts.append(Fragment(f"{value.sql} IN {{{name}:Array(String)}}", {**value.parameters, name: list(values)}))
    return all_of(*parts)


def parameter(prefix: str, column: str, place: int) -> str:
    """The name of a parameter for the values of a column; `place` tells labels apart, whose names may have dots."""
    return f"{prefix}_label_{place}" if column.startswith(LABEL) else f"{prefix}_{column}"


def column_of(dimension: str, prefix: str) -> Fragment:
    """SQL: a column of a request, or the label that `label.NAME` names; '' for a request without it.

    `process` is the names of its engine process, as `Process.joined`.
    """
    if dimension == PROCESS:
        return Fragment(f"concatWithSeparator(char(0), {', '.join(Process._fields)})")
    if not dimension.startswith(LABEL):
        return Fragment(dimension)
    name = f"{prefix}_name"
    return Fragment(f"labels[{{{name}:String}}]", {name: dimension.removeprefix(LABEL)})


def text_of(dimension: str, prefix: str) -> Fragment:
    """SQL: `column_of` as a text, also of a column of few values."""
    column = column_of(dimension, prefix)
    return Fragment(f"toString({column.sql})", column.parameters)


def labelled(column: str, rules: Sequence[LabelRule], prefix: str) -> Fragment:
    """SQL: a column's value, or where it is empty the one that the first rule gives which holds."""
    giving = [rule for rule in rules if getattr(rule, column, "")]
    if not giving:
        return column_of(column, prefix)
    parts = [(selected(rule.when, f"{prefix}_{i}"), getattr(rule, column)) for i, rule in enumerate(giving)]
    values = {f"{prefix}_{column}_{i}": value for i, (_, value) in enumerate(parts)}
    cases = ", ".join(f"{part.sql}, {{{name}:String}}" for (part, _), name in zip(parts, values, strict=True))
    return Fragment(
        f"if({column} != '', toString({column}), multiIf({cases}, ''))",
        {**merged([part for part, _ in parts]), **values},
    )


def selects(promise: Promise, prefix: str) -> Fragment:
    """The promise is for this request."""
    return selected(promise.select, prefix, promise.labels)


LARGEST_US: Final = 4294967294
UNKNOWN_US: Final = 4294967295
"""Of the whole microseconds of sql/schema/10_tables.sql, rounded up: exact for a threshold of whole microseconds."""

NO_TOKEN: Final = "status = 'cancelled' AND ttft_us = 0"
"""The client left before the first token. It waited for the whole time, so its TTFT is more than its E2E."""
_NOT_SEEN: Final = f"first_visible_us = {UNKNOWN_US}"
LATENCY_US: Final = {
    "ttft": f"if({NO_TOKEN}, e2e_us, ttft_us)",
    "tpot": "tpot_us",
    "e2e": "e2e_us",
    "gap": "gap_us",
    "first_visible": (
        f"multiIf({NO_TOKEN}, e2e_us, {_NOT_SEEN}, if(ttft_us = {UNKNOWN_US}, 0, ttft_us), first_visible_us)"
    ),
}
"""Where the first visible token is not known, the first one is a bound: none can be seen before it."""


def is_unknown(name: str) -> str:
    """SQL: the latency of an ended request is not known. `LATENCY_US` may be a bound then."""
    match name:
        case "tpot":
            return f"(tpot_us = {UNKNOWN_US} OR tpot_at_most_ns IS NOT NULL)"
        case "first_visible":
            return f"({_NOT_SEEN} AND NOT ({NO_TOKEN}))"
    return f"{LATENCY_US[name]} = {UNKNOWN_US}"


def exceeds(name: str, ns: int) -> str:
    """SQL: the latency of an ended request is more than `ns`, or may be: it is not known, and nor is a bound within it.

    One that cannot exist (TPOT of one token) is not more. Of a first visible token that is not known, its bound is.
    """
    us, fraction = divmod(ns, 1000)
    if not fraction and us < LARGEST_US:
        return f"{LATENCY_US[name]} > {us}"
    value, without_value = f"{name}_ns", f"{name}_us = {UNKNOWN_US}"
    if name == "first_visible":
        value, without_value = "ifNull(first_visible_ns, ttft_ns)", "false"
    if name in ("ttft", "first_visible"):
        without_value = f"if({NO_TOKEN}, e2e_ns > {ns}, {without_value})"
    if name == "tpot":
        without_value = f"ifNull(tpot_at_most_ns > {ns}, {without_value})"
    return f"ifNull({value} > {ns}, {without_value})"
