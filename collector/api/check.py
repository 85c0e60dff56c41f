"""`/check`: a gate for releases."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from collector.api.context import Context
from collector.api.parameters import (
    Duration,
    Name,
    Time,
    WindowQuery,
    find_slo,
    with_filters,
)
from collector.api.unknown import unknown_names
from collector.ask.window import Window
from collector.compare.check import Check, check, read
from collector.compare.evidence import Verdict
from collector.compare.ran import Ran, common_time
from collector.compare.strata import NO_STRATA, read_strata
from collector.count.reader import Reader
from collector.slo.judge import selects
from collector.slo.model import Slo
from collector.sql.fragment import all_of
from tokentrail.shared.parameters import MEANING

_OK: Final[Mapping[str, Container[Verdict]]] = {
    "good": ("good",),
    "not_worse": ("good", "not decided"),
    "worse": ("worse",),
}


@with_filters(against="in place of the filters of what is checked, compare with ")
class CheckQuery(WindowQuery):
    """Which requests are checked, and against what."""

    slo: Name = Field(description=MEANING["check.slo"])
    objective: float | None = Field(None, gt=0, lt=1, description=MEANING["check.objective"])
    relevant: float = Field(0.2, gt=0.001, le=10, description=MEANING["check.relevant"])
    quantile: float = Field(0.99, ge=0.5, lt=1, description=MEANING["check.quantile"])
    least_time: Duration = Field("40m", validate_default=True, description=MEANING["check.least_time"])
    against_start: Time | None = Field(None, alias="against.start", description="Compare with an earlier time")
    against_end: Time | None = Field(None, alias="against.end", description="The end of that time")
    ok_if: Literal["good", "not_worse", "worse"] | None = Field(
        None, description="For tools that read the status alone: 200 if the verdict is so, else 412"
    )

    @property
    def against(self) -> WindowQuery | None:
        """The other side; None without one."""
        times = self.own_times("against")
        return self.of_side("against", *times) if self.own_filters("against") or any(times) else None


def _side(reader: Reader, slo: Slo, query: WindowQuery) -> Window:
    asked = query.as_reported(reader)
    return replace(asked, filter=all_of(asked.filter, selects(slo, "checked")))


def _named(filters: Mapping[str, list[str]], otherwise: str) -> str:
    return ", ".join(value for values in filters.values() for value in values) or otherwise


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["slos"])

    @routes.get("/check")
    @routes.post("/check", include_in_schema=False)
    def get_check(query: Annotated[CheckQuery, Query()], response: Response) -> Check:
        """Tell whether requests keep an SLO, or are as quick as others: good, worse, or not decided.

        It may be asked again and again about a window that begins at one time: that does not make it err more often.
        """
        reader = ctx.reader()
        slo = find_slo(reader.slos, query.slo)
        vantage, against, cut, strata = slo.select["vantage"], query.against, "", NO_STRATA
        window, other = _side(reader, slo, query), None
        uncut = of_other = window
        if against is None:
            ran = Ran.read(reader, window)
            seen, first_ns = ran.seen_s(), ran.first_ns
        else:
            of_other = _side(reader, slo, against)
            common = common_time(reader, of_other, window)
            window, cut, seen, first_ns = common.b, common.cut, common.seen_s, common.first_ns
            strata = read_strata(reader, (common.a, window))
            name = _named(query.own_filters("against"), "the other time")
            other = read(reader, name, slo, common.a, vantage, strata)
        checked = read(
            reader,
            _named({name: getattr(query, name) for name in ("variant", "model", "tenant")}, "the window"),
            slo,
            window,
            vantage,
            None if other is None else strata,
            first_ns,
        )
        answer = check(
            slo,
            checked,
            other,
            objective=query.objective or float(slo.objective),
            quantile=query.quantile,
            relevant=query.relevant,
            least_ns=query.least_time,
            ran_s=seen,
            strata=strata,
            cut=cut,
        )
        if answer.empty is not None:
            for of_side, asked in ((uncut, query.filters()), (of_other, query.own_filters("against"))):
                answer.reason = "; ".join([answer.reason, *unknown_names(reader, of_side, asked)])
        if query.ok_if and answer.verdict not in _OK[query.ok_if]:
            response.status_code = HTTPStatus.PRECONDITION_FAILED
        return answer

    return routes
