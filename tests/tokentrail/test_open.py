"""Requests that are open: their announcements, and their end when nobody ends them."""

import gc
import time

import pytest
from opentelemetry.trace import SpanKind

from tests.tokentrail.support import MS, T0, start
from tokentrail import Phase, Status, semconv
from tokentrail._build.announce import ANNOUNCE_AFTER_NS, ANNOUNCE_EVERY_NS
from tokentrail.testing import MemoryTrail

S = 1_000 * MS


def announced(trail, clock, until_s):
    """The ages (s) at which the open requests were announced, looking once a second."""
    seen = []
    for second in range(until_s):
        clock.now = T0 + second * S
        seen += [span.duration_ns // S for span in _new_spans(trail) if span.name == semconv.OPEN_SPAN]
    return seen


def _new_spans(trail):
    before = len(trail.transport.bodies)
    trail.flush(0)
    bodies = trail.transport.bodies
    trail.transport.bodies = bodies[before:]
    new = trail.transport.spans()
    trail.transport.bodies = bodies
    return new


def test_announcements_back_off(trail, clock):
    request = start(trail)
    assert announced(trail, clock, 80) == [0, 5, 15, 35, 55, 75]
    request.end(clock.now)


def test_the_collector_hears_of_an_open_request_in_time():
    """Its default silence after which a request is lost is 30 s; building and sending take some of it."""
    assert ANNOUNCE_AFTER_NS < ANNOUNCE_EVERY_NS <= 20 * S


def test_an_announcement_of_many_requests_is_one_payload(trail, clock):
    requests = [start(trail, request_id=f"r{'x' * number}", input_tokens=number) for number in range(300)]
    trail.step(0, T0, T0 + 2 * MS, requests[:100])
    trail.flush()
    clock.now += 5 * S
    bodies = len(trail.transport.bodies)
    trail.flush()
    assert len(trail.transport.bodies) == bodies + 1
    spans = trail.spans(semconv.OPEN_SPAN)[300:]
    assert len(spans) == 300
    for number, request in enumerate(requests):
        (span,) = [one for one in spans if one.parent_id == request.span_id]
        assert span.trace_id == request.trace_id
        assert span.attributes[semconv.RESPONSE_ID] == f"r{'x' * number}"
        assert span.attributes[semconv.INPUT_TOKENS] == number
        assert span.attributes[semconv.OUTPUT_TOKENS] == int(number < 100)
        assert span.attributes.get(semconv.TIME_TO_FIRST_TOKEN) == (0.002 if number < 100 else None)


@pytest.mark.parametrize("kind", [SpanKind.SERVER, SpanKind.CLIENT, SpanKind.INTERNAL])
def test_an_announcement_has_the_kind_of_its_request(trail, clock, kind):
    fresh, begun = start(trail, kind=kind), start(trail, kind=kind)
    trail.step(0, T0, T0 + 2 * MS, [begun])
    trail.flush()
    clock.now += 5 * S
    assert [span.message.kind for span in trail.spans(semconv.OPEN_SPAN)] == [kind.value + 1] * 4
    fresh.end(clock.now)
    (ended,) = trail.spans("chat m")
    assert ended.message.kind == kind.value + 1


def test_the_heir_of_a_slot_is_announced_on_its_own_arrival(trail, clock):
    first = start(trail)
    trail.flush()
    first.end(T0)
    trail.flush()
    second = start(trail, request_id="heir")
    trail.flush()
    assert (second.slot == trail.transport.spans() and False) or len(trail.spans(semconv.OPEN_SPAN)) == 2
    assert trail.spans(semconv.OPEN_SPAN)[1].attributes[semconv.RESPONSE_ID] == "heir"


def test_slots_are_reused(trail):
    for number in range(2_000):
        start(trail, request_id=str(number)).end(T0)
        if number % 100 == 0:
            trail.flush()
    assert trail._pipeline._assembler.bench.slots.capacity == 256


def test_a_request_that_its_engine_forgot_ends_as_abandoned(trail, clock):
    request = start(trail, request_id="forgotten")
    request.phase(Phase.DECODE, T0 + MS)
    trail.step(0, T0, T0 + 2 * MS, [request])
    trail.flush()
    assert trail.spans("chat m") == []
    del request
    gc.collect()
    clock.now = T0 + 7 * MS
    trail.flush()
    (span,) = trail.spans("chat m")
    assert span.attributes[semconv.ERROR_TYPE] == semconv.ABANDONED
    assert span.attributes[semconv.STATUS] == Status.ERROR
    assert span.duration_ns == 7 * MS
    assert span.attributes[semconv.OUTPUT_TOKENS] == 1
    assert [phase.attributes[semconv.PHASE_NAME] for phase in trail.spans(semconv.PHASE_SPAN)] == ["queued", "decode"]
    assert trail.stats.abandoned == 1
    clock.now += 60 * S
    assert len(trail.spans(semconv.OPEN_SPAN)) == 1


def test_a_request_that_is_too_old_ends_as_abandoned(clock):
    trail = MemoryTrail(clock=clock, max_request_age_s=60)
    request = start(trail)
    assert max(announced(trail, clock, 200)) == 75
    (span,) = trail.spans("chat m")
    assert (span.attributes[semconv.ERROR_TYPE], trail.stats.abandoned) == (semconv.ABANDONED, 1)
    request.end(clock.now)
    trail.flush()
    assert len(trail.spans("chat m")) == 1


def test_a_request_open_at_shutdown_ends_as_abandoned(trail, clock, caplog):
    request, ended = start(trail), start(trail)
    ended.end(T0 + MS)
    clock.now = T0 + 3 * MS
    assert trail.shutdown()
    spans = {span.span_id: span for span in trail.transport.spans("chat m")}
    assert spans[request.span_id].attributes[semconv.ERROR_TYPE] == semconv.ABANDONED
    assert spans[request.span_id].duration_ns == 3 * MS
    assert semconv.ERROR_TYPE not in spans[ended.span_id].attributes
    assert (trail.stats.abandoned, trail.stats.pending, trail.stats.dropped) == (1, 0, 0)
    assert "tokentrail ends without" not in caplog.text


def test_a_request_that_ended_is_not_abandoned(trail):
    request = start(trail)
    request.end(T0 + MS)
    del request
    gc.collect()
    trail.flush()
    trail.shutdown()
    assert trail.stats.abandoned == 0
    assert len(trail.transport.spans("chat m")) == 1


@pytest.mark.parametrize(
    ("stamp", "meant"),
    [
        (T0 // 10**9, "seconds in place"),
        (T0 // 10**6, "milliseconds in place"),
        (T0 // 10**3, "microseconds in place"),
        (T0 * 3, "unknown in place"),
    ],
)
def test_stamps_far_from_now_are_counted_and_said_once(trail, caplog, stamp, meant):
    trail.step(0, stamp, stamp, [])
    trail.step(1, T0, T0, [])
    trail.step(2, T0, stamp, [])
    trail.flush()
    trail.step(3, stamp, stamp, [])
    trail.flush()
    (message,) = [record.message for record in caplog.records if "far from now" in record.message]
    assert meant in message
    assert trail.stats.errors >= 4


def test_stamps_of_a_monotonic_clock_are_named(trail, caplog):
    start(trail, arrival_ns=time.monotonic_ns()).end(T0)
    trail.flush()
    assert "nanoseconds of time.monotonic" in caplog.text
    assert trail.stats.errors == 1


def test_stamps_of_tokens_without_a_step_are_checked_too(trail, caplog):
    request = start(trail)
    request.tokens([time.monotonic_ns()] * 3)
    trail.flush()
    assert "nanoseconds of time.monotonic" in caplog.text
    assert trail.stats.errors == 3


def test_stamps_within_a_day_are_no_mistake(trail):
    day = 86_400 * S
    trail.step(0, T0 - day, T0 + day, [])
    trail.flush()
    assert trail.stats.errors == 0
    trail.step(0, T0 - day - MS, T0, [])
    trail.flush()
    assert trail.stats.errors == 1
