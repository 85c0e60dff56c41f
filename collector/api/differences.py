"""`/differences`: what some requests have that the others have not."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.latency import LatencyQuery
from collector.api.parameters import Labels, Name, Names, Time, find_slo
from collector.measure.differences import Differences, differences
from collector.measure.reader import Reader
from collector.measure.verdicts import Verdict, wanted
from collector.measure.window import Window
from collector.slo.judge import selected
from collector.sql.fragment import TRUE, Fragment, all_of, any_of

_COMPARED: Final[tuple[Verdict, Verdict]] = ("bad", "good")
"""What is compared where nothing is selected."""


class DifferencesQuery(LatencyQuery):
    """The requests of a window, and which of them are selected: those that all given parameters choose."""

    slo: Name | None = Field(None, description="only requests that this SLO selects")
    verdict: Verdict | None = Field(
        None, description="select this verdict; without any selection, `bad`, beside `good` ones alone"
    )
    select_start: Time | None = Field(None, alias="select.start", description="select what ended from then on")
    select_end: Time | None = Field(None, alias="select.end", description="select what ended before")
    select_status: Literal["ok", "error", "cancelled", "unknown"] | None = Field(
        None, alias="select.status", description="select what ended so"
    )
    select_model: Names = Field([], alias="select.model", description="select this model; may be repeated")
    select_tenant: Names = Field([], alias="select.tenant", description="select this tenant; may be repeated")
    select_variant: Names = Field([], alias="select.variant", description="select this variant; may be repeated")

    select_label: Labels = Field(
        default_factory=dict, alias="select.label.*", description="select this value of the label that stands for `*`"
    )

    def selection(self, reader: Reader, window: Window) -> tuple[Fragment, Fragment]:
        """The selected requests, and those that are compared at all. Raises Problem for an incomplete selection."""
        slo = None if self.slo is None else find_slo(reader.slos, self.slo)
        chosen = self._parts(reader)
        compared, _ = wanted(reader, window, slo, None)
        if not chosen and self.verdict is None:
            bad, good = (wanted(reader, window, slo, verdict)[0] for verdict in _COMPARED)
            return bad, any_of(bad, good)
        verdict = TRUE if self.verdict is None else wanted(reader, window, slo, self.verdict)[0]
        return all_of(*chosen, verdict), compared

    def _parts(self, reader: Reader) -> list[Fragment]:
        start, end = (None if time is None else time.at(reader.now_ns) for time in (self.select_start, self.select_end))
        bounds = {
            "select_start_ns": ("end >= fromUnixTimestamp64Nano({select_start_ns:Int64})", start),
            "select_end_ns": ("end < fromUnixTimestamp64Nano({select_end_ns:Int64})", end),
            "select_status": ("status = {select_status:String}", self.select_status),
        }
        parts = [Fragment(sql, {name: value}) for name, (sql, value) in bounds.items() if value is not None]
        parts += self.between()
        given = self.own_filters("select")
        return [*parts, selected(given, "select")] if given else parts


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/differences")
    def get_differences(query: Annotated[DifferencesQuery, Query()]) -> Differences:
        """What is commoner among the selected requests than among the others of the same time, beyond chance."""
        reader = ctx.reader()
        window = query.window(reader)
        chosen, compared = query.selection(reader, window)
        return differences(reader, window, chosen, compared)

    return routes
