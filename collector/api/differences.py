"""`/differences`: what some requests have that the others have not."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.latency import LatencyQuery
from collector.api.parameters import Name, Time, find_slo, with_filters
from collector.ask.window import Window
from collector.compare.differences import Differences, differences
from collector.count.reader import Reader
from collector.count.verdicts import wanted
from collector.slo.judge import selected
from collector.sql.fragment import TRUE, Fragment, all_of, any_of, negated
from tokentrail.shared.formatting import clock_text
from tokentrail.shared.parameters import MEANING, Ended, Verdict

_COMPARED: Final[tuple[Verdict, Verdict]] = ("bad", "good")
"""What is compared where nothing is selected."""
_LEAST_OTHERS: Final = 0.1
"""With fewer good requests for each bad one, those of before are compared too."""
_TIMES_BEFORE: Final = 2
"""Of a time so many times as long as the window."""


@with_filters(select="select ")
class DifferencesQuery(LatencyQuery):
    """The requests of a window, and which of them are selected: those that all given parameters choose."""

    slo: Name | None = Field(None, description=MEANING["slo"])
    verdict: Verdict | None = Field(None, description=MEANING["differences.verdict"])
    select_start: Time | None = Field(None, alias="select.start", description="select what ended from then on")
    select_end: Time | None = Field(None, alias="select.end", description="select what ended before")
    select_status: Ended | None = Field(None, alias="select.status", description=MEANING["differences.status"])

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

    def selects_nothing(self, reader: Reader) -> bool:
        """Whether bad requests stand beside good ones."""
        return self.verdict is None and not self._parts(reader)

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


def _with_good_ones_of_before(
    reader: Reader, window: Window, query: DifferencesQuery, answer: Differences
) -> Differences:
    """The bad requests of a total fault beside the good ones of before; `answer` where there are none."""
    start_ns = max(0, window.start_ns - _TIMES_BEFORE * (window.end_ns - window.start_ns))
    longer = replace(window, start_ns=start_ns)
    bad, compared = query.selection(reader, longer)
    since = Fragment("end >= fromUnixTimestamp64Nano({fault_ns:Int64})", {"fault_ns": window.start_ns})
    good = all_of(compared, negated(bad))
    beside = differences(reader, longer, all_of(bad, since), any_of(all_of(bad, since), good), by_time=False)
    if beside.others <= answer.others:
        return answer
    since_text = clock_text(start_ns, window.end_ns)
    told = f"Nearly all were bad: they are compared with the good ones since {since_text}. {beside.summary}"
    return beside.model_copy(update={"window": answer.window, "summary": told})


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/differences")
    def get_differences(query: Annotated[DifferencesQuery, Query()]) -> Differences:
        """What is commoner among the selected requests than among the others of the same time, beyond chance."""
        reader = ctx.reader()
        window = query.as_reported(reader) if query.slo else query.window(reader)  # an SLO selects one vantage
        chosen, compared = query.selection(reader, window)
        answer = differences(reader, window, chosen, compared)
        if query.selects_nothing(reader) and answer.selected and answer.others < _LEAST_OTHERS * answer.selected:
            return _with_good_ones_of_before(reader, window, query, answer)
        return answer

    return routes
