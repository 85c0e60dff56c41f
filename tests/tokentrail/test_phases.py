"""Phases partition [arrival, end] for every sequence of marks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokentrail.support import T0, US
from tokentrail._build.phases import partition
from tokentrail.semconv import Phase

stamps = st.integers(T0 - 50 * US, T0 + 50 * US)


def never(mark):
    raise AssertionError(f"{mark} is a phase")


@given(st.lists(st.tuples(st.sampled_from(Phase), stamps)), st.integers(0, 40))
def test_no_gap_no_overlap_nothing_empty(marks, microseconds):
    end = T0 + microseconds * US
    intervals, _ = partition(T0, end, marks, never)
    edges = [T0] + [over for _, _, over in intervals]
    assert [begun for _, begun, _ in intervals] == edges[:-1]
    assert edges[-1] == end
    assert all(over > begun and begun % US == 0 for _, begun, over in intervals)


def test_each_mark_ends_the_phase_before():
    marks = [(Phase.PREFILL, T0 + 3 * US), (Phase.DECODE, T0 + 5 * US), (Phase.PREEMPTED, T0 + 7 * US)]
    intervals, preemptions = partition(T0, T0 + 9 * US, marks, never)
    assert intervals == [
        (Phase.QUEUED, T0, T0 + 3 * US),
        (Phase.PREFILL, T0 + 3 * US, T0 + 5 * US),
        (Phase.DECODE, T0 + 5 * US, T0 + 7 * US),
        (Phase.PREEMPTED, T0 + 7 * US, T0 + 9 * US),
    ]
    assert preemptions == 1


def test_entering_the_same_phase_again_goes_on_with_it():
    intervals, _ = partition(T0, T0 + 9 * US, [(Phase.DECODE, T0 + 2 * US), (Phase.DECODE, T0 + 5 * US)], never)
    assert [phase for phase, _, _ in intervals] == [Phase.QUEUED, Phase.DECODE]


def test_a_preemption_of_no_length_still_counts():
    marks = [(Phase.DECODE, T0), (Phase.PREEMPTED, T0 + 2 * US), (Phase.DECODE, T0 + 2 * US)]
    intervals, preemptions = partition(T0, T0 + 9 * US, marks, never)
    assert {phase for phase, _, _ in intervals} == {Phase.DECODE}
    assert preemptions == 1


def test_what_is_no_phase_is_told_and_passed_over():
    unknown = []
    marks = [("thinking", T0 + US), (Phase.DECODE, None), (Phase.PREFILL, T0 + 2 * US)]
    intervals, _ = partition(T0, T0 + 4 * US, marks, unknown.append)
    assert unknown == marks[:2]
    assert [phase for phase, _, _ in intervals] == [Phase.QUEUED, Phase.PREFILL]


def test_a_preemption_that_is_told_twice_is_one():
    marks = [(Phase.PREEMPTED, T0 + US), (Phase.PREEMPTED, T0 + 2 * US), (Phase.DECODE, T0 + 3 * US)]
    assert partition(T0, T0 + 9 * US, marks, never)[1] == 1


@pytest.mark.parametrize(
    ("marks", "parts"),
    [
        ([], [("prefill", 0), ("decode", 5)]),
        ([("prefill", 2)], [("queued", 0), ("prefill", 2), ("decode", 5)]),
        ([("prefill", 5)], [("queued", 0), ("decode", 5)]),
        (
            [("prefill", 2), ("preempted", 7), ("prefill", 8)],
            [("queued", 0), ("prefill", 2), ("decode", 5), ("preempted", 7), ("prefill", 8)],
        ),
        ([("prefill", 2), ("decode", 6)], [("queued", 0), ("prefill", 2), ("decode", 6)]),
        ([("kv_transfer", 2)], [("queued", 0), ("kv_transfer", 2)]),
        ([("prefill", 6)], [("queued", 0), ("prefill", 6)]),
        (
            [("kv_transfer", 1), ("prefill", 2)],
            [("queued", 0), ("kv_transfer", 1), ("prefill", 2), ("decode", 5)],
        ),
        ([("prefill", 1), ("kv_transfer", 2)], [("queued", 0), ("prefill", 1), ("kv_transfer", 2)]),
    ],
)
def test_the_first_token_ends_prefill_where_no_mark_says_so(marks, parts):
    given = [(Phase(name), T0 + at * US) for name, at in marks]
    intervals, _ = partition(T0, T0 + 9 * US, given, never, T0 + 5 * US)
    assert [(phase.value, (begun - T0) // US) for phase, begun, _ in intervals] == parts
