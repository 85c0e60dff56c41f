"""`/verdict`: the sentence of the moment."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.incidents.verdict import VerdictOut, verdict


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["SLOs"])

    @routes.get("/verdict")
    def get_verdict(query: Annotated[WindowQuery, Query()]) -> VerdictOut:
        """Whether the promises are kept, since when not, who is hit, by what cause, and what stands behind it."""
        reader = ctx.reader()
        return verdict(reader, query.as_reported(reader), query.vantages)

    return routes
