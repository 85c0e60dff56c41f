"""Clients and frameworks of 2026, recorded in front of a scripted server (tests/data/README.md has the calls)."""

import pytest

from tests.support.otlp import MS
from tests.support.recordings import replay, requests

CHUNK = 100 * MS
"""The server sends the first chunk with output after this time, and the last one 200 ms later."""
EXPECTED = {
    "langchain": (
        "openinference",
        [
            ("whole", "ok", "", "stop", 5), ("stream", "ok", "", "stop", 5),
            ("refused", "error", "OpenAIRateLimitError", "", None), ("left", "cancelled", "", "", None),
        ],
    ),
    "pydantic-ai": (
        "genai",
        [
            ("whole", "ok", "", "stop", 5), ("stream", "ok", "", "stop", 5),
            ("refused", "error", "ModelAuthenticationError", "", None), ("left", "cancelled", "", "", None),
            ("cancelled", "cancelled", "", "", None), ("cancelled, whole", "cancelled", "", "", None),
            ("broke", "cancelled", "", "", None),
        ],
    ),
    "anthropic": (
        "genai",
        [
            ("stream", "ok", "", "end_turn", 5), ("whole", "ok", "", "end_turn", 5),
            ("error event", "error", "overloaded_error", "", None), ("context", "ok", "", "end_turn", 5),
            ("left", "cancelled", "", "", None), ("cancelled", "cancelled", "", "", None),
            ("unreachable", "error", "connection_error", "", None),
        ],
    ),
}  # fmt: skip


RECORDINGS = (
    *EXPECTED,
    "agents-openinference",
    "agents-otel-v2",
    "agents-otel-v2-no-usage",
    "agents-responses-openinference",
    "agents-traceloop-chat",
    "ai-sdk-5",
    "ai-sdk-6",
    "google-genai-openinference",
    "langfuse",
    "langgraph-genai",
    "langgraph-traceloop",
    "litellm-v1",
    "litellm-v2",
    "llama-index-openinference",
    "pydantic-ai-agent",
    "pydantic-ai-openinference",
    "responses-genai",
    "responses-openinference",
    "responses-traceloop",
    "semantic-kernel",
)


@pytest.fixture(scope="module")
def module_store(module_store):
    """A store with all recordings that the tests are about, each of which is a service."""
    replay(module_store, "clients-2026", *RECORDINGS)
    return module_store


@pytest.fixture(scope="module", params=EXPECTED)
def recorded(request, module_store):
    engine, calls = EXPECTED[request.param]
    rows = requests(module_store, f"service = '{request.param}'")
    assert {(row["engine"], row["vantage"], row["operation"]) for row in rows} == {(engine, "client", "chat")}
    assert len(rows) == len(calls)
    return request.param, dict(zip((name for name, *_ in calls), rows, strict=True)), calls


def test_each_call_is_one_row_with_its_outcome(recorded):
    _, rows, calls = recorded
    assert [
        (name, row["status"], row["error_type"], row["finish_reason"], row["output_tokens"])
        for name, row in rows.items()
    ] == calls


def test_ttft_is_that_of_the_first_chunk_or_not_known(recorded):
    """LangChain's spans do not tell whether a call was streamed. A stream had its E2E as its TTFT."""
    name, rows, _ = recorded
    whole, stream = rows["whole"], rows["stream"]
    assert whole["ttft_ns"] == (whole["e2e_ns"] if name == "anthropic" else None)
    assert stream["e2e_ns"] >= 3 * CHUNK
    if name == "langchain":
        assert (stream["ttft_ns"], stream["tpot_ns"]) == (None, None)
    else:
        assert CHUNK <= stream["ttft_ns"] < 2 * CHUNK
        tpot = pytest.approx((stream["e2e_ns"] - stream["ttft_ns"]) / 4, abs=1)
        assert stream["tpot_ns"] == (tpot if name == "anthropic" else None), "two tokens of Pydantic AI's are reasoning"
        assert stream["reasoning_tokens"] == (None if name == "anthropic" else 2)


def test_tokens_are_those_of_the_answer(recorded):
    name, rows, _ = recorded
    answered = [(row["input_tokens"], row["cached_tokens"]) for row in rows.values() if row["status"] == "ok"]
    assert set(answered) == {(10 if name == "anthropic" else 7, 3)}


def test_the_v1_spans_of_litellm_1_110_are_still_litellms(module_store):
    """It says `chat` of what it had called `completion`. Nothing in these spans tells a stream that was left."""
    rows = requests(module_store, "service = 'litellm-v1'")
    assert {(row["engine"], row["operation"]) for row in rows} == {("litellm", "chat")}
    assert [(row["model"], row["status"], row["error_type"]) for row in rows] == [
        ("mock", "ok", ""), ("usage", "unknown", ""), ("429", "error", "RateLimitError"),
        ("abort", "error", "APIConnectionError"), ("claude-x", "ok", ""), ("claude-s", "unknown", ""),
    ]  # fmt: skip
    assert [row["ttft_ns"] for row in rows] == [rows[0]["e2e_ns"], None, None, None, rows[4]["e2e_ns"], None]
    assert [row["output_tokens"] for row in rows] == [5, 5, None, None, 5, 5]


def test_the_first_event_of_litellms_other_apis_is_no_token(module_store):
    """The server accepts a request at once, and its first token comes after 150 ms. The TTFT was 4 ms."""
    rows = requests(module_store, "service = 'litellm-v2'")
    assert {(row["engine"], row["output_tokens"]) for row in rows} == {("litellm", 5)}
    *streams, chat, whole = rows
    assert [row["status"] for row in rows] == ["unknown"] * 4 + ["ok"] * 2, "a stream that was left looks the same"
    assert {(row["ttft_ns"], row["tpot_ns"]) for row in streams} == {(None, None)}
    assert 0 < chat["ttft_ns"] < chat["e2e_ns"]
    assert whole["ttft_ns"] == whole["e2e_ns"]


@pytest.mark.parametrize(("version", "known"), [(5, [False, False, True]), (6, [True, False, True])])
def test_the_first_event_of_the_ai_sdks_other_apis_is_no_token(version, known, module_store):
    """A stream of OpenAI's responses, one of Anthropic's messages, one of chat. They had TTFTs of 4 and 21 ms."""
    rows = requests(module_store, f"service = 'ai-sdk-{version}-apis'")
    assert {(row["engine"], row["status"], row["output_tokens"]) for row in rows} == {("ai_sdk", "ok", 5)}
    assert [row["ttft_ns"] is not None for row in rows] == known
    assert [row["tpot_ns"] for row in rows] == [None] * 3, "the stream of chat has reasoning tokens"
    assert all(row["ttft_ns"] >= CHUNK for row in rows if version == 6 and row["ttft_ns"])


def test_the_first_event_of_langfuses_responses_is_no_token(module_store):
    """Two streams of responses and one of chat. The first two were text completions without tokens and with a TTFT."""
    rows = requests(module_store, "service = 'langfuse-apis'")
    assert {(row["engine"], row["operation"], row["status"]) for row in rows} == {("langfuse", "chat", "ok")}
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [(7, 5)] * 3
    assert [row["ttft_ns"] is not None for row in rows] == [False, False, True]


RESPONSES = {
    "genai": [
        ("ok", "", "stop", 5), ("ok", "", "stop", 5), ("error", "server_error", "error", None),
        ("cancelled", "", "", None), ("error", "rate_limit_exceeded", "", None),
    ],
    # It has no span of a response that is not streamed. One that an event of an error ended looks abandoned.
    "traceloop": [
        ("ok", "", "stop", 5), ("error", "", "error", None), ("cancelled", "", "", None), ("cancelled", "", "", None),
    ],
    # Nothing tells one that failed from one that ended.
    "openinference": [
        ("ok", "", "", 5), ("ok", "", "", 5), ("ok", "", "", None), ("cancelled", "", "", None), ("ok", "", "", None),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_the_first_event_of_a_response_is_no_token(name, module_store):
    """The server accepts a request at once, and its first token comes after 150 ms. The TTFT was 3 ms."""
    rows = requests(module_store, f"service = 'responses-{name}'")
    found = [(row["status"], row["error_type"], row["finish_reason"], row["output_tokens"]) for row in rows]
    assert found == RESPONSES[name]
    known = [row["ttft_ns"] for row in rows if row["ttft_ns"] is not None]
    assert known == ([rows[1]["e2e_ns"]] if name != "traceloop" else [])
    assert {row["tpot_ns"] for row in rows} == {None}


def outcomes(store, name):
    """The status, the output tokens and the E2E in tenths of a second of each row of a recording, by start."""
    rows = requests(store, f"service = '{name}'")
    return [(row["status"], row["output_tokens"], round(row["e2e_ns"] / CHUNK)) for row in rows]


ANSWERED = ("ok", 5)
FAILED, LEFT = ("error", None), ("cancelled", None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # whole, a call of a tool and the call after it, stream, refused, broke, left, task cancelled
        ("agents-openinference", [*[ANSWERED] * 4, FAILED, FAILED, LEFT, LEFT]),
        ("agents-responses-openinference", [*[ANSWERED] * 4, FAILED, FAILED, LEFT, LEFT]),
        # The client's span says that a stream that broke was abandoned.
        ("agents-otel-v2", [*[ANSWERED] * 4, FAILED, LEFT, LEFT, LEFT]),
        # whole, and a stream without usage
        ("agents-otel-v2-no-usage", [ANSWERED, ("ok", None)]),
        # chat, complete, two streams, refused, two streams that broke and were left, task cancelled
        ("llama-index-openinference", [ANSWERED, ANSWERED, FAILED, LEFT]),
        # whole, stream, refused, left, asynchronous stream, task cancelled
        ("google-genai-openinference", [("ok", 25), ("ok", 25), FAILED, LEFT, ("ok", 25), LEFT]),
    ],
)
def test_a_frameworks_call_is_one_row_with_its_outcome(module_store, name, expected):
    found = outcomes(module_store, name)
    assert [(status, tokens) for status, tokens, _ in found] == expected
    assert all(e2e >= 14 for status, _, e2e in found if status == "ok"), "the server takes 1.4 s for an answer"


def test_the_span_of_the_client_goes_before_that_of_agents(module_store):
    rows = requests(module_store, "service = 'agents-otel-v2'")
    assert [row["engine"] for row in rows] == [*["traceloop"] * 6, "genai", "genai"]


def test_the_words_of_semantic_kernel_are_those_of_others(module_store):
    """whole, stream, refused, broke, left, task cancelled. Its span of a stream that was left stays the current one."""
    rows = requests(module_store, "service = 'semantic-kernel'")
    assert [(row["status"], row["finish_reason"], row["error_type"]) for row in rows] == [
        ("ok", "stop", ""),
        ("ok", "stop", ""),
        ("error", "", "semantic_kernel.exceptions.service_exceptions.ServiceResponseException"),
        ("error", "", "openai.APIError"),
        ("cancelled", "", ""),
    ]


def test_a_usage_of_zeros_is_not_known(module_store):
    rows = requests(module_store, "service = 'agents-otel-v2-no-usage'")
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [(7, 5), (None, None)]


def test_the_name_of_googles_call_tells_whether_it_streams(module_store):
    whole, stream, *_ = requests(module_store, "service = 'google-genai-openinference'")
    assert (whole["ttft_ns"], stream["ttft_ns"]) == (whole["e2e_ns"], None)


def test_spans_that_end_before_their_stream_stay_spans(module_store):
    sql = "SELECT count() FROM spans WHERE service = 'llama-index-openinference' AND name LIKE '%stream_chat'"
    assert module_store.query(sql).result_rows == [(8,)]


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        # LangChain gives none of a response, and the instrumentation says `error` of those that ended.
        ("langgraph-genai", {"ok": {"stop", "tool_calls", ""}, "error": {""}, "cancelled": {""}}),
        ("pydantic-ai-openinference", {"ok": {"stop", "tool_call"}, "error": {""}, "cancelled": {""}}),
    ],
)
def test_a_finish_reason_is_that_of_the_answer(module_store, name, reasons):
    rows = requests(module_store, f"service = '{name}'")
    assert {status: {row["finish_reason"] for row in rows if row["status"] == status} for status in reasons} == reasons


def test_calls_of_tools_through_mcp_stay_spans(module_store):
    """Two agents call one tool each. The instrumentations of MCP and of the frameworks tell of the same calls."""
    for name in ("langgraph-traceloop", "agents-traceloop-chat", "pydantic-ai-agent"):
        sql = f"SELECT count() FROM spans WHERE service = '{name}' AND name IN ('add.tool', 'MCP send tools/call add')"
        assert module_store.query(sql).result_rows[0][0] >= 2
