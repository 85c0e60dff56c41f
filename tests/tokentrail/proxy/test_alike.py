"""Events that differ from the last one in their text only are recognised by their bytes, and no others."""

import json

import pytest

from tests.tokentrail.proxy.support import DONE, USAGE, delta
from tokentrail import now_ns
from tokentrail.clients.answer import Output
from tokentrail.clients.recording import Recording
from tokentrail.proxy.alike import Alike
from tokentrail.proxy.tap import Tap
from tokentrail.testing import MemoryTrail


def sse(event, name=None):
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(event).encode() + b"\n\n"


def learned(chunk):
    alike = Alike()
    alike.learn(chunk)
    return alike


COMPLETION = {"choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}], "usage": None}
REASONING = {"choices": [{"index": 0, "delta": {"reasoning_content": "a"}}]}
MESSAGE = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}


@pytest.mark.parametrize(
    "one", [delta("a"), sse(COMPLETION), sse(REASONING), sse(MESSAGE, "content_block_delta")], ids=str
)
def test_the_next_text_is_recognised(one):
    alike = learned(one)
    said, thought = (0, 1) if b"reasoning" in one else (1, 0)
    assert alike.texts(one) == [Output(0, said, thought)]
    more = alike.texts(one + 2 * one.replace(b'"a"', '" wörld, longer"'.encode()))
    assert more == [Output(0, said * size, thought * size) for size in (1, 15, 15)]


@pytest.mark.parametrize(
    "other",
    [
        delta(""),
        delta("a", finish="stop"),
        delta("a", index=1),
        delta("a", usage={"completion_tokens": 1}),
        delta('a"}, "finish_reason": "stop'),
        delta("a").replace(b'"a"', b'"a"}, "finish_reason": "stop", "more": {"b": "a"'),
        delta("a\nb"),
        delta("a") + delta(""),
        delta("a") + DONE,
        delta("a") + delta("b")[:-1],
        delta("a", finish="stop") + delta("a"),
        delta("a")[:-1],
        delta("a")[1:],
        b"\n" + delta("a"),
        delta("a").replace(b"a", b"a\\"),
        delta("a").replace(b'"a"', b'"a\r"'),
        delta("a").replace(b'"a"', b'"'),
        delta("a").replace(b"chatcmpl-1", b"chatcmpl-2"),
        USAGE,
        DONE,
        b"",
    ],
    ids=str,
)
def test_an_event_that_tells_more_or_less_is_not(other):
    assert learned(delta("a")).texts(other) == []
    assert Alike().texts(other) == []


@pytest.mark.parametrize(
    "one",
    [
        delta("a", finish="stop"),
        delta("a", usage={"completion_tokens": 1}),
        delta("a", index=1),
        delta("a").replace(b"}]}", b'}], "error": {"type": "x"}}'),
        sse({"choices": [{"index": 0, "delta": {"tool_calls": [{"name": "f", "text": "a"}]}}]}),  # output with any text
        sse(MESSAGE, "error"),
        delta("a").replace(b"\n\n", b"\r\n\r\n"),
        delta("a").replace(b"}]}", b"}]"),
        delta("a") + delta("a"),
    ],
    ids=str,
)
def test_nothing_is_learned_from_an_event_that_tells_more_than_a_text(one):
    alike = learned(one)
    assert alike.texts(one) == []


def test_an_event_with_a_number_of_its_own_is_tried_a_few_times():
    alike = Alike()
    for number in range(9):
        alike.learn(delta("a", sequence_number=number))
    assert alike.texts(delta("a", sequence_number=8)) == []
    assert len(alike.texts(delta("a", sequence_number=3))) == 1


class Counted(Tap):
    parsed = 0

    def _event(self, data, at_ns):
        self.parsed += 1
        super()._event(data, at_ns)


@pytest.fixture
def tap():
    request = MemoryTrail(clock=now_ns).start_request(operation="chat", model="m")
    return Counted(Recording(request, batched=True), "text/event-stream", "", lambda reason: None, lambda s: None)


def read(tap, *chunks):
    for at, chunk in enumerate(chunks, 1):
        tap.read(chunk, at, at)
    return tap._recording


def test_a_stream_is_parsed_where_it_changes(tap):
    parts = (delta(), delta("a"), *[delta(f" word {n}") for n in range(20)], delta("e", finish="stop"), USAGE, DONE)
    recording = read(tap, *parts)
    assert recording.arrivals == 22
    assert recording.answer.reasons == {0: "stop"}
    assert recording.answer.usage.counts(beside_output=True) == {"input_tokens": 7, "output_tokens": 40}
    assert tap.over
    assert tap.parsed == 4  # the role, the first text, the end, and the usage


def test_each_event_of_a_chunk_is_an_arrival(tap):
    recording = read(tap, delta("a"), delta("b") + delta("c") + delta("d"))
    assert (recording.arrivals, tap.parsed) == (4, 1)


def test_a_chunk_within_an_event_is_not_taken_for_one(tap):
    recording = read(tap, delta("a"), b"data: {\n", delta("b"), delta("c"))
    assert recording.arrivals == 2
    parsed = tap.parsed
    recording = read(tap, b": comment\r\r", delta("d"), delta("e"))
    assert (recording.arrivals, tap.parsed - parsed) == (4, 1)  # "\r" may be the first half of a line's end


def test_arrivals_reach_the_trail_together_or_at_the_end(monkeypatch):
    trail = MemoryTrail(clock=now_ns)
    told = []
    request = trail.start_request(operation="chat", model="m", arrival_ns=5)
    monkeypatch.setattr(type(request), "tokens", lambda self, stamps: told.append(list(stamps)))
    tap = Tap(Recording(request, batched=True), "text/event-stream", "", lambda reason: None, lambda s: None)
    read(tap, delta("a"), delta("b"))
    assert told == []
    tap.flush()
    tap.flush()
    assert told == [[1, 2]]
    tap.read(delta("c"), 7, 7)
    tap.finish(8)
    tap._recording.end(9)
    assert told == [[1, 2], [7]]


def test_arrivals_of_several_choices_are_told_one_by_one():
    trail = MemoryTrail(clock=now_ns)
    request = trail.start_request(operation="chat", model="m")
    recording = Recording(request, several=True, batched=True)
    tap = Tap(recording, "text/event-stream", "", lambda reason: None, lambda s: None)
    read(tap, delta("a"), delta("b"), delta("c", index=1))
    assert (recording._stamps, recording.arrivals) == ([], 3)
