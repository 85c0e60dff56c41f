"""The generations of OpenTelemetry's GenAI names: each is read, and of two that a span has, the newest counts once."""

import itertools
from pathlib import Path

import pytest
import yaml

from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request
from tests.support.recordings import requests

NAMES = yaml.safe_load((Path(__file__).parents[3] / "collector/sql/schema/genai_names.yaml").read_text())
CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
SEGMENTS = itertools.count()
BEDROCK = "opentelemetry.instrumentation.bedrock"


def inserted(store, spans):
    """The rows of spans of 600 ms (scope, name, attributes), None for one that is no request, in their order."""
    for table in ("requests", "spans"):
        store.client().command(f"TRUNCATE TABLE {table}")
    body = b""
    for trace, (scope, name, said) in enumerate(spans, start=1):
        request = Request(scope=scope)
        request.span(name, trace=trace, ns=600 * MS, kind=3, attributes=said)
        body += request.body()
    insert_otlp(store, TRACES, body, f"generations-{next(SEGMENTS)}")
    rows = {int.from_bytes(row["trace_id"], "big"): row for row in requests(store)}
    return [rows.get(trace) for trace in range(1, len(spans) + 1)]


def chats(store, *said, scope="any"):
    return inserted(store, [(scope, "chat m", CALL | one) for one in said])


READ = {
    # A row's value by the name of the table, of a span with 40 in that key.
    "input": ("input_tokens", {}, 40), "output": ("output_tokens", {}, 40), "cached": ("cached_tokens", {}, 40),
    "reasoning": ("reasoning_tokens", {}, 40),
    **{f"{kind}_{side}": (f"{kind}_{side}_tokens", {f"gen_ai.usage.{side}_tokens": 90}, 40)
       for kind in ("image", "audio") for side in ("input", "output")},
    "written": ("input_tokens", {"gen_ai.usage.input_tokens": 10}, 50),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_each_generation_of_a_count_is_read_and_the_newest_goes_first(module_store, name):
    column, beside, expected = READ[name]
    keys = NAMES["counts"][name]
    alone = [beside | {key: 40} for key in keys]
    both = [beside | {newer: 40, older: 41} for newer, older in itertools.pairwise(keys)]
    same = [beside | {newer: 40, older: 40} for newer, older in itertools.pairwise(keys)]
    rows = chats(module_store, *alone, *both, *same, scope=BEDROCK if name == "written" else "any")
    assert [row[column] for row in rows] == [expected] * len(rows)


def test_every_count_of_the_table_is_tried():
    assert READ.keys() == NAMES["counts"].keys()


MODALITIES = [(kind, side) for kind in ("image", "audio") for side in ("input", "output")]


@pytest.mark.parametrize(
    "scope",
    ["any", "tokentrail", "gen_ai", "opentelemetry.instrumentation.openai.v1", "openinference.instrumentation.openai"],
)
def test_tokens_of_pictures_and_sound_are_among_the_others(module_store, scope):
    said, name = (CALL | {"gen_ai.response.finish_reasons": ["stop"]}), "chat m"
    totals = {"input": "gen_ai.usage.input_tokens", "output": "gen_ai.usage.output_tokens"}
    if scope.startswith("openinference."):
        said = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
        totals = {"input": "llm.token_count.prompt", "output": "llm.token_count.completion"}
    given = []
    for kind, side in MODALITIES:
        part, total = f"gen_ai.usage.{kind}.{side}_tokens", totals[side]
        given += [{part: 40, total: 40}, {part: 41, total: 40}, {part: 41}, {part: 0, total: 40}, {total: 40}]
    rows = inserted(module_store, [(scope, name, said | one) for one in given])
    for i, (kind, side) in enumerate(MODALITIES):
        assert [row[f"{kind}_{side}_tokens"] for row in rows[5 * i : 5 * i + 5]] == [40, None, 41, 0, None]


def test_each_generation_of_the_first_chunk_is_read_and_the_newest_goes_first(module_store):
    keys = NAMES["seconds"]["first_chunk"]
    both = [{newer: 0.2, older: 0.3} for newer, older in itertools.pairwise(keys)]
    rows = chats(module_store, *({key: 0.2} for key in keys), *both)
    assert [row["ttft_ns"] for row in rows] == [200 * MS] * len(rows)
    streams = chats(module_store, *({key: 0.2, "gen_ai.request.stream": True} for key in keys))
    assert all(streams), "a time of the first chunk is a sign that the span ended with its stream"


def test_each_generation_of_a_text_is_a_label_unless_the_span_has_one(module_store):
    said = [(name, key) for name, keys in NAMES["texts"].items() for key in keys]
    rows = chats(module_store, *({key: "x", f"tokentrail.label.{name}": ""} for name, key in said))
    assert [row["labels"] for row in rows] == [{name: "x"} for name, _ in said]
    name, (key, *_) = next(iter(NAMES["texts"].items()))
    long, longer = (row["labels"][name] for row in chats(module_store, {key: "é" * 300}, {key: "é" * 301}))
    assert (len(long), len(longer), long == longer) == (256, 256, False)
    (own,) = chats(module_store, {key: "x", f"tokentrail.label.{name}": "own"})
    assert own["labels"] == {name: "own"}


def test_a_call_has_a_model_and_is_none_of_the_spans_around_it(module_store):
    operation = {"gen_ai.operation.name": "chat"}
    calls = [CALL, operation | {"gen_ai.response.model": "m"}, CALL | {"langsmith.span.kind": "llm"},
             CALL | {"openinference.span.kind": ""}]  # fmt: skip
    others = [operation, CALL | {"langsmith.span.kind": "prompt"}, CALL | {"langsmith.span.kind": "chain"},
              CALL | {"traceloop.span.kind": "agent"}, CALL | {"openinference.span.kind": "AGENT"},
              *(CALL | {"gen_ai.operation.name": name} for name in (
                  "invoke_agent", "create_agent", "execute_tool", "plan", "invoke_workflow", "search_memory",
                  "create_memory_store", "retrieval", "embeddings"))]  # fmt: skip
    rows = inserted(module_store, [("any", "chat m", said) for said in (*calls, *others)])
    assert [row is not None for row in rows] == [True] * len(calls) + [False] * len(others)


def test_a_span_with_the_words_of_two_families_is_one_request(module_store):
    said = CALL | {"openinference.span.kind": "LLM", "llm.model_name": "m", "llm.token_count.prompt": 7,
                   "llm.token_count.completion": 5, "gen_ai.usage.input_tokens": 7,
                   "gen_ai.usage.output_tokens": 5}  # fmt: skip
    (row,) = chats(module_store, said, scope="openinference.instrumentation.openai")
    assert (row["engine"], row["input_tokens"], row["output_tokens"]) == ("openinference", 7, 5)


MAKERS = {
    "any": lambda reason: CALL | {"gen_ai.response.finish_reasons": [reason]},
    "litellm": lambda reason: CALL | {"gen_ai.response.finish_reasons": [reason]},
    "gen_ai": lambda reason: CALL | {"gen_ai.response.finish_reasons": [reason], "gen_ai.usage.output_tokens": 5},
    "opentelemetry.instrumentation.openai.v1": lambda reason: CALL | {"gen_ai.response.finish_reasons": [reason]},
    "openinference.instrumentation.openai": lambda reason: {"openinference.span.kind": "LLM",
                                                            "llm.finish_reason": reason},
    "openinference.instrumentation.any": lambda reason: CALL | {"openinference.span.kind": "LLM",
                                                               "gen_ai.response.finish_reasons": [reason]},
    "langfuse-sdk": lambda reason: {"langfuse.observation.type": "generation",
                                    "langfuse.observation.metadata.finish_reason": reason},
    "com.anthropic.claude_code.tracing": lambda reason: {"span.type": "llm_request", "stop_reason": reason},
}  # fmt: skip
ENDED = {
    "stop": ("ok", ""), "CONTENT_FILTER": ("ok", ""), "abort": ("error", "abort"), "error": ("error", ""),
    "insufficient_system_resource": ("error", "insufficient_system_resource"), "cancelled": ("cancelled", ""),
    "network-error": ("error", "network-error"), "banana": ("unknown", ""), "ToolCalls": ("ok", ""),
    "FinishReason.MAX_TOKENS": ("ok", ""), "REASON_MAX_LEN": ("ok", ""), "userStopped": ("cancelled", ""),
    "STOP_REASON_TIME_LIMIT": ("error", "STOP_REASON_TIME_LIMIT"), "reason_": ("unknown", ""),
}  # fmt: skip


@pytest.mark.parametrize("scope", MAKERS)
def test_a_finish_reason_decides_in_every_mapping(module_store, scope):
    rows = inserted(module_store, [(scope, "chat m", MAKERS[scope](reason)) for reason in ENDED])
    assert {reason: (row["status"], row["error_type"]) for reason, row in zip(ENDED, rows, strict=True)} == ENDED


def test_a_weight_is_that_of_its_sampler(module_store):
    weights = [4.0, 1.0, 0.5, 1e9, -1.0]
    rows = chats(module_store, *({"tokentrail.sampling.weight": weight} for weight in weights), {})
    assert [row["weight"] for row in rows] == [4, 1, 1, 1, 1, 1]


def test_claude_code_has_names_of_its_own(module_store):
    scope, call = (
        "com.anthropic.claude_code.tracing",
        {"span.type": "llm_request", "model": "claude", "input_tokens": 2},
    )
    counts = {"output_tokens": 12, "cache_read_tokens": 80, "cache_creation_tokens": 7, "ttft_ms": 200}
    done, failed, left, around = inserted(module_store, [
        (scope, "claude_code.llm_request", call | counts | {"success": True, "stop_reason": "tool_use"}),
        (scope, "claude_code.llm_request", call | {"success": False, "status_code": 529, "error": "overloaded"}),
        (scope, "claude_code.llm_request", call | {"success": False, "error": "Request was aborted."}),
        (scope, "claude_code.interaction", {"span.type": "interaction"}),
    ])  # fmt: skip
    assert (done["engine"], done["model"], done["status"]) == ("claude_code", "claude", "ok")
    assert (done["input_tokens"], done["cached_tokens"], done["output_tokens"]) == (89, 80, 12)
    assert (done["ttft_ns"], done["tpot_ns"], done["tpot_at_most_ns"]) == (200 * MS, None, None)
    assert [(row["status"], row["error_type"]) for row in (failed, left)] == [("error", "529"), ("cancelled", "")]
    assert around is None
