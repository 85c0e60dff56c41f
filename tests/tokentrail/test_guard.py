"""The clock, and where errors go."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

from tests.tokentrail.support import T0
from tokentrail import Trail, now_ns
from tokentrail._host.clock import floored
from tokentrail._host.guard import Guard, Throttle
from tokentrail._send.http import Endpoint
from tokentrail.config import Settings
from tokentrail.testing import ManualClock, MemoryTransport


def test_the_clock_is_wall_time_in_whole_microseconds_and_never_goes_back():
    stamps = [now_ns() for _ in range(1_000)]
    assert stamps == sorted(stamps)
    assert all(stamp % 1_000 == 0 for stamp in stamps)
    assert abs(stamps[-1] - time.time_ns()) < 60 * 10**9


@given(st.one_of(st.integers(), st.floats(allow_nan=False)))
def test_any_number_becomes_a_stamp_that_fits_the_wire(number):
    assert 0 <= floored(number) < 2**63
    assert type(floored(number)) is int
    assert floored(number) % 1_000 == 0
    if 0 <= number < 2**63 and isinstance(number, int):
        assert number - 1_000 < floored(number) <= number


def test_a_message_passes_once_per_key_and_interval():
    clock = ManualClock(0)
    throttle = Throttle(60.0, clock)
    assert [throttle.allows("a"), throttle.allows("b"), throttle.allows("a")] == [True, True, False]
    clock.advance(60)
    assert throttle.allows("a")


def test_a_strict_trail_raises_at_the_next_flush_what_failed_in_the_background(monkeypatch):
    raised = threading.Event()
    monkeypatch.setattr("threading.excepthook", lambda args: raised.set())
    trail = Trail(
        Settings(Endpoint("http://collector.invalid", {}), strict=True, schedule_delay_s=0.001),
        TracerProvider(shutdown_on_exit=False),
        transport=MemoryTransport(ValueError("broken transport")),
    )
    trail.step(0, T0, T0, [])
    assert raised.wait(120)
    with pytest.raises(ValueError, match="broken transport"):
        trail.flush()
    assert trail.stats.drops == {"refused": 1}
    with pytest.raises(ValueError, match="broken transport"):
        trail.shutdown()


def test_a_tolerant_guard_counts_and_logs(caplog):
    guard = Guard()
    guard.failed("testing", RuntimeError("oops"))
    guard.failed("testing", RuntimeError("again"))
    guard.misuse("nonsense", object)
    assert guard.errors == 3
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "oops" in caplog.text
