"""What a delta brings: text, thoughts or neither, in the words of every API and gateway."""

from types import SimpleNamespace

import pytest

from tests.tokentrail.support import T0, attributes_of, start
from tokentrail import semconv
from tokentrail.clients.delta import divide
from tokentrail.clients.recording import Recording

THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "abc"}]}
ENCRYPTED = {"type": "reasoning.encrypted", "data": "xxxx"}
DIVIDED = {
    # A delta, the bytes of its text and of its thoughts, 0 and 0 for thoughts that are hidden; None: neither.
    "text": ({"content": "ab"}, (2, 0)),
    "nothing": ({"role": "assistant", "content": ""}, None),
    "a list of texts": ({"content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]}, (3, 0)),
    "a list with thoughts": ({"content": [THINKING]}, (0, 3)),
    "a list with both": ({"content": [THINKING, {"type": "text", "text": "ab"}]}, (2, 3)),
    "a list with a mark": ({"content": [{"type": "text", "text": "ab", "thought": True}]}, (0, 2)),
    **{
        f"in {name}": ({name: "abc"}, (0, 3))
        for name in ("reasoning_content", "reasoning", "reasoning_text", "thinking", "thoughts")
    },
    "the same under two names": ({"reasoning": "abc", "reasoning_content": "abc"}, (0, 3)),
    "details alone": ({"reasoning_details": [{"type": "reasoning.text", "text": "abc"}]}, (0, 3)),
    "details beside": ({"reasoning": "abc", "reasoning_details": [{"type": "reasoning.text", "text": "abc"}]}, (0, 3)),
    "encrypted details": ({"reasoning_details": [ENCRYPTED]}, (0, 0)),
    "encrypted beside a text": ({"content": "a", "reasoning_details": [ENCRYPTED]}, (1, 0)),
    "blocks": ({"thinking_blocks": [{"type": "thinking", "thinking": "abc", "signature": "x" * 9}]}, (0, 3)),
    "a redacted block": ({"thinking_blocks": [{"type": "redacted_thinking", "data": "xxxx"}]}, None),
    "a signature": ({"type": "signature_delta", "signature": "xxxx"}, None),
    "Anthropic's": ({"type": "thinking_delta", "thinking": "abc"}, (0, 3)),
    "a mark beside": ({"content": "ab", "thought": True}, (0, 2)),
    "Google's mark": ({"content": "ab", "extra_content": {"google": {"thought": True}}}, (0, 2)),
    "a channel": ({"content": "ab", "channel": "analysis"}, (0, 2)),
    "another channel": ({"content": "ab", "channel": "final"}, (2, 0)),
    "a mark that denies": ({"content": "ab", "thought": False}, (2, 0)),
    "a type of text": ({"content": "ab", "type": "text"}, (2, 0)),
    "a call": ({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, (3, 0)),
    "a refusal": ({"refusal": "no"}, (2, 0)),
    "a picture": ({"images": [{"type": "image_url", "image_url": {"url": "data:1234"}}]}, (9, 0)),
    "an object": (SimpleNamespace(content=None, reasoning_content="abc"), (0, 3)),
    "no delta": (None, None),
    "a text for a delta": ("ab", None),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_a_delta_is_text_thoughts_or_neither(name):
    delta, expected = DIVIDED[name]
    pieces = divide(delta)
    assert (pieces and pieces[:2]) == expected


def test_a_mark_may_stand_in_the_choice():
    assert divide({"content": "ab"}, {"index": 0, "delta": {}, "is_reasoning": True})[:2] == (0, 2)


@pytest.mark.parametrize("blank", ["\u200b", " ", "\n\n", "\ufeff", "\u2060", "\x00"])
def test_what_cannot_be_seen_is_no_beginning(blank):
    for delta in ({"content": blank}, {"reasoning": blank}, {"content": [{"type": "text", "text": blank}]}):
        assert divide(delta, begins=True) is None
        assert divide(delta) is not None
    assert divide({"content": blank + "字"}, begins=True) is not None


def chat(**delta):
    return {"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}


def text_delta(text, **fields):
    return {"type": "response.output_text.delta", "item_id": "msg_1", "delta": text, **fields}


BEATS = {
    "marked": text_delta("a", **{"SSE-Keep-Alive": True}),
    "of an item": text_delta("a") | {"item_id": "SSE-Keep-Alive"},
    "of an id": chat(content="a") | {"id": "heartbeat"},
    "a field": chat(content="a") | {"keep_alive": True},
    "a blank": chat(content="\u200b"),
    "a blank text block": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "\u200b"}},
}
NO_BEATS = {
    "its like": text_delta("a") | {"item_id": "msg_pinging"},
    "a mark that denies": text_delta("a", **{"SSE-Keep-Alive": False}),
    "a word": chat(content="keep-alive"),
}


@pytest.mark.parametrize("name", [*BEATS, *NO_BEATS])
def test_a_heartbeat_is_no_token(trail, name):
    recording = Recording(start(trail))
    recording.event((BEATS | NO_BEATS)[name], T0)
    assert recording.arrivals == (name in NO_BEATS)
    recording.event(chat(content="a"), T0)
    recording.event(chat(content="\n"), T0)  # behind the first real one, it is the model's
    assert recording.arrivals == 2 + (name in NO_BEATS)


@pytest.mark.parametrize(
    ("ended", "told", "status", "reason"),
    [
        ("completed", {}, "ok", "completed"),
        ("completed", {"status": "in_progress"}, "ok", "completed"),
        ("completed", {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "ok",
         "max_output_tokens"),
        ("completed", None, "ok", "completed"),
        ("incomplete", {}, "ok", "incomplete"),
        ("failed", {}, "error", "failed"),
        ("cancelled", {}, "cancelled", "cancelled"),
        ("incomplete", {"incomplete_details": {"reason": "content_filter"}}, "ok", "content_filter"),
    ],
)  # fmt: skip
def test_the_last_event_of_a_response_says_that_it_is_over(trail, ended, told, status, reason):
    recording = Recording(start(trail))
    recording.event({"type": "response.created", "response": {"status": "in_progress"}}, T0)
    answer = recording.answer
    begun = answer.complete
    recording.event({"type": f"response.{ended}", "response": told}, T0)
    assert (begun, answer.complete) == (False, True)
    recording.end(T0)
    given = attributes_of(trail)
    assert (given[semconv.STATUS], given[semconv.FINISH_REASON]) == (status, reason)
