"""A client's usage counts reasoning tokens, and does not say whether they arrived."""

import itertools

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
}


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
    assert (row["engine"], row["ttft_ns"], row["tpot_ns"]) == (engine, 100 * MS, tpot)
    assert (row["output_tokens"], row["reasoning_tokens"]) == (6, reasoning)
