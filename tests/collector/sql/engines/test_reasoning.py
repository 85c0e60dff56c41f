"""A client's usage counts reasoning tokens, and does not say whether they arrived."""

import itertools
import json

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request
from tests.support.recordings import requests

TRACE = itertools.count(1)
OUTPUT = "gen_ai.usage.output_tokens"
REASONING = "gen_ai.usage.reasoning.output_tokens"
CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
FIRST = CALL | {"gen_ai.response.time_to_first_chunk": 0.1, OUTPUT: 6}
SOURCES = {
    "genai": ("any", FIRST, REASONING),
    "litellm": ("litellm", FIRST | {"litellm.request.streaming": True}, REASONING),
    "traceloop": (
        "opentelemetry.instrumentation.openai.v1",
        {"gen_ai.operation.name": "chat", "gen_ai.is_streaming": True, OUTPUT: 6},
        "gen_ai.usage.reasoning_tokens",
    ),
    "openinference": (
        "openinference.instrumentation.openai",
        {"openinference.span.kind": "LLM", "llm.token_count.completion": 6},
        "llm.token_count.completion_details.reasoning",
    ),
    "ai_sdk": (
        "ai",
        {
            "ai.operationId": "ai.streamText.doStream", "ai.response.msToFirstChunk": 100.0, OUTPUT: 6,
            "gen_ai.response.finish_reasons": ["stop"],
        },
        "ai.usage.reasoningTokens",
    ),
}  # fmt: skip


def insert_each(store, *calls):
    """Insert calls (scope, attributes) of 600 ms, all in one segment, and return their rows."""
    traces, bodies = [next(TRACE) for _ in calls], []
    for trace, (scope, said) in zip(traces, calls, strict=True):
        request = Request(scope=scope)
        span = request.span("chat m", trace=trace, span=trace, ns=600 * MS, kind=3, attributes=said)
        if "langfuse.observation.type" not in said:
            for name in ("gen_ai.content.completion.chunk", "First Token Stream Event"):
                span.events.add(name=name, time_unix_nano=T0 + 100 * MS)
        bodies.append(request.body())
    insert_otlp(store, TRACES, b"".join(bodies), f"reasoning-{traces[0]}")
    rows = {int.from_bytes(row["trace_id"], "big"): row for row in requests(store)}
    return [rows[trace] for trace in traces]


def test_reasoning_that_may_not_have_arrived_leaves_tpot_open(module_store):
    tpots = {None: 100 * MS, 0: 100 * MS, 1: None, 5: None}
    cases = list(itertools.product(SOURCES, tpots))
    calls = []
    for engine, reasoning in cases:
        scope, said, key = SOURCES[engine]
        calls.append((scope, said if reasoning is None else said | {key: reasoning}))
    for (engine, reasoning), row in zip(cases, insert_each(module_store, *calls), strict=True):
        known = row["tpot_at_most_ns" if engine == "litellm" else "tpot_ns"]  # LiteLLM's span ends late
        assert (row["engine"], row["ttft_ns"], known) == (engine, 100 * MS, tpots[reasoning]), reasoning
        assert (row["output_tokens"], row["reasoning_tokens"]) == (6, reasoning), engine


USAGES = [
    # Langfuse's client of openai: chat, then responses.
    (
        {"prompt_tokens": 7, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 3},
         "completion_tokens_details": {"reasoning_tokens": 5}},
        (7, 6, 3, 5),
    ),
    (
        {"input_tokens": 7, "output_tokens": 6, "total_tokens": 13, "input_tokens_details": {"cached_tokens": 3},
         "output_tokens_details": {"reasoning_tokens": 5}},
        (7, 6, 3, 5),
    ),
    # Its handler for LangChain, and LiteLLM's spans in its words.
    ({"input": 4, "output": 1, "total": 13, "input_cache_read": 3, "output_reasoning": 5}, (7, 6, 3, 5)),
    ({"input": 4, "input_cached_tokens": 3, "output": 1, "output_reasoning_tokens": 5}, (7, 6, 3, 5)),
    # Without reasoning, and counts that are none.
    ({"input": 7, "output": 6, "input_cache_read": 0, "output_reasoning": 0}, (7, 6, 0, 0)),
    ({"input": 7, "input_tokens": 7, "output": 6, "output_tokens": 6}, (7, 6, None, None)),
    ({"input": 7, "output": 6, "input_x": "3", "output_y": -3, "output_z": {"a": 1}}, (7, 6, None, None)),
    (
        {"prompt_tokens": 7, "completion_tokens": 6, "completion_tokens_details": {"reasoning_tokens": -1}},
        (7, 6, None, None),
    ),
    ({"prompt_tokens": 7, "completion_tokens": 6, "completion_tokens_details": None}, (7, 6, None, None)),
    ({"input": 2**32 - 1, "output": 6, "input_cache_read": 3}, (None, 6, 3, None)),
]  # fmt: skip
"""Counts of Langfuse, and what they say: input, output, cached and reasoning tokens."""


def test_langfuse_tells_reasoning_and_cached_tokens_in_several_forms(module_store):
    known = {
        "langfuse.observation.type": "generation",
        "langfuse.observation.completion_start_time": '"2026-11-18T11:06:40.100000Z"',
    }
    said = [known | {"langfuse.observation.usage_details": json.dumps(usage)} for usage, _ in USAGES]
    rows = insert_each(module_store, *(("langfuse-sdk", one) for one in said))
    for (usage, tokens), row in zip(USAGES, rows, strict=True):
        found = (row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["reasoning_tokens"])
        assert (row["engine"], found, row["ttft_ns"]) == ("langfuse", tokens, 100 * MS), usage
        assert row["tpot_ns"] == (None if tokens[3] else 100 * MS), usage


def test_litellm_tells_reasoning_tokens_in_the_words_of_langfuse(module_store):
    told = (
        ({"output": 1, "output_reasoning_tokens": 5}, 5),
        ({"output": 6}, None),
        ({"output_reasoning_tokens": "5"}, None),
    )
    known = FIRST | {"litellm.request.streaming": True, "langfuse.observation.type": "generation"}
    said = [known | {"langfuse.observation.usage_details": json.dumps(details)} for details, _ in told]
    rows = insert_each(module_store, *(("litellm", one) for one in said))
    for (_, reasoning), row in zip(told, rows, strict=True):
        assert (row["engine"], row["output_tokens"], row["reasoning_tokens"]) == ("litellm", 6, reasoning)
        assert row["tpot_at_most_ns"] == (None if reasoning else 100 * MS)
