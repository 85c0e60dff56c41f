"""The buffer between the engine's threads and the exporter's: its limits, and the order of its records."""

import gc
import threading
import weakref

import numpy as np
import pytest

from tests.tokentrail.support import MS, T0, start
from tokentrail import recorder, records, semconv
from tokentrail.records import UNKNOWN, Kind, spans_in, spans_waiting, step_ints, take, token_counts, without_malformed
from tokentrail.request import UnrecordedRequest
from tokentrail.testing import MemoryTrail

ALL = 1_000_000


@pytest.fixture
def two(trail):
    return [start(trail), start(trail)]


def taken(trail, spans=ALL):
    return take(trail._records, spans)


def test_the_integers_of_a_step_are_its_stamps_and_attributes(trail):
    trail.step(
        3, 1, 2, [], prefill_tokens=4, decode_tokens=5, running=6, waiting=7, preempted=8, kv_used=9, kv_total=10,
        kv_evicted=11, waiting_for_batch=12, waiting_for_tokens=13, waiting_for_kv=14, cached_tokens=15,
        drafted_tokens=16, retries=17, emitted_ns=18,
    )  # fmt: skip
    assert step_ints(taken(trail).steps).tolist() == [list(range(1, 19))]


def test_a_number_that_is_left_out_or_none_is_unknown(trail):
    trail.step(3, 1, 2, [], running=0)
    trail.step(3, 1, 2, [], running=0, waiting=None, kv_used=None)
    left_out, none = step_ints(taken(trail).steps).tolist()
    assert left_out == none == [1, 2, 3, UNKNOWN, UNKNOWN, 0, *[UNKNOWN] * 11, 2]


def test_numbers_of_other_types_are_integers(trail):
    trail.step(np.int64(3), 1.9, np.float64(2.5), [], running=True)
    assert step_ints(taken(trail).steps)[:, :6].tolist() == [[1, 2, 3, UNKNOWN, UNKNOWN, 1]]


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
    assert step_ints(batch.steps)[:, 2].tolist() == [0, 1, 2, 3, 4]


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
    assert step_ints(taken(trail, 4).steps)[:, 2].tolist() == [0, 1]
    assert step_ints(taken(trail, 100).steps)[:, 2].tolist() == [2, 3]
    assert len(taken(trail, 1)) == 0
    for number in range(3):
        trail.step(number, 0, 0, [])
    assert len(taken(trail, 2)) == 2


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
    assert step_ints(batch.steps)[:, 2].tolist() == [0, 3]
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
    assert step_ints(taken(trail, 100).steps)[:, 2].tolist() == [0]
    trail._records.run = run  # another thread has read it just before
    trail.step(1, 0, 0, two, counts=[3, 4])
    batch = taken(trail)
    assert step_ints(batch.steps)[:, 2].tolist() == [1]
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
