"""Spans of streams: a span that ends with the headers of its answer is no request, and tells no E2E."""

import itertools

import pytest

from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request
from tests.support.recordings import requests

SECOND = 1000 * MS
SEGMENTS = itertools.count()
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
STREAM = {"gen_ai.request.stream": True}
LOGFIRE = "logfire.openai"
SPAN, LOG = {"logfire.span_type": "span"}, {"logfire.span_type": "log"}
USAGE = {"gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 300}


@pytest.fixture
def inserted(module_store):
    """Insert spans (trace, span, parent, start, ns, attributes, status), and return rows and the ids of kept spans."""

    def insert(scope, *spans):
        for table in ("requests", "spans"):
            module_store.client().command(f"TRUNCATE TABLE {table}")
        request = Request(scope=scope)
        for trace, span, parent, start, ns, said, code in spans:
            added = request.span(
                "chat m", trace=trace, span=span, parent=parent, start=start, ns=ns, kind=3, attributes=CHAT | said
            )
            added.status.code = code
        insert_otlp(module_store, TRACES, request.body(), f"stream-{next(SEGMENTS)}")
        kept = module_store.query("SELECT reinterpretAsUInt64(reverse(span_id)) FROM spans ORDER BY ALL").result_rows
        return requests(module_store), [span for (span,) in kept]

    return insert


def alone(said, code=0):
    """A span of 250 ms in a trace of its own."""
    return 1, 1, None, T0, 250 * MS, said, code


@pytest.mark.parametrize(
    "stream", [STREAM, {"gen_ai.request.stream": "true"}, {"gen_ai.request.stream": 1}], ids=["bool", "text", "number"]
)
@pytest.mark.parametrize(
    "sign",
    [
        {}, {"gen_ai.response.finish_reasons": []}, {"gen_ai.response.finish_reasons": [""]},
        {"gen_ai.response.finish_reasons": ["null"]}, {"gen_ai.response.finish_reasons": "[]"},
        {"gen_ai.response.finish_reasons": "None"}, {"gen_ai.usage.output_tokens": 0},
        {"gen_ai.usage.output_tokens": "0"},
        {"gen_ai.usage.input_tokens": 7, "gen_ai.response.model": "m-1", "gen_ai.response.id": "a"},
    ],
)  # fmt: skip
def test_a_span_of_a_stream_without_a_sign_of_its_end_is_kept_and_is_no_request(inserted, stream, sign):
    assert inserted("any", alone(stream | sign)) == ([], [1])


@pytest.mark.parametrize(
    "sign",
    [
        {"gen_ai.response.finish_reasons": ["stop"]}, {"gen_ai.response.finish_reasons": '["STOP"]'},
        {"gen_ai.usage.output_tokens": 5}, {"gen_ai.usage.output_tokens": "5"}, {"gen_ai.usage.completion_tokens": 5},
        {"gen_ai.output.messages": '[{"role": "assistant"}]'}, {"error.type": "TimeoutError"},
        {"gen_ai.response.time_to_first_chunk": 0.2},
    ],
)  # fmt: skip
def test_a_sign_of_the_end_makes_a_request(inserted, sign):
    (row,), kept = inserted("any", alone(STREAM | sign))
    assert (row["e2e_ns"], kept) == (250 * MS, [])


@pytest.mark.parametrize(
    ("sign", "status"),
    [
        ({"gen_ai.response.time_to_first_chunk": 0.2}, "unknown"), ({"gen_ai.output.messages": "[]"}, "unknown"),
        ({"gen_ai.usage.output_tokens": 5}, "ok"), ({"gen_ai.response.finish_reasons": ["stop"]}, "ok"),
        ({"error.type": "TimeoutError"}, "error"),
        ({"error.type": "GeneratorExit"}, "cancelled"),
    ],
)  # fmt: skip
def test_a_stream_that_may_have_been_left_has_an_unknown_end(inserted, sign, status):
    (row,), _ = inserted("any", alone(STREAM | sign))
    assert row["status"] == status


def test_a_log_of_logfire_without_output_tokens_and_a_finish_reason_has_an_unknown_end(inserted):
    """Logfire sends it for a stream that broke or was left, too."""
    ended = {"gen_ai.output.messages": '[{"finish_reason":"stop"}]'}
    for said, status in (({}, "unknown"), (USAGE, "ok"), (ended, "ok")):
        (row,), _ = inserted(LOGFIRE, log(1, 1, T0, said | {"duration": 1.0}))
        assert row["status"] == status


def test_an_error_ends_a_stream(inserted):
    (row,), _ = inserted("any", alone(STREAM, code=2))
    assert row["status"] == "error"


def test_without_a_stream_no_sign_is_needed(inserted):
    for said in ({}, {"gen_ai.request.stream": False}, {"gen_ai.request.stream": "false"}):
        (row,), kept = inserted("any", alone(said))
        assert (row["status"], row["e2e_ns"], kept) == ("ok", 250 * MS, [])


def test_a_frameworks_span_around_a_stream_without_an_end_is_the_request(inserted):
    """The client's span is none, so it makes no wrapper of its parent."""
    outer = (1, 1, None, T0, 12 * SECOND, STREAM | USAGE, 0)
    inner = (1, 2, 1, T0, 250 * MS, STREAM, 0)
    (row,), kept = inserted("any", outer, inner)
    assert (row["e2e_ns"], row["output_tokens"], kept) == (12 * SECOND, 300, [2])


def log(trace, span, end, said, parent=None):
    return trace, span, parent, end, 0, LOG | said, 0


def test_a_stream_of_logfire_is_the_request_of_its_log(inserted):
    """Its span ends with the headers. The log, a span without a duration, is sent when the stream ends."""
    end = T0 + 12 * SECOND
    headers = (1, 1, None, T0, 250 * MS, SPAN | {"request_data": '{"stream":true}'}, 0)
    (row,), kept = inserted(LOGFIRE, headers, log(2, 2, end, USAGE | {"duration": 11.75}))
    assert (row["start_ns"], row["e2e_ns"]) == (T0 + 250 * MS, 11_750 * MS)
    assert (row["input_tokens"], row["output_tokens"], row["ttft_ns"], row["tpot_ns"]) == (20, 300, None, None)
    assert (row["status"], row["engine"], row["vantage"], kept) == ("ok", "genai", "client", [1])


def test_a_log_of_logfire_is_the_request_within_a_frameworks_span_too(inserted):
    outer = (1, 1, None, T0, 12 * SECOND, SPAN | USAGE, 0)
    headers = (1, 2, 1, T0, 250 * MS, SPAN, 0)
    ended = log(1, 3, T0 + 12 * SECOND, USAGE | {"duration": 11.0}, parent=1)
    (row,), kept = inserted(LOGFIRE, outer, headers, ended)
    assert (row["e2e_ns"], row["output_tokens"], kept) == (11 * SECOND, 300, [1, 2])


@pytest.mark.parametrize(
    "duration", [{}, {"duration": 0.0}, {"duration": -1.0}, {"duration": float("nan")}, {"duration": "soon"}]
)
def test_a_log_that_does_not_say_how_long_the_stream_took_is_kept(inserted, duration):
    assert inserted(LOGFIRE, log(1, 1, T0, USAGE | duration)) == ([], [1])


def test_a_duration_longer_than_the_clock_is_no_date_before_1970(inserted):
    (row,), _ = inserted(LOGFIRE, log(1, 1, T0, USAGE | {"duration": 1e15}))
    assert row["e2e_ns"] == 10**16


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"role":"assistant","parts":[{"type":"text","content":"a"}],"finish_reason":"stop"}]', "stop"),
        ('[{"parts": [], "finish_reason": "tool_calls"}]', "tool_calls"),
        ('[{"parts":[{"content":"\\"finish_reason\\":\\"length\\""}]}]', ""),
        ("", ""),
    ],
)
def test_logfire_tells_a_finish_reason_within_its_messages(inserted, text, reason):
    (row,), _ = inserted(LOGFIRE, log(1, 1, T0, USAGE | {"duration": 1.0, "gen_ai.output.messages": text}))
    assert row["finish_reason"] == reason


def test_an_answer_of_logfire_that_is_not_streamed_lasts_as_its_span(inserted):
    signs = ({"response_data": '{"message":{}}'}, USAGE, {"gen_ai.response.finish_reasons": ["stop"]})
    for sign in signs:
        (row,), kept = inserted(LOGFIRE, (1, 1, None, T0, 12 * SECOND, SPAN | sign, 0))
        assert (row["e2e_ns"], row["status"], kept) == (12 * SECOND, "ok", [])


def test_a_call_of_logfire_that_failed_is_an_error(inserted):
    (row,), _ = inserted(LOGFIRE, alone(SPAN, code=2))
    assert (row["status"], row["e2e_ns"]) == ("error", 250 * MS)


def test_words_for_nothing_are_no_finish_reason(inserted):
    for words in (["null"], ["None"], "null", '["None"]', "[null]"):
        (row,), _ = inserted("any", alone({"gen_ai.response.finish_reasons": words, "gen_ai.usage.output_tokens": 5}))
        assert row["finish_reason"] == ""
    (row,), _ = inserted("any", alone({"gen_ai.response.finish_reasons": ["nullified"]}))
    assert row["finish_reason"] == "nullified"
