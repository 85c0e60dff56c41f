"""SLOs as SQL predicates over `requests` and over requests in flight: selected, good (or undetermined), bad already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collector.slo.model import Slo, Thresholds
from collector.sql.fragment import Fragment, all_of, any_of, merged, negated


def selected(select: Mapping[Any, Sequence[str]], prefix: str) -> Fragment:
    """The request has one of the listed values in every listed column. `prefix` keeps parameter names apart."""
    return all_of(
        *(
            Fragment(f"{column} IN {{{prefix}_{column}:Array(String)}}", {f"{prefix}_{column}": list(values)})
            for column, values in select.items()
        )
    )


_MISSED = {
    "ttft": "if(ttft_ns IS NULL AND output_tokens = 0, false, ttft_ns > {%s:UInt64})",
    "tpot": "if(tpot_ns IS NULL AND output_tokens < 2, false, tpot_ns > {%s:UInt64})",
    "e2e": "e2e_ns > {%s:UInt64}",
}
"""Ended requests. A value that cannot exist (TPOT of one token, TTFT of none) misses no threshold. Whether a value that
is not known misses one is not known either: NULL."""

_MISSED_ALREADY = {
    "ttft": "least(ifNull(ttft_ns, elapsed_ns), elapsed_ns) > {%s:UInt64}",
    "tpot": "no_progress AND ifNull(elapsed_ns - ttft_ns > {%s:UInt64} * (greatest(output_tokens, 2) - 1), false)",
    "e2e": "elapsed_ns > {%s:UInt64}",
}
"""Requests in flight (sql/parts/in_flight.sql): their announcements prove that they cannot become good any more. TPOT
may recover while the engine process makes progress, so it is missed only when the process makes none."""


def missed(thresholds: Thresholds, prefix: str) -> dict[str, Fragment]:
    """By threshold: the predicate that an ended request missed it."""
    return _by_threshold(_MISSED, thresholds, prefix)


def missed_already(thresholds: Thresholds, prefix: str) -> dict[str, Fragment]:
    """By threshold: the predicate that a request in flight is past it."""
    return _by_threshold(_MISSED_ALREADY, thresholds, prefix)


def _by_threshold(expressions: Mapping[str, str], thresholds: Thresholds, prefix: str) -> dict[str, Fragment]:
    return {
        name: Fragment(expressions[name].replace("%s", f"{prefix}_{name}_ns"), {f"{prefix}_{name}_ns": ns})
        for name, ns in thresholds.given().items()
    }


OK = Fragment("status = 'ok'")


def good(thresholds: Thresholds, prefix: str) -> Fragment:
    """An ended request ended ok and met every threshold. NULL: it is undetermined.

    SQL's logic of three values decides. Of requests that ended ok, under TTFT ≤ 1 s and E2E ≤ 9 s:

        TTFT 0.5 s, E2E 5 s    NOT (false OR false)   true: good
        TTFT NULL,  E2E 20 s   NOT (NULL OR true)     false: bad
        TTFT NULL,  E2E 5 s    NOT (NULL OR false)    NULL: undetermined
    """
    return all_of(OK, negated(any_of(*missed(thresholds, prefix).values())))


def bad_already(thresholds: Thresholds, prefix: str) -> Fragment:
    """A request in flight is past one of the thresholds."""
    return any_of(*missed_already(thresholds, prefix).values())


def good_for_all(slos: Sequence[Slo]) -> Fragment:
    """An ended request is good for every SLO that selects it; without one, when it ended ok. NULL: undetermined for one
    and bad for none."""
    return all_of(
        OK,
        *(
            any_of(negated(selected(slo.select, f"slo{i}")), good(slo.thresholds, f"slo{i}"))
            for i, slo in enumerate(slos)
        ),
    )


def bad_already_for_any(slos: Sequence[Slo]) -> Fragment:
    """A request in flight is past a threshold of an SLO that selects it."""
    return any_of(
        *(all_of(selected(slo.select, f"slo{i}"), bad_already(slo.thresholds, f"slo{i}")) for i, slo in enumerate(slos))
    )


def bad_now_by_slo(slos: Sequence[Slo]) -> Fragment:
    """An array with one flag per SLO: it selects the request, and the request is lost or past a threshold."""
    flags = [
        all_of(selected(slo.select, f"slo{i}"), any_of(Fragment("is_lost"), bad_already(slo.thresholds, f"slo{i}")))
        for i, slo in enumerate(slos)
    ]
    array = ", ".join(f"({flag.sql})" for flag in flags)
    return Fragment(f"CAST([{array}], 'Array(UInt8)')", merged(flags))
