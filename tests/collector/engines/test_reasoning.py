"""A client's usage counts reasoning tokens, and does not say whether they arrived."""

import itertools
import json

import pytest

from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request
from tests.support.recordings import requests

TRACE = itertools.count(1)
OUTPUT = "gen_ai.usage.output_tokens"
REASONING = "gen_ai.usage.reasoning.output_tokens"
FIRST = {"gen_ai.operation.name": "chat", "gen_ai.response.time_to_first_chunk": 0.1, OUTPUT: 6}
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


@pytest.mark.parametrize("engine", SOURCES)
@pytest.mark.parametrize(("reasoning", "tpot"), [(None, 100 * MS), (0, 100 * MS), (1, None), (5, None)])
def test_reasoning_that_may_not_have_arrived_leaves_tpot_open(module_store, engine, reasoning, tpot):
    scope, said, key = SOURCES[engine]
    trace, request = next(TRACE), Request(scope=scope)
    told = {} if reasoning is None else {key: reasoning}
    span = request.span("chat m", trace=trace, span=trace, ns=600 * MS, kind=3, attributes=said | told)
    for name in ("gen_ai.content.completion.chunk", "First Token Stream Event"):
        span.events.add(name=name, time_unix_nano=T0 + 100 * MS)
    insert_otlp(module_store, TRACES, request.body(), f"reasoning-{trace}")
    (row,) = requests(module_store, f"trace_id = unhex('{trace:032x}')")
    known = row["tpot_at_most_ns" if engine == "litellm" else "tpot_ns"]  # LiteLLM's span ends late
    assert (row["engine"], row["ttft_ns"], known) == (engine, 100 * MS, tpot)
    assert (row["output_tokens"], row["reasoning_tokens"]) == (6, reasoning)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
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
    ],
)  # fmt: skip
def test_langfuse_tells_reasoning_and_cached_tokens_in_several_forms(module_store, usage, tokens):
    said = {
        "langfuse.observation.type": "generation",
        "langfuse.observation.completion_start_time": '"2026-11-18T11:06:40.100000Z"',
        "langfuse.observation.usage_details": json.dumps(usage),
    }
    row = insert(module_store, "langfuse-sdk", said)
    found = (row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["reasoning_tokens"])
    assert (row["engine"], found, row["ttft_ns"]) == ("langfuse", tokens, 100 * MS)
    assert row["tpot_ns"] == (None if tokens[3] else 100 * MS)


def insert(store, scope, said):
    """Insert a call of 600 ms and return its row."""
    trace, request = next(TRACE), Request(scope=scope)
    request.span("chat m", trace=trace, span=trace, ns=600 * MS, kind=3, attributes=said)
    insert_otlp(store, TRACES, request.body(), f"reasoning-{trace}")
    (row,) = requests(store, f"trace_id = unhex('{trace:032x}')")
    return row


@pytest.mark.parametrize(
    ("details", "reasoning"),
    [({"output": 1, "output_reasoning_tokens": 5}, 5), ({"output": 6}, None), ({"output_reasoning_tokens": "5"}, None)],
)
def test_litellm_tells_reasoning_tokens_in_the_words_of_langfuse(module_store, details, reasoning):
    known = FIRST | {"litellm.request.streaming": True, "langfuse.observation.type": "generation"}
    row = insert(module_store, "litellm", known | {"langfuse.observation.usage_details": json.dumps(details)})
    assert (row["engine"], row["output_tokens"], row["reasoning_tokens"]) == ("litellm", 6, reasoning)
    assert row["tpot_at_most_ns"] == (None if reasoning else 100 * MS)
