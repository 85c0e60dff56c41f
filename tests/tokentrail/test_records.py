"""The buffer between the engine's threads and the exporter's: its limits, and the order of its records."""

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokentrail.support import MS, T0, start
from tokentrail import semconv
from tokentrail._record import recorder, records
from tokentrail._record.records import (
    END_COST,
    STEP_INTS,
    STEP_INTS_IN_DETAIL,
    UNKNOWN,
    Kind,
    spans_in,
    spans_waiting,
    step_ints,
    take,
    token_counts,
    without_malformed,
)
from tokentrail._record.request import UnrecordedRequest
from tokentrail.testing import MemoryTrail

ALL = 1_000_000


@pytest.fixture
def two(trail):
    return [start(trail), start(trail)]


def taken(trail, spans=ALL):
    return take(trail._records, spans)


def test_the_integers_of_a_step_are_its_stamps_and_attributes(trail):
    trail.step(
        4, 1, 2, [], prefill_tokens=5, decode_tokens=6, running=7, waiting=8, preempted=9, kv_used=10, kv_total=11,
        kv_evicted=12, waiting_for_batch=13, waiting_for_tokens=14, waiting_for_kv=15, waiting_for_priority=16,
        cached_tokens=17, drafted_tokens=18, retries=19, graph_rows=20, device_ns=21,
        compute_ns=22, memory_ns=23, emitted_ns=3,
    )  # fmt: skip
    assert step_ints(taken(trail).steps).tolist() == [list(range(1, 24))]


def test_a_number_that_is_left_out_or_none_is_unknown(trail):
    trail.step(3, 1, 2, [], running=0)
    trail.step(3, 1, 2, [], running=0, waiting=None, kv_used=None)
    left_out, none = step_ints(taken(trail).steps).tolist()
    assert left_out == none == [1, 2, 2, 3, UNKNOWN, UNKNOWN, 0, *[UNKNOWN] * 16]


def test_numbers_of_other_types_are_integers(trail):
    trail.step(np.int64(3), 1.9, np.float64(2.5), [], running=True)
    assert step_ints(taken(trail).steps)[:, :7].tolist() == [[1, 2, 2, 3, UNKNOWN, UNKNOWN, 1]]


@pytest.mark.parametrize("name", [name.rpartition(".")[2] for name in semconv.STEP_DETAILS])
def test_details_take_room_only_in_the_steps_that_have_them(name, trail, two):
    trail.step(0, T0, T0, two, running=1)
    trail.step(1, T0, T0, two, running=1, counts=[2, 1])
    trail.step(2, T0, T0, two, running=1, counts=[1, 1], **{name: 4})
    trail.step(3, T0, T0, two, running=1, **{name: 0})
    steps = taken(trail).steps
    assert [rows.ints for rows in steps] == [STEP_INTS, STEP_INTS, STEP_INTS_IN_DETAIL, STEP_INTS_IN_DETAIL]
    assert step_ints(steps[:2]).shape == (2, STEP_INTS)
    table = step_ints(steps)
    column = STEP_INTS + [detail.rpartition(".")[2] for detail in semconv.STEP_DETAILS].index(name)
    assert table[:, column].tolist() == [UNKNOWN, UNKNOWN, 4, 0]
    assert table[:, 3].tolist() == [0, 1, 2, 3]
    assert token_counts(steps).tolist() == [1, 1, 2, 1, 1, 1, 1, 1]
    others = [place for place in range(STEP_INTS, STEP_INTS_IN_DETAIL) if place != column]
    assert (table[:, others] == UNKNOWN).all()


def test_spans_of_steps_with_and_without_details(trail):
    trail.step(0, T0, T0 + MS, [], running=2)
    trail.step(1, T0, T0 + MS, [], running=2, cached_tokens=7)
    assert sorted((sorted(span.attributes.items()) for span in trail.spans(semconv.STEP_SPAN)), key=len) == [
        [(semconv.STEP, 0), (semconv.STEP_RUNNING, 2)],
        [(semconv.STEP, 1), (semconv.STEP_CACHED_TOKENS, 7), (semconv.STEP_RUNNING, 2)],
    ]


def test_an_unknown_number_has_no_attribute_and_0_has_one(trail):
    trail.step(0, T0, T0 + MS, [], running=0, waiting=0, kv_used=5)
    trail.step(1, T0, T0 + MS, [], running=None, waiting=2)
    trail.step(2, T0, T0 + MS, [], running=3, waiting=0, kv_used=-7)
    trail.step(-1, T0, T0 + MS, [])
    spans = trail.spans(semconv.STEP_SPAN)
    assert len({span.trace_id for span in spans}) == 1
    assert sorted((sorted(span.attributes.items()) for span in spans), key=len) == [
        [(semconv.STEP, 0)],
        [(semconv.STEP, 1), (semconv.STEP_WAITING, 2)],
        [(semconv.STEP, 2), (semconv.STEP_RUNNING, 3), (semconv.STEP_WAITING, 0)],
        [(semconv.STEP, 0), (semconv.STEP_KV_USED, 5), (semconv.STEP_RUNNING, 0), (semconv.STEP_WAITING, 0)],
    ]


def test_counts_are_none_when_each_request_got_one_token(trail, two):
    one, _ = two
    trail.step(0, 0, 0, [one])
    trail.step(1, 0, 0, two)
    assert token_counts(taken(trail).steps) is None
    trail.step(2, 0, 0, two)
    trail.step(3, 0, 0, two, counts=[3, 0])
    assert token_counts(taken(trail).steps).tolist() == [1, 1, 3, 0]
    trail.step(4, 0, 0, two, counts=np.array([2, 255]))
    trail.step(5, 0, 0, two, counts=(256, 65_536))
    trail.step(6, 0, 0, [one])
    assert token_counts(taken(trail).steps).tolist() == [2, 255, 256, 65_536, 1]


@pytest.mark.parametrize("counts", [(1,), (1, 2, 3), (1, -1), (1, 65_537), (1, "x"), (1, None), (1.5, 1)])
def test_counts_that_do_not_fit_are_refused_at_the_call(counts, two, trail):
    with pytest.raises((ValueError, TypeError)):
        trail.step(0, 0, 0, two, counts=counts)
    assert taken(trail).steps == []
    assert set(trail.stats.drops) == {"malformed"}


@pytest.mark.parametrize(
    ("counts", "spans"),
    [(None, 3), ((2, 3), 6), ((5_000, 0), 5_001), ((65_536, 0), 65_537), ((65_537, 0), 2), ((1,), 3), ((2, "x"), 4)],
)
def test_a_step_stands_for_itself_and_its_tokens(counts, spans):
    trail = MemoryTrail(strict=False)
    trail.step(0, 0, 0, [start(trail), start(trail)], counts=counts)
    stats = trail.stats
    assert stats.accepted == spans
    fits = counts is None or (len(counts) == 2 and all(isinstance(c, int) and c <= 65_536 for c in counts))
    assert (stats.pending, stats.dropped) == ((spans, 0) if fits else (0, spans))
    assert taken(trail).spans == (spans if fits else 0)


def test_only_sampled_requests_have_token_spans(trail, two):
    one, _ = two
    trail.step(0, 0, 0, [one, UnrecordedRequest(), None], counts=(2, 5, 7))
    assert spans_waiting(trail._records) == taken(trail).spans == 3
    assert (spans_in((Kind.START, one)), spans_in((Kind.END, one))) == (0, 1)


def test_steps_in_a_row_with_the_same_requests_are_one_run(trail, two):
    for number, emitted in enumerate(([*two], [*two], tuple(two), two[:1], two)):
        trail.step(number, 0, 0, emitted)
    batch = taken(trail)
    assert [(rows.steps, len(rows.emitted)) for rows in batch.steps] == [(2, 2), (1, 2), (1, 1), (1, 2)]
    assert step_ints(batch.steps)[:, 3].tolist() == [0, 1, 2, 3, 4]


def test_an_engine_may_change_its_list_after_the_step(trail, two):
    running = [*two]
    trail.step(0, 0, 0, running)
    running.pop()
    trail.step(1, 0, 0, running)
    running.append(start(trail))
    trail.step(2, 0, 0, running)
    assert [len(rows.emitted) for rows in taken(trail).steps] == [2, 1, 2]


def test_records_are_taken_oldest_first_until_they_hold_enough_spans(trail, two):
    for number in range(4):
        trail.step(number, 0, 0, two)
    starts = taken(trail, 2)
    assert [(kind, steps) for (kind, _), steps in starts.others] == [(Kind.START, 0), (Kind.START, 0)]
    assert starts.steps == []
    assert step_ints(taken(trail, 4).steps)[:, 3].tolist() == [0, 1]
    assert step_ints(taken(trail, 100).steps)[:, 3].tolist() == [2, 3]
    assert len(taken(trail, 1)) == 0
    for number in range(3):
        trail.step(number, 0, 0, [])
    assert len(taken(trail, 2)) == 2


@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), max_size=80), st.lists(st.integers(1, 70), max_size=40))
def test_batches_are_the_records_in_order_and_as_small_as_they_may_be(kinds, sizes):
    trail = MemoryTrail()
    requests = [start(trail) for _ in range(80)]
    taken(trail)
    recorded = []  # the step's number or the other record's kind, and the spans for which it counts
    for number, kind in enumerate(kinds):
        if kind < 4:
            trail.step(number, 0, 0, requests[:kind])
        elif kind == 4:
            start(trail)
        elif kind == 5:
            requests[0].token(number % 3 + 1)
        else:
            requests.pop().end(0)
        costs = {4: (Kind.START, 1), 5: (Kind.CHUNK, number % 3 + 1), 6: (Kind.END, END_COST)}
        recorded.append(costs.get(kind, (number, 1 + kind)))
    for size in [*sizes, ALL]:
        found = count = 0
        while count < len(recorded) and (found < size or 4 * (len(recorded) - count) < count):
            found, count = found + recorded[count][1], count + 1
        assert _in_order(taken(trail, size)) == [what for what, _ in recorded[:count]]
        del recorded[:count]
    assert not trail._records


def _in_order(batch):
    """The numbers of the steps of a batch and the kinds of its other records, as they were recorded."""
    found = step_ints(batch.steps)[:, 3].tolist() if batch.steps else []
    for (kind, _), steps in reversed(batch.others):
        found.insert(steps, kind)
    return found


def test_a_signal_handler_may_take_the_records_during_a_take(trail, two, monkeypatch):
    for number in range(9):
        trail.step(number, 0, 0, two)
    popleft, within = trail._records.popleft, []

    def interrupted():
        if not within:
            within.append(None)
            within.append(taken(trail))
        return popleft()

    monkeypatch.setattr(type(trail._records), "popleft", property(lambda _: interrupted), raising=False)
    outer = taken(trail)
    assert len(within[1]) + len(outer) == 11
    assert not trail._records


def test_a_record_knows_the_steps_before_it(trail, two):
    for number in range(2):
        trail.step(number, 0, 0, two)
    two[0].end(0)
    trail.step(2, 0, 0, two, counts=[1, 1])
    two[1].end(0)
    batch = taken(trail)
    assert [(record[0], steps) for record, steps in batch.others[2:]] == [(Kind.END, 2), (Kind.END, 3)]
    assert len(batch) == 7


def test_records_keep_their_place_when_malformed_steps_go(trail, two):
    trail.step(0, 0, 0, two)
    trail.step(1, 0, 0, [None])
    trail.step(2, 0, 0, [None])
    two[0].end(0)
    trail.step(3, 0, 0, two)
    two[1].end(0)
    batch, malformed = without_malformed(taken(trail))
    assert [rows.steps for rows in malformed] == [2]
    assert step_ints(batch.steps)[:, 3].tolist() == [0, 3]
    assert [steps for _, steps in batch.others[2:]] == [1, 2]


def test_the_tokens_of_a_chunk_count_as_spans_when_records_are_taken(trail):
    request = start(trail)
    for _ in range(3):
        request.token(5_000)
    assert len(taken(trail, 6_000)) == 3  # the start and two chunks
    assert len(taken(trail, 6_000)) == 1


def test_the_end_of_a_request_takes_the_room_of_many_tokens(trail):
    for _ in range(4):
        start(trail).end(0)
    assert len(taken(trail, 2 * (1 + records.END_COST))) == 4


def test_the_buffer_takes_as_many_records_as_it_says(trail, monkeypatch):
    monkeypatch.setattr(recorder, "MAX_ENTRIES", 4)
    for number in range(3):
        trail.step(number, 0, 0, [])
    assert (trail.stats.pending, trail.stats.drops) == (2, {"buffer_full": 1})
    with trail.cold_start("m"):
        pass
    assert trail.stats.drops == {"buffer_full": 2}
    request = start(trail)  # starts and ends are kept: a request that began must end
    request.end(0)
    assert trail.stats.pending == 3


def test_the_buffer_does_not_keep_a_request_after_its_steps_were_taken(trail):
    request = start(trail)
    trail.step(0, 0, 0, [request])
    taken(trail)
    reference = weakref.ref(request)
    del request
    gc.collect()
    assert reference() is None


def test_a_step_that_comes_after_its_run_was_taken_is_not_lost(trail, two):
    trail.step(0, 0, 0, two, counts=[1, 2])
    run = trail._records.run
    assert step_ints(taken(trail, 100).steps)[:, 3].tolist() == [0]
    trail._records.run = run  # another thread has read it just before
    trail.step(1, 0, 0, two, counts=[3, 4])
    batch = taken(trail)
    assert step_ints(batch.steps)[:, 3].tolist() == [1]
    assert token_counts(batch.steps).tolist() == [3, 4]


def test_threads_share_one_trail_and_no_token_is_lost():
    trail = MemoryTrail()
    shared = start(trail)
    own = [start(trail) for _ in range(4)]

    def engine(number):
        for step in range(300):
            emitted = [shared] if step % 3 else [shared, own[number]]
            trail.step(step, T0, T0 + MS, emitted, counts=[2] * len(emitted) if step % 2 else None)

    threads = [threading.Thread(target=engine, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        trail.flush(0)
    for request in (shared, *own):
        request.end(T0 + MS)
    counts = {span.span_id: span.attributes[semconv.OUTPUT_TOKENS] for span in trail.spans("chat m")}
    assert counts == {shared.span_id: 4 * 450, **{request.span_id: 150 for request in own}}
    assert len(trail.spans(semconv.STEP_SPAN)) == 1_200
    assert len(trail.spans(semconv.TOKEN_SPAN)) == 4 * 450 + 4 * 150
    assert (trail.stats.dropped, trail.stats.pending) == (0, 0)
