"""`/kv`, `/cold_starts` and `/engines`: the state and the events of engine processes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.api.session import ALL_TENANTS
from collector.measure.cold_starts import ColdStarts, cold_starts
from collector.measure.engines import Engines, engines
from collector.measure.kv import Kv, kv


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["engines"])

    @routes.get("/kv", dependencies=[ALL_TENANTS])
    def get_kv(query: Annotated[WindowQuery, Query()]) -> Kv:
        """KV-cache use and evictions per engine process."""
        reader = ctx.reader()
        return kv(reader, query.window(reader))

    @routes.get("/cold_starts", dependencies=[ALL_TENANTS])
    def get_cold_starts(query: Annotated[WindowQuery, Query()]) -> ColdStarts:
        """Cold starts that overlap the window, newest first, at most 1,000, with their sub-phases."""
        reader = ctx.reader()
        return cold_starts(reader, query.window(reader))

    @routes.get("/engines", dependencies=[ALL_TENANTS])
    def get_engines(query: Annotated[WindowQuery, Query()]) -> Engines:
        """The engines that gave a sign of life in the window, the latest first, with their processes."""
        reader = ctx.reader()
        return engines(reader, query.window(reader), ctx.clocks_apart(reader.now_ns))

    return routes
