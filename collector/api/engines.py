"""`/cold_starts`, `/engines` and `/processes`: the state and the events of engine processes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.parameters import Name, TimesQuery, WindowQuery
from collector.api.problems import bad_parameter
from collector.api.session import ALL_TENANTS
from collector.ask.window import Window
from collector.base.process import Process
from collector.engines.cold_starts import ColdStarts, cold_starts
from collector.engines.engines import Engines, engines
from collector.engines.process_timeline import LONGEST_NS, ProcessTimeline, process_timeline
from collector.engines.processes import Processes, processes
from collector.sql.fragment import TRUE


class TimelineQuery(TimesQuery):
    """A window of time, and the names of a process."""

    service: Name = Field(description="the service of the process")
    instance: Name = Field(description="its instance")
    process_tenant: Name = Field("", description="the tenant to whom it belongs, where it belongs to one")


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["engines"])

    @routes.get("/cold_starts", dependencies=[ALL_TENANTS])
    def get_cold_starts(query: Annotated[WindowQuery, Query()]) -> ColdStarts:
        """Cold starts that overlap the window, newest first, at most 1,000, with their sub-phases."""
        reader = ctx.reader()
        return cold_starts(reader, query.as_reported(reader))

    @routes.get("/engines", dependencies=[ALL_TENANTS])
    def get_engines(query: Annotated[WindowQuery, Query()]) -> Engines:
        """The engines that gave a sign of life in the window, the latest first, with their processes."""
        reader = ctx.reader()
        return engines(reader, query.as_reported(reader), ctx.clocks_apart(reader.now_ns))

    @routes.get("/processes", dependencies=[ALL_TENANTS])
    def get_processes(query: Annotated[WindowQuery, Query()]) -> Processes:
        """Each engine process of the window with its state, its numbers and curves of its batch, queue and KV cache."""
        reader = ctx.reader()
        return processes(reader, query.as_reported(reader), query.vantages)

    @routes.get("/processes/timeline", dependencies=[ALL_TENANTS])
    def get_timeline(query: Annotated[TimelineQuery, Query()]) -> ProcessTimeline:
        """The steps of one engine process in an hour at most, and the requests that ran in them."""
        reader = ctx.reader()
        window = Window(**query.bounds(reader.now_ns), filter=TRUE)
        if window.end_ns - window.start_ns > LONGEST_NS:
            raise bad_parameter("start", "must be an hour before end at most")
        return process_timeline(reader, window, Process(query.service, query.instance, query.process_tenant))

    return routes
