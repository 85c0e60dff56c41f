"""`/labels`: what there is to filter by."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.numbers.values import Values, values


class LabelsQuery(WindowQuery):
    """Which requests have the values."""

    limit: int = Field(100, ge=1, le=1000, description="values of each dimension")


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/labels")
    def get_labels(query: Annotated[LabelsQuery, Query()]) -> Values:
        """Models, tenants, labels and other values of the requests that ended in the window, the commonest first."""
        reader = ctx.reader()
        return values(reader, query.window(reader), query.limit)

    return routes
