"""`/compare`: two sets of requests, like for like, with intervals."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from collector.api.context import Context
from collector.api.parameters import Duration, Time, WindowQuery, with_filters
from collector.api.problems import bad_parameter
from collector.api.unknown import unknown_names
from collector.ask.times import rfc3339
from collector.ask.window import Window
from collector.compare.compare import Comparison, compare
from collector.compare.ran import common_time
from collector.compare.sides import read_side
from collector.compare.strata import read_strata
from collector.count.reader import Reader
from tokentrail.shared.moments import Moment
from tokentrail.shared.parameters import MEANING


@with_filters(a="of A: only ", b="of B: only ")
class CompareQuery(WindowQuery):
    """Filters and times of both sides, and those of one side behind `a.` and `b.`."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, populate_by_name=False)

    a_start: Time | None = Field(None, alias="a.start", description="The start of A, if it has its own")
    a_end: Time | None = Field(None, alias="a.end", description="The end of A")
    b_start: Time | None = Field(None, alias="b.start", description="The start of B")
    b_end: Time | None = Field(None, alias="b.end", description="The end of B")
    at: Time | None = Field(None, description=MEANING["at"])
    span: Duration = Field("1h", validate_default=True, description=MEANING["span"])
    relevant: float = Field(0.1, gt=0.001, le=10, description=MEANING["compare.relevant"])

    def times(self, now_ns: int, side: str) -> tuple[Moment | None, Moment | None]:
        """The start and the end of a side alone; None for a common one."""
        if self.at is not None:
            moment = self.at.at(now_ns)
            edges = [_at(ns) for ns in (moment - self.span, moment, moment + self.span)]  # -1h would be before its end
            return (edges[0], edges[1]) if side == "a" else (edges[1], edges[2])
        return self.own_times(side)

    def side(self, reader: Reader, side: str) -> tuple[str, Window, list[str]]:
        """The name, the window and the vantages of side `a` or `b`."""
        start, end = self.times(reader.now_ns, side)
        query = self.of_side(side, start, end)
        window, filters = query.as_reported(reader), self.own_filters(side)
        words = [value for values in filters.values() for value in values]
        if start or end:
            words.append(f"{rfc3339(window.start_ns)} to {rfc3339(window.end_ns)}")
        return ", ".join(words) or side.upper(), window, query.vantages


def _at(ns: int) -> Moment:
    return Moment(max(ns, 0), relative=False)


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/compare")
    def get_compare(query: Annotated[CompareQuery, Query()]) -> Comparison:
        """Compare B with A: percentiles like for like, attainment and rates, with 95 % intervals and a verdict."""
        reader = ctx.reader()
        if not any(query.own_filters(side) or any(query.times(reader.now_ns, side)) for side in "ab"):
            raise bad_parameter("a.variant", "say how the sides differ, as in a.variant=old&b.variant=new or at=-1h")
        (of_a, a, vantage_of_a), (of_b, b, vantage_of_b) = (query.side(reader, side) for side in "ab")
        asked = {"a": a, "b": b}
        common = common_time(reader, a, b)
        a, b = common.a, common.b
        strata = read_strata(reader, (a, b))
        sides = read_side(reader, of_a, a, vantage_of_a, strata), read_side(reader, of_b, b, vantage_of_b, strata)
        answer = compare(*sides, query.relevant, strata, common.cut)
        for name, side in zip("ab", sides, strict=True):
            if not side.counted.requests.total:
                answer.warnings += unknown_names(reader, asked[name], query.filters() | query.own_filters(name))
        return answer

    return routes
