"""Segments become rows and leave the log: one, a backlog of them, or one of many days."""

import pytest

from collector.store.insert import insert_otlp
from collector.wal.frame import Frame, digest_of
from tests.collector.store.writing.written import WAIT_S, unreadable
from tests.support.otlp import T0, Request, token_body


def test_a_segment_becomes_rows_and_leaves_the_log(setup):
    s = setup()
    segment = s.segment(token_body(trace=1), token_body(trace=2))
    s.writer.write(segment)
    assert s.tokens() == {1: 3, 2: 3}
    assert s.segments == [segment.id]
    assert s.log.pending == (0, 0)
    assert not s.writer._stored, "the tokens of all segments would fill the memory"
    snapshot = s.status.snapshot()
    assert (snapshot.segments_inserted, snapshot.ready) == (1, True)
    assert snapshot.last_insert_unix_s > 0


def test_a_segment_of_many_days_is_several_inserts(setup):
    day = 86_400 * 10**9
    s = setup()
    starts = [T0 - n * 40 * day for n in range(5)]
    bodies = [token_body(trace=n + 1, start=start) for n, start in enumerate(starts)]
    s.log.append([Frame(digest_of(body), body, (at // day,) * 2) for body, at in zip(bodies, starts, strict=True)])
    s.log.seal()
    segment = s.log.next_sealed(0)
    s.writer.write(segment)
    assert s.tokens() == dict.fromkeys(range(1, 6), 3)
    assert s.segments == [f"{segment.id}.d0", f"{segment.id}.d1"]


def test_a_payload_of_more_days_than_an_insert_may_have_by_default_is_stored(setup):
    """`--max-payload-days` allows it."""
    request = Request()
    for day in range(101):
        request.span("on a day", trace=day + 1, start=T0 - day * 86_400 * 10**9)
    s = setup()
    s.store.client().command("TRUNCATE TABLE spans")
    s.writer.write(s.segment(request.body()))
    assert s.store.query("SELECT uniqExact(trace_id) FROM spans").result_rows == [(101,)]
    assert s.dead() == {}


def test_a_writer_forgets_the_tokens_of_a_segment_that_is_stored(setup):
    s = setup()
    for trace in (1, 2):
        s.writer.write(s.segment(token_body(trace=trace), unreadable(trace + 7)))
        assert not s.writer._stored
        assert not s.writer._set_aside


def test_draining_writes_what_is_sealed(setup):
    s = setup()
    for trace in (1, 2, 3):
        s.segment(token_body(trace=trace))
    s.writer.start()
    assert s.writer.stop(timeout_s=30.0)
    assert s.tokens() == {1: 3, 2: 3, 3: 3}


def test_a_backlog_is_one_insert(setup):
    s = setup()
    for trace in range(1, 6):
        s.segment_that_waits(token_body(trace=trace))
    s.writer.start()
    assert s.writer.stop(timeout_s=30.0)
    assert s.tokens() == dict.fromkeys(range(1, 6), 3)
    assert len(s.segments) == s.status.snapshot().segments_inserted == 1
    assert s.log.pending == (0, 0)
    sql = "SELECT count() FROM system.parts WHERE table = 'tokens' AND active"
    assert s.store.query(sql).result_rows == [(1,)]


def test_a_segment_is_written_under_the_lock_that_a_pause_takes(setup):
    locked = []

    def look(store, signal, source, token):
        locked.append(s.writer._writing.locked())

    s = setup(insert=look)
    s.segment_that_waits(token_body(trace=1))
    s.writer.start()
    assert s.writer.stop(WAIT_S)
    assert locked == [True]


def test_a_crash_behind_the_insert_of_a_backlog_adds_nothing_twice(setup):
    def crash_after_the_insert(store, signal, body, token):
        insert_otlp(store, signal, body, token)
        raise KeyboardInterrupt

    s = setup()
    for trace in (1, 2, 3):
        s.segment_that_waits(token_body(trace=trace))
    s.log.merge_waiting()
    with pytest.raises(KeyboardInterrupt):
        s.another_writer(insert=crash_after_the_insert).write(s.log.next_sealed(0))
    after = setup()
    after.segment_that_waits(token_body(trace=4))
    after.writer.start()
    assert after.writer.stop(timeout_s=30.0)
    assert s.tokens() == {1: 3, 2: 3, 3: 3, 4: 3}
