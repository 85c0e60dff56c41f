"""LiteLLM's proxy with its two OpenTelemetry integrations, recorded, against the clock of its clients."""

import itertools

import pytest

from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request
from tests.support.recordings import (
    billed,
    by_response_id,
    client_lines,
    e2e_differences,
    replay,
    requests,
    spread,
    tokens_of,
    ttft_differences,
)

V1, V2 = "litellm-1.108-otel-v1", "litellm-1.108-otel-v2"
IDS = itertools.count(2**40)


@pytest.fixture(scope="module")
def recorded(module_store):
    found = {}
    for run in (V1, V2):
        module_store.client().command("TRUNCATE TABLE requests")
        replay(module_store, run)
        found[run] = requests(module_store)
    return found


@pytest.mark.parametrize(
    ("run", "ttft_ms", "e2e_ms"), [(V1, None, (63, 6520)), (V2, (66, 2851), (82, 2825))], ids=["v1", "v2"]
)
class TestRecording:
    def test_every_request_is_one_row(self, recorded, run, ttft_ms, e2e_ms):
        rows = recorded[run]
        assert len(rows) == len(client_lines(run)) == 26
        assert len(by_response_id(rows, client_lines(run))) == 24
        assert {(row["engine"], row["vantage"], row["operation"]) for row in rows} == {("litellm", "client", "chat")}
        assert {row["model"] for row in rows if row["status"] == "ok"} == {"smollm2-135m"}

    def test_refused_requests_are_errors_without_tokens(self, recorded, run, ttft_ms, e2e_ms):
        refused = [row for row in recorded[run] if row["status"] != "ok"]
        unknown = "ProxyModelNotFoundError" if run == V1 else "ProxyException"
        assert [(row["model"], row["status"], row["error_type"]) for row in refused] == [
            ("no-such-model", "error", unknown),
            ("smollm2-135m", "error", "BadRequestError"),
        ]
        assert {(row["input_tokens"], row["output_tokens"], row["ttft_ns"]) for row in refused} == {(None, None, None)}

    def test_the_proxys_own_time_is_outside(self, recorded, run, ttft_ms, e2e_ms):
        pairs = by_response_id(recorded[run], client_lines(run))
        differences = ttft_differences(pairs)
        assert all(difference > 0 for difference in differences + e2e_differences(pairs))
        assert len(differences) == (18 if ttft_ms else 0)
        assert not ttft_ms or spread(differences) == ttft_ms
        assert spread(e2e_differences(pairs)) == e2e_ms
        not_streamed = [row for row, line in pairs if not line["stream"]]
        assert all(row["ttft_ns"] == row["e2e_ns"] for row in not_streamed)

    def test_tokens_and_finish_reasons_are_the_clients(self, recorded, run, ttft_ms, e2e_ms):
        pairs = by_response_id(recorded[run], client_lines(run))
        assert all(tokens_of(row) == billed(line) for row, line in pairs)
        assert all(row["finish_reason"] == line["finish_reason"] for row, line in pairs)


def test_no_call_of_a_model_is_left_unclaimed(recorded, module_store):
    sql = "SELECT DISTINCT splitByChar(' ', name)[1] FROM spans ORDER BY 1"
    assert [name for (name,) in module_store.query(sql).result_rows] == [
        "Failed", "GET", "POST", "Received", "auth", "fastapi.dependencies", "fastapi.endpoint",
        "fastapi.serialization", "proxy_pre_call", "raw_gen_ai_request", "route", "router", "self",
    ]  # fmt: skip


def insert(store, token, name, kind=1, scope="litellm", events=(), **attributes):
    request = Request(scope=scope)
    said = {key.replace("__", "."): value for key, value in attributes.items()}
    span = request.span(name, trace=token, span=token, ns=600 * MS, kind=kind, attributes=said)
    for event in events:
        span.events.add(name=event)
    insert_otlp(store, TRACES, request.body(), f"litellm-{token}")
    return requests(store, f"span_id = unhex('{token:016x}')")


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        ("completion", "chat"),
        ("atext_completion", "text_completion"),
        ("aresponses", "chat"),
        ("anthropic_messages", "chat"),
        ("agenerate_content_stream", "generate_content"),
        ("aembedding", None),
        ("aimage_generation", None),
        ("_arealtime", None),
    ],
)
def test_calls_of_v1_that_generate_text_are_requests(module_store, call, operation):
    found = insert(module_store, next(IDS), "litellm_request", gen_ai__operation__name=call)
    assert [row["operation"] for row in found] == ([operation] if operation else [])


def test_a_stream_without_a_finish_reason_was_given_up(module_store):
    v1 = {"gen_ai.operation.name": "acompletion", "llm.is_streaming": "True"}
    v2 = {"gen_ai.operation.name": "chat", "litellm.request.streaming": True}
    (first,) = insert(module_store, 101, "litellm_request", **v1)
    (second,) = insert(module_store, 102, "chat m", 3, **v2)
    (ended,) = insert(module_store, 103, "chat m", 3, **v2, **{"gen_ai.response.finish_reasons": ["stop"]})
    assert [row["status"] for row in (first, second, ended)] == ["cancelled", "cancelled", "ok"]


@pytest.mark.parametrize(("run", "marked"), [("v1", 3), ("v2", 0)])
def test_an_aborted_stream_reads_as_ok_and_only_fastapis_span_of_v1_says_so(module_store, run, marked):
    """Two streams that ended and three that the client left. Who makes this test fail has news for the page."""
    for table in ("requests", "spans"):
        module_store.client().command(f"TRUNCATE TABLE {table}")
    replay(module_store, "litellm-1.106-aborts", run)
    assert [(row["status"], row["finish_reason"]) for row in requests(module_store)] == [("ok", "stop")] * 5
    sql = """SELECT start, trace_id FROM spans WHERE kind = 2 AND attributes['error.type'] = 'ConnectionError'
             AND trace_id IN (SELECT trace_id FROM requests) AND attributes['http.response.status_code'] = '200'"""
    assert len(module_store.query(sql).result_rows) == marked


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, 1),
        ({"events": ["litellm.request.deployment_selected"]}, 0),
        ({"http__route": "/metrics/{path}"}, 0),
        ({"http__route": "/v1/embeddings"}, 0),
        ({"litellm__call_id": ""}, 0),
        ({"error__type": ""}, 0),
        ({"kind": 1}, 0),
    ],
    ids=str,
)
def test_a_request_that_v2_refused_before_any_call_is_a_row(module_store, change, found):
    token = next(IDS)
    span = {"kind": 2, "scope": "opentelemetry.instrumentation.fastapi", "http__route": "/v1/chat/completions",
            "litellm__call_id": "1", "error__type": "ProxyException", "gen_ai__request__model": "m"}  # fmt: skip
    rows = insert(module_store, token, "POST /v1/chat/completions", **span | change)
    assert [(row["status"], row["error_type"], row["model"]) for row in rows] == [
        ("error", "ProxyException", "m")
    ] * found


def test_values_of_another_type_are_not_known(module_store):
    said = {"gen_ai.operation.name": "acompletion", "gen_ai.usage.output_tokens": "12",
            "gen_ai.usage.input_tokens": -1, "llm.is_streaming": "maybe"}  # fmt: skip
    (row,) = insert(module_store, 201, "litellm_request", **said)
    assert (row["input_tokens"], row["output_tokens"], row["ttft_ns"], row["status"]) == (None, None, None, "ok")
