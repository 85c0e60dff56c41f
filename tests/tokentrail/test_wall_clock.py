"""Spans follow a wall clock that was set, and no latency changes."""

import time

import pytest

from tests.tokentrail.support import MS
from tokentrail import now_ns, semconv
from tokentrail.testing import MemoryTrail


@pytest.fixture
def wall(monkeypatch):
    """Sets the wall clock, by seconds from what it really is."""
    real_ns = time.time_ns
    return lambda step_s: monkeypatch.setattr(time, "time_ns", lambda: real_ns() + step_s * 10**9)


@pytest.mark.parametrize(("step_s", "told"), [(9, False), (-9, False), (3600, True), (-3600, True)])
def test_a_wall_clock_that_was_set_is_told_and_changes_no_latency(step_s, told, wall, caplog):
    trail = MemoryTrail(clock=now_ns)
    with trail.request(operation="chat", model="m") as request:
        trail.flush()
        wall(step_s)
        request.token()
        trail.flush()
    (span,) = trail.spans("chat m")
    assert 0 <= span.duration_ns < 120 * 10**9
    assert abs(span.start_ns - now_ns()) < 120 * 10**9
    assert caplog.text.count(f"the system's clock went {step_s:+} s") == told


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_the_spans_of_new_requests_follow_a_wall_clock_that_was_set(step_s, wall):
    trail = MemoryTrail(clock=now_ns)
    wall(step_s)
    with trail.cold_start("m") as start, start.phase("load_weights"):
        pass
    with trail.request(operation="chat", model="m") as request:
        begun = now_ns()
        trail.step(1, begun, now_ns(), [request])
        request.choice(1).token()
        trail.kv_event(semconv.KvEvent.EVICT, blocks=1, reason="r", step=1, start_ns=begun)
        trail.flush()  # announces the request
        wall(0)
        trail.flush()
    spans = trail.spans()
    assert {span.name for span in spans} >= {
        "chat m",
        semconv.TOKEN_SPAN,
        semconv.STEP_SPAN,
        semconv.PHASE_SPAN,
        semconv.OPEN_SPAN,
        "tokentrail.kv.evict",
        "tokentrail.cold_start",
        "tokentrail.cold_start.load_weights",
    }
    for span in spans:
        assert abs(span.start_ns - time.time_ns() - step_s * 10**9) < 120 * 10**9, span.name
        assert 0 <= span.duration_ns < 120 * 10**9, span.name
        assert span.start_ns % 1000 == span.end_ns % 1000 == 0
    with trail.request(operation="chat", model="m"):
        pass
    assert abs(trail.spans("chat m")[-1].start_ns - time.time_ns()) < 120 * 10**9


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_stamps_that_a_caller_took_from_the_wall_clock_stay_as_they_are(step_s, wall):
    trail = MemoryTrail(clock=now_ns)
    wall(step_s)
    arrival = time.time_ns() // 1000 * 1000
    request = trail.start_request(operation="chat", model="m", arrival_ns=arrival)
    trail.step(1, arrival, arrival + MS, [request])
    request.end(arrival + 2 * MS)
    trail.flush()
    for name in ("chat m", semconv.TOKEN_SPAN, semconv.STEP_SPAN):
        assert [span.start_ns for span in trail.spans(name)] == [arrival], name
