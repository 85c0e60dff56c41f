"""Requests with several answers: tokens, latencies and the request's sums."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokentrail.support import MS, T0, US, start
from tokentrail import Phase, Status, semconv
from tokentrail._build.sampling import Sampling
from tokentrail._record.request import MAX_CHOICE, UnrecordedRequest
from tokentrail.testing import MemoryTrail


def tokens(trail, choice):
    """Index and duration (ms) of the tokens of a choice."""
    spans = trail.spans(semconv.TOKEN_SPAN, parent=choice)
    return [(span.token_index, span.duration_ns // MS) for span in spans]


def test_tokens_are_numbered_and_timed_for_each_choice(trail):
    request = start(trail)
    first, second = request.choice(0), request.choice(1)
    trail.step(0, T0, T0 + 5 * MS, [first])
    trail.flush()
    trail.step(1, T0, T0 + 7 * MS, [first, second])
    trail.step(2, T0, T0 + 10 * MS, [first, second], counts=[1, 2])
    assert tokens(trail, first) == [(0, 5), (1, 2), (2, 3)]
    assert tokens(trail, second) == [(0, 7), (1, 3), (2, 0)]
    spans = trail.spans(semconv.TOKEN_SPAN)
    assert {span.parent_id for span in spans} == {request.span_id}
    assert len({span.span_id for span in spans}) == 6
    assert trail.spans(semconv.TOKEN_SPAN, parent=second)[0].attributes == {
        semconv.CHOICE_INDEX: 1,
        semconv.STEP: 1,
    }
    assert (
        trail.spans(semconv.TOKEN_SPAN, parent=second)[2].span_id
        == (request.span_id + (2 * 2**32 + 3) * semconv.TOKEN_ID_STRIDE) % 2**64
    )


def test_a_request_with_one_answer_has_no_choice(trail):
    one, several = start(trail), start(trail)
    trail.step(0, T0, T0 + MS, [one, several.choice(0), several.choice(3)])
    assert [semconv.CHOICE_INDEX in span.attributes for span in trail.spans(semconv.TOKEN_SPAN, parent=one)] == [False]
    found = [span.attributes[semconv.CHOICE_INDEX] for span in trail.spans(semconv.TOKEN_SPAN, parent=several)]
    assert found == [0, 3]
    one.end(T0 + MS)
    (span,) = trail.spans("chat m")
    assert not {semconv.CHOICES, semconv.TIME_BETWEEN_TOKENS} & set(span.attributes)


def test_a_request_has_the_sums_of_its_choices(trail):
    request = start(trail)
    first, second, silent = (request.choice(index) for index in range(3))
    request.phase(Phase.PREFILL, T0 + MS)
    trail.step(0, T0, T0 + 5 * MS, [second])
    trail.step(1, T0, T0 + 7 * MS, [first, second])
    trail.step(2, T0, T0 + 11 * MS, [first])
    assert silent is request.choice(2)
    request.end(T0 + 12 * MS)
    (span,) = trail.spans("chat m")
    expected = {
        semconv.OUTPUT_TOKENS: 4,
        semconv.TIME_TO_FIRST_TOKEN: 0.005,
        semconv.TIME_TO_LAST_TOKEN: 0.011,
        semconv.CHOICES: 2,
        semconv.TIME_BETWEEN_TOKENS: 0.006,
        semconv.PHASE_TIME_PREFIX + "queued": MS,
        semconv.PHASE_TIME_PREFIX + "prefill": 4 * MS,
        semconv.PHASE_TIME_PREFIX + "decode": 7 * MS,
    }
    assert {key: span.attributes[key] for key in expected} == expected


def test_chunks_go_to_choices_too(trail, clock):
    request = start(trail)
    clock.now = T0 + 2 * MS
    request.choice(1).token(2)
    request.choice(0).tokens([T0 + 3 * MS, T0 + 4 * MS])
    request.end(T0 + 4 * MS)
    request.choice(0).token(1, T0 + 5 * MS)
    assert tokens(trail, request.choice(1)) == [(0, 2), (1, 0)]
    assert tokens(trail, request.choice(0)) == [(0, 3), (1, 1)]
    assert trail.stats.drops == {"late": 1}
    assert trail.spans("chat m")[0].attributes[semconv.OUTPUT_TOKENS] == 4


def test_an_announcement_counts_the_tokens_of_all_choices(trail, clock):
    request = start(trail)
    trail.step(0, T0, T0 + 2 * MS, [request.choice(0), request.choice(1)])
    trail.flush()
    (span,) = trail.spans(semconv.OPEN_SPAN)
    assert (span.attributes[semconv.OUTPUT_TOKENS], span.attributes[semconv.TIME_TO_FIRST_TOKEN]) == (2, 0.002)


def test_choices_end_with_their_request_and_give_their_slots_back(trail):
    capacity = trail._pipeline._assembler.bench.slots.capacity
    for number in range(2 * capacity):
        request = start(trail)
        choices = [request.choice(index) for index in range(3)]
        trail.step(number, T0, T0 + MS, choices)
        request.end(T0 + MS)
        if number % 5 == 0:
            trail.flush()
            trail.step(number, T0, T0 + 2 * MS, choices)
            assert request.choice(7) is request.choice(7)  # a choice of a request that has ended has ended
            trail.step(number, T0, T0 + 2 * MS, [request.choice(7)])
    trail.flush()
    slots = trail._pipeline._assembler.bench.slots
    assert (slots.choices, slots.open) == ({}, {})
    assert len(set(slots._free)) == len(slots._free) == slots.capacity - 2
    assert slots.capacity <= 4 * capacity
    assert len(trail.spans(semconv.TOKEN_SPAN)) == 6 * capacity
    late = -(-2 * capacity // 5)
    assert trail.stats.drops == {"late": 4 * late}


def test_the_heir_of_a_slot_of_a_choice_is_no_choice(trail):
    request = start(trail)
    trail.step(0, T0, T0 + MS, [request.choice(0), request.choice(1)])
    request.end(T0 + MS)
    trail.flush()
    heirs = [start(trail) for _ in range(3)]
    trail.step(1, T0, T0 + 2 * MS, heirs)
    for heir in heirs:
        (token,) = trail.spans(semconv.TOKEN_SPAN, parent=heir)
        assert (token.token_index, token.attributes) == (0, {semconv.STEP: 1})
        heir.end(T0 + 2 * MS)
    assert [span.attributes[semconv.OUTPUT_TOKENS] for span in trail.spans("chat m")] == [2, 1, 1, 1]


@pytest.mark.parametrize("index", [-1, MAX_CHOICE + 1, "0", None, 1.5])
def test_an_index_that_is_none_gives_the_tokens_to_the_request(trail, index):
    request = start(trail)
    assert request.choice(index) is request
    assert trail.stats.errors == (0 if index is None else 1)


def test_the_largest_index_is_kept(trail):
    request = start(trail)
    trail.step(0, T0, T0 + MS, [request.choice(MAX_CHOICE)])
    (span,) = trail.spans(semconv.TOKEN_SPAN)
    assert span.attributes[semconv.CHOICE_INDEX] == MAX_CHOICE


def test_choices_of_requests_that_record_nothing_record_nothing():
    trail = MemoryTrail(strict=False)
    request, unrecorded = start(trail), UnrecordedRequest(5, 6)
    assert unrecorded.choice(1) is unrecorded
    twins = [make(request.choice(0)) for make in (copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c)))]
    trail.step(0, T0, T0 + MS, [*twins, *(twin.choice(0) for twin in twins), unrecorded.choice(1)])
    trail.flush()
    assert trail.stats.drops == {"foreign": 6}


def test_tokens_of_choices_that_found_no_room_are_told_by_the_request(monkeypatch):
    monkeypatch.setattr("tokentrail._record.recorder.MAX_ENTRIES", 6)
    trail = MemoryTrail()
    request = start(trail)
    choice = request.choice(0)
    for number in range(4):
        trail.step(number, T0, T0 + (number + 1) * MS, [choice], counts=[2])
    request.end(T0 + 4 * MS)
    (span,) = trail.spans("chat m")
    assert (span.attributes[semconv.OUTPUT_TOKENS], span.attributes[semconv.DROPPED_TOKENS]) == (2, 6)
    monkeypatch.undo()
    full = MemoryTrail(max_queue_spans=40, max_payload_spans=4)
    request = start(full)
    full.step(0, T0, T0 + MS, [request.choice(0), request.choice(1)], counts=[100, 100])
    request.end(T0 + MS)
    (span,) = full.spans("chat m")
    assert span.attributes[semconv.DROPPED_TOKENS] == 200 - len(full.spans(semconv.TOKEN_SPAN)) > 0


def test_choices_of_a_request_without_token_spans_count(trail):
    kept = MemoryTrail(sampling=Sampling(token_rate=0.0))
    request = start(kept)
    kept.step(0, T0, T0 + MS, [request.choice(0), request.choice(1)])
    request.end(T0 + MS, status=Status.OK)
    assert kept.spans("chat m")[0].attributes[semconv.OUTPUT_TOKENS] == 2
    assert kept.spans(semconv.TOKEN_SPAN) == []


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), unique=True), st.integers(-2_000, 9_000), st.integers(1, 3), st.booleans()
        ),
        max_size=20,
    )
)
def test_tokens_and_phases_of_choices_add_up_for_every_workload(steps):
    trail = MemoryTrail()
    request = start(trail)
    now, emitted = T0, np.zeros(4, int)
    lasts, firsts = {}, {}
    for number, (chosen, gap, each, flush) in enumerate(steps):
        now += gap
        trail.step(number, now - US, now, [request.choice(i) for i in chosen], counts=[each] * len(chosen))
        emitted[chosen] += each
        for i in chosen:
            lasts[i] = max(lasts.get(i, T0), now // US * US)
            firsts.setdefault(i, lasts[i])
        if flush:
            trail.flush()
    request.end(now)
    (span,) = trail.spans("chat m")
    assert span.attributes[semconv.OUTPUT_TOKENS] == emitted.sum()
    for i, output in enumerate(emitted.tolist()):
        mine = trail.spans(semconv.TOKEN_SPAN, parent=request.choice(i)) if output else []
        assert [token.token_index for token in mine] == list(range(output))
        assert sum(token.duration_ns for token in mine) == (lasts[i] - T0 if output else 0)
    if firsts:
        assert round(span.attributes[semconv.TIME_TO_FIRST_TOKEN] * 1e9) == min(firsts.values()) - T0
        assert round(span.attributes[semconv.TIME_TO_LAST_TOKEN] * 1e9) == max(lasts.values()) - T0
        assert span.attributes[semconv.CHOICES] == len(firsts)
        between = sum(lasts[i] - firsts[i] for i in firsts)
        assert round(span.attributes[semconv.TIME_BETWEEN_TOKENS] * 1e9) == between
    assert sum(phase.duration_ns for phase in trail.spans(semconv.PHASE_SPAN)) == span.duration_ns
