"""`/compare`: two sets of requests, like for like, with intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from collector.api.context import Context
from collector.api.parameters import Duration, Labels, Names, Time, WindowQuery
from collector.api.problems import bad_parameter
from collector.ask.times import Moment, rfc3339
from collector.ask.window import Window
from collector.compare.compare import Comparison, compare
from collector.compare.ran import common_time
from collector.compare.sides import read_side
from collector.compare.strata import read_strata
from collector.count.reader import Reader
from collector.slo.judge import selected
from collector.sql.fragment import all_of

_OF_A, _OF_B = "This filter for A alone, in place of the common one", "This filter for B alone"


class CompareQuery(WindowQuery):
    """Filters and times of both sides, and those of one side behind `a.` and `b.`."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, populate_by_name=False)

    a_start: Time | None = Field(None, alias="a.start", description="The start of A, if it has its own")
    a_end: Time | None = Field(None, alias="a.end", description="The end of A")
    a_model: Names = Field([], alias="a.model", description=_OF_A)
    a_tenant: Names = Field([], alias="a.tenant", description=_OF_A)
    a_variant: Names = Field([], alias="a.variant", description=_OF_A)
    a_engine: Names = Field([], alias="a.engine", description=_OF_A)
    a_slo_class: Names = Field([], alias="a.slo_class", description=_OF_A)
    a_vantage: Names = Field([], alias="a.vantage", description=_OF_A)
    a_label: Labels = Field(default_factory=dict, alias="a.label.*", description=_OF_A)
    b_start: Time | None = Field(None, alias="b.start", description="The start of B")
    b_end: Time | None = Field(None, alias="b.end", description="The end of B")
    b_model: Names = Field([], alias="b.model", description=_OF_B)
    b_tenant: Names = Field([], alias="b.tenant", description=_OF_B)
    b_variant: Names = Field([], alias="b.variant", description=_OF_B)
    b_engine: Names = Field([], alias="b.engine", description=_OF_B)
    b_slo_class: Names = Field([], alias="b.slo_class", description=_OF_B)
    b_vantage: Names = Field([], alias="b.vantage", description=_OF_B)
    b_label: Labels = Field(default_factory=dict, alias="b.label.*", description=_OF_B)
    a_instance: Names = Field([], alias="a.instance", description="Only requests to these engine processes in A")
    b_instance: Names = Field([], alias="b.instance", description="Only requests to these engine processes in B")
    at: Time | None = Field(None, description="A is the time before this moment, and B the time after it")
    span: Duration = Field("1h", validate_default=True, description="The time before and after `at`")
    relevant: float = Field(0.1, gt=0.001, le=10, description="Differences of up to this share are called the same")

    def times(self, now_ns: int, side: str) -> tuple[Moment | None, Moment | None]:
        """The start and the end of a side alone; None for a common one."""
        if self.at is not None:
            moment = self.at.at(now_ns)
            return (_at(moment - self.span), self.at) if side == "a" else (self.at, _at(moment + self.span))
        return self.own_times(side)

    def side(self, reader: Reader, side: str) -> tuple[str, Window, list[str]]:
        """The name, the window and the vantages of side `a` or `b`."""
        start, end = self.times(reader.now_ns, side)
        query = self.of_side(side, start, end)
        window, filters = query.as_reported(reader), self.own_filters(side)
        if instances := getattr(self, f"{side}_instance"):
            filters["instance"] = instances
            window = replace(window, filter=all_of(window.filter, selected({"instance": instances}, side)))
        words = [value for values in filters.values() for value in values]
        if start or end:
            words.append(f"{rfc3339(window.start_ns)} to {rfc3339(window.end_ns)}")
        return ", ".join(words) or side.upper(), window, query.vantage


def _at(ns: int) -> Moment:
    return Moment(max(ns, 0), relative=False)


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/compare")
    def get_compare(query: Annotated[CompareQuery, Query()]) -> Comparison:
        """Compare B with A: percentiles like for like, attainment and rates, with 95 % intervals and a verdict."""
        reader = ctx.reader()
        processes = query.a_instance or query.b_instance
        if not processes and not any(query.own_filters(side) or any(query.times(reader.now_ns, side)) for side in "ab"):
            raise bad_parameter("a.variant", "say how the sides differ, as in a.variant=old&b.variant=new or at=-1h")
        (of_a, a, vantage_of_a), (of_b, b, vantage_of_b) = (query.side(reader, side) for side in "ab")
        common = common_time(reader, a, b)
        a, b = common.a, common.b
        strata = read_strata(reader, (a, b))
        sides = read_side(reader, of_a, a, vantage_of_a, strata), read_side(reader, of_b, b, vantage_of_b, strata)
        return compare(*sides, query.relevant, strata, common.cut)

    return routes
