"""The worked examples of the column algorithms, and random cases against a loop over requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokentrail.support import start
from tokentrail import records
from tokentrail.records import Kind, spans_in, step_ints, take, token_counts, well_formed
from tokentrail.request import ENDED_SLOT, FOREIGN_SLOT, NO_SLOT, UnrecordedRequest
from tokentrail.slots import Slots, _running_max
from tokentrail.steps import _owners, step_columns, token_columns, token_owners
from tokentrail.testing import MemoryTrail


def requests_in(slots, *, arrival=10):
    """Requests that have exactly these slots."""
    trail = MemoryTrail()
    made = {}
    columns = Slots(table=0)  # a slot is then its row
    while not set(slots) <= set(made):
        request = start(trail, arrival_ns=arrival * 1_000)
        columns.take([request])
        columns.last[request.slot] = arrival  # stamps of these examples are no whole microseconds
        made[request.slot] = request
    return columns, [made[slot] for slot in slots]


def recorded(*steps):
    """Step records of (end_ns, emitted, counts)."""
    trail = MemoryTrail()
    for number, (end, emitted, counts) in enumerate(steps):
        trail.step(number, 0, end, emitted, counts=counts)
    return list(trail._records)


def test_the_example_of_owners():
    _, (a, b, c) = requests_in([5, 6, 9])
    owner, step = _owners([(a, b), (a, b), (c,)])
    assert owner.tolist() == [5, 6, 5, 6, 9]
    assert step.tolist() == [0, 0, 1, 1, 2]


@given(st.lists(st.lists(st.integers(2, 5), max_size=3), max_size=8))
def test_owners_are_those_of_a_loop(steps):
    _, found = requests_in([2, 3, 4, 5])
    of = dict(zip([2, 3, 4, 5], found, strict=True))
    owner, step = _owners([tuple(of[slot] for slot in slots) for slots in steps])
    assert list(zip(step.tolist(), owner.tolist(), strict=True)) == [
        (number, slot) for number, slots in enumerate(steps) for slot in slots
    ]


def test_the_example_of_token_columns():
    slots, (seven, two) = requests_in([7, 2])
    batch = recorded((1_000, (seven, two), None), (2_000, (seven,), None))
    assert slots.mark_ended(seven, after_steps=1, end=1_500)
    refused = []
    tokens = token_columns(*token_owners(batch), step_columns(batch), slots, lambda *why: refused.append(why))
    assert (tokens.slots.tolist(), tokens.step.tolist()) == ([2, 7], [0, 0])
    assert refused == [(FOREIGN_SLOT, 0), (ENDED_SLOT, 1)]


@pytest.mark.parametrize(("end", "kept"), [(1_999, [0]), (2_000, [0, 1]), (2_001, [0, 1])])
def test_a_step_that_was_over_at_the_end_of_its_request_is_no_later_than_the_end(end, kept):
    slots, (request,) = requests_in([2])
    batch = recorded((1_000, (request,), None), (2_000, (request,), None))
    slots.mark_ended(request, after_steps=1, end=end)
    assert token_columns(*token_owners(batch), step_columns(batch), slots, lambda *_: None).step.tolist() == kept


def test_the_example_of_advance():
    slots, _ = requests_in([2, 7])
    slots.advance(np.array([2]), np.array([20]))
    run = slots.advance(np.array([2, 2, 7]), np.array([30, 40, 35]))
    assert (run.start.tolist(), run.end.tolist(), run.index.tolist()) == ([20, 30, 10], [30, 40, 35], [1, 2, 0])
    assert (slots.tokens[[2, 7]].tolist(), slots.last[[2, 7]].tolist()) == ([3, 1], [40, 35])
    assert slots.first[[2, 7]].tolist() == [20, 35]


def test_the_example_of_running_max():
    values, group = np.array([30, 25, 28, 10]), np.array([0, 0, 0, 1])
    assert _running_max(values, group, np.array([0, 3]), np.array([3, 1])).tolist() == [30, 30, 30, 10]


def test_a_request_ends_once():
    slots, (request,) = requests_in([2])
    assert slots.mark_ended(request, after_steps=1, end=0)
    assert not slots.mark_ended(request, after_steps=0, end=0)
    slots.release([request])
    assert not slots.mark_ended(request, after_steps=0, end=0)
    assert not slots.mark_ended(UnrecordedRequest(), after_steps=0, end=0)


def test_the_integers_of_a_step_are_its_stamps_and_attributes():
    trail = MemoryTrail()
    trail.step(
        3, 1, 2, [], prefill_tokens=4, decode_tokens=5, running=6, waiting=7, preempted=8, kv_used=9, kv_total=10,
        kv_evicted=11,
    )  # fmt: skip
    assert step_ints(list(trail._records)).tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]


def test_counts_are_none_when_each_request_got_one_token():
    one, two = UnrecordedRequest(), UnrecordedRequest()
    assert token_counts(recorded((0, (one,), None), (0, (one, two), None))) is None
    assert token_counts(recorded((0, (one, two), None), (0, (one, two), (3, 0)))).tolist() == [1, 1, 3, 0]
    with pytest.raises(ValueError, match="do not fit"):
        token_counts(recorded((0, (one,), None), (0, (one, two), (3,))))


@pytest.mark.parametrize(
    ("counts", "spans"),
    [(None, 3), ((2, 3), 6), ((5_000, 0), 5_001), ((65_536, 0), 65_537), ((65_537, 0), 2), ((1,), 3), ((2, "x"), 4)],
)
def test_a_step_stands_for_itself_and_its_tokens(counts, spans):
    _, requests = requests_in([2, 3])
    (record,) = recorded((0, requests, counts))
    assert spans_in(record) == spans
    fits = counts is None or (len(counts) == 2 and all(isinstance(c, int) and c <= 65_536 for c in counts))
    assert well_formed(record) is fits


def test_only_sampled_requests_have_token_spans():
    _, (request,) = requests_in([2])
    assert spans_in(recorded((0, [request, UnrecordedRequest(), None], (2, 5, 7)))[0]) == 3
    assert (spans_in((Kind.START, request)), spans_in((Kind.END, request))) == (0, 1)


def test_a_row_of_another_table_is_foreign():
    columns, (own,) = requests_in([9])
    other = Slots(table=1)
    stranger = start(MemoryTrail())
    other.take([stranger])
    slots = np.array([own.slot, stranger.slot, start(MemoryTrail()).slot, UnrecordedRequest().slot, ENDED_SLOT])
    assert [column.tolist() for column in columns.rows(slots)] == [
        [9, ENDED_SLOT, ENDED_SLOT, NO_SLOT, ENDED_SLOT],
        [False, True, True, False, False],
    ]
    assert other.rows(slots)[1].tolist() == [True, False, True, False, False]


def test_records_are_taken_oldest_first_until_they_hold_enough_spans():
    trail = MemoryTrail()
    requests = [start(trail), start(trail)]
    for number in range(4):
        trail.step(number, 0, 0, requests)
    starts = take(trail._records, 2)
    assert [kind for kind, _ in starts] == [Kind.START, Kind.START]
    assert step_ints(take(trail._records, 4))[:, 2].tolist() == [0, 1]
    assert step_ints(take(trail._records, 100))[:, 2].tolist() == [2, 3]
    assert take(trail._records, 1) == []
    for number in range(3):
        trail.step(number, 0, 0, [])
    assert len(take(trail._records, 2)) == 2


def test_the_tokens_of_a_chunk_count_as_spans_when_records_are_taken():
    trail = MemoryTrail()
    request = start(trail)
    for _ in range(3):
        request.token(5_000)
    assert len(take(trail._records, 6_000)) == 3  # the start and two chunks
    assert len(take(trail._records, 6_000)) == 1


def test_the_buffer_takes_as_many_records_as_it_says(monkeypatch):
    monkeypatch.setattr(records, "MAX_PENDING_RECORDS", 2)
    trail = MemoryTrail()
    for number in range(3):
        trail.step(number, 0, 0, [])
    assert (trail.stats.pending, trail.stats.drops) == (2, {"buffer_full": 1})
    with trail.cold_start("m"):
        pass
    assert trail.stats.drops == {"buffer_full": 2}
    request = start(trail)  # starts and ends are kept: a request that began must end
    request.end(0)
    assert trail.stats.pending == 3
