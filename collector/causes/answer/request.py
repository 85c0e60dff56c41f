"""One request with its phases, tokens, events and steps, and why it waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collector.ask.times import SECOND_NS
from collector.base.answer import Answer
from collector.base.process import Process
from collector.causes.answer.request_causes import RequestCauses, causes_of
from collector.causes.answer.waits import (
    Interference,
    LongWait,
    WaitOut,
    interference,
    interfering,
    longest_waits,
    waiting_phases,
    waits,
)
from collector.count import verdicts
from collector.count.answers import PhaseOut, seconds
from collector.count.hops import MOST_OF_A_TRACE, hops_of
from collector.count.in_flight import judge_in_flight, known_ns, last_steps
from collector.count.reader import Reader
from collector.count.request_rows import UNKNOWN_IN_FLIGHT, RequestRow, request_row
from collector.sql.fragment import Fragment

MOST_EVENTS = 10_000
"""One answer holds at most so many events, and as many steps."""


class TokenOut(Answer):
    """One token: when it was emitted, and the wait for it."""

    index: int
    offset_s: float | None
    """Null behind a token that is missing."""
    duration_s: float
    step: int | None
    phase: str | None
    """The phase that took most of the wait; null: none did, or it is not known."""


class EventOut(Answer):
    """One KV event or cold start of the engine process during the request."""

    kind: str
    reason: str
    offset_s: float
    duration_s: float
    blocks: int | None
    bytes: int | None
    """Copied."""
    beneficiary: str
    """The trace id of the request for which the blocks moved; empty when it is not known."""
    own: bool
    """It happened to this request."""


class StepOut(Answer):
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
    """Requests that waited because the batch was full; the next three name the other reasons."""
    waiting_for_tokens: int | None
    waiting_for_kv: int | None
    waiting_for_priority: int | None
    cached_tokens: int | None
    drafted_tokens: int | None
    retries: int | None
    """Attempts to compute the step that failed."""
    graph_rows: int | None
    """Sequences of the CUDA graph that computed the step; null also if none did."""
    mfu: float | None
    """The step's FLOP/s over the device's measured peak (model FLOPs utilisation)."""
    mbu: float | None
    """The bytes that the step read each second over the device's measured bandwidth (memory bandwidth utilisation)."""
    interferes: bool
    """It prefilled prompts of other requests while this one waited for its next token."""


class RequestDetail(Answer):
    """`/requests/{trace_id}`."""

    request: RequestRow
    span_ids: list[str]
    """The requests of the trace, at most 1,000: the newest, and the one that was asked for."""
    phases: list[PhaseOut]
    """Together the whole request, without gaps."""
    tokens: list[TokenOut]
    events: list[EventOut]
    """At most 10,000, the request's own before others; `events_total` counts all."""
    events_total: int
    steps: list[StepOut] | None
    """The first 10,000; null for a caller of one tenant: steps serve all tenants."""
    steps_total: int | None
    waits: list[WaitOut]
    """Why the request waited for the engine's steps, longest first; empty when the engine does not tell it."""
    interference: Interference | None
    """Of the listed steps; null: no step tells its prefills, no token's time is known, or the caller sees no steps."""
    longest_waits: list[LongWait]
    """The five longest waits after the first token, longest first."""
    explained: RequestCauses | None
    """Which causes took its time; null while it has not ended."""


def of_trace(reader: Reader, trace_id: str, span_id: str, within: Fragment, begun: Fragment) -> list[dict[str, Any]]:
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


def of_span(reader: Reader, rows: Sequence[Mapping[str, Any]], span_id: str | None) -> RequestDetail | None:
    """The request of a span among those of a trace; None: there is none. Without a span id, the newest of the trace.

    Of those who reported the newest, it is the server's.
    """
    row = next((row for row in rows if span_id in (None, row["span_id_hex"])), None)
    if row is None:
        return None
    hops = hops_of(reader, row, rows) if "ended_ns" in row else []
    last = hops[-1].span_id if hops and span_id is None else row["span_id_hex"]
    shown = next((other for other in rows if other["span_id_hex"] == last), row)
    request = (
        request_row(shown, verdicts.of_ended(reader.slos, [shown])[0], hops)
        if "ended_ns" in shown
        else _open(reader, shown)
    )
    return _detail(reader, shown, request, [row["span_id_hex"] for row in rows])


def _detail(reader: Reader, row: Mapping[str, Any], request: RequestRow, span_ids: list[str]) -> RequestDetail:
    until = row["ended_ns"] if "ended_ns" in row else max(reader.now_ns, row["seen_ns"])
    ids = {"trace_id": row["trace_id_hex"], "span_id": row["span_id_hex"]}
    process = Process.of(row)._asdict() | {"limit": MOST_EVENTS}
    span = {"began_ns": row["began_ns"], "ended_ns": until}
    is_for_all = not reader.tenant
    phases = reader.queries.rows("request_phases", **ids, **span)
    tokens = reader.queries.rows("request_tokens", **ids, **span)
    events = reader.queries.rows("request_events", **ids, **span, **process)
    steps = reader.queries.rows("request_steps", **span, **process) if is_for_all else []
    waited_in, others = waiting_phases(tokens, phases), interfering(steps, tokens, phases)
    return RequestDetail(
        request=request,
        span_ids=span_ids,
        phases=[PhaseOut(name=phase["name"], **_times(phase)) for phase in phases],
        tokens=[_token(token, phase) for token, phase in zip(tokens, waited_in, strict=True)],
        events=[
            EventOut.model_validate(event | {"beneficiary": event["beneficiary"] if is_for_all else ""} | _times(event))
            for event in sorted(events, key=lambda event: event["offset_ns"])
            if event["own"] or is_for_all
        ],
        events_total=next((event["events_total" if is_for_all else "own_total"] for event in events), 0),
        steps=[_step(step, flag) for step, flag in zip(steps, others.tolist(), strict=True)] if is_for_all else None,
        steps_total=next((step["steps_total"] for step in steps), 0) if is_for_all else None,
        waits=waits(row),
        interference=interference(steps, others, tokens),
        longest_waits=longest_waits(tokens, waited_in, steps),
        explained=causes_of(reader, row) if "ended_ns" in row else None,
    )


def _token(token: Mapping[str, Any], phase: str | None) -> TokenOut:
    return TokenOut(
        index=token["token_index"],
        step=token["step"],
        offset_s=seconds(token["offset_ns"]),
        duration_s=token["duration_ns"] / SECOND_NS,
        phase=phase,
    )


def _step(step: Mapping[str, Any], interferes: bool) -> StepOut:
    return StepOut.model_validate({**step, "interferes": interferes, **_utilisation(step), **_times(step)})


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
    told = {"status": "lost" if in_flight.is_lost[0] else "in_flight", "gap_ns": known_ns(in_flight.gap_ns[0])}
    return request_row({**row, **told}, judgement)


def _times(row: Mapping[str, Any]) -> dict[str, float]:
    return {"offset_s": row["offset_ns"] / SECOND_NS, "duration_s": row["duration_ns"] / SECOND_NS}
