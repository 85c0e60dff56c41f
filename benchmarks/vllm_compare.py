"""Compares the recording of a vLLM with its two witnesses, the client and vLLM's own `/metrics`."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from typing import Any

from benchmarks.vllm_clients import MODEL, PARENT, Call
from tokentrail.testing import Span

Key = tuple[int, int]
"""A span's trace id and its parent's span id."""


def compare(calls: list[Call], metrics: str | None, spans: list[Span], engines: int) -> dict[str, Any]:
    """Returns the recording's numbers beside those of its witnesses. `…_wrong` counts disagreements. Without `metrics`,
    the client is the only witness. `engines` is the number of vLLM's engines.
    """
    rows = [span for span in spans if span.name.endswith(f" {MODEL}") and "tokentrail.status" in span.attributes]
    tokens, phases = _children(spans, "tokentrail.token"), _children(spans, "tokentrail.phase")
    wrong: Counter[str] = Counter()
    late, aborts = _clients(calls, rows, tokens, wrong)
    for row in rows:
        parts = [span.duration_ns for span in phases.get((row.trace_id, row.span_id), [])]
        wrong["phases"] += bool(parts) and sum(parts) != row.duration_ns
    steps = [span for span in spans if span.name == "tokentrail.step"]
    served = [row for row in rows if "tokentrail.time_to_first_token" in row.attributes]
    first, each = [some[0] for some in late], sorted(ms for some in late for ms in some)
    instances = {span.resource.get("service.instance.id") for span in (*steps, *rows)}
    wrong["engines"] += len(instances) != engines
    numbers = {
        "requests": len(rows),
        "tokens": sum(row.attributes["gen_ai.usage.output_tokens"] for row in rows),
        "tokens_with_another": _with_another(tokens),
        "steps": len(steps),
        "engines": len(instances),
        "preemptions": sum(row.attributes.get("tokentrail.preemptions", 0) for row in rows),
        "ttft_sum_s": sum(row.attributes["tokentrail.time_to_first_token"] for row in served),
        "cold_starts": sum(span.name == "tokentrail.cold_start" for span in spans),
        "client_minus_first_token_ms_p50": statistics.median(first), "client_minus_first_token_ms_max": max(first),
        "client_minus_token_ms_p50": statistics.median(each),
        "client_minus_token_ms_p95": each[int(0.95 * len(each))], "client_minus_token_ms_max": max(each),
        "abort_minus_client_ms_max": max(aborts, default=None),
        "kv_used_max": max(span.attributes.get("tokentrail.step.kv_blocks_used", 0) for span in steps),
        "kv_total": max(span.attributes.get("tokentrail.step.kv_blocks_total", 0) for span in steps),
        "waiting_max": max(span.attributes.get("tokentrail.step.waiting", 0) for span in steps),
    }  # fmt: skip
    if metrics is not None:
        theirs = {
            "vllm_generation_tokens": _metric(metrics, "generation_tokens_total"),
            "vllm_preemptions": _metric(metrics, "num_preemptions_total"),
            "vllm_ttft_sum_s": _metric(metrics, "time_to_first_token_seconds_sum"),
            "vllm_accepted_tokens": _metric(metrics, "spec_decode_num_accepted_tokens_total"),
        }
        wrong["generation_tokens"] += numbers["tokens"] != theirs["vllm_generation_tokens"]
        wrong["preemptions"] += numbers["preemptions"] != theirs["vllm_preemptions"]
        # Accepted tokens behind the end of an answer are cut off.
        wrong["accepted_tokens"] += numbers["tokens_with_another"] > theirs["vllm_accepted_tokens"]
        numbers |= theirs
    return numbers | {f"{key}_wrong": count for key, count in sorted(wrong.items())}


def _clients(
    calls: list[Call], rows: list[Span], tokens: dict[Key, list[Span]], wrong: Counter[str]
) -> tuple[list[list[float]], list[float]]:
    """Counts in `wrong` each disagreement with a client. Returns by how many ms the client had each token of a stream
    later, and by how many ms the row of each cancelled request ended after its client had left.
    """
    by_id: dict[str, list[Span]] = {}
    for row in rows:
        by_id.setdefault(row.attributes.get("gen_ai.response.id", ""), []).append(row)
    ids = Counter(call.request_id for call in calls)
    late: list[list[float]] = []
    aborts: list[float] = []
    for call in calls:
        if call.kind == "too_long":
            continue
        rows = by_id.get(call.request_id, [])
        of_call = [token for row in rows for token in tokens.get((row.trace_id, row.span_id), [])]
        said = sum(row.attributes["gen_ai.usage.output_tokens"] for row in rows)
        if call.kind == "prompts":
            wrong["requests"] += len(rows) != ids[call.request_id]
            wrong["tokens"] += said != 2 * (call.output_tokens or 0)
            continue
        wrong["requests"] += len(rows) != 1
        wrong["status"] += any(not _agree(row, call) for row in rows)
        wrong["input_tokens"] += any(row.attributes["gen_ai.usage.input_tokens"] != call.input_tokens for row in rows)
        wrong["engine"] += any(row.resource.get("tokentrail.engine") != "vllm" for row in rows)
        if call.kind == "traced":
            wrong["trace"] += any(
                (f"{row.trace_id:032x}", f"{row.parent_id:016x}") != tuple(PARENT.split("-")[1:3]) for row in rows
            )
            wrong["tenant"] += any(row.attributes.get("tokentrail.tenant") != "acme" for row in rows)
        if call.status == "ok":
            wrong["tokens"] += said != call.output_tokens or len(of_call) != said
            wrong["chunks"] += bool(call.arrivals) and len(call.arrivals) != said
        else:
            wrong["tokens"] += said < len(call.arrivals)
            cancelled = [row for row in rows if row.attributes["tokentrail.status"] == "cancelled"]
            aborts += [(row.end_ns - call.ended_ns) / 1e6 for row in cancelled]
        if call.arrivals and of_call and call.choices == 1:
            ends = sorted(token.end_ns for token in of_call)
            late.append([(there - here) / 1e6 for there, here in zip(call.arrivals, ends, strict=False)])
            wrong["order"] += min(late[-1]) < -1
    refused = sum(row.attributes.get("error.type") == "400" for row in rows)
    wrong["refused"] += refused != sum(call.kind == "too_long" and call.status == "error" for call in calls)
    return late, aborts


def _agree(row: Span, call: Call) -> bool:
    """Whether row and client tell one status. vLLM may have finished an answer before it hears that its client left."""
    said = row.attributes["tokentrail.status"]
    finished = row.attributes.get("gen_ai.response.finish_reasons") in (["length"], ["stop"])
    return bool(said == call.status or (call.status == "cancelled" and said == "ok" and finished))


def _children(spans: list[Span], name: str) -> dict[Key, list[Span]]:
    children: dict[Key, list[Span]] = {}
    for span in spans:
        if span.name == name:
            children.setdefault((span.trace_id, span.parent_id), []).append(span)
    return children


def _with_another(tokens: dict[Key, list[Span]]) -> int:
    """Tokens that an answer got in one step with another one before them: speculation made them.

    With data parallelism, answers of one request run on several engines, and those of all but one name no step.
    """
    of_steps = Counter(
        (key, token.attributes.get("tokentrail.choice.index"), token.attributes.get("tokentrail.step"))
        for key, of in tokens.items()
        for token in of
        if "tokentrail.step" in token.attributes
    )
    return sum(count - 1 for count in of_steps.values())


def truth(calls: list[Call], metrics: str | None) -> dict[str, Any]:
    """The counts of the clients and of vLLM's `/metrics`, for the replay of a tape."""
    of_ids: dict[str, list[Call]] = {}
    for call in calls:
        if call.kind != "too_long":
            of_ids.setdefault(call.request_id, []).append(call)
    names = (
        "generation_tokens_total", "prompt_tokens_total", "num_preemptions_total", "time_to_first_token_seconds_count",
        "time_to_first_token_seconds_sum", "e2e_request_latency_seconds_count", "e2e_request_latency_seconds_sum",
    )  # fmt: skip
    return {
        "calls": [
            {
                "request_id": key,
                "rows": len(some),
                "status": some[0].status,
                "choices": some[0].choices,
                "output_tokens": sum(call.output_tokens or 0 for call in some),
                "input_tokens": sorted({call.input_tokens for call in some}),
            }
            for key, some in of_ids.items()
        ],
        "metrics": {} if metrics is None else {name: _metric(metrics, name) for name in names},
    }


def _metric(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))
