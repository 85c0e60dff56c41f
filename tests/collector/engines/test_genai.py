"""Spans of OpenTelemetry's GenAI conventions that no other mapping claims."""

import itertools

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request
from tests.support.recordings import requests

TRACE = itertools.count(1)
CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def insert(store, *spans, scope="any", again=()):
    """Insert spans of one trace (id, parent, kind, attributes) and return the rows by span id."""
    trace, request = next(TRACE), Request(scope=scope)
    for span, parent, kind, attributes in spans:
        said = CALL | attributes
        added = request.span("chat m", trace=trace, span=span, parent=parent, ns=600 * MS, kind=kind, attributes=said)
        added.attributes.extend(again)
    insert_otlp(store, TRACES, request.body(), f"genai-{trace}")
    rows = requests(store, f"trace_id = unhex('{trace:032x}')")
    return {int.from_bytes(row["span_id"], "big"): row for row in rows}


def insert_each(store, *said):
    """Insert a request of one span for each of the attributes, all in one segment, and return their rows."""
    traces, bodies = [next(TRACE) for _ in said], []
    for trace, attributes in zip(traces, said, strict=True):
        request = Request(scope="any")
        known = CALL | attributes
        request.span("chat m", trace=trace, ns=600 * MS, kind=3, attributes=known)
        bodies.append(request.body())
    insert_otlp(store, TRACES, b"".join(bodies), f"genai-{traces[0]}")
    found = requests(store, f"trace_id >= unhex('{traces[0]:032x}')")
    return sorted(found, key=lambda row: row["trace_id"])


def test_generations_are_requests(module_store):
    operations = ["chat", "embeddings", "text_completion", "invoke_agent", "generate_content", ""]
    rows = insert_each(module_store, *({"gen_ai.operation.name": operation} for operation in operations))
    assert [row["operation"] for row in rows] == ["chat", "text_completion", "generate_content"]


def test_a_wrapper_in_the_same_process_is_not_a_second_request(module_store):
    rows = insert(module_store, (0x0100, None, 3, {}), (2, 0x0100, 1, {}), (3, 2, 3, {}), (4, 0x0100, 3, {}))
    assert sorted(rows) == [3, 4]


MAKERS = {
    "genai": ("any", CALL),
    "traceloop": ("opentelemetry.instrumentation.openai.v1", {"gen_ai.operation.name": "chat"}),
    "openinference": ("any", {"openinference.span.kind": "LLM"}),
    "langfuse": ("langfuse-sdk", {"langfuse.observation.type": "generation", "langfuse.observation.model.name": "m"}),
    "ai_sdk": ("ai", {"ai.operationId": "ai.generateText.doGenerate"}),
}


def test_a_wrapper_of_another_maker_is_not_a_second_request(module_store):
    pairs = {next(TRACE): pair for pair in itertools.product(MAKERS, MAKERS) if pair[0] != "traceloop"}
    bodies = []
    for trace, (outer, inner) in pairs.items():
        for maker, span, parent in ((outer, 1, None), (inner, 2, 1)):
            scope, said = MAKERS[maker]
            request = Request(scope=scope)
            request.span("chat m", trace=trace, span=span, parent=parent, kind=3, attributes=said)
            bodies.append(request.body())
    of_these = f"trace_id >= unhex('{min(pairs):032x}')"
    insert_otlp(module_store, TRACES, b"".join(bodies), f"genai-{min(pairs)}")
    rows = [(int.from_bytes(row["trace_id"], "big"), row["engine"]) for row in requests(module_store, of_these)]
    assert sorted(rows) == [(trace, inner) for trace, (_, inner) in pairs.items()]
    kept = module_store.query(
        f"SELECT reinterpretAsUInt128(reverse(trace_id)), hex(span_id) FROM spans WHERE {of_these}"
    )
    assert sorted(kept.result_rows) == [(trace, "0000000000000001") for trace in pairs]


ANTHROPIC, OF_ANTHROPIC = "com.anthropic.sdk.python", "opentelemetry.instrumentation.anthropic"


@pytest.mark.parametrize(
    ("resource", "scope", "rows"),
    [
        ({}, OF_ANTHROPIC, 1),
        ({}, "openinference.instrumentation.anthropic", 1),
        # Other clients of the process, and other processes, where the client may be older.
        ({}, "opentelemetry.instrumentation.openai.v1", 2),
        ({"service.instance.id": "i-2"}, OF_ANTHROPIC, 2),
        ({"service.name": "other"}, OF_ANTHROPIC, 2),
    ],
)
def test_the_anthropic_clients_own_span_goes_before_others_of_its_process(module_store, resource, scope, rows):
    traces, body = [next(TRACE), next(TRACE)], b""
    for trace, maker, of in ((traces[0], ANTHROPIC, {}), (traces[1], scope, resource)):
        request = Request(scope=maker, **of)
        said = CALL | {"openinference.span.kind": "LLM" if "inference" in maker else ""}
        request.span("chat m", trace=trace, parent=9 if maker == ANTHROPIC else None, kind=3, attributes=said)
        body += request.body()
    insert_otlp(module_store, TRACES, body, f"genai-{traces[0]}")
    found = requests(module_store, f"trace_id >= unhex('{traces[0]:032x}')")
    assert sorted(int.from_bytes(row["trace_id"], "big") for row in found) == traces[:rows]


def test_a_wrapper_of_the_anthropic_clients_span_is_not_a_second_request(module_store):
    trace, body = next(TRACE), b""
    for scope, span, parent in (("any", 1, None), (ANTHROPIC, 2, 1)):
        request = Request(scope=scope)
        request.span("chat m", trace=trace, span=span, parent=parent, attributes=CALL)
        body += request.body()
    insert_otlp(module_store, TRACES, body, f"genai-{trace}")
    (row,) = requests(module_store, f"trace_id = unhex('{trace:032x}')")
    assert int.from_bytes(row["span_id"], "big") == 2


@pytest.mark.parametrize(
    ("address", "ttft", "status"), [({"server.address": "a"}, 600 * MS, "cancelled"), ({}, None, "unknown")]
)
def test_googles_client_says_what_is_streamed_from_1_1_on(module_store, address, ttft, status):
    """Versions that do not say so do not tell an address."""
    whole = {"gen_ai.usage.output_tokens": 5} | address
    stream = {"gen_ai.request.stream": True} | address
    scope = "opentelemetry.instrumentation.google_genai"
    rows = insert(module_store, (1, None, 3, whole), (2, None, 3, stream), scope=scope)
    assert (rows[1]["ttft_ns"], rows[2]["status"]) == (ttft, status)


BOTOCORE, BEDROCK = "opentelemetry.instrumentation.botocore.bedrock-runtime", "opentelemetry.instrumentation.bedrock"


@pytest.mark.parametrize(
    ("scope", "model", "tokens"),
    [
        (BOTOCORE, "us.anthropic.claude", 12), (BEDROCK, "amazon.nova", 12),
        (BOTOCORE, "openai.gpt-oss", 7), ("any", "us.anthropic.claude", 7),
    ],
)  # fmt: skip
def test_bedrocks_input_tokens_have_those_of_the_cache(module_store, scope, model, tokens):
    usage = {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.cache_read.input_tokens": 3}
    usage |= {"gen_ai.usage.cache_creation.input_tokens": 2, "gen_ai.request.model": model}
    (row,) = insert(module_store, (1, None, 3, usage), scope=scope).values()
    assert (row["input_tokens"], row["cached_tokens"]) == (tokens, 3)


@pytest.mark.parametrize(("scope", "rows"), [(BOTOCORE, 1), (BEDROCK, 1), ("any", 2)])
def test_embeddings_by_bedrocks_client_are_no_requests(module_store, scope, rows):
    models = [{"gen_ai.request.model": model} for model in ("amazon.titan-text", "amazon.titan-embed-text-v2:0")]
    assert len(insert(module_store, (1, None, 3, models[0]), (2, None, 3, models[1]), scope=scope)) == rows


def test_several_answers_have_no_tpot(module_store):
    said = {"gen_ai.response.time_to_first_chunk": 0.1, "gen_ai.usage.output_tokens": 6}
    rows = insert_each(module_store, *(said | {"gen_ai.response.finish_reasons": r} for r in (["stop"], ["stop"] * 2)))
    assert [row["tpot_ns"] for row in rows] == [100 * MS, None]


STRANDS = "strands.telemetry.tracer"


@pytest.mark.parametrize(
    ("event", "key", "text", "reason", "ttft"),
    [
        ("gen_ai.choice", "finish_reason", "end_turn", "end_turn", 300 * MS),
        ("gen_ai.choice", "finish_reason", "tool_use", "tool_use", None),
        ("details", "gen_ai.output.messages", '[{"parts": [], "finish_reason": "end_turn"}]', "end_turn", 300 * MS),
        ("details", "gen_ai.output.messages", '[{"parts": ["\\"finish_reason\\": \\"x\\""]}]', "", None),
    ],
)
def test_strands_tells_its_finish_reason_in_an_event(module_store, event, key, text, reason, ttft):
    trace, request = next(TRACE), Request(scope=STRANDS)
    said = CALL | {"gen_ai.server.time_to_first_token": 300, "gen_ai.usage.output_tokens": 5}
    span = request.span("chat", trace=trace, ns=600 * MS, attributes=said)
    span.events.add(name=event).attributes.append(KeyValue(key=key, value=AnyValue(string_value=text)))
    insert_otlp(module_store, TRACES, request.body(), f"genai-{trace}")
    (row,) = requests(module_store, f"trace_id = unhex('{trace:032x}')")
    assert (row["finish_reason"], row["ttft_ns"], row["tpot_ns"]) == (reason, ttft, None)


def test_a_server_below_its_client_is_another_vantage(module_store):
    rows = insert(module_store, (1, None, 3, {}), (2, 1, 2, {}))
    assert {span: row["vantage"] for span, row in rows.items()} == {1: "client", 2: "server"}


def test_processes_do_not_wrap_each_other(module_store):
    first, second = Request(scope="any"), Request(scope="any", **{"service.instance.id": "i-2"})
    trace = next(TRACE)
    for request, span, parent in ((first, 1, None), (second, 2, 1)):
        request.span("chat m", trace=trace, span=span, parent=parent, attributes=CALL)
    insert_otlp(module_store, TRACES, first.body() + second.body(), f"genai-{trace}")
    assert len(requests(module_store, f"trace_id = unhex('{trace:032x}')")) == 2


def test_a_count_that_is_none_is_not_known(module_store):
    hostile = [-1, "twelve", "1e30", 1e30, 2**32, float("nan"), ["1"]]
    said = [{"gen_ai.usage.output_tokens": value, "gen_ai.usage.input_tokens": 7} for value in hostile]
    rows = insert_each(module_store, *said)
    found = [(row["input_tokens"], row["output_tokens"], row["tpot_ns"]) for row in rows]
    assert found == [(7, None, None)] * len(hostile)


def test_of_a_repeated_key_the_first_value_counts(module_store):
    again = KeyValue(key="gen_ai.usage.output_tokens", value=AnyValue(int_value=9))
    (row,) = insert(module_store, (1, None, 3, {again.key: 5}), again=[again]).values()
    assert row["output_tokens"] == 5


def test_ttft_lies_within_the_request(module_store):
    said = [
        {"gen_ai.response.time_to_first_chunk": seconds, "gen_ai.usage.output_tokens": 5}
        for seconds in (0.2, 0.7, -1.0, "0.7")
    ]
    assert [row["ttft_ns"] for row in insert_each(module_store, *said)] == [200 * MS, None, None, None]


AGENTS = "opentelemetry.instrumentation.openai_agents"


@pytest.mark.parametrize(
    ("scope", "given", "output", "known"),
    [
        (AGENTS, 0, 0, (None, None)), (AGENTS, 7, 0, (7, 0)), (AGENTS, 0, 5, (0, 5)), (AGENTS, 7, 5, (7, 5)),
        ("any", 0, 0, (0, 0)),
    ],
)  # fmt: skip
def test_a_usage_of_zeros_stands_for_none_in_spans_of_agents(module_store, scope, given, output, known):
    said = {"gen_ai.usage.input_tokens": given, "gen_ai.usage.output_tokens": output}
    (row,) = insert(module_store, (1, None, 3, said), scope=scope).values()
    assert (row["input_tokens"], row["output_tokens"], row["status"]) == (*known, "ok")


def test_finish_reasons_in_every_form(module_store):
    forms = [["stop", "length"], '["stop", "length"]', "stop", ["stop", "banana", "abort"], '["stop", "abort"]',
             ["stop", "banana"], [], "[null]", "[", "FinishReason.ABORT"]  # fmt: skip
    rows = insert_each(module_store, *({"gen_ai.response.finish_reasons": reasons} for reasons in forms))
    told = [*["stop"] * 3, "abort", "abort", "banana", "", "", "", "FinishReason.ABORT"]
    ends = [*["ok"] * 3, "error", "error", "unknown", "ok", "ok", "ok", "error"]
    assert [(row["finish_reason"], row["status"]) for row in rows] == list(zip(told, ends, strict=True))


def test_a_client_that_stopped_waiting_cancelled(module_store):
    cancelled = ["asyncio.exceptions.CancelledError", "CancelledError", "GeneratorExit"]
    failed = ["NotCancelledError", "TimeoutError", "500"]
    rows = insert_each(module_store, *({"error.type": error} for error in cancelled + failed))
    found = [(row["status"], row["error_type"]) for row in rows]
    assert found == [("cancelled", "")] * 3 + [("error", error) for error in failed]


def test_only_an_instrumentation_that_is_known_for_it_tells_an_abandoned_stream(module_store):
    """The span of another one may have ended with the headers of the answer."""
    said = {"gen_ai.request.stream": True}
    assert insert(module_store, (1, None, 3, said)) == {}
    (known,) = insert(module_store, (1, None, 3, said), scope="opentelemetry.instrumentation.genai.openai").values()
    assert known["status"] == "cancelled"


def test_pydantic_ai_does_not_tell_each_finish_reason(module_store):
    """An answer with output tokens has ended. What was abandoned has none."""
    tokens = {"gen_ai.usage.output_tokens": 5}
    rows = insert(module_store, (1, None, 3, tokens), (2, None, 3, {}), scope="pydantic-ai")
    assert {span: row["status"] for span, row in rows.items()} == {1: "ok", 2: "cancelled"}


def test_an_exception_is_the_error_of_a_span_that_failed(module_store):
    trace, request = next(TRACE), Request(scope="any")
    for span, code, said in ((1, 2, {}), (2, 2, {"error.type": "429"}), (3, 0, {}), (4, 2, {})):
        attributes = CALL | said
        added = request.span("chat m", trace=trace, span=span, ns=600 * MS, kind=3, attributes=attributes)
        added.status.code = code
        kind = "asyncio.exceptions.CancelledError" if span == 4 else "openai.RateLimitError"
        added.events.add(name="exception").attributes.add(key="exception.type").value.string_value = kind
    insert_otlp(module_store, TRACES, request.body(), f"genai-{trace}")
    rows = requests(module_store, f"trace_id = unhex('{trace:032x}')")
    found = sorted((row["span_id"], row["status"], row["error_type"]) for row in rows)
    assert [(status, error) for _, status, error in found] == [
        ("error", "RateLimitError"), ("error", "429"), ("ok", ""), ("cancelled", ""),
    ]  # fmt: skip
