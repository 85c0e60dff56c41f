"""`/incidents`: the conditions that hold now or held in a window."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.incidents.incidents import Incidents, incidents


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["incidents"])

    @routes.get("/incidents")
    def get_incidents(query: Annotated[WindowQuery, Query()]) -> Incidents:
        """Incidents of the window: first those that fire at its end, then the others, each newest first."""
        reader = ctx.reader()
        return incidents(reader, query.as_reported(reader))

    return routes
