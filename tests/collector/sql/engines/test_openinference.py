"""OpenInference's instrumentation of the openai client, recorded, against the client's own clock."""

import itertools
import json

import pytest

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request
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

RUN = "openinference-0.1"
IDS = itertools.count(2**40)
SCOPE = "openinference.instrumentation.openai"


@pytest.fixture(scope="module")
def pairs(module_store):
    replay(module_store, RUN)
    return by_response_id(requests(module_store, "service = 'chat-client-openinf'"), client_lines(RUN))


def test_every_completed_request_is_one_row(pairs, module_store):
    assert len(pairs) == len(requests(module_store, "service = 'chat-client-openinf'")) == 18
    assert {(row["engine"], row["vantage"], row["operation"], row["model"], row["status"]) for row, _ in pairs} == {
        ("openinference", "client", "chat", "smollm2-135m-instruct", "ok")
    }
    assert module_store.query("SELECT DISTINCT name FROM spans").result_rows == [("chat-turn",)]


def test_times_and_tokens_are_the_clients(pairs):
    assert len(ttft_differences(pairs)) == 14
    assert spread(ttft_differences(pairs)) == (1, 28), "the span begins up to 28 ms late"
    assert spread(e2e_differences(pairs)) == (1, 28)
    assert all(tokens_of(row) == billed(line) for row, line in pairs)
    assert all(row["finish_reason"] == line["finish_reason"] for row, line in pairs)
    assert all(row["ttft_ns"] == row["e2e_ns"] for row, line in pairs if billed(line)[1] and line["mode"] == "plain")


def test_outcomes(module_store):
    replay(module_store, RUN, "edges")
    rows = {row["service"]: row for row in requests(module_store, "service != 'chat-client-openinf'")}
    given_up = dict.fromkeys(["abandon_close", "abandon_gc", "abandon_ctx", "acancel"], "cancelled")
    ended = ["stream", "nousage", "plain", "long150", "completion", "completion_stream"]
    failed = {"404": "NotFoundError", "timeout": "APITimeoutError", "sse_error": "APIError"}
    expected = {**dict.fromkeys(ended, "ok"), **dict.fromkeys(failed, "error"), **given_up}
    assert {name: row["status"] for name, row in rows.items()} == expected
    assert {name: row["error_type"] for name, row in rows.items() if row["error_type"]} == failed
    assert rows["404"]["model"] == "bad"
    assert rows["completion_stream"]["operation"] == "text_completion"
    names = module_store.query("SELECT name FROM spans WHERE service = 'embeddings'").result_rows
    assert names == [("CreateEmbeddings",)]


def insert(store, token, spans, scope=SCOPE):
    """Insert LLM spans of one trace, and return their rows by span id.

    A span is its id, its parent, its attributes and its first-token event in ms.
    """
    request = Request(scope=scope)
    for span, parent, attributes, first_ms in spans:
        said = {"openinference.span.kind": "LLM"} | attributes
        added = request.span("ChatCompletion", trace=token, span=span, parent=parent, ns=600 * MS, attributes=said)
        if first_ms is not None:
            added.events.add(time_unix_nano=T0 + first_ms * MS, name="First Token Stream Event")
    insert_otlp(store, TRACES, request.body(), f"openinference-{token}")
    return {int.from_bytes(row["span_id"], "big"): row for row in requests(store, f"trace_id = unhex('{token:032x}')")}


def test_a_frameworks_span_around_the_call_is_not_a_second_request(module_store):
    rows = insert(module_store, 501, [(0x1100, None, {}, None), (2, 0x1100, {}, 20), (3, 0x1100, {}, 30)])
    assert sorted(rows) == [2, 3], "the wrapper's two attempts are requests"
    kept = module_store.query("SELECT hex(span_id) FROM spans WHERE trace_id = unhex(leftPad(hex(501), 32, '0'))")
    assert kept.result_rows == [("0000000000001100",)]


def test_ttft(module_store):
    parameters = "llm.invocation_parameters"
    cases = [
        ({parameters: "{}"}, None, 600),
        ({parameters: json.dumps({"stream": False})}, None, 600),
        ({parameters: json.dumps({"stream": True})}, None, None),
        ({parameters: json.dumps({"stream": True})}, 20, 20),
        ({parameters: "{not json"}, None, None),
        ({}, None, None),
        ({}, 601, None),
        ({}, -1, None),
        ({}, 20, 20),
    ]
    known = {"llm.token_count.completion": 5, "llm.finish_reason": "stop"}
    spans = [(number, None, known | said, first_ms) for number, (said, first_ms, _) in enumerate(cases, start=1)]
    rows = insert(module_store, next(IDS), spans)
    found = [(rows[number]["ttft_ns"], rows[number]["status"]) for number, *_ in spans]
    assert found == [(ttft_ms and ttft_ms * MS, "ok") for _, _, ttft_ms in cases]


STREAM = {"llm.invocation_parameters": '{"stream": true}'}
ANSWER = {"output.value": "[1]", "output.mime_type": "application/json"}
TOKENS = {"llm.token_count.completion": 5}
OF_AGENTS = "openinference.instrumentation.openai_agents"


@pytest.mark.parametrize(
    ("scope", "said", "statuses"),
    [
        (SCOPE, STREAM | {"output.value": "<coroutine>"}, []),  # it ended before the stream began
        (SCOPE, STREAM | ANSWER, ["ok"]),
        (SCOPE, ANSWER, ["ok"]),
        (OF_AGENTS, {}, ["cancelled"]),
        (OF_AGENTS, ANSWER, ["ok"]),
        (OF_AGENTS, TOKENS, ["ok"]),
    ],
)
def test_a_span_with_status_ok_and_no_event(module_store, scope, said, statuses):
    trace, request = next(IDS), Request(scope=scope)
    attributes = {"openinference.span.kind": "LLM"} | said
    request.span("Response", trace=trace, span=1, ns=600 * MS, attributes=attributes).status.code = 1
    insert_otlp(module_store, TRACES, request.body(), f"openinference-{trace}")
    assert [row["status"] for row in requests(module_store, f"trace_id = unhex('{trace:032x}')")] == statuses


def test_an_instrumentation_of_another_client_that_says_nothing_of_streams_leaves_ttft_open(module_store):
    said = {"llm.token_count.completion": 5, "llm.invocation_parameters": "{}"}
    row = insert(module_store, 502, [(7, None, said, None)], "openinference.instrumentation.langchain")[7]
    assert (row["ttft_ns"], row["e2e_ns"], row["status"]) == (None, 600 * MS, "ok")


def test_a_count_that_is_none_is_not_known(module_store):
    hostile = [-1, "twelve", 1e30, 2**40, True]
    known = {"llm.token_count.prompt": 4, "output.value": "[1]"}
    spans = [(n, None, known | {"llm.token_count.completion": value}, None) for n, value in enumerate(hostile, start=1)]
    rows = insert(module_store, next(IDS), spans)
    found = [(row["input_tokens"], row["request_id"], row["output_tokens"]) for _, row in sorted(rows.items())]
    assert found == [(4, "", None)] * 4 + [(4, "", 1)]
