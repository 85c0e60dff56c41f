"""The build: its counts, its time-outs, and those who call it at a bad moment."""

import gc
import threading
import time
import weakref
from collections import Counter

import pytest
from opentelemetry.sdk.trace import TracerProvider

from tests.tokentrail.support import MS, T0, start
from tokentrail import Trail, semconv
from tokentrail._build.sampling import Sampling
from tokentrail._host.gate import BREAK_S, WORK_S, Breaks, Gate
from tokentrail._send.http import Endpoint
from tokentrail.config import Settings
from tokentrail.testing import MemoryTrail, MemoryTransport, SendResult, SendStatus, parse_spans

RETRY = SendResult(SendStatus.RETRY, "503")
REFUSED = SendResult(SendStatus.REFUSED, "400")


def background_trail(transport=None, **settings):
    settings = {"schedule_delay_s": 0.01, "strict": True} | settings
    return Trail(
        Settings(Endpoint("http://collector.invalid", {}), **settings),
        TracerProvider(shutdown_on_exit=False),
        transport=transport or MemoryTransport(),
        clock=lambda: T0,
    )


@pytest.fixture
def stuck():
    """A trail that stays in the middle of building a batch until `go` is set."""
    trail, entered, go = background_trail(schedule_delay_s=60), threading.Event(), threading.Event()

    def compress(body):
        entered.set()
        go.wait(120)
        return body

    trail._pipeline._compress = compress
    trail.entered, trail.go = entered, go
    yield trail
    go.set()
    trail.shutdown()


def balanced(stats):
    settled = stats.exported + stats.dropped + stats.sampled_out
    return stats.accepted == settled + stats.queued + stats.pending


def test_what_waits_and_what_is_being_built_is_accepted(trail):
    requests = [start(trail), start(trail)]
    trail.step(0, T0, T0 + MS, requests, counts=[3, 1])
    requests[0].end(T0 + MS)
    assert (trail.stats.accepted, trail.stats.pending) == (6, 6)  # a step, four tokens, an ended request
    during = []
    trail._pipeline._compress = lambda body: during.append(trail.stats) or body
    trail.flush()
    assert [stats.accepted for stats in during] == [6, 6, 6]  # tokens, steps and requests are compressed one by one
    assert [stats.pending for stats in during] == [6, 6, 1]
    assert all(balanced(stats) for stats in during)
    assert (trail.stats.accepted, trail.stats.pending) == (8, 0)  # with the phase, and the announcement of the other


def test_a_flush_ends_in_time_though_the_build_does_not(stuck):
    stuck.step(0, T0, T0, [])
    assert not stuck.entered.wait(0.05), "nothing is built before the delay, unless somebody asks"
    assert stuck.flush(0.01) is False
    assert stuck.entered.wait(120)
    assert (stuck.stats.accepted, stuck.stats.pending) == (1, 1)
    stuck.go.set()
    assert stuck.flush(120)
    assert stuck.stats.exported == 1


def test_a_shutdown_ends_in_time_and_counts_what_was_not_built(stuck, caplog):
    for _ in range(40_000):
        stuck.step(0, T0, T0, [])
    assert stuck.flush(0.01) is False
    assert stuck.entered.wait(120)
    assert stuck.shutdown(0.01) is False
    assert "tokentrail ends without 40000 spans" in caplog.text
    assert balanced(stuck.stats)
    assert stuck.stats.pending <= 16_000  # the batch that is being built; the others are dropped at once
    stuck.go.set()
    for _ in range(12_000):
        if not stuck.stats.pending:
            break
        time.sleep(0.01)
    assert (stuck.stats.accepted, stuck.stats.drops) == (40_000, {"shutdown": 40_000})


def test_a_shutdown_stops_the_build_after_the_batch(stuck):
    """60,000 ended requests take seconds to build."""
    for _ in range(2_000):
        start(stuck).end(T0 + MS)
    assert stuck.shutdown(0.01) is False
    built = []
    stuck._pipeline._compress = lambda body: built.append(1) or body
    stuck.go.set()
    assert len(built) <= 1


def test_a_batch_holds_few_ended_requests(trail):
    bodies = Counter()
    trail._pipeline._compress = lambda body: bodies.update([len(trail._pipeline._batch)]) or body
    for _ in range(2_000):
        start(trail).end(T0 + MS)
    trail.flush()
    assert max(bodies) < 600
    assert len(trail.spans("chat m")) == 2_000


def test_a_thread_that_waits_at_the_gate_comes_before_the_one_that_returns():
    gate, order = Gate(), []
    assert gate.acquire()

    def other():
        gate.acquire()
        order.append("other")
        gate.release()

    thread = threading.Thread(target=other)
    thread.start()
    while not gate._next.locked():
        time.sleep(0.001)
    gate.release()
    assert gate.acquire()
    order.append("again")
    thread.join()
    assert order == ["other", "again"]


def test_the_gate_tells_its_owner_that_it_is_inside():
    gate = Gate()
    assert gate.acquire()
    assert gate.acquire() is False
    gate.release()
    assert gate.acquire()


def test_a_break_is_taken_once_the_work_has_lasted():
    now, slept = [10.0], []

    def sleep(seconds):
        slept.append((round(now[0], 6), seconds))
        now[0] += 0.5  # the thread that waited works for so long

    take_break = Breaks(lambda: now[0], sleep)
    for _ in range(8):
        take_break()
        now[0] += WORK_S / 2.9
    assert slept == [(10.0, BREAK_S), (round(10.5 + 3 * WORK_S / 2.9, 6), BREAK_S), (11.002069, BREAK_S)]


def test_a_build_takes_breaks_between_its_requests_announcements_and_payloads(trail, clock):
    """Only the assembler thread waits: a test's trail and a flush without threads do not."""
    calls = []
    assert trail._pipeline._take_break() is None
    trail._pipeline._take_break = trail._pipeline._assembler.bench.take_break = lambda: calls.append(1)
    requests = [start(trail) for _ in range(1_200)]
    trail.flush()
    assert len(calls) >= 1_200  # the attributes of each first announcement
    calls.clear()
    clock.now += 5_000 * MS
    trail.flush()
    assert len(trail.spans(semconv.OPEN_SPAN)) == 2_400
    assert len(calls) >= 3
    calls.clear()
    for request in requests:
        request.end(clock.now)
    trail.flush()
    assert len(calls) >= 1_200
    background = background_trail()
    assert isinstance(background._pipeline._assembler.bench.take_break, Breaks)
    background.shutdown()


def test_a_flush_within_a_build_does_not_deadlock(trail):
    answers = []
    trail._pipeline._compress = lambda body: answers.append(trail.flush(0)) or body
    trail.step(0, T0, T0, [])
    trail.flush()
    assert answers == [False]


@pytest.mark.parametrize("lock", ["_exporter.changed", "_pipeline._asked"])
def test_a_signal_handler_may_shut_down_wherever_it_interrupts(lock):
    """The handler runs in the thread that may hold the lock."""
    trail = background_trail()
    owner, name = lock.split(".")
    trail.step(0, T0, T0, [])
    with getattr(getattr(trail, owner), name):
        trail.shutdown(0.01)
    assert balanced(trail.stats)


def test_a_trail_that_is_shut_down_can_be_freed():
    others = {*threading.enumerate()}  # threads of earlier trails may still try to send
    trail = background_trail()
    own = {*threading.enumerate()} - others
    assert {thread.name.partition("-")[0] for thread in own} == {"tokentrail"}
    trail.shutdown()
    for thread in own:
        thread.join(120)
    freed = weakref.ref(trail)
    del trail
    gc.collect()
    assert freed() is None


def test_several_threads_record_on_one_trail():
    transport = MemoryTransport()
    trail = background_trail(transport)

    def engine(number):
        request = start(trail, request_id=str(number))
        for step in range(300):
            trail.step(step, T0, T0 + step * MS, [request])
        request.end(T0 + 299 * MS)

    threads = [threading.Thread(target=engine, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trail.shutdown(120)
    tokens = Counter(token.parent_id for token in transport.spans(semconv.TOKEN_SPAN))
    assert sorted(tokens.values()) == [300] * 8
    assert len(transport.spans(semconv.STEP_SPAN)) == 2_400
    requests = transport.spans("chat m")
    assert {span.attributes[semconv.RESPONSE_ID] for span in requests} == {str(number) for number in range(8)}
    assert all(span.attributes[semconv.OUTPUT_TOKENS] == 300 for span in requests)
    assert trail.stats.accepted == trail.stats.exported


def test_the_counts_balance_and_accepted_never_falls_while_threads_record_a_sample():
    """Spans that sampling leaves out stay in `accepted`."""
    transport = MemoryTransport(RETRY, REFUSED)
    sampling = Sampling(rate=0.5, token_rate=0.5)
    trail = background_trail(transport, schedule_delay_s=0.001, sampling=sampling, max_queue_spans=3_000)
    recording = threading.Event()
    recording.set()
    seen = []

    def engine():
        for _ in range(60):
            requests = [start(trail) for _ in range(5)]
            for step in range(10):
                trail.step(step, T0, T0 + step * MS, requests)
            for request in requests:
                request.end(T0 + 9 * MS)

    def read():
        while recording.is_set():
            seen.append(trail.stats)
            time.sleep(0)  # until another thread has run, nothing changes

    engines, reader = [threading.Thread(target=engine) for _ in range(4)], threading.Thread(target=read)
    for thread in (reader, *engines):
        thread.start()
    for thread in engines:
        thread.join()
    trail.shutdown(120)
    recording.clear()
    reader.join()
    seen.append(trail.stats)
    assert [stats for stats in seen if not balanced(stats)] == []
    accepted = [stats.accepted for stats in seen]
    assert accepted == sorted(accepted)
    assert (seen[-1].pending, seen[-1].queued) == (0, 0)
    assert seen[-1].left_out > 300
    assert seen[-1].sampled_out > seen[-1].left_out + 3_000
    assert seen[-1].accepted >= 4 * 60 * (10 * 6 + 5)


def test_a_flush_builds_all_batches(trail):
    requests = [start(trail) for _ in range(50)]
    for step in range(800):
        trail.step(step, T0, T0 + step * MS, requests)
    trail.flush()
    tokens = trail.transport.spans(semconv.TOKEN_SPAN, parent=requests[7])
    assert [token.token_index for token in tokens] == list(range(800))
    assert sum(token.duration_ns for token in tokens) == 799 * MS
    assert trail.stats.exported == 800 * 51 + 50


@pytest.mark.parametrize("limit", [{"max_queue_spans": 2_048}, {"max_queue_bytes": 100_000}, {"max_queue_spans": 256}])
@pytest.mark.parametrize("background", [True, False])
def test_payloads_fit_a_small_queue(limit, background):
    class Slow(MemoryTransport):
        def __call__(self, body):
            time.sleep(0.01)
            return super().__call__(body)

    # A build waits for room as long as the delay, which must outlast a busy machine's pauses.
    trail = background_trail(Slow(), schedule_delay_s=60, **limit) if background else MemoryTrail(**limit)
    requests = [start(trail) for _ in range(20)]
    for step in range(150):
        trail.step(step, T0, T0 + step * MS, requests)
    for request in requests:
        request.end(T0 + 200 * MS)
    assert trail.flush(120)
    assert trail.stats.drops == {}
    assert trail.stats.exported >= 150 * 21 + 40
    trail.shutdown()


def test_a_payload_is_an_eighth_of_a_small_queue_at_most():
    few_spans, few_bytes = MemoryTrail(max_queue_spans=2_048), MemoryTrail(max_queue_bytes=100_000)
    for trail in (few_spans, few_bytes):
        trail.step(0, T0, T0 + MS, [start(trail)], counts=[1_500])
        trail.flush()
    assert max(len(parse_spans(body)) for body in few_spans.transport.bodies) == 256
    assert 11_000 < max(map(len, few_bytes.transport.bodies)) <= 12_500 + 200  # the resource and the scope


def test_tokens_are_shed_before_requests_and_a_request_says_how_many_it_lost():
    trail = MemoryTrail(*[RETRY] * 500, max_queue_spans=400)
    requests = []
    for number in range(60):
        request = start(trail, request_id=str(number))
        requests.append(request)
        for step in range(10):
            trail.step(step, T0, T0 + (step + 1) * MS, [request])
        request.end(T0 + 10 * MS)
        trail.flush(0)
    trail.transport.answers.clear()
    spans = trail.spans("chat m")
    spans.sort(key=lambda span: int(span.attributes[semconv.RESPONSE_ID]))
    assert [span.attributes[semconv.RESPONSE_ID] for span in spans] == [str(number) for number in range(60)]
    assert all(span.attributes[semconv.OUTPUT_TOKENS] == 10 for span in spans)
    assert all(span.attributes[semconv.TIME_TO_LAST_TOKEN] == 0.01 for span in spans)
    told = sum(span.attributes.get(semconv.DROPPED_TOKENS, 0) for span in spans)
    sent = len(trail.spans(semconv.TOKEN_SPAN))
    steps = len(trail.spans(semconv.STEP_SPAN))
    drops = trail.stats.drops
    assert set(drops) == {"buffer_full", "displaced"}
    assert sum(drops.values()) == (600 - sent) + (600 - steps)
    assert 0 < 600 - sent - told <= drops["displaced"]  # queued when their requests were encoded
    assert told > 0
    assert semconv.DROPPED_TOKENS not in spans[0].attributes


def test_a_request_says_which_tokens_found_no_room_in_the_queue():
    """Nothing is displaced here: tokens stop at three quarters of the queue."""
    trail = MemoryTrail(*[RETRY] * 500, max_queue_spans=1_000, max_payload_spans=10)
    whole, cut = start(trail), start(trail)
    trail.step(0, T0, T0 + MS, [whole], counts=[700])
    trail.flush(0)
    trail.step(1, T0, T0 + 2 * MS, [cut], counts=[100])
    cut.end(T0 + 2 * MS)
    whole.end(T0 + 2 * MS)
    trail.flush(0)
    trail.transport.answers.clear()
    of = {span.span_id: span.attributes for span in trail.spans("chat m")}
    assert semconv.DROPPED_TOKENS not in of[whole.span_id]
    assert of[cut.span_id][semconv.OUTPUT_TOKENS] == 100
    assert of[cut.span_id][semconv.DROPPED_TOKENS] == 100 - len(trail.spans(semconv.TOKEN_SPAN, parent=cut))
    assert 0 < of[cut.span_id][semconv.DROPPED_TOKENS] < 100


def test_a_request_says_which_tokens_the_full_buffer_did_not_take(trail, monkeypatch):
    monkeypatch.setattr("tokentrail._record.recorder.MAX_ENTRIES", 6)
    request = start(trail)
    for number in range(4):
        trail.step(number, T0, T0 + (number + 1) * MS, [request], counts=[2])
    request.end(T0 + 4 * MS)
    (span,) = trail.spans("chat m")
    assert (span.attributes[semconv.OUTPUT_TOKENS], span.attributes[semconv.DROPPED_TOKENS]) == (4, 4)
    assert span.attributes[semconv.TIME_TO_LAST_TOKEN] == 0.002


def test_the_memory_of_a_batch_is_used_again(trail):
    request = start(trail)
    for step in range(20):
        trail.step(step, T0, T0 + (step + 1) * MS, [request], counts=[50])
        trail.flush()
    assert trail._pipeline._assembler.bench.buffer._used < 20_000  # a batch has 51 spans
