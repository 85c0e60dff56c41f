"""`/requests` and `/requests/{trace_id}`: request rows, and one request with its phases, tokens, events and steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from collector.api.answers import PhaseOut, seconds
from collector.api.context import Context
from collector.api.hops import Hop, counted_once, read_hops
from collector.api.parameters import Name, WindowQuery
from collector.api.problems import bad_parameter, not_found
from collector.api.session import sees_all_tenants
from collector.api.times import SECOND_NS, rfc3339
from collector.sql.fragment import Fragment, all_of
from tokentrail.semconv import Phase

MOST_EVENTS = 10_000
"""One answer holds at most so many events, and as many steps."""
_ORDER = {"end": "end", "ttft": "ttft_ns", "tpot": "tpot_ns", "e2e": "e2e_ns"}
_DURATIONS = ("ttft", "tpot", "e2e", "queue", *(phase.value for phase in Phase if phase != Phase.QUEUED))
"""Names of the columns that end in `_ns`, and of the fields that end in `_s`. `queue` is the time in phase `queued`."""
_UNKNOWN_IN_FLIGHT = {
    "status": "in_flight", "error_type": "", "finish_reason": "", "cached_tokens": None,
    "reasoning_tokens": None, "preemptions": None,
}  # fmt: skip


class RequestsQuery(WindowQuery):
    """Filters, order and page of request rows."""

    sort: Literal["end", "ttft", "tpot", "e2e"] = "end"
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    offset: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    status: Literal["ok", "error", "cancelled"] | None = None
    request_id: Name | None = None


class RequestQuery(BaseModel):
    """One request of a trace."""

    model_config = ConfigDict(extra="forbid")

    span_id: str | None = Field(None, description="16 hex digits, where a trace holds several requests")


class RequestRow(BaseModel):
    """One request. A request in flight is described by its latest announcement."""

    trace_id: str
    span_id: str
    request_id: str
    engine: str
    service: str
    instance: str
    variant: str
    vantage: str
    operation: str
    model: str
    tenant: str
    slo_class: str
    start: str
    end: str | None
    status: Literal["ok", "error", "cancelled", "in_flight"]
    error_type: str
    finish_reason: str
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    preemptions: int | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    queue_s: float | None
    cold_start_s: float | None
    prefill_s: float | None
    decode_s: float | None
    preempted_s: float | None
    kv_transfer_s: float | None
    stalled_s: float | None
    weight: float = 1.0
    """The number of requests that this one stands for."""
    hops: list[Hop] = []
    """The request as its client, its gateways and its server reported it, outermost first; empty: nobody else did."""


class Requests(BaseModel):
    """`/requests`."""

    requests: list[RequestRow]
    total: int


class TokenOut(BaseModel):
    """One token: when it was emitted, and the wait for it."""

    index: int
    offset_s: float
    duration_s: float
    step: int


class EventOut(BaseModel):
    """One KV event or cold start of the engine process during the request."""

    kind: str
    reason: str
    offset_s: float
    duration_s: float
    blocks: int | None
    own: bool


class StepOut(BaseModel):
    """One step of the engine process during the request. A count that the engine did not send is null."""

    step: int | None
    offset_s: float
    duration_s: float
    prefill_tokens: int | None
    decode_tokens: int | None
    running: int | None
    waiting: int | None
    preempted: int | None
    kv_blocks_used: int | None
    kv_blocks_total: int | None
    kv_blocks_evicted: int | None


class RequestDetail(BaseModel):
    """`/requests/{trace_id}`."""

    request: RequestRow
    span_ids: list[str]
    phases: list[PhaseOut]
    tokens: list[TokenOut]
    events: list[EventOut]
    steps: list[StepOut] | None
    """Null for a caller of one tenant: steps serve all tenants."""


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/requests")
    def get_requests(query: Annotated[RequestsQuery, Query()]) -> Requests:
        """Request rows, newest or slowest first."""
        window = counted_once(ctx, query.window(ctx.clock()), query.vantage)
        asked = {"status": query.status, "request_id": query.request_id}
        predicates = [
            Fragment(f"{k} = {{asked_{k}:String}}", {f"asked_{k}": v}) for k, v in asked.items() if v is not None
        ]
        chosen = all_of(window.filter, *predicates)
        rows = ctx.queries.rows(
            "requests",
            {"filter": chosen, "order": Fragment(_ORDER[query.sort])},
            **window.bounds,
            limit=query.limit,
            offset=query.offset,
        )
        total = ctx.queries.row("requests_count", {"filter": chosen}, **window.bounds)
        found = [request_row(row, hops) for row, hops in zip(rows, read_hops(ctx, rows), strict=True)]
        return Requests(requests=found, total=total["total"])

    @routes.get("/requests/{trace_id}")
    def get_request(
        trace_id: Annotated[str, Path(description="32 hex digits")], query: Annotated[RequestQuery, Query()]
    ) -> RequestDetail:
        """One request with its phases and tokens, and the events and steps of its engine process meanwhile.

        Without a span id it is the newest of the trace, and of those who reported that one, its server.
        """
        _must_be_hex("trace_id", trace_id, 32)
        if query.span_id is not None:
            _must_be_hex("span_id", query.span_id, 16)
        found = _of_trace(ctx, trace_id.lower())
        span_ids = [row["span_id_hex"] for row in found]
        for row in found:
            if query.span_id is None or row["span_id_hex"] == query.span_id.lower():
                (hops,) = read_hops(ctx, [row]) if "ended_ns" in row else ([],)
                last = hops[-1].span_id if hops and query.span_id is None else row["span_id_hex"]
                shown = next((other for other in found if other["span_id_hex"] == last), row)
                return _detail(ctx, shown, hops, span_ids)
        which = f"request {query.span_id} in trace" if found else "request with trace id"
        raise not_found(f"there is no {which} {trace_id}")

    return routes


def _must_be_hex(field: str, value: str, digits: int) -> None:
    if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", value):
        raise bad_parameter(field, f"{value[:40]!r} is not {digits} hex digits")


def _of_trace(ctx: Context, trace_id: str) -> list[dict[str, Any]]:
    """The requests of a trace: first those that have ended, newest first, then those in flight."""
    ended = ctx.queries.rows("requests_of_trace", trace_id=trace_id)
    known = {row["span_id_hex"] for row in ended}
    announced = ctx.queries.rows("open_requests_of_trace", trace_id=trace_id)
    return ended + [{**_UNKNOWN_IN_FLIGHT, **row} for row in announced if row["span_id_hex"] not in known]


def request_row(row: Mapping[str, Any], hops: Sequence[Hop] = ()) -> RequestRow:
    """The response model of a row of `requests` or `open_requests`."""
    ended_ns = row.get("ended_ns")
    return RequestRow.model_validate(
        {key: row[key] for key in RequestRow.model_fields.keys() & row.keys()}
        | {"trace_id": row["trace_id_hex"], "span_id": row["span_id_hex"], "start": rfc3339(row["began_ns"])}
        | {"end": None if ended_ns is None else rfc3339(ended_ns)}
        | {f"{name}_s": seconds(row.get(f"{name}_ns")) for name in _DURATIONS}
        | {"hops": hops}
    )


def _detail(ctx: Context, row: Mapping[str, Any], hops: Sequence[Hop], span_ids: list[str]) -> RequestDetail:
    until = row["ended_ns"] if "ended_ns" in row else max(ctx.clock(), row["seen_ns"])
    request = {"trace_id": row["trace_id_hex"], "span_id": row["span_id_hex"]}
    process = {"service": row["service"], "instance": row["instance"], "limit": MOST_EVENTS}
    span = {"began_ns": row["began_ns"], "ended_ns": until}
    return RequestDetail(
        request=request_row(row, hops),
        span_ids=span_ids,
        phases=[PhaseOut(name=r["name"], **_times(r)) for r in ctx.queries.rows("request_phases", **request, **span)],
        tokens=[
            TokenOut(index=r["token_index"], step=r["step"], **_times(r))
            for r in ctx.queries.rows("request_tokens", **request, **span)
        ],
        events=[
            EventOut(kind=r["kind"], reason=r["reason"], blocks=r["blocks"], own=bool(r["own"]), **_times(r))
            for r in ctx.queries.rows("request_events", **request, **span, **process)
            if r["own"] or sees_all_tenants()
        ],
        steps=[StepOut.model_validate(r | _times(r)) for r in ctx.queries.rows("request_steps", **span, **process)]
        if sees_all_tenants()
        else None,
    )


def _times(row: Mapping[str, Any]) -> dict[str, float]:
    return {"offset_s": row["offset_ns"] / SECOND_NS, "duration_s": row["duration_ns"] / SECOND_NS}
