"""The requests of a window, judged by thresholds that the caller gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import Goodput, ThresholdsOut, WindowOut
from collector.count.evaluation import Counted, count
from collector.count.reader import Reader
from collector.numbers.groups import Value, groups_of
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.model import Promise, Thresholds
from collector.sql.fragment import all_of


class Violations(Answer):
    """Requests by the threshold that they missed; one request may be in several."""

    ttft: Number
    tpot: Number
    e2e: Number
    gap: Number
    first_visible: Number
    failed: Number
    """Failed, or lost."""


class Judged(Answer):
    """Requests, judged by thresholds."""

    requests: Counts
    goodput: Goodput
    attainment: float | None
    estimated: bool
    errors: Errors | None
    violations: Violations


class JudgedGroup(Value, Judged):
    """The requests with one value of the column that `group_by` names, judged by thresholds."""


class GoodputAnswer(Judged):
    """`/goodput`."""

    window: WindowOut
    thresholds: ThresholdsOut
    groups: list[JudgedGroup] | None = None
    """The values with the most requests first, as many as `top` says, then the others together; absent without
    `group_by`."""
    groups_total: int | None = None
    """All values, also those that have no group of their own."""


def goodput(
    reader: Reader,
    window: Window,
    vantage: Sequence[str],
    thresholds: Thresholds,
    *,
    group_by: tuple[str, int] | None = None,
) -> GoodputAnswer:
    """Goodput and attainment of a window by these thresholds. `vantage`: those that are asked for.

    `group_by`: a column, and how many of its values have an answer of their own; each is read for itself.
    """
    counted = count(reader, window, vantage, [Promise.to_all(thresholds)])
    answer = GoodputAnswer(
        window=WindowOut.of(window, counted.complete_ns), thresholds=ThresholdsOut.of(thresholds), **_judged(counted)
    )
    if group_by is not None:
        groups = groups_of(reader, counted.window, *group_by)
        windows = [replace(window, filter=all_of(counted.window.filter, one.has)) for one in groups.groups]
        answer.groups = [
            JudgedGroup(**one.names, **_judged(count(reader, of, vantage, [Promise.to_all(thresholds)])))
            for one, of in zip(groups.groups, windows, strict=True)
        ]
        answer.groups_total = groups.total
    return answer


def _judged(counted: Counted) -> dict[str, Any]:
    """The fields of `Judged`."""
    requests = counted.requests
    return {
        "requests": requests,
        "goodput": Goodput.of(counted.covered),
        "attainment": requests.attainment,
        "estimated": counted.errors is not None,
        "errors": counted.errors,
        "violations": _violations(counted),
    }


def _violations(counted: Counted) -> Violations:
    missed = {name: counted.sums.get(f"missed_{name}", 0) for name in Thresholds.model_fields}
    return Violations(**missed, failed=counted.requests.failed + counted.requests.lost)
