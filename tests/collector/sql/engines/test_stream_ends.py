"""Spans of streams: a span that ends with the headers of its answer is no request, and tells no E2E."""

import itertools

import pytest

from collector.otlp.signals import TRACES
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
    """Insert cases in one segment, and return the rows and the ids of kept spans of each.

    A case is a list of spans (trace, span, parent, start, ns, attributes, status); its traces are below ten.
    """

    def insert(scope, *cases):
        for table in ("requests", "spans"):
            module_store.client().command(f"TRUNCATE TABLE {table}")
        request = Request(scope=scope)
        for number, case in enumerate(cases):
            for trace, span, parent, start, ns, said, code in case:
                added = request.span(
                    "chat m", trace=10 * number + trace, span=span, parent=parent, start=start, ns=ns, kind=3,
                    attributes=CHAT | said,
                )  # fmt: skip
                added.status.code = code
        insert_otlp(module_store, TRACES, request.body(), f"stream-{next(SEGMENTS)}")
        found = [([], []) for _ in cases]
        for row in requests(module_store):
            found[int.from_bytes(row["trace_id"], "big") // 10][0].append(row)
        sql = "SELECT reinterpretAsUInt128(reverse(trace_id)), reinterpretAsUInt64(reverse(span_id)) FROM spans"
        for trace, span in module_store.query(f"{sql} ORDER BY ALL").result_rows:
            found[trace // 10][1].append(span)
        return found

    return insert


def alone(said, code=0):
    """A span of 250 ms in a trace of its own."""
    return 1, 1, None, T0, 250 * MS, said, code


STREAMS = STREAM, {"gen_ai.request.stream": "true"}, {"gen_ai.request.stream": 1}
NO_END = (
    {}, {"gen_ai.response.finish_reasons": []}, {"gen_ai.response.finish_reasons": [""]},
    {"gen_ai.response.finish_reasons": ["null"]}, {"gen_ai.response.finish_reasons": "[]"},
    {"gen_ai.response.finish_reasons": "None"}, {"gen_ai.response.finish_reasons": "null"},
    {"gen_ai.response.finish_reasons": ["None"]}, {"gen_ai.usage.output_tokens": 0},
    {"gen_ai.usage.output_tokens": "0"},
    {"gen_ai.usage.input_tokens": 7, "gen_ai.response.model": "m-1", "gen_ai.response.id": "a"},
)  # fmt: skip
END = (
    {"gen_ai.response.finish_reasons": ["stop"]}, {"gen_ai.response.finish_reasons": '["STOP"]'},
    {"gen_ai.usage.output_tokens": 5}, {"gen_ai.usage.output_tokens": "5"}, {"gen_ai.usage.completion_tokens": 5},
    {"gen_ai.output.messages": '[{"role": "assistant"}]'}, {"error.type": "TimeoutError"},
    {"gen_ai.response.time_to_first_chunk": 0.2},
)  # fmt: skip


def test_a_span_of_a_stream_without_a_sign_of_its_end_is_kept_and_is_no_request(inserted):
    cases = [[alone(stream | sign)] for stream in STREAMS for sign in NO_END]
    for case, found in zip(cases, inserted("any", *cases), strict=True):
        assert found == ([], [1]), case


def test_a_sign_of_the_end_makes_a_request(inserted):
    cases = [[alone(STREAM | sign)] for sign in END]
    for case, (rows, kept) in zip(cases, inserted("any", *cases), strict=True):
        assert ([row["e2e_ns"] for row in rows], kept) == ([250 * MS], []), case


def test_a_stream_that_may_have_been_left_has_an_unknown_end(inserted):
    signs = [
        ({"gen_ai.response.time_to_first_chunk": 0.2}, "unknown"), ({"gen_ai.output.messages": "[]"}, "unknown"),
        ({"gen_ai.usage.output_tokens": 5}, "ok"), ({"gen_ai.response.finish_reasons": ["stop"]}, "ok"),
        ({"error.type": "TimeoutError"}, "error"),
        ({"error.type": "GeneratorExit"}, "cancelled"),
    ]  # fmt: skip
    found = inserted("any", *([alone(STREAM | sign)] for sign, _ in signs))
    assert [row["status"] for (row,), _ in found] == [status for _, status in signs]


def test_a_log_of_logfire_without_output_tokens_and_a_finish_reason_has_an_unknown_end(inserted):
    """Logfire sends it for a stream that broke or was left, too."""
    ended = {"gen_ai.output.messages": '[{"finish_reason":"stop"}]'}
    found = inserted(LOGFIRE, *([log(1, 1, T0, said | {"duration": 1.0})] for said in ({}, USAGE, ended)))
    assert [row["status"] for (row,), _ in found] == ["unknown", "ok", "ok"]


def test_an_error_ends_a_stream(inserted):
    [((row,), _)] = inserted("any", [alone(STREAM, code=2)])
    assert row["status"] == "error"


def test_without_a_stream_no_sign_is_needed(inserted):
    said = ({}, {"gen_ai.request.stream": False}, {"gen_ai.request.stream": "false"})
    for (row,), kept in inserted("any", *([alone(one)] for one in said)):
        assert (row["status"], row["e2e_ns"], kept) == ("ok", 250 * MS, [])


def test_a_frameworks_span_around_a_stream_without_an_end_is_the_request(inserted):
    """The client's span is none, so it makes no wrapper of its parent."""
    outer = (1, 1, None, T0, 12 * SECOND, STREAM | USAGE, 0)
    inner = (1, 2, 1, T0, 250 * MS, STREAM, 0)
    [((row,), kept)] = inserted("any", [outer, inner])
    assert (row["e2e_ns"], row["output_tokens"], kept) == (12 * SECOND, 300, [2])


def log(trace, span, end, said, parent=None):
    return trace, span, parent, end, 0, LOG | said, 0


def test_a_stream_of_logfire_is_the_request_of_its_log(inserted):
    """Its span ends with the headers. The log, a span without a duration, is sent when the stream ends."""
    end = T0 + 12 * SECOND
    headers = (1, 1, None, T0, 250 * MS, SPAN | {"request_data": '{"stream":true}'}, 0)
    [((row,), kept)] = inserted(LOGFIRE, [headers, log(2, 2, end, USAGE | {"duration": 11.75})])
    assert (row["start_ns"], row["e2e_ns"]) == (T0 + 250 * MS, 11_750 * MS)
    assert (row["input_tokens"], row["output_tokens"], row["ttft_ns"], row["tpot_ns"]) == (20, 300, None, None)
    assert (row["status"], row["engine"], row["vantage"], kept) == ("ok", "genai", "client", [1])


def test_a_log_of_logfire_is_the_request_within_a_frameworks_span_too(inserted):
    outer = (1, 1, None, T0, 12 * SECOND, SPAN | USAGE, 0)
    headers = (1, 2, 1, T0, 250 * MS, SPAN, 0)
    ended = log(1, 3, T0 + 12 * SECOND, USAGE | {"duration": 11.0}, parent=1)
    [((row,), kept)] = inserted(LOGFIRE, [outer, headers, ended])
    assert (row["e2e_ns"], row["output_tokens"], kept) == (11 * SECOND, 300, [1, 2])


def test_a_log_that_does_not_say_how_long_the_stream_took_is_kept(inserted):
    durations = ({}, {"duration": 0.0}, {"duration": -1.0}, {"duration": float("nan")}, {"duration": "soon"})
    cases = [[log(1, 1, T0, USAGE | duration)] for duration in durations]
    assert inserted(LOGFIRE, *cases) == [([], [1])] * len(cases)


def test_a_duration_longer_than_the_clock_is_no_date_before_1970(inserted):
    [((row,), _)] = inserted(LOGFIRE, [log(1, 1, T0, USAGE | {"duration": 1e15})])
    assert row["e2e_ns"] == 10**16


def test_logfire_tells_a_finish_reason_within_its_messages(inserted):
    told = {
        '[{"role":"assistant","parts":[{"type":"text","content":"a"}],"finish_reason":"stop"}]': "stop",
        '[{"parts": [], "finish_reason": "tool_calls"}]': "tool_calls",
        '[{"parts":[{"content":"\\"finish_reason\\":\\"length\\""}]}]': "",
        "": "",
    }
    known = USAGE | {"duration": 1.0}
    found = inserted(LOGFIRE, *([log(1, 1, T0, known | {"gen_ai.output.messages": text})] for text in told))
    assert [row["finish_reason"] for (row,), _ in found] == [*told.values()]


def test_an_answer_of_logfire_that_is_not_streamed_lasts_as_its_span(inserted):
    signs = ({"response_data": '{"message":{}}'}, USAGE, {"gen_ai.response.finish_reasons": ["stop"]})
    for (row,), kept in inserted(LOGFIRE, *([(1, 1, None, T0, 12 * SECOND, SPAN | sign, 0)] for sign in signs)):
        assert (row["e2e_ns"], row["status"], kept) == (12 * SECOND, "ok", [])


def test_a_call_of_logfire_that_failed_is_an_error(inserted):
    [((row,), _)] = inserted(LOGFIRE, [alone(SPAN, code=2)])
    assert (row["status"], row["e2e_ns"]) == ("error", 250 * MS)


def test_words_for_nothing_are_no_finish_reason(inserted):
    words = ["null"], ["None"], "null", '["None"]', "[null]", ["nullified"]
    said = ({"gen_ai.response.finish_reasons": one, "gen_ai.usage.output_tokens": 5} for one in words)
    found = inserted("any", *([alone(one)] for one in said))
    assert [row["finish_reason"] for (row,), _ in found] == [""] * 5 + ["nullified"]
