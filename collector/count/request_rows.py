"""Request rows, as `/requests` lists them and `/requests/{trace_id}` begins with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from collector.ask.times import rfc3339
from collector.base.answer import Answer
from collector.count.answers import seconds
from collector.count.hops import Hop
from collector.count.verdicts import Judgement, SloVerdict
from tokentrail.semconv import Phase
from tokentrail.shared.parameters import Verdict

_DURATIONS = (
    "ttft", "tpot", "tpot_at_most", "e2e", "queue", *(phase.value for phase in Phase if phase != Phase.QUEUED),
    "first_visible", "gap", "wait_batch", "wait_tokens", "wait_kv", "wait_priority",
)  # fmt: skip
"""Names of the columns that end in `_ns`, and of the fields that end in `_s`. `queue` is the time in phase `queued`."""
UNKNOWN_IN_FLIGHT = {
    "error_type": "", "finish_reason": "", "cached_tokens": None, "reasoning_tokens": None, "drafted_tokens": None,
    "accepted_tokens": None, "perplexity": None, "mean_entropy": None, "preemptions": None, "gap_index": None,
}  # fmt: skip
"""Columns of a request that has not ended."""


class RequestRow(Answer):
    """One request. A request in flight is described by its latest announcement."""

    trace_id: str
    span_id: str
    request_id: str
    """The response id, as the client received it."""
    engine: str
    service: str
    instance: str
    process_tenant: str
    """The tenant to which the process belongs; empty: to all."""
    variant: str
    vantage: str
    operation: str
    model: str
    tenant: str
    """The tenant of the request."""
    slo_class: str
    labels: dict[str, str]
    """By name. `_cut`: so many were left out or shortened."""
    start: str
    end: str | None
    status: Literal["ok", "error", "cancelled", "unknown", "in_flight", "lost"]
    error_type: str
    finish_reason: str
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    image_input_tokens: int | None = None
    """Of pictures among the input tokens; null, here and below: not told. In flight: not yet."""
    audio_input_tokens: int | None = None
    image_output_tokens: int | None = None
    audio_output_tokens: int | None = None
    drafted_tokens: int | None
    accepted_tokens: int | None
    perplexity: float | None
    """Of the output tokens; null unless the request asked for log-probabilities, as the mean entropy is."""
    mean_entropy: float | None
    """In nats."""
    preemptions: int | None
    ttft_s: float | None
    tpot_s: float | None
    tpot_at_most_s: float | None
    """What a TPOT that is not known cannot exceed; null also if it is known."""
    e2e_s: float | None
    queue_s: float | None
    cold_start_s: float | None
    prefill_s: float | None
    decode_s: float | None
    preempted_s: float | None
    kv_transfer_s: float | None
    stalled_s: float | None
    first_visible_s: float | None
    """From arrival to the first token that is no hidden reasoning."""
    gap_s: float | None
    """The longest wait between two tokens, or arrivals, of one answer; null also: fewer than two. Of a request that was
    cancelled, failed or has not ended, the wait since the latest one counts too."""
    gap_index: int | None
    """The place in its answer, from 0, of the token that was waited for."""
    wait_batch_s: float | None
    """The part of the wait for a step in which the batch was full; null, here and below: none, or not known."""
    wait_tokens_s: float | None
    """The part in which the steps had no tokens left to compute."""
    wait_kv_s: float | None
    """The part in which too few KV blocks were free."""
    wait_priority_s: float | None
    """The part in which a later request went first."""
    weight: float = 1.0
    """The number of requests that this one stands for."""
    verdict: Verdict
    """Of all SLOs together, as the summary counts it; `pending`: in flight, and past no threshold."""
    verdicts: list[SloVerdict]
    """Of each SLO that selects the request."""
    hops: list[Hop] = Field(default=[])
    """The request as its client, its gateways and its server reported it, outermost first; empty: nobody else did."""


def request_row(row: Mapping[str, Any], judgement: Judgement, hops: Sequence[Hop] = ()) -> RequestRow:
    """The response model of a row of `requests` or `open_requests`."""
    ended_ns = row.get("ended_ns")
    return RequestRow.model_validate(
        {key: row[key] for key in RequestRow.model_fields.keys() & row.keys()}
        | {"trace_id": row["trace_id_hex"], "span_id": row["span_id_hex"], "start": rfc3339(row["began_ns"])}
        | {"end": None if ended_ns is None else rfc3339(ended_ns)}
        | {f"{name}_s": seconds(row.get(f"{name}_ns")) for name in _DURATIONS}
        | {"verdict": judgement.of_all_slos, "verdicts": judgement.by_slo, "hops": hops}
    )
