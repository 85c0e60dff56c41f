"""The counts balance at all times, and only a full buffer, a refusal or a shutdown loses a span."""

import logging
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokentrail.support import DELIVERED, MS, REFUSED, RETRY, T0, exporter, run_out, start
from tokentrail import semconv
from tokentrail._encode.envelope import Payload
from tokentrail._host.books import SAMPLED_OUT, TrailStats
from tokentrail._host.guard import logger
from tokentrail._send.export import MAX_AGE_S, MAX_ATTEMPTS
from tokentrail.testing import MemoryTrail, MemoryTransport, SendResult, SendStatus

PARTIAL = SendResult(SendStatus.DELIVERED, "too old", rejected=2)

answers = st.sampled_from([DELIVERED, RETRY, REFUSED, PARTIAL, OSError("x")])


def balance(stats):
    return stats.exported + stats.dropped + stats.queued + stats.pending


@given(
    st.lists(st.one_of(st.integers(1, 40), st.sampled_from(["attempt", "drop", "close"])), max_size=40),
    st.lists(answers, max_size=40),
)
def test_accepted_is_exported_plus_dropped_plus_queued_at_all_times(actions, script):
    transport = MemoryTransport(*script)
    queue = exporter(transport, max_spans=100, max_bytes=900)
    accepted = 0
    for action in actions:
        if action == "attempt":
            queue.attempt()
        elif action == "drop":
            queue.drop(3, "late")
            accepted += 3
        elif action == "close":
            queue.close()
        else:
            queue.offer(Payload(b"x" * action * 10, action))
            accepted += action
        stats = queue.stats
        assert stats.accepted == accepted == balance(stats)
        assert stats.queued <= 100
    queue.close()
    assert queue.stats.queued == 0
    assert balance(queue.stats) == accepted


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["start", "step", "end", "flush"]), max_size=40), st.lists(answers, max_size=40))
def test_a_trail_balances_for_every_answer_of_the_collector(actions, script):
    trail = MemoryTrail(*script, strict=False, max_queue_spans=25, max_payload_spans=7)
    requests, recorded = [], 0
    for number, action in enumerate(actions):
        if action == "start":
            requests.append(start(trail))
        elif action == "step":
            trail.step(number, T0, T0 + number * MS, requests)
            recorded += 1 + len(requests)
        elif action == "end" and requests:
            requests[number % len(requests)].end(T0 + number * MS)
        elif action == "flush":
            trail.flush(0)
        assert trail.stats.accepted == balance(trail.stats)
    trail.shutdown(0)
    stats = trail.stats
    assert stats.accepted == stats.exported + stats.dropped >= recorded
    assert (stats.queued, stats.pending) == (0, 0)


def test_a_retry_sends_the_same_bytes_until_they_are_taken(clock):
    trail = MemoryTrail(RETRY, RETRY, RETRY, clock=clock)
    trail.step(0, T0, T0, [start(trail)])
    trail.flush(0)
    assert trail.stats.queued == 3
    clock.now += 60_000 * MS  # minutes later, with more behind it
    for _ in range(3):
        trail.flush(0)
    assert len(set(trail.transport.attempts[:4])) == 1
    assert trail.stats.queued == 0
    assert len(trail.spans()) == len({span.span_id for span in trail.spans()}) == trail.stats.exported


def test_waits_grow_to_half_a_minute_and_start_over_after_success():
    transport = MemoryTransport(*[RETRY] * 20, DELIVERED, RETRY)
    queue = exporter(transport)
    queue.offer(Payload(b"a", 1))
    queue.offer(Payload(b"b", 1))
    waits = [queue.attempt() for _ in range(20)]
    assert waits[0] < waits[3] < waits[6] <= waits[-1] == 30
    assert queue.attempt() == 0
    assert queue.attempt() < 2


@pytest.mark.parametrize(("wish", "wait"), [(7.5, 7.5), (0, 0.05), (-3, 0.05), (86_400, 300)])
def test_the_collector_says_when_within_reason(wish, wait):
    queue = exporter(MemoryTransport(SendResult(SendStatus.RETRY, "429", retry_after_s=wish)))
    queue.offer(Payload(b"a", 1))
    assert queue.attempt() == wait


def test_a_full_buffer_drops_what_comes_and_keeps_what_waits(caplog):
    transport = MemoryTransport(RETRY)
    queue = exporter(transport, max_spans=10, max_bytes=100)
    queue.offer(Payload(b"a" * 60, 6))
    queue.offer(Payload(b"b" * 10, 6))  # too many spans
    queue.offer(Payload(b"c" * 60, 1))  # too many bytes
    queue.offer(Payload(b"d" * 40, 4))
    assert queue.stats.drops == {"buffer_full": 7}
    while (wait := queue.attempt()) is not None:
        assert wait < 2
    assert [body[:1] for body in transport.bodies] == [b"a", b"d"]
    assert [record.message for record in caplog.records if "buffer full" in record.message] == [
        "tokentrail buffer full (6 spans, 60 bytes): dropping"
    ]


def test_a_transport_that_raises_loses_one_payload_and_says_so(caplog):
    queue = exporter(MemoryTransport(RuntimeError("bug")))
    queue.offer(Payload(b"a", 3))
    assert queue.attempt() == 0
    assert queue.stats.drops == {"refused": 3}
    assert "bug" in caplog.text


def test_rejected_spans_of_a_delivered_payload_are_drops():
    queue = exporter(MemoryTransport(PARTIAL, SendResult(SendStatus.DELIVERED, rejected=99)))
    queue.offer(Payload(b"a", 5))
    queue.offer(Payload(b"b", 5))
    queue.attempt()
    assert (queue.stats.exported, queue.stats.drops) == (3, {"rejected": 2})
    queue.attempt()
    assert (queue.stats.exported, queue.stats.drops) == (3, {"rejected": 7})


def test_a_payload_that_is_under_way_at_shutdown_is_counted_once():
    def slow(body):
        queue.close()
        return DELIVERED

    queue = exporter(slow)
    queue.offer(Payload(b"a", 5))
    queue.attempt()
    assert (queue.stats.exported, queue.stats.drops) == (0, {"shutdown": 5})


@pytest.mark.parametrize(
    ("broken", "lost", "errors"),
    [
        ("_encode.envelope.Envelope.payloads", 3, 3),  # tokens, steps and requests travel apart
        ("_build.assemble.Assembler.build_steps", 2, 1),  # the announcement of the request is still to come
    ],
)
def test_a_batch_that_cannot_be_built_is_counted_and_told_and_the_next_one_is_built(
    broken, lost, errors, monkeypatch, caplog
):
    trail = MemoryTrail(strict=False)
    with monkeypatch.context() as patched:
        patched.setattr(f"tokentrail.{broken}", lambda *_, **__: 1 / 0)
        trail.step(0, T0, T0, [start(trail)])
        assert trail.flush()
    stats = trail.stats
    assert (stats.drops, stats.errors, stats.pending) == ({"malformed": lost}, errors, 0)
    assert stats.accepted == stats.dropped
    assert caplog.text.count("tokentrail failed building a batch: division by zero") == 1
    trail.step(1, T0, T0, [])
    assert [span.attributes[semconv.STEP] for span in trail.spans(semconv.STEP_SPAN)] == [1]


def test_too_many_records_for_the_assembler_are_dropped_with_their_tokens(monkeypatch):
    trail = MemoryTrail()
    monkeypatch.setattr("tokentrail._record.recorder.MAX_ENTRIES", 6)
    requests = [start(trail), start(trail)]
    for number in range(4):
        trail.step(number, T0, T0, requests)
    assert trail.stats.drops == {"buffer_full": 9}
    trail.flush()
    assert trail.stats.accepted == 9 + 3 + 2


def test_an_attempt_at_once_is_one_attempt():
    attempts = []

    def dead(body):
        attempts.append(body)
        if len(attempts) == 1:
            queue.retry_at_once()
        else:
            threading.Timer(0.05, queue.close).start()
        return SendResult(SendStatus.RETRY, "dead", retry_after_s=300)

    queue = exporter(dead)
    queue.offer(Payload(b"a", 1))
    queue.run()
    assert len(attempts) == 2


def test_shutdown_does_not_wait_for_a_dead_collector():
    trail = MemoryTrail(SendResult(SendStatus.RETRY, "dead", retry_after_s=300))
    trail.step(0, T0, T0, [])
    begun = time.monotonic()
    assert trail.shutdown(0.05) is False
    assert time.monotonic() - begun < 5
    assert trail.stats.drops == {"shutdown": 1}


def test_a_body_that_the_collector_cannot_take_does_not_block_the_others():
    bodies = []

    def collector(body):
        if b"P" in body:
            return RETRY
        bodies.append(body)
        return DELIVERED

    queue = exporter(collector)
    queue.offer(Payload(b"aaaaaPaa", 8), Payload(b"bb", 2), Payload(b"cc", 2))
    run_out(queue)
    assert bodies[:2] == [b"bb", b"cc"]
    assert sorted(b"".join(bodies)) == sorted(b"aaaaaaabbcc")
    assert (queue.stats.exported, queue.stats.drops) == (11, {"refused": 1})
    assert queue.stats.accepted == 12


def test_nothing_is_split_while_the_collector_takes_nothing():
    transport = MemoryTransport(*[RETRY] * 60)
    queue = exporter(transport)
    queue.offer(Payload(b"aa", 2), Payload(b"bb", 2), Payload(b"cc", 2))
    run_out(queue)
    assert set(transport.attempts) == {b"aa", b"bb", b"cc"}
    assert transport.attempts[:6] == [b"aa"] * MAX_ATTEMPTS + [b"bb"]
    assert (queue.stats.exported, queue.stats.drops) == (6, {})


def test_a_payload_is_not_tried_for_ever(caplog):
    now = [0.0]
    queue = exporter(MemoryTransport(*[RETRY] * 3), clock=lambda: now[0])
    queue.offer(Payload(b"a", 1))
    now[0] = MAX_AGE_S - 1
    assert queue.attempt() > 0
    now[0] = MAX_AGE_S
    queue.offer(Payload(b"b", 1))
    queue.attempt()
    assert queue.stats.drops == {"expired": 1}
    assert queue.stats.queued == 1
    assert "lost 1 spans" in caplog.text


def test_a_payload_that_is_too_large_is_halved_at_once(caplog):
    bodies = []

    def collector(body):
        bodies.append(body)
        return DELIVERED if len(body) <= 2 else SendResult(SendStatus.TOO_LARGE, "413")

    queue = exporter(collector)
    assert queue.stats == TrailStats(0, 0, 0, {}, pending=0, abandoned=0, errors=0, left_out=0, sampled_out=0)
    queue.offer(Payload(b"abcdef", 6))
    run_out(queue)
    assert bodies == [b"abcdef", b"abc", b"def", b"a", b"bc", b"d", b"ef"]
    assert (queue.stats.exported, queue.stats.drops) == (6, {})
    assert "lost" not in caplog.text


def test_a_single_span_that_is_too_large_is_refused():
    queue = exporter(MemoryTransport(SendResult(SendStatus.TOO_LARGE, "413")))
    queue.offer(Payload(b"abcdef", 1))
    assert queue.attempt() == 0
    assert queue.stats.drops == {"refused": 1}


def test_the_room_of_a_delivered_payload_is_given_back():
    queue = exporter(MemoryTransport(), max_spans=10, max_bytes=100)
    for _ in range(30):
        assert queue.offer(Payload(b"x" * 100, 10)) == [True]
        queue.attempt()
    assert queue.stats.exported == 300


def test_the_first_retry_waits():
    queue = exporter(MemoryTransport(RETRY))
    queue.offer(Payload(b"a", 1))
    assert queue.attempt() >= 0.5


def test_a_log_handler_may_read_the_counts_in_another_thread():
    """A handler that queues its records, or that blocks until another thread has written them, does so."""
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            reader = threading.Thread(target=lambda: seen.append(queue.stats), daemon=True)
            reader.start()
            reader.join(120)

    queue = exporter(MemoryTransport(RETRY, REFUSED), max_spans=1)
    handler = Handler()
    logger.addHandler(handler)
    try:
        queue.offer(Payload(b"a", 1), Payload(b"b", 1))
        queue.attempt()
        queue.attempt()
    finally:
        logger.removeHandler(handler)
    assert len(seen) == 3  # full, tried again, refused


def test_drops_are_counted_under_the_lock():
    queue, done = exporter(MemoryTransport()), threading.Event()
    with queue.changed:
        thread = threading.Thread(target=lambda: (queue.drop(1, "late"), done.set()))
        thread.start()
        assert not done.wait(0.05)
    assert done.wait(120)
    thread.join()
    assert queue.stats.drops == {"late": 1}


def test_spans_that_sampling_left_out_are_accepted_and_no_drops():
    queue = exporter(MemoryTransport())
    queue.offer(Payload(b"a", 2), lost={SAMPLED_OUT: 3, "late": 1, "malformed": 0})
    stats = queue.stats
    assert (stats.accepted, stats.sampled_out, stats.drops, stats.dropped) == (6, 3, {"late": 1}, 1)
    queue.reset()
    assert queue.stats.sampled_out == 0
