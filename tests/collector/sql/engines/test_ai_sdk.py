"""Vercel's AI SDK, recorded in its versions 5, 6 and 7, against the clock of the JavaScript that called it."""

import itertools

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request, set_attributes
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

RECORDED = {
    "ai-sdk-5": ("ai-sdk-5.0", "traces"),
    "ai-sdk-6": ("ai-sdk-6.0", "traces"),
    "ai-sdk-7": ("ai-sdk-7.0", "traces"),
    "ai-sdk-7-legacy": ("ai-sdk-7.0", "legacy"),
}
IDS = itertools.count(2**40)


@pytest.fixture(scope="module")
def recordings(module_store):
    for recording in dict(RECORDED.values()):
        replay(module_store, recording, *[file for of, file in RECORDED.values() if of == recording])


@pytest.fixture(scope="module", params=RECORDED)
def service(request, recordings):
    return request.param


@pytest.fixture(scope="module")
def rows(service, module_store):
    return requests(module_store, f"service = '{service}'")


@pytest.fixture(scope="module")
def lines(service):
    return [line for line in client_lines(RECORDED[service][0]) if line["service"] == service]


def assert_within(median_ms, most_ms, differences):
    median, most = spread(differences)
    assert median <= median_ms
    assert most <= most_ms


def test_every_completed_call_is_one_row_with_the_clients_numbers(service, rows, lines):
    calls = [line for line in lines if line["what"] in {"stream", "plain", "object"}]
    pairs = by_response_id(rows, calls)
    assert len(pairs) == 9
    assert {(row["engine"], row["vantage"], row["operation"], row["model"], row["status"]) for row, _ in pairs} == {
        ("ai_sdk", "client", "chat", "tiny", "ok")
    }
    assert [tokens_of(row) for row, _ in pairs] == [billed(line) for _, line in pairs]
    assert [row["finish_reason"] for row, _ in pairs] == [line["finish_reason"] for _, line in pairs]
    streams = [pair for pair in pairs if pair[1]["what"] == "stream"]
    assert len(ttft_differences(streams)) == 6
    assert_within(1, 6, ttft_differences(streams))
    assert_within(2, 9, e2e_differences(pairs))
    several = [(row, line) for row, line in streams if row["output_tokens"] > 1]
    assert len(several) == 5
    for row, _ in several:
        tpot_ns = (row["e2e_ns"] - row["ttft_ns"]) / (row["output_tokens"] - 1)
        assert row["tpot_ns"] == (None if row["reasoning_tokens"] else tpot_ns)
    assert all(row["ttft_ns"] == row["e2e_ns"] for row, line in pairs if line["what"] == "plain")


def test_cached_and_reasoning_tokens(service, rows):
    reported = [row for row in rows if row["output_tokens"]]
    told_by = {"ai-sdk-5": {3, None}}  # version 5 leaves out the cached tokens of calls that are not streamed
    assert {row["cached_tokens"] for row in reported} == told_by.get(service, {3})
    reasoning = {row["reasoning_tokens"] for row in reported if row["output_tokens"] == 12 and row["ttft_ns"] > 90 * MS}
    assert reasoning == ({None} if service == "ai-sdk-7" else {4})


def test_outcomes(service, rows):
    refused, gave_up = ("error", "AI_APICallError"), ("cancelled", "")
    # Before version 7, each attempt has a span of its own.
    retried = [("error", "AI_RetryError")] if "7" in service else [refused, refused]
    expected = [refused, refused, *retried, gave_up, gave_up, ("error", ""), ("ok", "")]
    # When a reader leaves without an abort, version 7 reads the rest of the stream. Versions before never end a span.
    expected += [("ok", "")] if service == "ai-sdk-7" else []
    assert [(row["status"], row["error_type"]) for row in rows[9:]] == expected
    assert {row["model"] for row in rows} == {"tiny"}


def test_an_answer_without_a_token_has_no_ttft(rows):
    assert [row["ttft_ns"] for row in rows if row["output_tokens"] == 0] == [None]


def test_an_aborted_stream_lasts_until_the_abort(rows, lines):
    aborted = [line for line in lines if line.get("aborted")]
    given_up = [row for row in rows if row["status"] == "cancelled"]
    assert len(given_up) == len(aborted) == 2
    assert_within(2, 9, e2e_differences(zip(given_up, aborted, strict=True)))
    assert {(row["ttft_ns"], row["output_tokens"]) for row in given_up} == {(None, None)}


def test_the_time_of_an_object_stream_is_known_before_version_7(service, rows, lines):
    (line,) = [line for line in lines if line["what"] == "object"]
    (row,) = [row for row in rows if row["request_id"] == line["response_id"]]
    assert (row["ttft_ns"] is None) == (service == "ai-sdk-7")
    assert (row["tpot_ns"] is None) == (service == "ai-sdk-7")


def test_spans_around_calls_are_kept_without_their_prompts(service, rows, module_store):
    names, keys = module_store.query(
        f"SELECT groupUniqArray(name), groupUniqArrayArray(mapKeys(attributes)) FROM spans WHERE service = '{service}'"
    ).result_rows[0]
    around = {"invoke_agent tiny", "step 1"} if service == "ai-sdk-7" else {"ai.streamText", "ai.generateText"}
    assert around <= set(names)
    assert not {name for name in names if "doStream" in name or "doGenerate" in name}
    assert not {"ai.prompt", "ai.schema", "ai.response.text", "ai.response.reasoning"} & set(keys)


def old(operation, **said):
    return "ai", operation, {"ai.operationId": operation} | {key.replace("__", "."): v for key, v in said.items()}, {}


def new(**said):
    return (
        "gen_ai",
        "chat m",
        {"gen_ai.operation.name": "chat"} | {k.replace("__", "."): v for k, v in said.items()},
        {},
    )


ENDED = {"gen_ai__response__finish_reasons": ["stop"], "gen_ai__usage__output_tokens": 3}


TTFTS = [
    (old("ai.streamText.doStream", **ENDED, ai__response__msToFirstChunk=50.5), 50.5),
    (old("ai.streamObject.doStream", **ENDED, ai__stream__msToFirstChunk=50.5), 50.5),
    (old("ai.streamText.doStream", **ENDED), None),
    (old("ai.streamText.doStream", **ENDED, ai__response__msToFirstChunk=601), None),
    (old("ai.streamText.doStream", **ENDED, ai__response__msToFirstChunk=-1), None),
    (
        old("ai.streamText.doStream", **ENDED | {"gen_ai__usage__output_tokens": 0}, ai__response__msToFirstChunk=5),
        None,
    ),
    (old("ai.generateText.doGenerate", **ENDED), 600),
    (old("ai.generateObject.doGenerate", **ENDED), 600),
    (old("ai.generateText.doGenerate", **ENDED | {"gen_ai__usage__output_tokens": 0}), None),
    (old("ai.generateText.doGenerate", gen_ai__response__finish_reasons=["stop"]), None),
    (
        new(**ENDED, gen_ai__client__operation__duration=0.6, gen_ai__client__operation__time_to_first_chunk=0.05),
        50,
    ),
    (new(**ENDED, gen_ai__client__operation__duration=0.6), 600),
    (new(**ENDED), None),
]
FAILED = {"status": Status(code=Status.STATUS_CODE_ERROR)}


STATUSES = [
    (old("ai.streamText.doStream", gen_ai__response__finish_reasons=["error"]), "error"),
    (old("ai.streamText.doStream", gen_ai__response__finish_reasons=["unknown"]), "error"),
    (old("ai.streamText.doStream", **ENDED | {"gen_ai__response__finish_reasons": ["unknown"]}), "ok"),
    (old("ai.streamText.doStream"), "cancelled"),
    (old("ai.streamText"), "cancelled"),
    ((*old("ai.streamText.doStream")[:3], FAILED), "error"),
    ((*new()[:3], FAILED), "error"),
    (new(), "cancelled"),
]
NO_REQUESTS = [
    old("ai.streamText", ai__response__finishReason="stop"),
    (*old("ai.streamText")[:3], FAILED),
    old("ai.streamObject"),
    old("ai.toolCall"),
    ("gen_ai", "step 1", {"gen_ai.operation.name": "agent_step"}, {}),
]


@pytest.fixture(scope="module")
def inserted(module_store):
    """Insert each span in a trace of its own, all in one segment: the rows of each by its kind and its place."""
    kinds = {"ttft": [span for span, _ in TTFTS], "status": [span for span, _ in STATUSES], "none": NO_REQUESTS}
    ids, bodies = {}, []
    for kind, spans in kinds.items():
        for place, (scope, name, attributes, more) in enumerate(spans):
            ids[kind, place] = token = next(IDS)
            request = Request(scope=scope)
            request.span(name, trace=token, span=token, ns=600 * MS, attributes=attributes, **more)
            bodies.append(request.body())
    insert_otlp(module_store, TRACES, b"".join(bodies), "ai-sdk")
    rows = requests(module_store)
    return {key: [row for row in rows if row["span_id"] == token.to_bytes(8, "big")] for key, token in ids.items()}


@pytest.mark.parametrize("place", range(len(TTFTS)))
def test_ttft(inserted, place):
    (row,) = inserted["ttft", place]
    ttft_ms = TTFTS[place][1]
    assert row["ttft_ns"] == (None if ttft_ms is None else ttft_ms * MS)
    assert row["status"] == "ok"


@pytest.mark.parametrize("place", range(len(STATUSES)))
def test_status(inserted, place):
    (row,) = inserted["status", place]
    assert row["status"] == STATUSES[place][1]


@pytest.mark.parametrize("place", range(len(NO_REQUESTS)))
def test_other_spans_are_no_requests(inserted, place):
    assert inserted["none", place] == []


def test_the_class_of_an_error_is_a_name_of_at_most_1024_characters(module_store):
    token = next(IDS)
    request = Request(scope="ai")
    said = {"ai.operationId": "ai.streamText.doStream"}
    span = request.span("ai.streamText.doStream", trace=token, span=token, attributes=said, **FAILED)
    set_attributes(span.events.add(time_unix_nano=T0, name="exception"), {"exception.type": "E" * 5000})
    insert_otlp(module_store, TRACES, request.body(), "long class")
    (row,) = requests(module_store, f"span_id = unhex('{token:016x}')")
    assert len(row["error_type"]) == 1024


def test_an_aborted_stream_whose_two_spans_end_is_counted_once(module_store):
    around, within = next(IDS), next(IDS)
    request = Request(scope="ai")
    for name, token, parent in (("ai.streamText", around, 0), ("ai.streamText.doStream", within, around)):
        request.span(name, trace=around, span=token, parent=parent, ns=MS, attributes={"ai.operationId": name})
    insert_otlp(module_store, TRACES, request.body(), "both")
    found = requests(module_store, f"trace_id = unhex('{around:032x}')")
    assert [(row["span_id"], row["status"]) for row in found] == [(within.to_bytes(8, "big"), "cancelled")]
    sql = f"SELECT name FROM spans WHERE trace_id = unhex('{around:032x}')"
    assert module_store.query(sql).result_rows == [("ai.streamText",)]
