"""The longest wait between two tokens of an answer, in the span of a request and in its announcements."""

import pytest

from tests.tokentrail.support import MS, T0, attributes_of, start
from tokentrail import Sampling, Status, Thresholds, semconv
from tokentrail.clients.answer import Answer
from tokentrail.clients.arrivals import Arrivals
from tokentrail.clients.recording import Recording
from tokentrail.testing import MemoryTrail

S = 1000 * MS


def gap(trail):
    told = attributes_of(trail)
    seconds = told.get(semconv.LONGEST_GAP)
    return None if seconds is None else round(seconds * 1e3), told.get(semconv.LONGEST_GAP_INDEX)


@pytest.mark.parametrize(
    ("batches_ms", "status", "end_ms", "found"),
    [
        ([[10, 20, 50, 60]], "ok", 60, (30, 2)),
        ([[10, 20], [50, 60]], "ok", 60, (30, 2)),  # the wait lies between two batches of the SDK
        ([[10], [40, 70], [100]], "ok", 100, (30, 1)),  # of waits that are equal, the first
        ([[10, 40], [60], [95]], "ok", 95, (35, 3)),
        ([[500, 501]], "ok", 501, (1, 1)),  # the wait for the first token is none
        ([[10, 10, 10]], "ok", 10, (0, None)),
        ([[10]], "ok", 900, (0, None)),
        ([[]], "ok", 900, (None, None)),
        ([[10, 20]], "ok", 900, (10, 1)),  # nothing was waited for behind the last token
        ([[10, 20]], "cancelled", 900, (880, 2)),
        ([[10, 20]], "error", 900, (880, 2)),
        ([[10, 20, 700]], "cancelled", 701, (680, 2)),
        ([[]], "cancelled", 900, (None, None)),
        ([[20, 10, 30]], "ok", 30, (10, 2)),  # a clock that ran backwards
    ],
)
def test_the_longest_wait_between_two_tokens(trail, batches_ms, status, end_ms, found):
    request = start(trail)
    for batch in batches_ms:
        if batch:
            request.tokens([T0 + ms * MS for ms in batch])
        trail.flush(0)
    request.end(T0 + end_ms * MS, status=Status(status))
    assert gap(trail) == found


def test_a_row_that_is_used_again_knows_nothing_of_the_request_before(trail):
    for waits in ((10, 900), (10, 20)):
        request = start(trail)
        request.tokens([T0 + ms * MS for ms in waits])
        request.end(T0 + S)
        trail.flush(0)
    assert [span.attributes[semconv.LONGEST_GAP] for span in trail.spans("chat m")] == [0.89, 0.01]


def test_of_several_answers_the_longest_wait_of_any_counts(trail):
    request = start(trail)
    first, second = request.choice(0), request.choice(1)
    trail.step(0, T0, T0 + 10 * MS, [first])
    trail.step(0, T0, T0 + 400 * MS, [second])  # its first token: no wait between two
    trail.step(0, T0, T0 + 450 * MS, [second])
    trail.step(0, T0, T0 + 500 * MS, [second])
    trail.flush(0)
    trail.step(0, T0, T0 + 110 * MS, [first])
    request.end(T0 + 500 * MS)
    assert gap(trail) == (100, 1)


def test_a_gap_is_not_known_when_records_of_tokens_were_lost(trail):
    request = start(trail)
    request.tokens([T0 + 10 * MS, T0 + 20 * MS])
    request.lost += 1
    request.end(T0 + 20 * MS)
    assert gap(trail) == (None, None)


def announced(trail):
    """Age of the request, age of its latest token and longest gap, in ms, of each announcement."""
    names = (semconv.TIME_TO_LAST_TOKEN, semconv.LONGEST_GAP)
    return [
        (
            span.duration_ns // MS,
            *(round(span.attributes[name] * 1e3) if name in span.attributes else None for name in names),
        )
        for span in trail.spans(semconv.OPEN_SPAN)
    ]


def at(trail, clock, ms):
    clock.now = T0 + ms * MS
    trail.flush(0)


def test_an_answer_that_stands_still_is_announced_as_its_silence_grows(trail, clock):
    request = start(trail)
    at(trail, clock, 1)
    request.tokens([T0 + 100 * MS, T0 + 110 * MS])
    for ms in (1_000, 1_110, 1_200, 2_200, 3_200, 3_300):
        at(trail, clock, ms)
    request.tokens([T0 + 3_350 * MS])
    at(trail, clock, 4_000)
    at(trail, clock, 5_001)
    assert announced(trail) == [
        (1, None, None),
        (1_110, 110, 10),  # a second of silence; 90 ms more are no news
        (2_200, 110, 10),
        (3_200, 110, 10),
        (5_001, 3_350, 3_240),  # by its turn
    ]


def test_a_wait_that_ended_between_two_batches_is_announced(trail, clock):
    request = start(trail)
    at(trail, clock, 1)
    request.tokens([T0 + 100 * MS, T0 + 1_900 * MS])
    at(trail, clock, 2_000)
    at(trail, clock, 2_100)
    assert announced(trail) == [(1, None, None), (2_000, 2_000, 1_800)]


def test_announcements_say_nothing_of_tokens_that_may_wait_in_the_records(clock):
    trail = MemoryTrail(clock=clock, max_queue_spans=400)  # a batch has 100 spans
    request = start(trail)
    at(trail, clock, 1)
    request.tokens([T0 + 2 * MS] * 100)
    request.tokens([T0 + 4_000 * MS])
    at(trail, clock, 4_000)
    assert announced(trail) == [(1, None, None), (4_000, 4_000, 3_998)]


def test_lost_records_make_a_silence_doubtful(trail, clock):
    request = start(trail)
    at(trail, clock, 1)
    request.tokens([T0 + 2 * MS])
    request.lost += 1
    at(trail, clock, 6_000)
    assert announced(trail)[-1] == (6_000, None, None)


def test_sampling_keeps_what_stands_still_and_announces_it_by_then(clock):
    trail = MemoryTrail(clock=clock, sampling=Sampling(rate=0.0, thresholds=[Thresholds(gap_s=2)]))
    request = start(trail)
    request.tokens([T0 + 10 * MS])
    for ms in (500, 1_500, 2_010, 2_100):
        at(trail, clock, ms)
    assert announced(trail) == [(2_100, 10, 0)]
    request.end(T0 + 2_200 * MS, status=Status.CANCELLED)
    assert gap(trail) == (2_190, 1)


@pytest.mark.parametrize(("visible_s", "kept"), [(0.010, 0), (0.011, 1), ("soon", 0)])
def test_sampling_keeps_what_is_seen_late(visible_s, kept):
    trail = MemoryTrail(sampling=Sampling(rate=0.0, thresholds=[Thresholds(first_visible_s=0.01)]))
    request = start(trail)
    request.tokens([T0 + 5 * MS])
    request.end(T0 + 50 * MS, attributes={semconv.TIME_TO_FIRST_VISIBLE_TOKEN: visible_s})
    assert len(trail.spans("chat m")) == kept


@pytest.mark.parametrize(
    ("outputs", "seen_ms"),
    [
        ([(10, 0, 5), (20, 0, 5), (30, 4, 0), (40, 4, 0)], 30),
        ([(10, 4, 0), (20, 0, 5)], 10),
        ([(10, 0, 5)], None),  # reasoning alone
        ([(10, 0, 0)], 10),  # an answer that came as a whole
        ([(10, 0, 0), (20, 0, 0)], None),  # two objects of which nobody knows what they are
        ([], None),
    ],
)
def test_a_client_sees_the_first_text(trail, outputs, seen_ms):
    recording = Recording(start(trail))
    for ms, said, thought in outputs:
        recording.arrived(0, said, thought, T0 + ms * MS)
    recording.end(T0 + 50 * MS)
    told = attributes_of(trail).get(semconv.TIME_TO_FIRST_VISIBLE_TOKEN)
    assert (None if told is None else round(told * 1e3)) == seen_ms


@pytest.mark.parametrize(
    ("choices", "tokens", "told"),
    [((0, 0), 2, None), ((0, 0), 90, 0), ((0, 1), 2, 0), ((0, 1), None, 0), ((0, 0), None, None)],
)
def test_tokens_that_did_not_come_one_after_another_are_told(trail, choices, tokens, told):
    recording = Recording(start(trail))
    for ms, choice in enumerate(choices):
        recording.arrived(choice, 5, 0, T0 + 50 * ms * MS)
    if tokens is not None:
        recording.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})
    recording.end(T0 + 500 * MS)
    assert attributes_of(trail).get(semconv.ARRIVED_TOKENS) == told


@pytest.mark.parametrize(
    ("tokens", "texts", "came"),
    [
        (21, [5] * 21, True),
        (21, [15] * 7, True),  # a tenth of them came with the first
        (21, [16, *[15] * 6], False),
        (21, [60, *[5] * 9], False),
        (21, [5] * 3, False),
        (20, [5] * 8, True),
        (20, [4, *[5] * 7], False),  # 39 bytes have no room for 20 tokens
        (11, [1] * 10, True),  # one of ten has no text
        (11, [1] * 9, False),
    ],
)
def test_tokens_came_one_after_another_if_nine_of_ten_arrived_or_the_text_is_spread(tokens, texts, came):
    arrivals = Arrivals()
    for number, text in enumerate(texts):
        arrivals.add(0, text, 0, T0 + number * 50 * MS)
    assert arrivals.are_tokens(tokens, None) == came


def test_reasoning_that_came_with_the_first_arrival_is_a_part_of_the_text():
    for thought, came in ((60, False), (10, True)):
        arrivals = Arrivals()
        arrivals.add(0, 0, thought, T0)
        for number in range(9):
            arrivals.add(0, 10, 0, T0 + (number + 1) * 50 * MS)
        assert arrivals.are_tokens(21, 5) == came


def test_an_answer_has_128_choices():
    answer = Answer()
    last, beyond = ({"index": index, "delta": {"content": "word"}, "finish_reason": "stop"} for index in (127, 128))
    assert ([one[0] for one in answer.read({"choices": [last]})], answer.left_out) == ([127], False)
    assert ([*answer.read({"choices": [beyond]})], answer.left_out) == ([], True)
    assert answer.reasons == {127: "stop"}


@pytest.mark.parametrize(("kind", "is_summary"), [("text", False), ("summary", True), ("encrypted", True)])
def test_details_of_reasoning_say_whether_it_is_whole(kind, is_summary):
    answer = Answer()
    [*answer.read({"choices": [{"index": 0, "delta": {"reasoning_details": [{"type": f"reasoning.{kind}"}]}}]})]
    assert answer.summarised == is_summary


def test_what_arrives_within_a_millisecond_came_together():
    arrivals = Arrivals()
    for at_ns in (0, MS - 1, MS):
        arrivals.add(0, 5, 0, T0 + at_ns)
    assert arrivals.later(with_thoughts=True) == 1
    arrivals.add(0, 0, 5, T0 + 2 * MS)
    assert [arrivals.later(with_thoughts=thoughts) for thoughts in (True, False)] == [2, 1]
    assert (arrivals.hold(10, 2), arrivals.hold(10, 3), arrivals.hold(11, 2)) == (True, False, False)


def test_an_arrival_that_ends_a_wait_reaches_the_trail_at_once(trail, clock):
    recording = Recording(start(trail), batched=True)
    at(trail, clock, 1)
    recording.arrived(0, 1, 0, T0 + 10 * MS)
    recording.arrived(0, 1, 0, T0 + 500 * MS)
    recording.arrived(0, 1, 0, T0 + 1_900 * MS)
    at(trail, clock, 2_900)
    recording.arrived(0, 1, 0, T0 + 2_950 * MS)
    at(trail, clock, 4_000)
    assert announced(trail) == [(1, None, None), (2_900, 1_900, 1_400)]
