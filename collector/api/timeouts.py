"""`/timeouts`: how long clients should wait, by what their requests really took."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BeforeValidator, Field, WithJsonSchema

from collector.api.context import Context
from collector.api.latency import LengthQuery
from collector.api.parameters import Duration
from collector.timeouts.answer import Timeouts
from collector.timeouts.groups import timeouts
from tokentrail.shared.parameters import MEANING, share_of

Share = Annotated[
    float,
    BeforeValidator(share_of),
    Field(gt=0, lt=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}], "examples": ["0.1%"]}),
]


class TimeoutsQuery(LengthQuery):
    """Requests, and what a time-out may do to them."""

    kill: Share = Field(0.001, description=MEANING["timeouts.kill"])
    at: Annotated[list[Duration], Field(max_length=50)] = Field([], description=MEANING["timeouts.at"])


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/timeouts")
    def get_timeouts(query: Annotated[TimeoutsQuery, Query()]) -> Timeouts:
        """For each wait, the healthy requests that a time-out cuts and the dead ones that it catches; hedging."""
        reader = ctx.reader()
        return timeouts(reader, query.window(reader), query.kill, query.at)

    return routes
