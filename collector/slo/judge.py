"""SLOs as SQL predicates over `requests`. collector.slo.cells judges the same rows in groups, and
collector.measure.in_flight those that have not ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collector.slo.model import LabelRule, Promise, Thresholds
from collector.sql.fragment import FALSE, Fragment, all_of, any_of, merged, negated


def selected(select: Mapping[Any, Sequence[str]], prefix: str, rules: Sequence[LabelRule] = ()) -> Fragment:
    """The request has one of the listed values in every listed column, which `rules` fill where they are empty.

    `prefix` keeps parameter names apart.
    """
    parts = []
    for column, values in select.items():
        name = f"{prefix}_{column}"
        value = labelled(column, rules, name)
        parts.append(Fragment(f"{value.sql} IN {{{name}:Array(String)}}", {**value.parameters, name: list(values)}))
    return all_of(*parts)


def labelled(column: str, rules: Sequence[LabelRule], prefix: str) -> Fragment:
    """SQL: a column's value, or where it is empty the one that the first rule gives which holds."""
    giving = [rule for rule in rules if getattr(rule, column, "")]
    if not giving:
        return Fragment(column)
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
_LATENCY_US: Final = {"ttft": f"if({NO_TOKEN}, e2e_us, ttft_us)", "tpot": "tpot_us", "e2e": "e2e_us"}


def is_unknown(name: str) -> str:
    """SQL: the latency of an ended request is not known. A TPOT may have a bound then, which `tpot_us` is."""
    no_value = f"{_LATENCY_US[name]} = {UNKNOWN_US}"
    return f"({no_value} OR tpot_at_most_ns IS NOT NULL)" if name == "tpot" else no_value


def exceeds(name: str, ns: int, *, if_unknown: bool) -> str:
    """SQL: the latency of an ended request is more than `ns`. One that cannot exist (TPOT of one token) is not.

    `if_unknown`: or it may be more, as it is not known, and its bound, if it has one, is more.
    """
    us, fraction = divmod(ns, 1000)
    if not fraction and us < LARGEST_US:
        over = f"{_LATENCY_US[name]} > {us}"
    else:
        without_value = f"{name}_us = {UNKNOWN_US}"
        if name == "ttft":
            without_value = f"if({NO_TOKEN}, e2e_ns > {ns}, {without_value})"
        if name == "tpot":
            without_value = f"ifNull(tpot_at_most_ns > {ns}, {without_value})"
        over = f"ifNull({name}_ns > {ns}, {without_value})"
    return over if if_unknown else f"{over} AND NOT {is_unknown(name)}"


def missed(thresholds: Thresholds, *, if_unknown: bool = False) -> dict[str, Fragment]:
    """By threshold: an ended request missed it. A value that is not known misses it only `if_unknown`."""
    return {name: Fragment(exceeds(name, ns, if_unknown=if_unknown)) for name, ns in thresholds.given().items()}


OK = Fragment("status = 'ok'")
FAILED = Fragment("status = 'error'")
CANCELLED = Fragment("status = 'cancelled'")
UNKNOWN = Fragment("status = 'unknown'")
"""Nobody tells whether it ended well or its client left."""


@dataclass(frozen=True)
class Verdict:
    """Predicates over ended requests; none is NULL, and no request meets two. One that meets none is bad.

    Under TTFT ≤ 1 s and E2E ≤ 9 s:

        ok, TTFT 0.5 s, E2E 5 s          met both                                    good
        ok, TTFT NULL, E2E 5 s           met one, and the other one is not known     undetermined
        ok, TTFT NULL, E2E 20 s          missed one                                  bad
        cancelled after 0.5 s            missed none before                          excused
        cancelled after 5 s, no token    waited for longer than 1 s                  bad
        unknown, TTFT 0.5 s, E2E 5 s     met both, if it ended well                  undetermined
        unknown, TTFT 0.5 s, E2E 20 s    missed one                                  bad
    """

    good: Fragment
    undetermined: Fragment
    excused: Fragment
    unselected: Fragment
    """No promise selects it, so nobody judges it."""


def verdict(promises: Sequence[Promise], prefix: str = "slo") -> Verdict:
    """Good for each promise that selects it; bad for one is bad; undetermined for one and bad for none is undetermined.

    `prefix` keeps the parameters of two verdicts apart.
    """
    chosen = [selects(promise, f"{prefix}{i}") for i, promise in enumerate(promises)]
    judged, others = any_of(*chosen), [negated(one) for one in chosen]
    misses = [any_of(*missed(promise.thresholds).values()) for promise in promises]
    doubts = [any_of(*missed(promise.thresholds, if_unknown=True).values()) for promise in promises]
    unmissed = all_of(*(any_of(other, negated(miss)) for other, miss in zip(others, misses, strict=True)))
    met = all_of(*(any_of(other, negated(doubt)) for other, doubt in zip(others, doubts, strict=True)))
    return Verdict(
        good=all_of(OK, judged, met),
        undetermined=any_of(all_of(OK, negated(met), unmissed), all_of(UNKNOWN, judged, unmissed)),
        excused=all_of(judged, any_of(all_of(CANCELLED, unmissed), _excluded(promises, others, prefix))),
        unselected=negated(judged),
    )


def _excluded(promises: Sequence[Promise], others: Sequence[Fragment], prefix: str) -> Fragment:
    """It failed with an error that every promise which selects it excludes."""
    if not any(promise.errors.exclude for promise in promises):
        return FALSE
    excluded = [error_excluded(promise, f"{prefix}{i}") for i, promise in enumerate(promises)]
    for_each = [any_of(other, error) for other, error in zip(others, excluded, strict=True)]
    return all_of(*for_each)


def error_excluded(promise: Promise, prefix: str) -> Fragment:
    """It failed with an error that the promise excludes."""
    if not promise.errors.exclude:
        return FALSE
    name = f"{prefix}_excluded"
    return all_of(FAILED, Fragment(f"error_type IN {{{name}:Array(String)}}", {name: list(promise.errors.exclude)}))
