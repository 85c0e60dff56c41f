"""`/requests/{trace_id}`: one request with its phases, tokens, events and steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from collector.api.context import Context
from collector.api.parameters import Time
from collector.api.problems import bad_parameter, not_found
from collector.api.request_rows import UNKNOWN_IN_FLIGHT, RequestRow, request_row
from collector.api.session import sees_all_tenants
from collector.measure import verdicts
from collector.measure.answers import PhaseOut, seconds
from collector.measure.hops import MOST_OF_A_TRACE, Hop, hops_of
from collector.measure.in_flight import judge_in_flight, last_steps
from collector.measure.reader import Reader
from collector.measure.times import SECOND_NS
from collector.process import Process
from collector.sql.fragment import Fragment, all_of

MOST_EVENTS = 10_000
"""One answer holds at most so many events, and as many steps."""


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


class TokenOut(BaseModel):
    """One token: when it was emitted, and the wait for it."""

    index: int
    offset_s: float | None
    """Null behind a token that is missing."""
    duration_s: float
    step: int | None


class EventOut(BaseModel):
    """One KV event or cold start of the engine process during the request."""

    kind: str
    reason: str
    offset_s: float
    duration_s: float
    blocks: int | None
    bytes: int | None
    beneficiary: str
    """The trace id of the request for which the blocks moved; empty when it is not known."""
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
    waiting_for_batch: int | None
    waiting_for_tokens: int | None
    waiting_for_kv: int | None
    waiting_for_priority: int | None
    cached_tokens: int | None
    drafted_tokens: int | None
    retries: int | None
    """Attempts to compute the step that failed."""
    graph_rows: int | None
    """Sequences of the CUDA graph that computed the step; null also if none did."""
    device_s: float | None
    """The time in which the device computed, by its own clock."""
    mfu: float | None
    """The step's FLOP/s over the device's measured peak (model FLOPs utilisation)."""
    mbu: float | None
    """The bytes that the step read each second over the device's measured bandwidth (memory bandwidth utilisation)."""


class RequestDetail(BaseModel):
    """`/requests/{trace_id}`."""

    request: RequestRow
    span_ids: list[str]
    phases: list[PhaseOut]
    tokens: list[TokenOut]
    events: list[EventOut]
    """At most 10,000, the request's own before others; `events_total` counts all."""
    events_total: int
    steps: list[StepOut] | None
    """The first 10,000; null for a caller of one tenant: steps serve all tenants."""
    steps_total: int | None


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
        found = _of_trace(reader, trace_id.lower(), query.span_id or "", *query.within(reader.now_ns))
        span_ids = [row["span_id_hex"] for row in found]
        for row in found:
            if query.span_id is None or row["span_id_hex"] == query.span_id.lower():
                hops = hops_of(reader, row, found) if "ended_ns" in row else []
                last = hops[-1].span_id if hops and query.span_id is None else row["span_id_hex"]
                shown = next((other for other in found if other["span_id_hex"] == last), row)
                return _detail(reader, shown, hops, span_ids)
        which = f"request {query.span_id} in trace" if found else "request with trace id"
        when = " in this window" if query.start or query.end else ""
        raise not_found(f"there is no {which} {trace_id}{when}")

    return routes


def _must_be_hex(field: str, value: str, digits: int) -> None:
    if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", value):
        raise bad_parameter(field, f"{value[:40]!r} is not {digits} hex digits")


def _of_trace(reader: Reader, trace_id: str, span_id: str, within: Fragment, begun: Fragment) -> list[dict[str, Any]]:
    """The newest requests of a trace, and that of the span: first those that have ended, then those in flight."""
    ended = reader.queries.rows(
        "requests_of_trace",
        {"judged": verdicts.column(reader.slos), "within": within},
        trace_id=trace_id,
        span_id=span_id,
        limit=MOST_OF_A_TRACE,
    )
    ended.sort(key=lambda row: (-row["ended_ns"], row["span_id_hex"]))
    known = {row["span_id_hex"] for row in ended}
    announced = reader.queries.rows("open_requests_of_trace", {"begun": begun}, trace_id=trace_id)
    return ended + [{**UNKNOWN_IN_FLIGHT, **row} for row in announced if row["span_id_hex"] not in known]


def _detail(reader: Reader, row: Mapping[str, Any], hops: Sequence[Hop], span_ids: list[str]) -> RequestDetail:
    until = row["ended_ns"] if "ended_ns" in row else max(reader.now_ns, row["seen_ns"])
    request = {"trace_id": row["trace_id_hex"], "span_id": row["span_id_hex"]}
    process = Process.of(row)._asdict() | {"limit": MOST_EVENTS}
    span = {"began_ns": row["began_ns"], "ended_ns": until}
    is_for_all = sees_all_tenants()
    events = reader.queries.rows("request_events", **request, **span, **process)
    steps = reader.queries.rows("request_steps", **span, **process) if is_for_all else []
    return RequestDetail(
        request=request_row(row, verdicts.of_ended(reader.slos, [row])[0], hops)
        if "ended_ns" in row
        else _open(reader, row),
        span_ids=span_ids,
        phases=[
            PhaseOut(name=r["name"], **_times(r)) for r in reader.queries.rows("request_phases", **request, **span)
        ],
        tokens=[
            TokenOut(
                index=r["token_index"],
                step=r["step"],
                offset_s=seconds(r["offset_ns"]),
                duration_s=r["duration_ns"] / SECOND_NS,
            )
            for r in reader.queries.rows("request_tokens", **request, **span)
        ],
        events=[
            EventOut.model_validate(r | {"beneficiary": _beneficiary(r)} | _times(r))
            for r in sorted(events, key=lambda r: r["offset_ns"])
            if r["own"] or is_for_all
        ],
        events_total=next((r["events_total" if is_for_all else "own_total"] for r in events), 0),
        steps=[
            StepOut.model_validate(r | {"device_s": seconds(r["device_ns"])} | _utilisation(r) | _times(r))
            for r in steps
        ]
        if is_for_all
        else None,
        steps_total=next((r["steps_total"] for r in steps), 0) if is_for_all else None,
    )


def _utilisation(step: Mapping[str, Any]) -> dict[str, float | None]:
    """MFU and MBU of a step: the time that its work takes at the device's peak, over the time that it took."""
    took = step["device_ns"] or step["duration_ns"]
    return {
        name: step[least] / took if took and step[least] is not None else None
        for name, least in (("mfu", "compute_ns"), ("mbu", "memory_ns"))
    }


def _open(reader: Reader, row: Mapping[str, Any]) -> RequestRow:
    """A request that has not ended, as it is judged now."""
    now = reader.now_ns
    in_flight = judge_in_flight(
        {name: [value] for name, value in row.items()},
        last_steps(reader.queries, {Process.of(row)}, now),
        end_ns=now,
        lost_after_ns=reader.lost_after_ns,
        heard_until_ns=reader.heard_until_ns,
    )
    (judgement,) = verdicts.of_open(reader.slos, in_flight, [0])
    return request_row({**row, "status": "lost" if in_flight.is_lost[0] else "in_flight"}, judgement)


def _beneficiary(row: Mapping[str, Any]) -> str:
    """A caller of one tenant does not learn the trace ids of others."""
    return str(row["beneficiary"]) if sees_all_tenants() else ""


def _times(row: Mapping[str, Any]) -> dict[str, float]:
    return {"offset_s": row["offset_ns"] / SECOND_NS, "duration_s": row["duration_ns"] / SECOND_NS}
