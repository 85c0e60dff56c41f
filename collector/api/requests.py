"""`/requests` and `/requests/{trace_id}`: rows, and one request with everything that is known about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from collector.api.parameters import RequestQuery, RequestsQuery
from collector.api.problems import bad_parameter, not_found
from collector.api.questions import Context, seconds
from collector.api.records import EventOut, PhaseOut, RequestDetail, RequestRow, Requests, StepOut, TokenOut
from collector.api.times import SECOND_NS, rfc3339
from collector.slo.judge import Condition, both

MOST_EVENTS = 10_000
"""Events, and steps, that one answer holds at most."""
_ORDER = {"end": "end", "ttft": "ttft_ns", "tpot": "tpot_ns", "e2e": "e2e_ns"}
_DURATIONS = (
    "ttft", "tpot", "e2e", "queue", "cold_start", "prefill", "decode", "preempted", "kv_transfer", "stalled",
)  # fmt: skip
_UNKNOWN_IN_FLIGHT = {
    "vantage": "server", "status": "in_flight", "error_type": "", "finish_reason": "", "cached_tokens": 0,
    "reasoning_tokens": 0, "preemptions": 0,
}  # fmt: skip


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/requests")
    def get_requests(query: Annotated[RequestsQuery, Query()]) -> Requests:
        """Request rows, newest or slowest first."""
        window = query.window(ctx.clock())
        asked = {"status": query.status, "request_id": query.request_id}
        conditions = [
            Condition(f"{k} = {{asked_{k}:String}}", {f"asked_{k}": v}) for k, v in asked.items() if v is not None
        ]
        only = both(window.filter, *conditions)
        rows = ctx.queries.ask(
            "requests",
            {"filter": only, "order": Condition(_ORDER[query.sort])},
            **window.bounds,
            limit=query.limit,
            offset=query.offset,
        )
        total = ctx.queries.ask_one("requests_count", {"filter": only}, **window.bounds)
        return Requests(requests=[request_row(row) for row in rows], total=total["total"])

    @routes.get("/requests/{trace_id}")
    def get_request(
        trace_id: Annotated[str, Path(description="32 hex digits")], query: Annotated[RequestQuery, Query()]
    ) -> RequestDetail:
        """One request: its phases, its tokens, and what its engine did meanwhile."""
        _must_be_hex("trace_id", trace_id, 32)
        if query.span_id is not None:
            _must_be_hex("span_id", query.span_id, 16)
        found = _of_trace(ctx, trace_id.lower())
        for row in found:
            if query.span_id is None or row["span_id_hex"] == query.span_id.lower():
                return _detail(ctx, row, [r["span_id_hex"] for r in found])
        which = f"request {query.span_id} in trace" if found else "request with trace id"
        raise not_found(f"there is no {which} {trace_id}")

    return routes


def _must_be_hex(field: str, value: str, digits: int) -> None:
    if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", value):
        raise bad_parameter(field, f"{value[:40]!r} is not {digits} hex digits")


def _of_trace(ctx: Context, trace_id: str) -> list[dict[str, Any]]:
    """The requests of a trace that have ended, newest first, and then those that have not."""
    ended = ctx.queries.ask("request", trace_id=trace_id)
    known = {row["span_id_hex"] for row in ended}
    announced = ctx.queries.ask("open_request", trace_id=trace_id)
    return ended + [{**_UNKNOWN_IN_FLIGHT, **row} for row in announced if row["span_id_hex"] not in known]


def request_row(row: Mapping[str, Any]) -> RequestRow:
    """A row of the store as the API shows it."""
    ended_ns = row.get("ended_ns")
    return RequestRow.model_validate(
        {key: row[key] for key in RequestRow.model_fields.keys() & row.keys()}
        | {"trace_id": row["trace_id_hex"], "span_id": row["span_id_hex"], "start": rfc3339(row["began_ns"])}
        | {"end": None if ended_ns is None else rfc3339(ended_ns)}
        | {f"{name}_s": seconds(row.get(f"{name}_ns")) for name in _DURATIONS}
    )


def _detail(ctx: Context, row: Mapping[str, Any], span_ids: list[str]) -> RequestDetail:
    until = row["ended_ns"] if "ended_ns" in row else max(ctx.clock(), row["seen_ns"])
    request = {"trace_id": row["trace_id_hex"], "span_id": row["span_id_hex"]}
    engine = {"service": row["service"], "instance": row["instance"], "limit": MOST_EVENTS}
    span = {"began_ns": row["began_ns"], "ended_ns": until}
    return RequestDetail(
        request=request_row(row),
        span_ids=span_ids,
        phases=[PhaseOut(name=r["name"], **_times(r)) for r in ctx.queries.ask("request_phases", **request, **span)],
        tokens=[
            TokenOut(index=r["token_index"], step=r["step"], **_times(r))
            for r in ctx.queries.ask("request_tokens", **request, **span)
        ],
        events=[
            EventOut(kind=r["what"], reason=r["reason"], blocks=r["blocks"], own=bool(r["own"]), **_times(r))
            for r in ctx.queries.ask("request_events", **request, **span, **engine)
        ],
        steps=[StepOut.model_validate(r | _times(r)) for r in ctx.queries.ask("request_steps", **span, **engine)],
    )


def _times(row: Mapping[str, Any]) -> dict[str, float]:
    return {"offset_s": row["offset_ns"] / SECOND_NS, "duration_s": row["duration_ns"] / SECOND_NS}
