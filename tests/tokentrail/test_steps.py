"""The worked examples of the column algorithms, and random cases against a loop over requests."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tokentrail.support import start
from tokentrail._build.slots import Slots, _running_max
from tokentrail._build.steps import _owners, step_columns, token_columns, token_owners
from tokentrail._record.recipient import ENDED_SLOT, FOREIGN_SLOT, NO_SLOT
from tokentrail._record.records import take
from tokentrail._record.request import UnrecordedRequest
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
    """Steps of (end_ns, emitted, counts), as they are taken from the buffer."""
    trail = MemoryTrail()
    for number, (end, emitted, counts) in enumerate(steps):
        trail.step(number, 0, end, emitted, counts=counts)
    return take(trail._records, 1_000_000).steps


def test_the_example_of_owners():
    _, (a, b, c) = requests_in([5, 6, 9])
    owner, step = _owners(recorded((0, [a, b], None), (0, [a, b], None), (0, [c], None)))
    assert owner.tolist() == [5, 6, 5, 6, 9]
    assert step.tolist() == [0, 0, 1, 1, 2]


EMITTED = st.lists(st.tuples(st.integers(2, 5), st.integers(0, 300)), max_size=3)
"""Slots of a step, and how many tokens each got."""


@given(st.lists(st.tuples(EMITTED, st.booleans()), max_size=8))
@example([([(2, 0), (3, 300)], True), ([(2, 0), (3, 2)], True)])
def test_owners_are_those_of_a_loop(steps):
    _, found = requests_in([2, 3, 4, 5])
    of = dict(zip([2, 3, 4, 5], found, strict=True))
    batch = recorded(
        *(
            (0, [of[slot] for slot, _ in emitted], [n for _, n in emitted] if has_counts else None)
            for emitted, has_counts in steps
        )
    )
    owner, step = token_owners(batch)
    assert list(zip(step.tolist(), owner.tolist(), strict=True)) == [
        (number, of[slot].slot)
        for number, (emitted, has_counts) in enumerate(steps)
        for slot, count in emitted
        for _ in range(count if has_counts else 1)
    ]


def test_the_example_of_token_columns():
    slots, (seven, two) = requests_in([7, 2])
    batch = recorded((1_000, (seven, two), None), (2_000, (seven,), None))
    assert slots.mark_ended(seven, after_steps=1, end=1_500)
    refused = []
    run, step = token_columns(token_owners(batch), step_columns(batch), slots, lambda *why: refused.append(why))
    assert (run.owners.tolist(), step.tolist()) == ([2, 7], [0, 0])
    assert refused == [(FOREIGN_SLOT, 0), (ENDED_SLOT, 1)]


@pytest.mark.parametrize(("end", "kept"), [(1_999, [0]), (2_000, [0, 1]), (2_001, [0, 1])])
def test_a_step_that_was_over_at_the_end_of_its_request_is_no_later_than_the_end(end, kept):
    slots, (request,) = requests_in([2])
    batch = recorded((1_000, (request,), None), (2_000, (request,), None))
    slots.mark_ended(request, after_steps=1, end=end)
    _, step = token_columns(token_owners(batch), step_columns(batch), slots, lambda *_: None)
    assert step.tolist() == kept


def test_the_example_of_advance():
    slots, _ = requests_in([2, 7])
    slots.advance(np.array([2]), np.array([20]))
    run = slots.advance(np.array([2, 2, 7]), np.array([30, 40, 35]))
    assert (run.start.tolist(), run.end.tolist(), run.index.tolist()) == ([20, 30, 10], [30, 40, 35], [1, 2, 0])
    assert (run.rows.tolist(), run.lengths.tolist()) == ([2, 7], [2, 1])
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
