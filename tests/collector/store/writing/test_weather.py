"""The store fails, hangs or is away, and the log cannot be read or released."""

import time

import pytest

from collector.store.insert import insert_otlp
from collector.wal.commit import GroupCommit, LogUnavailableError
from collector.wal.log import LogLimits, SegmentLog
from tests.collector.store.writing.written import WAIT_S, unreadable
from tests.support.otlp import Request, token_body


def test_a_store_that_fails_is_tried_until_it_takes_the_segment_and_is_not_ready_meanwhile(setup):
    reasons = []

    def fail_three_times(store, signal, body, token):
        if len(reasons) < 3:
            reasons.append(s.status.snapshot().reason)
            raise ConnectionError("connection refused")
        reasons.append(s.status.snapshot().reason)
        insert_otlp(store, signal, body, token)

    s = setup(insert=fail_three_times, max_wait_s=0.01)
    s.writer.write(s.segment(token_body(trace=1)))
    assert reasons[0] == ""
    assert all("connection refused" in reason for reason in reasons[1:])
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().ready
    assert s.dead() == {}


def test_a_store_that_was_away_for_long_is_tried_again_within_the_longest_wait(setup, monkeypatch):
    waits = []

    def away(store, signal, source, token):
        if len(waits) < 12:
            raise ConnectionError("connection refused")

    s = setup(insert=away)
    monkeypatch.setattr(s.writer, "_wait", waits.append)
    s.writer.write(s.segment(token_body(trace=1)))
    assert waits[0] < 1
    assert waits[-1] == max(waits) == 10.0


def test_an_insert_that_ends_after_two_minutes_makes_the_collector_not_ready_for_the_rest_of_it(setup):
    now_s, reasons = [1000.0], []

    def slow(store, signal, body, token):
        for seconds in (119.0, 1.0, 30.0):
            now_s[0] += seconds
            reasons.append(s.status.snapshot().reason)
        insert_otlp(store, signal, body, token)

    s = setup(insert=slow)
    s.status.monotonic_s = lambda: now_s[0]
    s.writer.write(s.segment(token_body(trace=1)))
    answer = "the traces store has not answered for {} s"
    assert reasons == ["", answer.format(120), answer.format(150)]
    assert s.status.snapshot().ready
    assert s.tokens() == {1: 3}


def test_a_file_that_is_damaged_while_the_store_is_away_makes_no_other_rows(setup):
    sources = []

    def fail_once(store, signal, body, token):
        sources.append(body)
        if len(sources) == 1:
            body.write_bytes(body.read_bytes().replace(b"a model", b"A model"))
            raise ConnectionError("connection refused")
        insert_otlp(store, signal, body, token)

    s = setup(insert=fail_once, max_wait_s=0.01)
    payload = Request(model="a model").tokens().body()
    s.writer.write(s.segment(payload))
    assert sources[1] == payload
    assert s.tokens() == {1: 3}


def test_a_segment_with_a_damaged_frame_gives_the_others(setup):
    s = setup()
    segment = s.segment(token_body(trace=1), b"to be damaged", token_body(trace=2))
    segment.path.write_bytes(segment.path.read_bytes().replace(b"damaged", b"dAmaged"))
    after_a_restart = setup()
    after_a_restart.writer.write(after_a_restart.log.next_sealed(0))
    assert s.tokens() == {1: 3, 2: 3}
    assert ["checksum" in why["reason"] for why in s.dead().values()] == [True]


def test_a_segment_that_cannot_be_released_is_announced_once(setup, monkeypatch):
    s = setup()
    segment = s.segment(token_body(trace=1), unreadable(9))
    release = s.log.release
    monkeypatch.setattr(s.log, "release", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        s.writer.write(segment)
    monkeypatch.setattr(s.log, "release", release)
    s.writer.write(segment)
    assert s.segments == [f"{segment.id}.0"]
    assert s.tokens() == {1: 3}
    assert s.log.pending == (0, 0)


def test_an_error_of_any_kind_is_told_and_the_thread_goes_on(setup, monkeypatch, caplog):
    s, told, read = setup(max_wait_s=0.01), [], SegmentLog.read

    def fail_once(*args):
        if not told:
            told.append("")
            raise ZeroDivisionError("a mistake")
        told.append(s.status.snapshot().reason)
        return read(*args)

    monkeypatch.setattr(s.log, "read", lambda segment: fail_once(s.log, segment))
    s.segment_that_waits(token_body(trace=1))
    s.writer.start()
    assert s.writer.stop(WAIT_S)
    assert "a segment of traces cannot be written: ZeroDivisionError('a mistake')" in told[1]
    assert "Traceback" in caplog.text
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().ready


def test_a_log_that_cannot_be_read_is_told_and_read_again_a_second_later(setup, monkeypatch):
    s, waits, read = setup(), [], SegmentLog.read

    def wait(seconds):
        waits.append((seconds, s.status.snapshot().reason))

    def fail_once(segment):
        if not waits:
            raise OSError("disk")
        return read(s.log, segment)

    monkeypatch.setattr(s.log, "read", fail_once)
    monkeypatch.setattr(s.writer._give_up, "wait", wait)
    s.segment_that_waits(token_body(trace=1))
    s.writer.start()
    assert s.writer.stop(WAIT_S)
    assert waits == [(1.0, "the log of traces cannot be read or released: disk")]
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().ready


def test_a_failing_callback_stops_nothing(setup, caplog):
    s = setup()
    s.writer.on_segment(lambda segment: 1 / 0)
    s.writer.write(s.segment(token_body(trace=1)))
    assert s.log.pending == (0, 0)
    assert "ZeroDivisionError" in caplog.text


def test_draining_gives_up_on_a_store_that_is_away_and_keeps_the_segments(setup):
    def away(store, signal, body, token):
        raise ConnectionError("away")

    s = setup(insert=away)
    s.segment(token_body(trace=1))
    s.writer.start()
    assert s.status.snapshot().wal_segments_pending == 1, "it counts although nothing has been sent to this process"
    assert s.status.snapshot().behind == ""
    s.status.unix_ns = lambda: time.time_ns() + 3600 * 10**9
    assert "MB of traces wait for the store, the oldest for 36" in s.status.snapshot().behind
    assert not s.writer.stop(timeout_s=0.2)
    assert s.log.pending[0] == 1
    s.writer._thread.join(WAIT_S)
    assert not s.writer._thread.is_alive()


def test_a_full_log_is_ready_again_when_the_store_has_taken_something(setup):
    s = setup()
    segment = s.segment(token_body(trace=1))
    s.log.limits = LogLimits(max_bytes=1)
    with pytest.raises(LogUnavailableError, match="full"):
        GroupCommit("traces", s.log, s.status).submit(b"another")
    assert "the log of traces is full" in s.status.snapshot().reason
    s.status.unix_ns = lambda: time.time_ns() + 3600 * 10**9
    s.writer.write(segment)
    assert s.status.snapshot().ready
    assert s.status.snapshot().behind == ""
