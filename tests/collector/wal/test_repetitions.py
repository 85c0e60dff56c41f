"""Payloads that were sent before are recognised: while they wait, after they were stored, after a restart."""

import os

import pytest

from collector.wal.frame import digest_of
from tests.collector.wal.opened import SECOND, frames, sealed


def test_a_payload_is_recognised_while_it_waits_after_it_was_stored_and_after_a_restart(reopen):
    log = reopen()
    log.append(frames(b"a"))
    assert log.seen(digest_of(b"a"))
    assert reopen().seen(digest_of(b"a"))
    log.seal()
    sealed(log)
    assert log.seen(digest_of(b"a"))
    assert reopen().seen(digest_of(b"a"))
    assert not log.seen(digest_of(b"b"))


def test_a_payload_is_forgotten_after_the_retention_and_its_file_goes(reopen, clock, tmp_path):
    log = reopen(dedup_retention_s=60.0)
    log.append(frames(b"a"))
    log.seal()
    sealed(log)
    clock.go_on(61)
    log.append(frames(b"b"))
    log.seal()
    sealed(log)
    assert not log.seen(digest_of(b"a"))
    assert log.seen(digest_of(b"b"))
    assert len(list((tmp_path / "wal").glob("*.inserted"))) == 1


@pytest.mark.parametrize("by_s", [-120, 7200])
def test_a_wall_clock_that_is_set_neither_delays_a_segment_nor_forgets_a_payload(reopen, clock, by_s):
    log = reopen(segment_age_s=1.0, dedup_retention_s=3600.0)
    log.append(frames(b"a"))
    clock.ns += by_s * SECOND
    assert log.seal_due_in_s() == pytest.approx(1.0)
    clock.go_on(1)
    assert log.seal_due_in_s() == 0.0
    log.seal()
    sealed(log)
    clock.ns += by_s * SECOND
    log.append(frames(b"b"))
    log.seal()
    sealed(log)
    assert log.seen(digest_of(b"a"))


@pytest.mark.parametrize("files_are_older_s", [7200, -7200])
def test_a_wall_clock_that_was_set_while_no_collector_ran_forgets_no_payload(
    reopen, clock, tmp_path, files_are_older_s
):
    log = reopen(dedup_retention_s=3600.0)
    for payload in (b"a", b"b", b"c"):
        log.append(frames(payload))
        log.seal()
        sealed(log)
    old, new, newest = sorted((tmp_path / "wal").glob("*.inserted"))
    for path, age_s in ((old, 3601), (new, 3000), (newest, 0)):
        at = path.stat().st_mtime - files_are_older_s - age_s
        os.utime(path, (at, at))
    again = reopen(dedup_retention_s=3600.0)
    again.append(frames(b"d"))
    again.seal()
    sealed(again)
    assert [again.seen(digest_of(payload)) for payload in (b"a", b"b", b"c")] == [False, True, True]
    clock.go_on(601)
    again.append(frames(b"e"))
    again.seal()
    sealed(again)
    assert [again.seen(digest_of(payload)) for payload in (b"b", b"c")] == [False, True]
