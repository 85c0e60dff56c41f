"""SLOs as SQL predicates over `requests`: selected, good, undetermined. collector.in_flight judges the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collector.slo.model import Slo, Thresholds
from collector.sql.fragment import Fragment, all_of, any_of, negated


def selected(select: Mapping[Any, Sequence[str]], prefix: str) -> Fragment:
    """The request has one of the listed values in every listed column. `prefix` keeps parameter names apart."""
    return all_of(
        *(
            Fragment(f"{column} IN {{{prefix}_{column}:Array(String)}}", {f"{prefix}_{column}": list(values)})
            for column, values in select.items()
        )
    )


_LARGEST_US = 4294967294
_UNKNOWN_US = 4294967295
_MET = "{name}_us <= {bound}"
_MISSED = f"{{name}}_us > {{bound}} AND {{name}}_us != {_UNKNOWN_US}"
"""Over the whole microseconds of sql/schema/10_tables.sql, rounded up: exact for a threshold of whole microseconds."""

_MET_NS = "ifNull({name}_ns <= {bound}, {name}_us = 0)"
_MISSED_NS = "ifNull({name}_ns > {bound}, false)"
"""The same over nanoseconds, for a threshold with a fraction of a microsecond or of more than an hour."""


def _compared(narrow: str, exact: str, name: str, ns: int, prefix: str) -> Fragment:
    us, fraction = divmod(ns, 1000)
    if fraction or us >= _LARGEST_US:
        key, value, kind, form = f"{prefix}_{name}_ns", ns, "UInt64", exact
    else:
        key, value, kind, form = f"{prefix}_{name}_us", us, "UInt32", narrow
    return Fragment(form.format(name=name, bound=f"{{{key}:{kind}}}"), {key: value})


def missed(thresholds: Thresholds, prefix: str) -> dict[str, Fragment]:
    """By threshold: an ended request is known to have missed it. A value that is not known misses nothing."""
    return {name: _compared(_MISSED, _MISSED_NS, name, ns, prefix) for name, ns in thresholds.given().items()}


OK = Fragment("status = 'ok'")
FAILED = Fragment("status = 'error'")
CANCELLED = Fragment("status = 'cancelled'")


@dataclass(frozen=True)
class Verdict:
    """Predicates over ended requests; neither is NULL. A request is good, undetermined or something else.

    Of requests that ended ok, under TTFT ≤ 1 s and E2E ≤ 9 s:

        TTFT 0.5 s, E2E 5 s    met both                                    good
        TTFT NULL,  E2E 20 s   missed one                                  bad
        TTFT NULL,  E2E 5 s    met one, and the other one is not known     undetermined
    """

    good: Fragment
    undetermined: Fragment


def verdict(thresholds: Thresholds, prefix: str) -> Verdict:
    """Good: it ended ok and met every threshold. A latency that cannot exist (TPOT of one token) meets all."""
    return _verdict(*_met_and_unmissed(thresholds, prefix))


def verdict_for_all(slos: Sequence[Slo]) -> Verdict:
    """Good for every SLO that selects it; without one, when it ended ok. Undetermined for one and bad for none."""
    met: list[Fragment] = []
    unmissed: list[Fragment] = []
    for i, slo in enumerate(slos):
        others = [negated(selected(slo.select, f"slo{i}"))] if slo.select else []
        slo_met, slo_unmissed = _met_and_unmissed(slo.thresholds, f"slo{i}")
        met.append(any_of(*others, slo_met))
        unmissed.append(any_of(*others, slo_unmissed))
    return _verdict(all_of(*met), all_of(*unmissed))


def _met_and_unmissed(thresholds: Thresholds, prefix: str) -> tuple[Fragment, Fragment]:
    met = (_compared(_MET, _MET_NS, name, ns, prefix) for name, ns in thresholds.given().items())
    return all_of(*met), negated(any_of(*missed(thresholds, prefix).values()))


def _verdict(met: Fragment, unmissed: Fragment) -> Verdict:
    return Verdict(all_of(OK, met), all_of(OK, negated(met), unmissed))
