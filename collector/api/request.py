"""`/requests/{trace_id}`: one request with its phases, tokens, events and steps, and why it waited."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from collector.api.context import Context
from collector.api.parameters import Time
from collector.api.problems import bad_parameter, not_found
from collector.causes.answer.request import RequestDetail, of_span, of_trace
from collector.sql.fragment import Fragment, all_of


class RequestQuery(BaseModel):
    """One request of a trace."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    span_id: str | None = Field(None, description="16 hex digits, where a trace holds several requests")
    start: Time | None = Field(None, description="only requests that ended from then on, or have not ended")
    end: Time | None = Field(
        None, description="only requests that ended before then, or began before and have not ended"
    )

    def within(self, now_ns: int) -> tuple[Fragment, Fragment]:
        """Filters for the requests that ended, and for those that did not. Raises Problem for an empty window."""
        given = {name: time.at(now_ns) for name in ("start", "end") if (time := getattr(self, name)) is not None}
        if len(given) == 2 and given["start"] >= given["end"]:
            raise bad_parameter("start", "must be before end")
        bounds = {
            name: Fragment(f"fromUnixTimestamp64Nano({{trace_{name}_ns:Int64}})", {f"trace_{name}_ns": at})
            for name, at in given.items()
        }
        ended = [
            Fragment(f"end {'>=' if name == 'start' else '<'} {at.sql}", at.parameters) for name, at in bounds.items()
        ]
        begun = [Fragment(f"start < {at.sql}", at.parameters) for name, at in bounds.items() if name == "end"]
        return all_of(*ended), all_of(*begun)


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/requests/{trace_id}")
    def get_request(
        trace_id: Annotated[str, Path(description="32 hex digits")], query: Annotated[RequestQuery, Query()]
    ) -> RequestDetail:
        """One request with its phases and tokens, and the events and steps of its engine process meanwhile.

        Without a span id it is the newest of the trace, and of those who reported that one, its server.
        """
        reader = ctx.reader()
        _must_be_hex("trace_id", trace_id, 32)
        if query.span_id is not None:
            _must_be_hex("span_id", query.span_id, 16)
        span_id = None if query.span_id is None else query.span_id.lower()
        rows = of_trace(reader, trace_id.lower(), span_id or "", *query.within(reader.now_ns))
        request = of_span(reader, rows, span_id)
        if request is None:
            which = f"request {query.span_id} in trace" if rows else "request with trace id"
            when = " in this window" if query.start or query.end else ""
            raise not_found(f"there is no {which} {trace_id}{when}")
        return request

    return routes


def _must_be_hex(field: str, value: str, digits: int) -> None:
    if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", value):
        raise bad_parameter(field, f"{value[:40]!r} is not {digits} hex digits")
