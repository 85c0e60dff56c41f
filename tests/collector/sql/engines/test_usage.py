"""Counts of tokens as instrumentations tell them: as text, beside each other, and contradicting each other."""

import itertools

import pytest

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request
from tests.support.recordings import requests
from tokentrail import semconv

SEGMENTS = itertools.count()
CHAT = {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: "m"}
KEYS = {
    "tokentrail": (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, semconv.REASONING_TOKENS),
    "other": (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, semconv.REASONING_TOKENS),
    "litellm": (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, semconv.REASONING_TOKENS),
    "gen_ai": (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, "ai.usage.reasoningTokens"),
    "opentelemetry.instrumentation.openai.v1": (
        semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, "gen_ai.usage.reasoning_tokens",
    ),
    "openinference.instrumentation.openai": (
        "llm.token_count.prompt", "llm.token_count.completion", "llm.token_count.prompt_details.cache_read",
        "llm.token_count.completion_details.reasoning",
    ),
    "vllm.tracing.otel": (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, None),
}  # fmt: skip
"""By scope: the attributes with input, output, cached and reasoning tokens."""
KNOWN = {
    "openinference.instrumentation.openai": {"openinference.span.kind": "LLM"},
    "gen_ai": CHAT | {"gen_ai.response.finish_reasons": ["stop"]},
}


def inserted(store, scope, *said):
    """The rows of spans of 600 ms, all in one segment, in their order."""
    for table in ("requests", "spans"):
        store.client().command(f"TRUNCATE TABLE {table}")
    bodies = []
    for trace, attributes in enumerate(said, start=1):
        request = Request(scope=scope)
        name = "llm_request" if scope.startswith("vllm.") else "chat m"
        request.span(name, trace=trace, ns=600 * MS, kind=3, attributes=KNOWN.get(scope, CHAT) | attributes)
        bodies.append(request.body())
    insert_otlp(store, TRACES, b"".join(bodies), f"usage-{next(SEGMENTS)}")
    return sorted(requests(store), key=lambda row: row["trace_id"])


def tokens(rows):
    return [tuple(row[f"{kind}_tokens"] for kind in ("input", "output", "cached", "reasoning")) for row in rows]


def usage(scope, *counts):
    return {key: n for key, n in zip(KEYS[scope], counts, strict=True) if key and n is not None}


@pytest.mark.parametrize("scope", KEYS)
def test_numbers_as_text_are_numbers(module_store, scope):
    forms = [(18, 214, 4, 0), ("18", "214", "4", "0"), ("18.0", "2.14e2", "4", "0.0")]
    rows = inserted(module_store, scope, *(usage(scope, *counts) for counts in forms))
    assert tokens(rows) == [(18, 214, 4, None if KEYS[scope][3] is None else 0)] * 3


def test_text_that_begins_as_a_number_is_none(module_store):
    forms = ["12 tokens", "1.5", "-12", "inf", "nan", "", " ", "0x12", "9" * 40]
    rows = inserted(module_store, "other", *({semconv.OUTPUT_TOKENS: form} for form in forms))
    assert [row["output_tokens"] for row in rows] == [None] * len(forms)


def test_times_and_switches_as_text_are_read(module_store):
    said = {"gen_ai.response.time_to_first_chunk": "0.2", "gen_ai.usage.output_tokens": "5"}
    whole = {"gen_ai.request.stream": "false", "gen_ai.usage.output_tokens": "5"}
    rows = inserted(module_store, "other", said, whole, whole | {"gen_ai.request.stream": "true"})
    assert [(row["ttft_ns"], row["tpot_ns"]) for row in rows] == [(200 * MS, 100 * MS), (600 * MS, None), (None, None)]


@pytest.mark.parametrize("scope", KEYS)
def test_a_part_that_is_more_than_its_whole_is_never_stored(module_store, scope):
    """Nobody knows which of the two is wrong. A part as large as its whole is one, and so is one without a whole."""
    counts = [(7, 5, 8, 0), (7, 5, 7, 5), (7, 5, 3, 6), (None, 5, 8, 0), (7, 5, None, None), (0, 0, 1, 1)]
    rows = inserted(module_store, scope, *(usage(scope, *each) for each in counts))
    expected = [
        (None, 5, None, 0), (7, 5, 7, 5), (7, None, 3, None), (None, 5, 8, 0), (7, 5, None, None), (None,) * 4,
    ]  # fmt: skip
    if KEYS[scope][3] is None:
        expected = [
            (given, n, cached, None) for (given, _, cached, _), (_, n, _, _) in zip(expected, counts, strict=True)
        ]
    assert tokens(rows) == expected


def test_langfuses_counts_that_contradict_each_other_are_not_stored(module_store):
    generation = {"langfuse.observation.type": "generation"}
    details = '{"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": %d}}'
    rows = inserted(
        module_store,
        "langfuse-sdk",
        *(generation | {"langfuse.observation.usage_details": details % n} for n in (3, 8)),
    )
    assert tokens(rows) == [(7, 5, 3, None), (None, 5, None, None)]


def test_bedrocks_tokens_of_the_cache_are_beside_the_others_and_may_be_more(module_store):
    said = {semconv.INPUT_TOKENS: 7, semconv.CACHED_TOKENS: 1000, "gen_ai.usage.cache_creation.input_tokens": 20}
    (row,) = inserted(module_store, "opentelemetry.instrumentation.bedrock", said)
    assert (row["input_tokens"], row["cached_tokens"]) == (1027, 1000)


def test_thoughts_that_the_total_has_beside_the_output_are_output(module_store):
    """As Google counts: 7 + 5 + 20 = 32. A total that has them within, or another one, changes nothing."""
    counts = usage("other", 7, 5, None, 20)
    within = usage("other", 7, 25, None, 20)
    said = [counts | {"gen_ai.usage.total_tokens": 32}, within | {"gen_ai.usage.total_tokens": 32},
            within | {"gen_ai.usage.total_tokens": 60}, counts]  # fmt: skip
    rows = inserted(module_store, "other", *said)
    assert [(row["output_tokens"], row["reasoning_tokens"]) for row in rows] == [(25, 20)] * 3 + [(None, None)]


OPENLIT = "openlit.otel.tracing"


def test_openlit_tells_ttft_in_seconds_and_its_own_key_of_reasoning(module_store):
    """Its time begins with the headers of the answer, so the tokens behind the first chunk have no known time."""
    key = "gen_ai.server.time_to_first_token"
    stream = {"gen_ai.request.stream": True, "gen_ai.response.finish_reasons": ["stop"], semconv.OUTPUT_TOKENS: 5}
    said = [stream | {key: 0.3}, stream | {key: 0.0}, stream | {key: 300}, stream]
    whole = stream | {"gen_ai.request.stream": False, "gen_ai.usage.reasoning_tokens": 0, key: 0.59}
    rows = inserted(module_store, OPENLIT, *said, whole)
    assert [row["ttft_ns"] for row in rows] == [300 * MS, None, None, None, 590 * MS]
    assert [row["tpot_ns"] for row in rows] == [None] * 5
    assert [row["tpot_at_most_ns"] for row in rows] == [75 * MS, None, None, None, None]
    assert [row["reasoning_tokens"] for row in rows] == [None] * 4 + [0]


def test_others_tell_ttft_by_the_same_key_in_seconds(module_store):
    """A time that the conventions name for clients goes before it."""
    key = "gen_ai.server.time_to_first_token"
    tokens_of_answer = {semconv.OUTPUT_TOKENS: 5}
    said = [tokens_of_answer | {key: 0.2}, tokens_of_answer | {key: 0.2, "gen_ai.response.time_to_first_chunk": 0.4}]
    rows = inserted(module_store, "other", *said)
    assert [(row["ttft_ns"], row["tpot_ns"]) for row in rows] == [(200 * MS, 100 * MS), (400 * MS, 50 * MS)]
