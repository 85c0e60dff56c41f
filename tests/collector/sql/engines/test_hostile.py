"""Values that no engine should send: every mapping takes them, and none makes a number of them that is not true."""

import itertools
import math
from collections.abc import Iterable
from datetime import timedelta

import pytest

from collector.otlp.signals import TRACES
from collector.store.definitions import Decoding, read_schema
from collector.store.insert import insert_otlp
from collector.store.schema import apply_schema
from tests.support.otlp import MS, Request, set_attributes
from tests.support.recordings import join

E2E_NS = 600 * MS
LATENCIES = (
    "time_to_first_token",
    "e2e",
    "time_in_queue",
    "time_in_model_prefill",
    "time_in_model_decode",
    "kv_cache_transfer_time",
)
USAGE = (
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_read.input_tokens",
)
NUMBERS = [f"gen_ai.latency.{name}" for name in LATENCIES] + [f"gen_ai.usage.{name}" for name in USAGE]
NUMBERS += [
    "gen_ai.response.time_to_first_chunk",
    "input_tokens",
    "output_tokens",
    "ttft_ms",
    "avg_itl_ms",
    "gen_ai.request.id",
]
MAPPINGS = {
    "vllm": ("vllm.llm_engine", "llm_request", {}),
    "sglang": ("sglang server", " Req 1", {"module": "sglang::request"}),
    "dynamo": ("frontend", "http-request", {"code.module.name": "dynamo_runtime::logging", "uri": "/v1/completions"}),
    "tensorrt_llm": ("trt.llm", "llm_request", {}),
    "genai": ("any", "chat m", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}),
}
BAD = [
    -1,
    -0.5,
    1e300,
    math.inf,
    math.nan,
    2**63 - 1,
    -(2**63),
    "twelve",
    "-1",
    "1e400",
    "",
    '{"a": [1',
    "\x00",
    True,
    b"\xff",
    ["1"],
]
REASONS = ["[", '["length"', '[{"a":1}]', "[1, null]", '["length"]', "length", ["length"], 7, True, "x" * 10_000]
CONTRADICTED = dict.fromkeys([f"gen_ai.latency.{name}" for name in LATENCIES if name != "e2e"], 0.59)
QUEUED_S = {"gen_ai.latency.time_in_queue": 0.1}
BEHIND = [(0.1, 0.7), (0.7, 0.8), (0.1, 1e6)]
"""Seconds in the queue and to the first token, of which one is behind the end of a request of 0.6 s."""
ENGINES_WITH_E2E, WITH_REASONS = ("vllm", "tensorrt_llm"), ("sglang", "tensorrt_llm", "genai")
GIVEN: dict[str, tuple[Iterable[str], list[dict]]] = {
    "bad numbers": (MAPPINGS, [dict.fromkeys(NUMBERS, value) for value in BAD]),
    "late ends": (ENGINES_WITH_E2E, [{"gen_ai.latency.e2e": seconds} | QUEUED_S for seconds in (1.61, 86400.0, 1e7)]),
    "behind": (
        ("tensorrt_llm",),
        [
            {"gen_ai.latency.e2e": 0.6, "gen_ai.latency.time_in_queue": q, "gen_ai.latency.time_to_first_token": t}
            for q, t in BEHIND
        ],
    ),
    "reasons": (WITH_REASONS, [{"gen_ai.response.finish_reasons": reason} | QUEUED_S for reason in REASONS]),
    "contradicted": (MAPPINGS, [CONTRADICTED | {"ttft_ms": "9999", "gen_ai.usage.completion_tokens": 5}]),
}
"""What the tests are about, by a name: mappings, and the attributes of spans that each of them gets."""
TRACE = itertools.count(1)


@pytest.fixture(scope="module")
def inserted(engine_store):
    """Insert all of GIVEN in one segment, every key of a span twice: rows in order by `inserted[what, mapping]`."""
    traces, bodies = {}, []
    for what, (mappings, many) in GIVEN.items():
        for mapping in mappings:
            scope, name, own = MAPPINGS[mapping]
            request, of_one = Request(scope=scope), [next(TRACE) for _ in many]  # half of SGLang's trace ids is zeros
            for trace, attributes in zip(of_one, many, strict=True):
                added = request.span(name, trace=trace, ns=E2E_NS, kind=2, attributes=own | attributes)
                for key, value in attributes.items():
                    added.attributes.add(key=key).value.string_value = value if isinstance(value, str) else "again"
            traces[what, mapping] = of_one
            bodies.append(request.body())
    insert_otlp(engine_store, TRACES, b"".join(bodies), "hostile")
    join(engine_store)
    named = engine_store.query("SELECT * FROM requests").named_results()
    rows = {int.from_bytes(row["trace_id"], "big"): row for row in named}
    assert rows.keys() == {trace for of_one in traces.values() for trace in of_one}
    found = {key: [rows[trace] for trace in of_one] for key, of_one in traces.items()}
    assert all({row["engine"] for row in of_one} == {mapping} for (_, mapping), of_one in found.items())
    return found


def assert_honest(row):
    """Nothing is longer than the request, and nothing is negative."""
    assert row["e2e_ns"] <= 1e16
    for name in ("ttft", "queue", "prefill", "decode", "preempted", "kv_transfer"):
        value = row[f"{name}_ns"]
        assert value is None or 0 <= value <= row["e2e_ns"], (name, value)
    assert row["tpot_ns"] is None or row["tpot_ns"] >= 0


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_number_that_is_none_is_not_known(inserted, mapping):
    for value, row in zip(BAD, inserted["bad numbers", mapping], strict=True):
        assert_honest(row)
        if value is not True:
            assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"]) == (None, None, None), value
            assert row["ttft_ns"] is None, value
            assert row["e2e_ns"] == E2E_NS, value


@pytest.mark.parametrize("mapping", ENGINES_WITH_E2E)
def test_a_request_does_not_end_long_after_its_span(inserted, mapping):
    rows = inserted["late ends", mapping]
    assert {row["e2e_ns"] for row in rows} == {E2E_NS}
    assert {row["end"] - row["start"] for row in rows} == {timedelta(microseconds=E2E_NS // 1000)}


@pytest.mark.parametrize("case", range(len(BEHIND)), ids=[f"{q}-{t}" for q, t in BEHIND])
def test_phases_are_not_known_when_one_ends_behind_the_request(inserted, case):
    row = inserted["behind", "tensorrt_llm"][case]
    assert [row[f"{name}_ns"] for name in ("ttft", "queue", "prefill", "decode", "kv_transfer")] == [None] * 5


@pytest.mark.parametrize("mapping", WITH_REASONS)
def test_a_finish_reason_of_any_shape_is_read_or_empty(inserted, mapping):
    rows = inserted["reasons", mapping]
    known = ("length", "length", "length", "x" * 64)
    assert [row["finish_reason"] for row in rows if row["finish_reason"]] == list(known)
    unknown = "unknown"  # of a word that nobody knows
    assert [row["status"] for row in rows if row["finish_reason"]] == ["ok"] * 3 + [unknown]
    assert {row["status"] for row in rows if not row["finish_reason"]} == {"ok"}


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_times_that_contradict_each_other_stay_within_the_request(inserted, engine_store, mapping):
    (row,) = inserted["contradicted", mapping]
    assert_honest(row)
    sql = "SELECT sum(duration_ns) FROM phases WHERE trace_id = unhex({trace:String})"
    ((total,),) = engine_store.query(sql, {"trace": row["trace_id"].hex()}).result_rows
    assert total <= 2 * row["e2e_ns"] if mapping == "vllm" else total <= row["e2e_ns"]


def spans(store, **attributes):
    trace = next(TRACE)
    request = Request(scope="unknown")
    span = request.span("unknown", trace=trace, attributes=attributes)
    event = span.events.add(name="gen_ai.content.prompt")
    set_attributes(event, attributes)
    insert_otlp(store, TRACES, request.body(), f"unclaimed-{trace}")
    sql = f"SELECT attributes, events[1].attributes FROM spans WHERE trace_id = unhex('{trace:032x}')"
    ((of_span, of_event),) = store.query(sql).result_rows
    assert of_span == of_event
    return of_span


CONTENT = (
    "gen_ai.prompt",
    "gen_ai.completion",
    "gen_ai.prompt.0.content",
    "gen_ai.completion.0.tool_calls.0.arguments",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
    "gen_ai.content.prompt",
    "llm.prompts",
    "llm.completions.0.text",
    "llm.input_messages.0.message.content",
    "llm.output_messages.0.message.content",
    "llm.request.messages",
    "input.value",
    "output.value",
    "traceloop.entity.input",
    "traceloop.entity.output",
    "langfuse.observation.input",
    "langfuse.trace.output",
    "ai.prompt",
    "ai.prompt.messages",
    "ai.response.text",
    "ai.response.reasoning",
    "ai.toolCall.args",
    "ai.toolCall.result",
    "ai.schema",
    "ai.values",
    "ai.embedding",
    "ai.documents",
    "http.request.header.authorization",
    "http.response.header.set-cookie",
    "llm.request.headers",
    "metadata.requester_custom_headers",
    "http.request.body",
)
OTHERS = (
    "gen_ai.usage.prompt_tokens",
    "gen_ai.prompt_tokens",
    "gen_ai.request.model",
    "input.mime_type",
    "http.request.method",
    "llm.token_count.prompt",
    "prompt_id",
    "ai.response.model",
    "ai.toolCall.name",
    "ai.usage.promptTokens",
)


def test_prompts_answers_and_headers_are_not_stored(engine_store):
    assert spans(engine_store, **dict.fromkeys((*CONTENT, *OTHERS), "x")).keys() == set(OTHERS)


def test_they_are_stored_when_a_setting_asks_for_them(engine_store):
    schema, kept = read_schema(), read_schema(decoding=Decoding(keep_content=True))
    assert schema.tables == kept.tables
    assert {name for name in schema.views if schema.views[name] != kept.views[name]} == {
        "keep_unclaimed",
        "hold_requests",
        "hold_spans",
        "vllm_disaggregated_link",
    }
    apply_schema(engine_store, decoding=Decoding(keep_content=True))
    try:
        assert spans(engine_store, **dict.fromkeys((*CONTENT, *OTHERS), "x")).keys() == {*CONTENT, *OTHERS}
    finally:
        apply_schema(engine_store)
