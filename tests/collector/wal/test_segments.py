"""Payloads come out in order, by segments that are due by age or by size."""

import threading

import pytest

from tests.collector.wal.opened import SECOND, WAIT_S, frames, sealed, waiting


def test_payloads_come_out_in_order_one_segment_at_a_time(reopen, tmp_path):
    log = reopen()
    log.append(frames(b"a", b"b"))
    log.seal()
    log.append(frames(b"c"))
    log.seal()
    assert log.pending[0] == 2
    assert sealed(log) == [[b"a", b"b"], [b"c"]]
    assert log.pending == (0, 0)
    assert [path.suffix for path in (tmp_path / "wal").iterdir()] == [".inserted"] * 2, "the disk gets its room back"


def test_what_was_durable_survives_a_crash_and_is_sealed_on_reopening(reopen):
    reopen().append(frames(b"a", b"b"))
    assert sealed(reopen()) == [[b"a", b"b"]]


def test_a_segment_id_is_the_same_after_a_restart(reopen):
    reopen().append(frames(b"a"))
    assert reopen().next_sealed(0).id == reopen().next_sealed(0).id


def test_segment_ids_go_up_when_the_clock_goes_back(reopen, clock):
    log = reopen()
    log.append(frames(b"a"))
    log.seal()
    clock.ns -= 3600 * SECOND
    log.append(frames(b"b"))
    log.seal()
    assert sealed(log) == [[b"a"], [b"b"]]
    again = reopen()
    again.append(frames(b"c"))
    again.seal()
    names = sorted(path.stem for path in again._folder.iterdir())
    assert names[-1] == again.next_sealed(0).id


def test_a_segment_is_due_by_age_or_by_size(reopen, clock):
    log = reopen(segment_bytes=1000, segment_age_s=2.0)
    assert log.seal_due_in_s() is None
    log.append(frames(b"a"))
    assert log.seal_due_in_s() == pytest.approx(2.0)
    clock.go_on(3)
    assert log.seal_due_in_s() == 0.0
    log.seal()
    log.append(frames(b"b" * 1000))
    assert log.seal_due_in_s() == 0.0


def test_a_segment_waits_five_ages_behind_the_one_before_it_unless_it_is_full(reopen, clock):
    log = reopen(segment_age_s=2.0, segment_bytes=10**6)
    log.append(frames(b"a"))
    clock.go_on(2)
    log.seal()
    log.append(frames(b"b"))
    assert log.seal_due_in_s() == pytest.approx(10.0)
    clock.go_on(1)
    assert log.seal_due_in_s() == pytest.approx(9.0)
    log.append(frames(b"c" * (10**6 - 1000)))
    assert log.seal_due_in_s() == pytest.approx(9.0)
    log.append(frames(b"d" * 1000))
    assert log.seal_due_in_s() == 0.0
    log.seal()
    clock.go_on(60)
    log.append(frames(b"e"))
    assert log.seal_due_in_s() == pytest.approx(2.0), "nothing came for a while"


def test_nothing_is_remembered_of_the_age_of_segments_that_are_released(reopen):
    log = reopen()
    waiting(log, b"a")
    sealed(log)
    waiting(log, b"b", b"c")
    log.merge_waiting()
    sealed(log)
    assert log._written_at_s == {}


def test_who_waits_for_a_segment_gets_it_when_it_is_sealed(reopen):
    log, found = reopen(), []
    waiter = threading.Thread(target=lambda: found.append(log.next_sealed(3600.0)), daemon=True)
    waiter.start()
    waiting(log, b"a")
    waiter.join(WAIT_S)
    assert found == [log.next_sealed(0)]


def test_nobody_waits_for_a_segment_after_a_wake(reopen):
    log, found = reopen(), []
    waiters = [threading.Thread(target=lambda: found.append(log.next_sealed(3600.0)), daemon=True) for _ in range(2)]
    waiters[0].start()
    log.wake()
    waiters[1].start()
    for waiter in waiters:
        waiter.join(WAIT_S)
    assert found == [None, None]
    waiting(log, b"a")
    assert log.next_sealed(3600.0) is not None
