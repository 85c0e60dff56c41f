"""`/check`: a gate for releases."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from collector.api.context import Context
from collector.api.parameters import Labels, Name, Names, Time, WindowQuery, find_slo
from collector.measure.check import Check, Checked, Verdict, check, read
from collector.measure.reader import Reader
from collector.slo.judge import selects
from collector.slo.model import Slo
from collector.sql.fragment import all_of

_OK: Final[Mapping[str, Container[Verdict]]] = {
    "good": ("good",),
    "not_worse": ("good", "not decided"),
    "worse": ("worse",),
}
_OTHER = "A filter of the other side, in place of the one that is checked"


class CheckQuery(WindowQuery):
    """Which requests are checked, and against what."""

    slo: Name = Field(description="The SLO that judges")
    objective: float | None = Field(None, gt=0, lt=1, description="In place of the SLO's own")
    relevant: float = Field(0.2, gt=0.001, le=10, description="The smallest difference that matters, as a share")
    quantile: float = Field(0.99, ge=0.5, lt=1, description="The percentile of latencies that is compared")
    against_start: Time | None = Field(None, alias="against.start", description="Compare with an earlier time")
    against_end: Time | None = Field(None, alias="against.end", description="The end of that time")
    against_model: Names = Field([], alias="against.model", description=_OTHER)
    against_tenant: Names = Field([], alias="against.tenant", description=_OTHER)
    against_variant: Names = Field([], alias="against.variant", description=_OTHER)
    against_engine: Names = Field([], alias="against.engine", description=_OTHER)
    against_label: Labels = Field(default_factory=dict, alias="against.label.*", description=_OTHER)
    ok_if: Literal["good", "not_worse", "worse"] | None = Field(
        None, description="For tools that read the status alone: 200 if the verdict is so, else 412"
    )

    @property
    def against(self) -> WindowQuery | None:
        """The other side; None without one."""
        times = self.own_times("against")
        return self.of_side("against", *times) if self.own_filters("against") or any(times) else None


def _read(reader: Reader, slo: Slo, query: WindowQuery, *, with_rows: bool) -> Checked:
    asked = query.window(reader)
    window = replace(asked, filter=all_of(asked.filter, selects(slo, "checked")))
    return read(reader, slo, window, slo.select["vantage"], with_rows=with_rows)


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
        against = query.against
        answer = check(
            slo,
            _read(reader, slo, query, with_rows=against is not None),
            None if against is None else _read(reader, slo, against, with_rows=True),
            objective=query.objective or float(slo.objective),
            quantile=query.quantile,
            relevant=query.relevant,
        )
        if query.ok_if and answer.verdict not in _OK[query.ok_if]:
            response.status_code = HTTPStatus.PRECONDITION_FAILED
        return answer

    return routes
