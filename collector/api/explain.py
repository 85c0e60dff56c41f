"""`/explain`: which causes took the time of slow requests, and what would be good without each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.parameters import Duration, Name, WindowQuery, find_slo
from collector.api.problems import bad_parameter
from collector.causes.answer.answer import Explanation
from collector.causes.answer.explain import explain
from collector.causes.answer.request_times import Metric
from collector.causes.answer.without import Question
from collector.causes.split.names import PARTS
from collector.count.reader import Reader
from collector.incidents.wrong import what_was_wrong
from collector.slo.model import THRESHOLDS, Promise, Thresholds
from collector.sql.fragment import Fragment, all_of, any_of, negated
from tokentrail.shared.moments import parse_moment
from tokentrail.shared.parameters import MEANING

_MOST_SETS = 50
_MOST_STRETCHES = 100
_MOST_SLOWEST = 200


class ExplainQuery(WindowQuery):
    """Which requests are explained: bad ones, or those in the tail of a metric."""

    slo: Name | None = Field(None, description=MEANING["explain.slo"])
    ttft: Duration | None = Field(None, description="bad for these thresholds, in place of an SLO")
    tpot: Duration | None = None
    e2e: Duration | None = None
    gap: Duration | None = None
    first_visible: Duration | None = None
    verdict: Literal["bad"] | None = Field(None, description="the default, unless a metric is given")
    metric: Metric | None = Field(None, description=MEANING["explain.metric"])
    quantile: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = Field(
        None, description=MEANING["explain.quantile"]
    )
    without: Annotated[list[Annotated[str, Field(max_length=400)]], Field(max_length=_MOST_SETS)] = Field(
        [], description=MEANING["explain.without"]
    )
    replay: bool | Literal["auto"] = Field(False, description=MEANING["explain.replay"])
    slowest: Annotated[int, Field(ge=0, le=_MOST_SLOWEST)] = Field(
        0, description="so many of the requests with the longest time, each with its causes"
    )
    leave_out: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=_MOST_STRETCHES)] = Field(
        [], description="`START/END`: without the requests that ended in this stretch; may be repeated"
    )


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/explain")
    def get_explain(query: Annotated[ExplainQuery, Query()]) -> Explanation:
        """The causes of slow requests beside typical ones, by the largest excess, and the attainment without each."""
        reader = ctx.reader()
        window = query.as_reported(reader)
        kept = all_of(window.filter, negated(_in_stretches(query.leave_out, reader.now_ns)))
        question, chosen = _question(reader, query), replace(window, filter=kept)
        answer = explain(reader, chosen, query.vantages, question)
        if question.slo is None or question.metric is not None:
            return answer
        wrong = what_was_wrong(reader, chosen, question.slo)
        return answer.model_copy(update={"wrong": wrong and wrong.beside(answer)})

    return routes


def _question(reader: Reader, query: ExplainQuery) -> Question:
    """What is asked. Raises Problem for parameters that do not go together."""
    if query.metric is not None and query.verdict is not None:
        raise bad_parameter("metric", "is in place of verdict: give one of them")
    if query.metric is None and query.quantile is not None:
        raise bad_parameter("quantile", f"is that of a metric: give one of {THRESHOLDS} too, as in metric=ttft")
    given = {name: ns for name in Thresholds.model_fields if (ns := getattr(query, name)) is not None}
    if given and query.slo is not None:
        raise bad_parameter("slo", f"has thresholds of its own: give it, or {THRESHOLDS}")
    promises: tuple[Promise, ...] = reader.slos
    if query.slo is not None:
        promises = (find_slo(reader.slos, query.slo),)
    elif given:
        promises = (Promise.to_all(Thresholds.model_construct(None, **given)),)
    if query.replay is True and query.metric is not None:
        raise bad_parameter("replay", "tells an attainment, and a percentile has none: leave out replay or metric")
    if query.replay is True and len(promises) != 1:
        raise bad_parameter("replay", "is about one promise: give slo=, or ttft=, tpot= or e2e=")
    return Question(
        promises,
        query.metric,
        0.99 if query.quantile is None else query.quantile,
        [*map(_causes, query.without)],
        replay=query.replay if query.metric is None else False,
        slowest=query.slowest,
    )


def _in_stretches(texts: Sequence[str], now_ns: int) -> Fragment:
    """Requests that ended in one of these stretches of time. Raises Problem for one that is none."""
    stretches = []
    for i, text in enumerate(texts):
        first, is_given, last = text.partition("/")
        try:
            start, end = parse_moment(first).at(now_ns), parse_moment(last).at(now_ns)
        except ValueError as error:
            raise bad_parameter("leave_out", f"{text[:60]!r} is not START/END: {error}") from error
        if not is_given or start >= end:
            raise bad_parameter("leave_out", f"{text[:60]!r} is not START/END, with the start before the end")
        names = f"out_{i}_from", f"out_{i}_to"
        first_at, last_at = (f"fromUnixTimestamp64Nano({{{name}:Int64}})" for name in names)
        bounds = dict(zip(names, (start, end), strict=True))
        stretches.append(Fragment(f"end >= {first_at} AND end < {last_at}", bounds))
    return any_of(*stretches)


def _causes(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(","))
    if unknown := sorted(names - {*PARTS}):
        raise bad_parameter("without", f"no cause is named {unknown[0][:40]!r}; there are: {', '.join(PARTS)}")
    return names
