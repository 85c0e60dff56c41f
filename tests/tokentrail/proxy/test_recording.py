"""A request that passes becomes a request of the trail, with the numbers that its answer tells and no others."""

import gzip
import json
import zlib

import pytest

from tests.tokentrail.proxy.support import (
    BODY,
    DONE,
    END,
    JSON,
    STREAMED,
    USAGE,
    chunked,
    delta,
    events,
    exchange,
    recorded,
    request_span,
)
from tokentrail import semconv
from tokentrail.proxy import asked, tap
from tokentrail.proxy.sse import Events


def test_a_stream_with_usage_is_a_request_with_its_tokens():
    parts = (delta(), delta("a"), delta("b"), delta("c"), delta(finish="stop"), USAGE, DONE)
    request, tokens, _ = recorded(STREAMED, *chunked(*parts), END)
    given = request.attributes
    assert request.name == "chat m"
    assert request.message.kind == 2  # SERVER
    assert request.resource[semconv.ENGINE] == "e"
    assert given[semconv.STATUS] == "ok"
    assert (
        given[semconv.ARRIVALS] == len(tokens) == 3
    )  # neither the first chunk, which names the role, nor the last ones
    assert (given[semconv.INPUT_TOKENS], given[semconv.OUTPUT_TOKENS]) == (7, 40)
    assert (given[semconv.RESPONSE_ID], given[semconv.RESPONSE_MODEL]) == ("chatcmpl-1", "m-2")
    assert given[semconv.FINISH_REASON] == "stop"
    assert given[semconv.REQUEST_STREAM] is True
    assert given[semconv.PROVIDER_NAME] == "openai"
    assert given[semconv.SERVER_ADDRESS] == "127.0.0.1"
    assert 0 < tokens[0].duration_ns < sum(token.duration_ns for token in tokens) < request.duration_ns
    assert given[semconv.TIME_TO_FIRST_TOKEN] == pytest.approx(tokens[0].duration_ns / 1e9)
    assert not [key for key in given if key.startswith(semconv.PHASE_TIME_PREFIX)], "they are inside the engine"


def test_without_usage_the_number_of_tokens_is_not_known():
    request, tokens, _ = recorded(STREAMED, *chunked(delta("a"), delta("b", finish="stop"), DONE), END)
    assert len(tokens) == 2
    assert request.attributes[semconv.ARRIVALS] == 2
    assert semconv.OUTPUT_TOKENS not in request.attributes
    assert semconv.INPUT_TOKENS not in request.attributes


def chat_delta(name, text):
    return {"choices": [{"index": 0, "delta": {name: text}}]}


LLAMA = [
    {"index": 0, "content": "a", "tokens": [1], "stop": False, "tokens_predicted": 1},
    {"index": 0, "content": "", "tokens": [], "stop": True, "tokens_predicted": 1, "stop_type": "limit"},
]


@pytest.mark.parametrize(
    ("told", "status", "error", "unread"),
    [
        (LLAMA, "ok", None, ["format"]),
        ([*LLAMA, {"type": "ping"}], "ok", None, ["format"]),
        ([{"type": "ping"}], "error", "upstream_incomplete", []),
        ([chat_delta("content", "a"), *LLAMA], "error", "upstream_incomplete", []),
        ([{**chat_delta("role", "assistant"), "model": "m"}, {"status": "queued"}], "error", "upstream_incomplete", []),
    ],
    ids=["another API", "its last event alike", "this one", "both", "an unknown event"],
)
def test_a_stream_of_another_api_is_no_answer_that_broke_off(told, status, error, unread, monkeypatch):
    reasons = []
    given_up = tap.Tap._give_up
    monkeypatch.setattr(tap.Tap, "_give_up", lambda self, reason: (reasons.append(reason), given_up(self, reason)))
    given = recorded(STREAMED, *chunked(*events(*told)), END, path="/completions")[0].attributes
    assert (given[semconv.STATUS], given.get(semconv.ERROR_TYPE), reasons) == (status, error, unread)


def named(name, data):
    return b"event: " + name + b"\n" + data


@pytest.mark.parametrize("name", [b"ping", b"heartbeat", b"stream.keep-alive", b"KeepAlive"])
@pytest.mark.parametrize("held", [delta("a"), b"data: alive\n\n", b"data: {\n\n"], ids=["a delta", "a word", "no JSON"])
def test_an_event_that_its_name_marks_as_a_heartbeat_is_none_of_the_answer(name, held, monkeypatch):
    unread = []
    monkeypatch.setattr(tap.Tap, "_give_up", lambda self, reason: unread.append(reason))
    beat = named(name, held)
    parts = (beat, delta("a"), beat, delta("b"), beat, delta(finish="stop"), USAGE, DONE)
    request, tokens, _ = recorded(STREAMED, *chunked(*parts), END)
    assert (len(tokens), request.attributes[semconv.STATUS], unread) == (2, "ok", [])


@pytest.mark.parametrize("name", [b"message", b"shopping", b"delta", b"ping" * 99])
def test_an_event_of_another_name_is_read(name):
    _, tokens, _ = recorded(STREAMED, *chunked(named(name, delta("a")), delta(finish="stop"), DONE), END)
    assert len(tokens) == 1


def test_deflate_without_its_header_is_another_encoding(monkeypatch, caplog):
    reasons = []
    monkeypatch.setattr(tap.Tap, "_give_up", lambda self, reason: reasons.append(reason))
    squeeze = zlib.compressobj(wbits=-15)
    body = squeeze.compress(b'{"choices": []}') + squeeze.flush()
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: deflate\r\nContent-Length: %d\r\n\r\n"
    )
    recorded(head % len(body) + body)
    assert (reasons, caplog.messages) == (["encoding"], [])


def test_a_choice_that_ends_with_an_error_is_one():
    parts = (delta("a"), delta(finish="error"), DONE)
    given = recorded(STREAMED, *chunked(*parts), END)[0].attributes
    assert (given[semconv.STATUS], given[semconv.ERROR_TYPE]) == ("error", "_OTHER")


def test_an_answer_without_output_has_0_tokens():
    usage = events({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 0}})
    request, tokens, _ = recorded(STREAMED, *chunked(delta(finish="stop"), *usage, DONE), END)
    assert (request.attributes[semconv.OUTPUT_TOKENS], tokens) == (0, [])


def test_events_that_are_cut_anywhere_are_read():
    body = delta("é") + delta("🚀", finish="length") + USAGE + DONE
    request, tokens, _ = recorded(STREAMED, *chunked(*(body[at : at + 9] for at in range(0, len(body), 9))), END)
    assert len(tokens) == 2
    assert (request.attributes[semconv.FINISH_REASON], request.attributes[semconv.OUTPUT_TOKENS]) == ("length", 40)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_stream_is_read(encoding):
    import zlib

    body = delta("a") + delta("b", finish="stop") + USAGE + DONE
    packed = (gzip if encoding == "gzip" else zlib).compress(body)
    head = STREAMED.replace(b"\r\n\r\n", f"\r\nContent-Encoding: {encoding}\r\n\r\n".encode())
    request, _, _ = recorded(head, *chunked(packed[:15], packed[15:]), END)
    assert (request.attributes[semconv.OUTPUT_TOKENS], request.attributes[semconv.ARRIVALS]) == (40, 2)


def test_an_answer_that_cannot_be_read_is_a_success_whose_numbers_are_not_known():
    for name, head in (
        ("encoding", STREAMED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: zstd\r\n\r\n")),
        ("content_type", STREAMED.replace(b"text/event-stream", b"audio/mpeg")),
    ):
        answer, _, trail = exchange(head, *chunked(b"\x00\x01"), END)
        request, tokens = request_span(trail)
        assert answer.body == b"\x00\x01"
        assert (request.attributes[semconv.STATUS], tokens) == ("ok", []), name
        assert semconv.OUTPUT_TOKENS not in request.attributes
        assert semconv.TIME_TO_FIRST_TOKEN not in request.attributes


def test_a_second_gzip_member_is_not_read_and_makes_no_failure():
    packed = gzip.compress(delta("a")) + gzip.compress(delta("b", finish="stop"))
    head = STREAMED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    request, tokens, _ = recorded(head, *chunked(packed), END)
    assert (request.attributes[semconv.STATUS], len(tokens)) == ("ok", 1)


def test_a_fault_while_reading_reaches_neither_the_bytes_nor_the_next_chunk(monkeypatch):
    def fault(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(tap.Tap, "_stream", fault)
    answer, _, trail = exchange(STREAMED, *chunked(delta("a"), delta("b"), DONE), END)
    assert (answer.body, answer.whole) == (delta("a") + delta("b") + DONE, True)
    assert request_span(trail)[0].attributes[semconv.STATUS] == "ok"


def test_events_and_bodies_that_are_too_large_pass_and_are_not_read(monkeypatch):
    monkeypatch.setattr(tap, "MAX_BODY_BYTES", 100)
    large = json.dumps({"choices": [], "x": "y" * 200, "usage": {"completion_tokens": 3}}).encode()
    answer, _, trail = exchange(JSON % (len(large), large))
    assert answer.body == large
    assert semconv.OUTPUT_TOKENS not in request_span(trail)[0].attributes
    monkeypatch.setattr(asked, "MAX_READ_BYTES", 10)
    request, _, (_, got) = recorded(STREAMED, *chunked(DONE), END)
    assert json.loads(got) == BODY
    assert request.name == "chat "


def test_an_event_that_is_too_large_may_have_been_the_last_one(monkeypatch):
    monkeypatch.setattr(tap, "Events", lambda: Events(max_event_bytes=200))
    answer, _, trail = exchange(STREAMED, *chunked(delta("a"), delta("x" * 300, finish="stop")), END)
    request, tokens = request_span(trail)
    assert answer.body == delta("a") + delta("x" * 300, finish="stop")
    assert (request.attributes[semconv.STATUS], len(tokens)) == ("ok", 1)


def test_an_answer_that_is_not_streamed_arrives_with_its_last_byte():
    said = {
        "id": "x", "model": "m-2", "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4},
                  "completion_tokens_details": {"reasoning_tokens": 2}},
    }  # fmt: skip
    body = json.dumps(said).encode()
    request, tokens, _ = recorded(JSON % (len(body), body), body={"model": "m", "max_tokens": 9, "temperature": 1})
    given = request.attributes
    assert [token.duration_ns for token in tokens] == [request.duration_ns]
    assert (given[semconv.INPUT_TOKENS], given[semconv.CACHED_TOKENS]) == (9, 4)
    assert (given[semconv.OUTPUT_TOKENS], given[semconv.REASONING_TOKENS]) == (5, 2)
    assert (given[semconv.REQUEST_MAX_TOKENS], given[semconv.REQUEST_TEMPERATURE]) == (9, 1.0)
    assert given[semconv.REQUEST_STREAM] is False


@pytest.mark.parametrize("before", [b"", b" \n", b": PROCESSING\n\n: PROCESSING\r\n\r\n", b"\n: x\n"])
@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1/chat/completions"])
def test_comments_before_an_answer_and_slashes_around_a_path_say_nothing(before, path):
    said = {"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}
    body = before + json.dumps(said).encode()
    given = recorded(JSON % (len(body), body), body={"model": "m"}, path=path)[0].attributes
    assert (given[semconv.STATUS], given[semconv.OUTPUT_TOKENS]) == ("ok", 5)


def test_the_first_bytes_of_an_answer_decide_whether_it_is_a_stream():
    said = {"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}
    given = recorded(STREAMED, *chunked(b" ", json.dumps(said).encode()), END)[0].attributes
    assert (given[semconv.STATUS], given[semconv.OUTPUT_TOKENS]) == ("ok", 5)
    given = recorded(STREAMED, *chunked(b'{"error": {"code": 502}}'), END)[0].attributes
    assert (given[semconv.STATUS], given[semconv.ERROR_TYPE]) == ("error", "502")
    head = STREAMED.replace(b"text/event-stream", b"application/json")
    request, tokens, _ = recorded(head, *chunked(delta("a"), delta("b", finish="stop"), USAGE, DONE), END)
    assert (request.attributes[semconv.STATUS], request.attributes[semconv.OUTPUT_TOKENS], len(tokens)) == ("ok", 40, 2)


def test_a_page_for_people_is_no_answer():
    given = recorded(STREAMED.replace(b"text/event-stream", b"text/html"), *chunked(b"<p>log in"), END)[0].attributes
    assert (given[semconv.STATUS], given[semconv.ERROR_TYPE]) == ("error", "upstream_incomplete")


def test_several_choices_have_tokens_of_their_own():
    parts = (delta("a"), delta("b", index=1), delta("c", index=1, finish="stop"), delta("d", finish="length"), DONE)
    request, tokens, _ = recorded(STREAMED, *chunked(*parts), END, body={**BODY, "n": 2})
    assert sorted(token.attributes[semconv.CHOICE_INDEX] for token in tokens) == [0, 0, 1, 1]
    assert request.attributes["gen_ai.response.finish_reasons"] == ["length", "stop"]
    assert request.attributes[semconv.CHOICE_COUNT] == 2


@pytest.mark.parametrize(
    ("prompt", "n", "answers"),
    [("a", None, 0), ([1, 2], None, 0), (["a"], None, 0), ([[1, 2]], 1, 0), (["a", "b"], None, 2), ([[1], [2]], 1, 2),
     ("a", 2, 2), (["a"], 2, 2), (["a", "b"], 2, 4), ([], None, 0), (None, None, 0), (5, None, 0)],
)  # fmt: skip
def test_each_prompt_has_an_answer_of_its_own(prompt, n, answers):
    parts = [delta("a", index=index) for index in range(max(answers, 1))]
    body = {"model": "m", "stream": True, "prompt": prompt, "n": n}
    request, tokens, _ = recorded(STREAMED, *chunked(*parts, DONE), END, body=body, path="/v1/completions")
    assert request.attributes.get(semconv.CHOICES, 0) == answers
    assert [token.attributes.get(semconv.CHOICE_INDEX) for token in tokens] == ([*range(answers)] or [None])
    assert request.attributes.get(semconv.CHOICE_COUNT, 1) == (n or 1)


@pytest.mark.parametrize("reason", ["null", "None", ""])
def test_an_answer_whose_chunks_have_a_reason_that_says_nothing_has_not_ended(reason):
    request, _, _ = recorded(STREAMED, *chunked(*[delta("a", finish=reason)] * 3), END)
    assert request.attributes[semconv.ERROR_TYPE] == "upstream_incomplete"
    request, _, _ = recorded(STREAMED, *chunked(*[delta("a", finish=reason)] * 3, DONE), END)
    assert request.attributes[semconv.STATUS] == "ok"


def test_anthropic_messages_are_read():
    usage = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5, "output_tokens": 1}
    parts = events(
        {"type": "message_start", "message": {"id": "msg_1", "model": "c-2", "type": "message", "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "f", "input": {}}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 33}},
        {"type": "message_stop"},
    )
    request, tokens, _ = recorded(STREAMED, *chunked(*parts), END, path="/v1/messages?beta=true")
    given = request.attributes
    assert given[semconv.PROVIDER_NAME] == "anthropic"
    assert len(tokens) == 4
    assert (given[semconv.INPUT_TOKENS], given[semconv.CACHED_TOKENS]) == (115, 100)
    assert (given[semconv.CACHE_CREATION_TOKENS], given[semconv.OUTPUT_TOKENS]) == (5, 33)
    assert (given[semconv.FINISH_REASON], given[semconv.RESPONSE_ID]) == ("tool_use", "msg_1")


def test_the_responses_api_is_read():
    usage = {"input_tokens": 3, "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 6}}
    parts = events(
        {"type": "response.created", "response": {"id": "resp_1", "model": "r-2", "status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.output_text.delta", "delta": ""},
        {"type": "response.function_call_arguments.delta", "delta": "{"},
        {"type": "response.output_text.done", "text": "a"},
        {"type": "response.incomplete", "response": {
            "id": "resp_1", "status": "incomplete", "usage": usage,
            "incomplete_details": {"reason": "max_output_tokens"},
        }},
    )  # fmt: skip
    request, tokens, _ = recorded(STREAMED, *chunked(*parts), END, path="/v1/responses")
    given = request.attributes
    assert len(tokens) == 2
    assert (given[semconv.OUTPUT_TOKENS], given[semconv.REASONING_TOKENS]) == (8, 6)
    assert (given[semconv.FINISH_REASON], given[semconv.RESPONSE_ID]) == ("max_output_tokens", "resp_1")
    assert given[semconv.STATUS] == "ok"


@pytest.mark.parametrize(("output", "arrivals"), [([], 0), ([{"type": "message"}], 1)])
def test_an_answer_in_the_background_has_no_output_yet(output, arrivals):
    """{"background": true}: the answer is an id, and its output is fetched later. It had a TTFT of milliseconds."""
    body = json.dumps({"object": "response", "id": "resp_1", "status": "queued", "output": output}).encode()
    request, tokens, _ = recorded(JSON % (len(body), body), path="/v1/responses")
    assert (request.attributes[semconv.STATUS], len(tokens)) == ("ok", arrivals)
    assert (semconv.TIME_TO_FIRST_TOKEN in request.attributes) is bool(arrivals)


FAILURES = {
    "http": ([b"HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n"], "429"),
    "chat": (
        [STREAMED, *chunked(delta("a"), b'data: {"error":{"type":"server_error"}}\n\n', DONE), END], "server_error",
    ),
    "anthropic": (
        [STREAMED, *chunked(b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'), END],
        "overloaded_error",
    ),
    "responses": (
        [STREAMED, *chunked(*events({"type": "response.failed", "response": {"status": "failed",
                                     "error": {"code": "server_error"}}})), END],
        "server_error",
    ),
    "responses, an event": ([STREAMED, *chunked(*events({"type": "error", "code": "slow_down"})), END], "slow_down"),
    "redirect": ([b"HTTP/1.1 307 No\r\nLocation: /v2\r\nContent-Length: 0\r\n\r\n"], "307"),
    "vllm 0.9": (
        [STREAMED, *chunked(delta("a"), *events({"object": "error", "type": "BadRequestError"}), DONE), END],
        "BadRequestError",
    ),
    "llama.cpp": (
        [STREAMED, *chunked(delta("a"), b'error: {"code": 500, "type": "server_error"}\n\n', DONE), END],
        "server_error",
    ),
    "a choice's error behind a named one": (
        [STREAMED, *chunked(b'data: {"error":{"type":"rate_limit_exceeded"}}\n\n', delta(finish="error"), DONE), END],
        "rate_limit_exceeded",
    ),
    "a number alone": (
        [STREAMED, *chunked(delta("a"), *events({"error": {"code": 502, "message": "no"}})), END], "502",
    ),
    "a code of text": ([STREAMED, *chunked(*events({"error": {"type": None, "code": "slow_down"}})), END], "slow_down"),
    "a status": ([STREAMED, *chunked(*events({"error": {"code": None, "status": "UNAVAILABLE"}})), END], "UNAVAILABLE"),
    "a truth for a code": ([STREAMED, *chunked(*events({"error": {"code": True}})), END], "_OTHER"),
    "text-generation-inference": (
        [STREAMED, *chunked(delta("a"), *events({"error": "it failed", "error_type": "generation"})), END],
        "generation",
    ),
    "a text alone": ([STREAMED, *chunked(*events({"error": "it failed"})), END], "_OTHER"),
    "of a choice": (
        [STREAMED, *chunked(*events({"choices": [{"finish_reason": "error", "error": {"code": 502}}]}), DONE), END],
        "502",
    ),
    "named": ([STREAMED, *chunked(b'event: error\ndata: {"m":1}\n\n'), END], "_OTHER"),
    "sentence": ([STREAMED, *chunked(b'data: {"error":{"type":"the key sk-1 is wrong"}}\n\n'), END], "_OTHER"),
    "no end": ([STREAMED, *chunked(delta("a")), END], "upstream_incomplete"),
    "nothing": ([STREAMED, *chunked(DONE), END], "upstream_incomplete"),
    "aborted": ([STREAMED, *chunked(delta("a"), delta(finish="abort"), DONE), END], "abort"),
    "no choice": ([JSON % (15, b'{"choices": []}')], "upstream_incomplete"),
    "a detail": ([JSON % (15, b'{"detail": "x"}')], "_OTHER"),
    "no JSON": ([JSON % (5, b"<html")], "upstream_incomplete"),
}  # fmt: skip


@pytest.mark.parametrize(("script", "error_type"), FAILURES.values(), ids=FAILURES)
def test_failures_are_errors(script, error_type):
    request, _, _ = recorded(*script)
    assert (request.attributes[semconv.STATUS], request.attributes[semconv.ERROR_TYPE]) == ("error", error_type)
    assert request.message.status.code == 2


def test_an_answer_that_breaks_off_is_an_error():
    request, tokens, _ = recorded(STREAMED, *chunked(delta("a")), close=True)
    assert request.attributes[semconv.ERROR_TYPE] == "upstream_disconnected"
    assert len(tokens) == 1


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n", delta(finish="stop")[:-2]])
def test_a_last_event_without_its_empty_line_is_read(end):
    answer, _, trail = exchange(STREAMED, *chunked(delta("a") + end), END)
    assert answer.body == delta("a") + end
    assert request_span(trail)[0].attributes[semconv.STATUS] == "ok"


def test_an_event_that_is_no_object_is_no_output():
    nothing = b"data: null\n\ndata: 5\n\ndata: []\n\ndata: " + b"[" * 100_000 + b"\n\n"
    _, _, trail = exchange(STREAMED, *chunked(nothing, delta("a"), delta("b", finish="stop") + DONE), END)
    request, tokens = request_span(trail)
    assert (request.attributes[semconv.STATUS], len(tokens)) == ("ok", 2)


def test_an_upstream_that_changes_the_protocol_is_a_502():
    answer, _, trail = exchange(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
    assert answer.status == 502
    assert request_span(trail)[0].attributes[semconv.ERROR_TYPE] == "upstream_unreachable"
