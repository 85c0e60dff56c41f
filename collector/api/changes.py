"""`/changes`: what is new."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.numbers.changes import Changes, changes


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/changes")
    def get_changes(query: Annotated[WindowQuery, Query()]) -> Changes:
        """Models, variants and processes of a service that came, went, came back or became those of most requests, and
        other definitions of SLOs, the earliest first.
        """
        reader = ctx.reader()
        return changes(reader, query.window(reader))

    return routes
