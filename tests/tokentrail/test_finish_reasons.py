"""How an answer ended, by its finish reason: one table for all who read answers and spans of answers."""

import pytest

from tests.tokentrail.support import T0, attributes_of, start
from tokentrail import observe, semconv
from tokentrail.clients.recording import Recording
from tokentrail.shared.finish_reasons import ENDS, End, end_of, worst
from tokentrail.testing import MemoryTrail


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("stop", "ok"), ("length", "ok"), ("MAX_TOKENS", "ok"), ("tool-calls", "ok"), ("end_turn", "ok"),
        ("content_filter", "refused"), ("SAFETY", "refused"), ("refusal", "refused"), ("content-filter", "refused"),
        ("abort", "error"), ("insufficient_system_resource", "error"), ("network_error", "error"), ("ERROR", "error"),
        ("MALFORMED_FUNCTION_CALL", "error"), ("timeout", "error"), ("cancelled", "cancelled"),
        ("USER_CANCEL", "cancelled"), ("banana", "unknown"), ("OTHER", "unknown"), ("", None), ("None", None),
        ("NULL", None), (" ", None),
        ("ToolCalls", "ok"), ("endTurn", "ok"), ("stop sequence", "ok"), (" stop ", "ok"), ("FinishReason.STOP", "ok"),
        ("FINISH_REASON_MAX_TOKENS", "ok"), ("InternalServerError", "error"), ("FinishReason.ABORT", "error"),
        ("FINISH_REASON_UNSPECIFIED", "unknown"), ("STOP_REASON_END_TURN", "ok"), ("a.banana", "unknown"),
        ("stop.", "unknown"),
    ],
)  # fmt: skip
def test_a_reason_says_how_an_answer_ended(reason, end):
    assert end_of(reason) == end


ENUMS: dict[str, dict[str | None, str]] = {
    # Of engines and providers: the words of their enums by how such an answer ended. What says nothing is unknown.
    "vLLM": {"ok": "stop length repetition", "error": "abort error"},
    "SGLang": {"ok": "stop length tool_calls", "error": "abort"},
    "TensorRT-LLM": {"ok": "end_id stop_words stop length", "error": "timeout timed_out", "cancelled": "cancelled",
                     "unknown": "not_finished"},
    "TGI": {"ok": "length eos_token stop_sequence"},
    "llama.cpp": {"ok": "stop length tool_calls eos word limit", None: "none"},
    "Ollama": {"ok": "stop length load unload"},
    "LM Studio": {"ok": "eosFound stopStringFound toolCalls maxPredictedTokensReached contextLengthReached",
                  "error": "failed modelUnloaded", "cancelled": "userStopped"},
    "transformers": {"ok": "max_new_tokens"},
    "OpenAI": {"ok": "stop length tool_calls function_call max_output_tokens completed incomplete",
               "refused": "content_filter", "error": "failed", "cancelled": "cancelled"},
    "Anthropic": {"ok": "end_turn max_tokens stop_sequence tool_use pause_turn model_context_window_exceeded",
                  "refused": "refusal"},
    "Bedrock": {"ok": "end_turn tool_use max_tokens stop_sequence model_context_window_exceeded FINISHED FINISH LENGTH "
                      "STOP_CRITERIA_MET endoftext",
                "refused": "guardrail_intervened content_filtered CONTENT_FILTERED",
                "error": "malformed_model_output malformed_tool_use RAG_QUERY_WHEN_RAG_DISABLED"},
    "Vertex": {"ok": "STOP MAX_TOKENS FINISH_REASON_STOP", "unknown": "OTHER FINISH_REASON_UNSPECIFIED",
               "refused": "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY "
                          "MODEL_ARMOR JAILBREAK",
               "error": "MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE "
                        "MALFORMED_RESPONSE NO_IMAGE IMAGE_OTHER"},
    "Cohere": {"ok": "COMPLETE STOP_SEQUENCE MAX_TOKENS TOOL_CALL", "refused": "ERROR_TOXIC",
               "cancelled": "USER_CANCEL", "error": "ERROR ERROR_LIMIT TIMEOUT"},
    "Mistral": {"ok": "stop length model_length tool_calls", "error": "error"},
    "DeepSeek": {"ok": "stop length tool_calls", "refused": "content_filter", "error": "insufficient_system_resource"},
    "Zhipu": {"ok": "stop tool_calls length", "refused": "sensitive", "error": "network_error"},
    "Groq": {"ok": "stop length tool_calls function_call"},
    "OpenRouter": {"ok": "stop length tool_calls", "refused": "content_filter", "error": "error"},
    "watsonx": {"ok": "max_tokens token_limit eos_token stop_sequence", "cancelled": "cancelled",
                "error": "error time_limit", "unknown": "not_finished"},
    "xAI": {"ok": "REASON_MAX_LEN REASON_MAX_CONTEXT REASON_STOP REASON_TOOL_CALLS", "error": "REASON_TIME_LIMIT",
            "unknown": "REASON_INVALID"},
    "ERNIE": {"ok": "normal stop length function_call", "refused": "content_filter"},
    "gateways of one's own": {"error": "exception deadline_exceeded oom"},
    # Types of errors and words of agents, which no answer of a model was seen to end with.
    "none": {"unknown": "engine_overloaded killed reason_ stop_reason finish_reason_ unknown other content"},
}  # fmt: skip


@pytest.mark.parametrize("maker", ENUMS)
def test_the_words_of_engines_and_providers_are_known(maker):
    wrong = {word: end_of(word) for end, words in ENUMS[maker].items() for word in words.split() if end_of(word) != end}
    assert not wrong


def test_the_table_has_its_words_in_one_spelling():
    assert all(word == word.lower().replace("-", "_") and end is end_of(word) for word, end in ENDS.items())


def test_the_worst_of_several_answers_decides():
    assert worst([]) == (None, "")
    assert worst(["stop", "length"]) == (End.OK, "length")
    assert worst(["stop", "abort", "banana"]) == (End.ERROR, "abort")
    assert worst(["cancelled", "banana"]) == (End.CANCELLED, "cancelled")
    assert worst(["banana", "content_filter", "stop"]) == (End.UNKNOWN, "banana")


@pytest.mark.parametrize(
    ("reason", "status", "error"),
    [("abort", "error", "abort"), ("network_error", "error", "network_error"), ("error", "error", "_OTHER"),
     ("cancelled", "cancelled", None), ("banana", "unknown", None), ("content_filter", "ok", None),
     ("length", "ok", None)],
)  # fmt: skip
@pytest.mark.parametrize("api", ["chat", "message"])
def test_a_finish_reason_decides_the_status_of_a_success(trail, api, reason, status, error):
    recording = Recording(start(trail))
    chat = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    recording.event(chat if api == "chat" else {"type": "message_delta", "delta": {"stop_reason": reason}}, T0)
    assert recording.end(T0) == status
    given = attributes_of(trail)
    assert (given[semconv.STATUS], given.get(semconv.ERROR_TYPE)) == (status, error)


def test_what_the_answer_told_goes_before_its_reason(trail):
    recording = Recording(start(trail))
    recording.event({"choices": [{"finish_reason": "abort", "error": {"code": "oom"}}]}, T0)
    recording.end(T0)
    assert attributes_of(trail)[semconv.ERROR_TYPE] == "oom"


NO_ANSWERS = {
    "no choices": {"choices": []},
    "no list": {"choices": None},
    "no choices, with a usage": {"choices": [], "usage": {"prompt_tokens": 7}},
    "a choice of nothing": {"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}}]},
    "MiniMax's": {"choices": None, "base_resp": {"status_code": 1004, "status_msg": "no"}},
    "a code": {"code": 401, "msg": "no"},
    "a detail": {"detail": "no"},
    "a message": {"type": "message", "content": []},
}
ANSWERS = {
    "a reason": {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]},
    "output": {"choices": [{"message": {"content": "a"}}]},
    "a picture": {"choices": [{"message": {"images": [{"image_url": {"url": "data:"}}]}}]},
    "MiniMax's": {"choices": [{"message": {"content": "a"}}], "base_resp": {"status_code": 0}},
    "a status": {"object": "response", "status": "completed", "output": []},
    "one in the background": {"object": "response", "status": "queued"},
    "another API's": {"code": 0, "msg": "ok", "data": {"text": "a"}},
    "nobody knows": {"x": 1},
}


@pytest.mark.parametrize(
    ("told", "status"),
    [("completed", "ok"), ("incomplete", "ok"), ("cancelled", "cancelled"), ("expired", "error"),
     ("banana", "unknown")],
)  # fmt: skip
def test_the_status_of_a_response_is_read_as_a_finish_reason(told, status):
    trail = MemoryTrail()
    response = {"object": "response", "status": told, "output": [{"type": "message"}]}
    observe(lambda: response, model="m", trail=trail)
    assert attributes_of(trail)[semconv.STATUS] == status


@pytest.mark.parametrize("name", [*(("error", name) for name in NO_ANSWERS), *(("ok", name) for name in ANSWERS)])
def test_a_success_without_an_answer_is_none(name):
    status, case = name
    trail = MemoryTrail()
    observe(lambda: (NO_ANSWERS if status == "error" else ANSWERS)[case], model="m", trail=trail)
    assert attributes_of(trail)[semconv.STATUS] == status
