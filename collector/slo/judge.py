"""The one place that turns a promise into SQL: which requests it is about, which are good, which are bad already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collector.slo.model import Slo, Thresholds


@dataclass(frozen=True)
class Condition:
    """A boolean SQL expression, and the values of the parameters it binds."""

    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


TRUE = Condition("true")
FALSE = Condition("false")


def both(*conditions: Condition) -> Condition:
    """All of them hold; true without any."""
    return _joined(" AND ", conditions) if conditions else TRUE


def either(*conditions: Condition) -> Condition:
    """At least one of them holds; false without any."""
    return _joined(" OR ", conditions) if conditions else FALSE


def negated(condition: Condition) -> Condition:
    """It does not hold."""
    return Condition(f"NOT ({condition.sql})", condition.parameters)


def _joined(word: str, conditions: Sequence[Condition]) -> Condition:
    parameters: dict[str, Any] = {}
    for condition in conditions:
        parameters |= condition.parameters
    return Condition(word.join(f"({c.sql})" for c in conditions), parameters)


def selected(select: Mapping[Any, Sequence[str]], prefix: str) -> Condition:
    """The request has one of the listed values in every listed column. `prefix` keeps parameter names apart."""
    return both(
        *(
            Condition(f"{column} IN {{{prefix}_{column}:Array(String)}}", {f"{prefix}_{column}": list(values)})
            for column, values in select.items()
        )
    )


_MISSED = {
    "ttft": "ifNull(ttft_ns > {%s:UInt64}, output_tokens > 0)",
    "tpot": "ifNull(tpot_ns > {%s:UInt64}, output_tokens > 1)",
    "e2e": "e2e_ns > {%s:UInt64}",
}
"""Ended requests. A value that must exist and was not measured misses its threshold; one that cannot exist (TPOT of one
token, TTFT of none) does not."""

_MISSED_ALREADY = {
    "ttft": "least(ifNull(ttft_ns, elapsed_ns), elapsed_ns) > {%s:UInt64}",
    "tpot": "no_progress AND ifNull(elapsed_ns - ttft_ns > {%s:UInt64} * (greatest(output_tokens, 2) - 1), false)",
    "e2e": "elapsed_ns > {%s:UInt64}",
}
"""Requests in flight (sql/queries/in_flight.sql), by what their announcements prove: nothing that comes later makes
these good again. A TPOT may recover while the engine makes progress, so it counts from when the engine makes none."""


def missed(thresholds: Thresholds, prefix: str) -> dict[str, Condition]:
    """By threshold: an ended request missed it."""
    return _by_threshold(_MISSED, thresholds, prefix)


def missed_already(thresholds: Thresholds, prefix: str) -> dict[str, Condition]:
    """By threshold: a request in flight is past it."""
    return _by_threshold(_MISSED_ALREADY, thresholds, prefix)


def _by_threshold(expressions: Mapping[str, str], thresholds: Thresholds, prefix: str) -> dict[str, Condition]:
    return {
        name: Condition(expressions[name].replace("%s", f"{prefix}_{name}_ns"), {f"{prefix}_{name}_ns": ns})
        for name, ns in thresholds.given().items()
    }


OK = Condition("status = 'ok'")


def good(thresholds: Thresholds, prefix: str) -> Condition:
    """An ended request ended ok and met every threshold."""
    return both(OK, negated(either(*missed(thresholds, prefix).values())))


def bad_already(thresholds: Thresholds, prefix: str) -> Condition:
    """A request in flight is past one of the thresholds."""
    return either(*missed_already(thresholds, prefix).values())


def good_for_all(slos: Sequence[Slo]) -> Condition:
    """An ended request is good for every SLO that selects it; without one, when it ended ok."""
    return both(
        OK,
        *(
            either(negated(selected(slo.select, f"slo{i}")), good(slo.thresholds, f"slo{i}"))
            for i, slo in enumerate(slos)
        ),
    )


def bad_already_for_any(slos: Sequence[Slo]) -> Condition:
    """A request in flight is past a threshold of an SLO that selects it."""
    return either(
        *(both(selected(slo.select, f"slo{i}"), bad_already(slo.thresholds, f"slo{i}")) for i, slo in enumerate(slos))
    )


def bad_now_by_slo(slos: Sequence[Slo]) -> Condition:
    """An array with one element an SLO: it selects the request, which is lost or past one of its thresholds."""
    conditions = [
        both(selected(slo.select, f"slo{i}"), either(Condition("is_lost"), bad_already(slo.thresholds, f"slo{i}")))
        for i, slo in enumerate(slos)
    ]
    flags = ", ".join(f"({c.sql})" for c in conditions)
    return Condition(f"CAST([{flags}], 'Array(UInt8)')", {k: v for c in conditions for k, v in c.parameters.items()})
