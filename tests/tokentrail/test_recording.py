"""TPOT of an answer is known if its tokens came one after another; else it has a bound, or none. Through the store."""

from types import SimpleNamespace

import pytest

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.stores import open_new_store
from tests.tokentrail.support import MS, T0
from tokentrail import now_ns
from tokentrail.clients.recording import Recording
from tokentrail.testing import MemoryTrail

GAP_MS = 50
"""Between two events, unless a pair of a time and an event says otherwise."""


def content(text="word ", index=0, **fields):
    return {"choices": [{"index": index, "delta": {"content": text, **fields}, "finish_reason": None}]}


def thought(text="step ", name="reasoning_content", **fields):
    return {"choices": [{"index": 0, "delta": {name: text, **fields}}]}


def call(name, arguments, index=0):
    function = {"name": name, "arguments": arguments}
    return {
        "choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "id": "call_1", "function": function}]}}]
    }


def usage(tokens, **details):
    told = {"prompt_tokens": 7, "completion_tokens": tokens, "completion_tokens_details": details or None}
    return (0, {"choices": [], "usage": told})


def block(kind, *deltas):
    return [{"type": "content_block_start", "content_block": {"type": kind, kind: ""}}, *deltas]


def message(**delta):
    return {"type": "content_block_delta", "delta": delta}


def told(tokens, **details):
    return (0, {"type": "message_delta", "usage": {"output_tokens": tokens, "output_tokens_details": details or None}})


def response(of):
    return {"type": f"response.{of}.delta", "delta": "word "}


def completed(tokens, reasoning):
    told = {"input_tokens": 7, "output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": reasoning}}
    return (0, {"type": "response.completed", "response": {"status": "completed", "usage": told}})


def at_once(events):
    return [events[0], *((0, event) for event in events[1:])]


def soon(events):
    return [events[0], *((0.02, event) for event in events[1:])]


WORDS = [content()] * 21
THINKING = [message(thinking="step ")] * 10
TEXT = [message(text="word ")] * 10
SECOND = [content(index=index) for _ in range(21) for index in (0, 1)]

CASES = {
    # The events, TPOT in ms (None: it is not known), and what it cannot exceed.
    "one token in each chunk": ([*WORDS, usage(21)], 50, None),
    "and two that have no text": ([*WORDS, usage(23)], 1000 / 22, None),
    "three tokens in each": ([*[content("three more words ")] * 21, usage(63)], 1000 / 62, None),
    "nine chunks for ten tokens": ([*[content("a")] * 19, usage(21)], 900 / 20, None),
    "fewer chunks, with too little text": ([*[content("a")] * 18, usage(21)], None, 50),
    "two bytes for each token": ([*[content("abcd")] * 10, usage(20)], 450 / 19, None),
    "fewer bytes for each token": ([*[content("abc")] * 10, usage(20)], None, 50),
    "two bytes that are no characters": ([*[content("字字字")] * 10, usage(40)], 450 / 39, None),
    "pieces within pieces": (
        [content([{"type": "thinking", "thinking": [{"type": "text", "text": "word "}]}])] * 21, None, 50,
    ),
    "no usage": (WORDS, None, 50),
    "no usage, one chunk": (WORDS[:1], None, None),
    "no usage, with chunks that bring nothing": ([*WORDS, content("")], None, 50),
    "no usage, first chunks at once": ([*at_once(WORDS[:6]), *WORDS[6:]], None, 50),
    "a whole answer": ([{"choices": [{"message": {"content": "word " * 21}}], **usage(21)[1]}], None, None),
    "several tokens in the first chunk": ([content("word " * 20), *WORDS[1:], usage(40)], None, 50),
    "a few tokens in the first chunk": ([content("word " * 3), *WORDS[1:], usage(23)], 1000 / 22, None),
    "one long token first": ([content("word " * 3), *WORDS[1:], usage(21)], 50, None),
    "all at once": ([*at_once(WORDS), usage(21)], None, None),
    "all within a moment": ([*soon(WORDS), usage(21)], None, None),
    "most at once": ([*at_once(WORDS[:11]), *WORDS[11:], usage(21)], None, 50),
    "a call at once": ([call("weather", '{"city": "Paris", "unit": "celsius"}'), usage(21)], None, None),
    "calls at once": ([call("weather", '{"city": "Paris"}', n) for n in (0, 1)] + [usage(21)], None, 50),
    "a call at once behind a text": ([*WORDS, (500, call("weather", '{"city": "Paris"}')), usage(31)], 1500 / 30, None),
    "a call in the old words": (
        [{"choices": [{"delta": {"function_call": {"name": "f", "arguments": "{}"}}}]}, *WORDS, usage(22)], 50, None,
    ),
    "a call of a client's object": (
        [SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(tool_calls=[SimpleNamespace(
            function=SimpleNamespace(name="weather", arguments="Paris " * 9))]))]), *WORDS, usage(40)], None, 50,
    ),
    "fewer bytes than tokens": ([*WORDS, usage(1000)], None, 50),
    "hidden reasoning": ([*WORDS, usage(1021, reasoning_tokens=1000)], 50, None),
    "rejected predictions": (
        [*WORDS, usage(51, accepted_prediction_tokens=9, rejected_prediction_tokens=30)], 50, None,
    ),
    "rejected predictions that nobody tells": ([*WORDS, usage(121)], None, 50),
    "whole reasoning": ([*[thought()] * 10, *WORDS, usage(31, reasoning_tokens=10)], 50, None),
    "whole reasoning in chunks of three": (
        [*[thought("one more step ")] * 10, *[content("three more words ")] * 10, usage(60, reasoning_tokens=30)],
        19 * 50 / 59, None,
    ),
    "a summary of reasoning": ([*[thought()] * 10, *WORDS, usage(1021, reasoning_tokens=1000)], None, 30 * 50 / 21),
    "a summary beside a long text": (
        [*[thought()] * 10, *[content("word " * 200)] * 21, usage(5021, reasoning_tokens=1000)], None, 30 * 50 / 21,
    ),
    "a summary in two fields": (
        [*[thought(reasoning="step ")] * 10, *[content("word " * 20)] * 21, usage(460, reasoning_tokens=40)],
        None, 30 * 50 / 21,
    ),
    "a summary that says so": (
        [*[thought(name="reasoning", reasoning_details=[{"type": "reasoning.summary"}])] * 10, *WORDS, usage(31)],
        None, 30 * 50 / 21,
    ),
    "reasoning, no usage": ([*[thought()] * 10, *WORDS], None, 50),
    "a summary that says so, no usage": (
        [*[thought(reasoning_details=[{"type": "reasoning.summary"}])] * 10, *WORDS], None, 30 * 50 / 21,
    ),
    "thinking": ([*block("thinking", *THINKING), *block("text", *TEXT), told(20)], 20 * 50 / 19, None),
    "summarised thinking": ([*block("thinking", *THINKING), *block("text", *TEXT), told(1010)], None, 20 * 50 / 10),
    "summarised thinking with its tokens": (
        [*block("thinking", *THINKING), *block("text", *TEXT), told(1010, thinking_tokens=1000)], None, 20 * 50 / 10,
    ),
    "empty thinking": ([*block("thinking"), *block("text", *TEXT), told(1010)], None, 50),
    "empty thinking with its tokens": (
        [*block("thinking"), *block("text", *TEXT), told(1010, thinking_tokens=1000)], 50, None,
    ),
    "redacted thinking": ([*block("redacted_thinking"), *block("text", *TEXT), told(10)], None, 50),
    "no thinking": ([*block("text", *TEXT), told(10)], 50, None),
    "reasoning of responses": (
        [*[response("reasoning_text")] * 5, *[response("output_text")] * 5, completed(10, 5)], 50, None,
    ),
    "hidden reasoning of responses": ([*[response("output_text")] * 5, completed(105, 100)], 50, None),
    "a summary of responses": (
        [*[response("reasoning_summary_text")] * 5, *[response("output_text")] * 5, completed(10, 5)], None, 9 * 50 / 5,
    ),
    "texts": (["word "] * 21, None, 50),
    "objects of which nobody knows what they are": ([SimpleNamespace(a=1)] * 21, None, None),
    "one token": ([content(), usage(1)], None, None),
    "no output": ([content(""), usage(0)], None, None),
}  # fmt: skip
SEVERAL = {
    "two choices": (at_once(SECOND[:2]) * 21 + [usage(42)], 50, None),
    "two choices, several tokens in each chunk": (
        at_once([content("three more words ", index) for index in (0, 1)]) * 8 + [usage(40)], 700 / 38, None,
    ),
    "two choices, no usage": (at_once(SECOND[:2]) * 21, None, 50),
    "the second choice at once": (
        [*WORDS, *at_once([content(index=1)] * 21), usage(42)], None, 1000 / 20,
    ),
    "one choice of two": ([*WORDS, usage(21)], 50, None),
    "a choice beyond the most": ([*WORDS, content(index=128), usage(22)], None, None),
}  # fmt: skip
UNEXPECTED = {"choices that nobody asked for": (at_once(SECOND[:2]) * 21 + [usage(42)], None, None)}


def record(trail, name, events, *, several):
    request = trail.start_request(operation="chat", model="m", tenant=name, arrival_ns=T0)
    recording = Recording(request, several=several, batched=True)
    at_ns = T0
    for event in events:
        after_ms, event = event if isinstance(event, tuple) else (GAP_MS, event)
        at_ns += int(after_ms * MS)
        recording.event(event, at_ns)
    recording.end(at_ns)


@pytest.fixture(scope="module")
def tpots(tmp_path_factory):
    """TPOT and its bound in ms, by case. All are one insert."""
    trail = MemoryTrail(clock=now_ns)
    for cases, several in ((CASES, False), (SEVERAL, True), (UNEXPECTED, False)):
        for name, (events, *_) in cases.items():
            record(trail, name, events, several=several)
    store = open_new_store(tmp_path_factory.mktemp("store") / "db")
    trail.flush(0)
    for number, body in enumerate(trail.transport.bodies):
        insert_otlp(store, TRACES, body, f"segment-{number}")
    rows = store.query("SELECT tenant, tpot_ns / 1e6, tpot_at_most_ns / 1e6 FROM requests").result_rows
    yield {tenant: (tpot, at_most) for tenant, tpot, at_most in rows}
    store.close()


ALL = CASES | SEVERAL | UNEXPECTED


@pytest.mark.parametrize("name", ALL)
def test_a_tpot_is_known_or_has_a_bound_or_neither(tpots, name):
    _, *expected = ALL[name]
    assert [value if value is None else pytest.approx(value) for value in expected] == [*tpots[name]]
