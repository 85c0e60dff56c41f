import errno
import json
import os
import threading
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.wal import frame
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import COMMIT_BYTES, HEADER_BYTES, Frame, digest_of, old_digest_of
from collector.wal.log import LogLimits, SegmentLog
from collector.wal.policy import Fsync

SECOND = 10**9
WAIT_S = 120


class Clock:
    """The wall clock, which somebody may set by hand, and the monotonic clock, which only goes on."""

    def __init__(self):
        self.ns = 1_795_000_000 * SECOND
        self.monotonic_s = 100.0

    def go_on(self, seconds):
        self.ns += seconds * SECOND
        self.monotonic_s += seconds


def frames(*payloads):
    return [Frame(digest_of(payload), payload) for payload in payloads]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reopen(tmp_path, clock):
    def open_log(**limits):
        return SegmentLog(
            tmp_path / "wal",
            DeadLetters(tmp_path / "dead_letters", "traces"),
            limits=LogLimits(**limits),
            unix_ns=lambda: clock.ns,
            monotonic_s=lambda: clock.monotonic_s,
        )

    return open_log


def sealed(log):
    """Every payload that waits for the store, by segment."""
    found = []
    while segment := log.next_sealed(0):
        read = log.read(segment).frames
        found.append([frame.payload for frame in read])
        log.release(segment, [frame.digest for frame in read])
    return found


def test_payloads_come_out_in_order_one_segment_at_a_time(reopen):
    log = reopen()
    log.append(frames(b"a", b"b"))
    log.seal()
    log.append(frames(b"c"))
    log.seal()
    assert log.pending[0] == 2
    assert sealed(log) == [[b"a", b"b"], [b"c"]]
    assert log.pending == (0, 0)


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


def test_payloads_that_an_older_collector_stored_are_recognised(reopen, tmp_path, clock):
    folder = tmp_path / "wal"
    folder.mkdir(exist_ok=True)
    (folder / "00000000000000000001-00000000.inserted").write_bytes(old_digest_of(b"a") + old_digest_of(b"b"))
    log = reopen(dedup_retention_s=3600.0)
    assert [log.was_stored_before_upgrade(payload) for payload in (b"a", b"b", b"c")] == [True, True, False]
    assert not log.seen(digest_of(b"a"))
    clock.go_on(3601)
    assert not log.was_stored_before_upgrade(b"a"), "the digests are past their time"


def test_payloads_of_today_are_not_looked_for_among_old_ones(reopen, monkeypatch):
    log = reopen()
    log.append(frames(b"a"))
    log.seal()
    log.release(log.next_sealed(0), [digest_of(b"a")])
    again = reopen()
    assert again.seen(digest_of(b"a"))
    monkeypatch.setattr(frame, "old_digest_of", None)
    assert not again.was_stored_before_upgrade(b"a")


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


def waiting(log, *payloads):
    for payload in payloads:
        log.append(frames(payload))
        log.seal()


def test_segments_that_wait_are_merged_up_to_the_size_of_one_and_stay_in_order(reopen):
    log = reopen(segment_bytes=3 * (HEADER_BYTES + 20 + COMMIT_BYTES))
    waiting(log, b"a" * 20, b"b" * 20, b"c" * 20, b"d" * 300, b"e")
    before = log.pending[1]
    log.merge_waiting()
    log.merge_waiting()
    assert log.pending == (3, before)
    assert [payload[:1] for payload in sealed(log)[0]] == [b"a", b"b", b"c"]
    log = reopen(segment_bytes=200)
    waiting(log, b"f")
    log.merge_waiting()
    assert log.pending[0] == 1


def test_a_group_is_the_same_after_a_restart(reopen):
    log = reopen()
    waiting(log, b"a", b"b")
    log.merge_waiting()
    waiting(log, b"c")
    log.merge_waiting()
    group = log.next_sealed(0)
    assert len(group.members) == 2, "a group stays as it was written down"
    again = reopen()
    again.merge_waiting()
    assert (again.next_sealed(0).id, again.next_sealed(0).members) == (group.id, group.members)
    assert sealed(again) == [[b"a", b"b"], [b"c"]]


def test_a_segment_that_may_have_been_stored_alone_is_not_merged(reopen):
    log = reopen()
    waiting(log, b"a", b"b", b"c")
    alone = log.next_sealed(0)
    log.merge_waiting()
    assert log.next_sealed(0) == alone
    again = reopen()
    again.merge_waiting()
    assert again.next_sealed(0) == alone
    again.release(alone, [digest_of(b"a")])
    again.merge_waiting()
    assert sealed(again) == [[b"b", b"c"]]


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


@pytest.mark.parametrize("removed", range(3))
def test_a_crash_while_a_stored_group_is_released_stores_nothing_again(reopen, tmp_path, removed):
    log = reopen()
    waiting(log, b"a", b"b", b"c")
    log.merge_waiting()
    group = log.next_sealed(0)
    kept = {path: path.read_bytes() for path in (group.path, *(member.path for member in group.members[removed:]))}
    log.release(group, [digest_of(payload) for payload in (b"a", b"b", b"c")])
    for path, data in kept.items():
        path.write_bytes(data)
    again = reopen()
    assert sealed(again) == []
    assert all(again.seen(digest_of(payload)) for payload in (b"a", b"b", b"c"))
    assert [path.suffix for path in (tmp_path / "wal").iterdir()] == [".inserted"]


def test_a_group_that_cannot_be_written_down_leaves_the_segments_alone(reopen, monkeypatch, tmp_path):
    log = reopen()
    waiting(log, b"a", b"b")

    def written_and_then_failed(path, data):
        path.write_bytes(data)
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr("collector.wal.segment.write_durably", written_and_then_failed)
    log.merge_waiting()
    monkeypatch.undo()
    assert list((tmp_path / "wal").glob("*.group")) == []
    assert sealed(log) == [[b"a"], [b"b"]]


def test_a_crash_between_remembering_and_dropping_a_segment_is_repaired(reopen, tmp_path):
    log = reopen()
    log.append(frames(b"a"))
    log.seal()
    segment = log.next_sealed(0)
    kept = segment.path.read_bytes()
    log.release(segment, [digest_of(b"a")])
    segment.path.write_bytes(kept)
    assert sealed(reopen()) == [[b"a"]], "inserted again under the same id, which the store recognises"


def test_a_corrupt_frame_is_set_aside_with_its_reason_and_the_others_go_on(reopen, tmp_path):
    reopen().append(frames(b"first", b"second", b"third"))
    (path,) = (tmp_path / "wal").glob("*.wal")
    path.write_bytes(path.read_bytes().replace(b"second", b"sEcond"))
    assert sealed(reopen()) == [[b"first", b"third"]]
    (kept,) = (tmp_path / "dead_letters").glob("*.bin")
    assert b"sEcond" in kept.read_bytes()
    about = json.loads(kept.with_suffix(".json").read_text())
    assert "checksum" in about["reason"]
    assert about["damaged"], "its bytes are not those that were acknowledged"


def test_a_segment_that_waits_is_compared_with_its_digests_in_the_process_that_wrote_it(reopen, clock, tmp_path):
    log = reopen()
    log.append(frames(b"first", b"second"))
    log.seal()
    (path,) = (tmp_path / "wal").glob("*.wal")
    path.write_bytes(path.read_bytes().replace(b"second", b"sEcond"))
    clock.go_on(61)
    assert sealed(log) == [[b"first"]]
    (kept,) = (tmp_path / "dead_letters").glob("*.bin")
    assert b"sEcond" in kept.read_bytes()


@pytest.mark.parametrize("other", ["lost+found", ".nfs0001", "copy of a.wal"])
def test_files_of_others_in_the_folder_are_named_and_left_alone(reopen, tmp_path, other, caplog):
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / other).write_bytes(b"")
    log = reopen()
    log.append(frames(b"a"))
    log.seal()
    assert log.waiting_since_ns is not None
    assert sealed(log) == [[b"a"]]
    assert other in caplog.text
    assert (tmp_path / "wal" / other).exists()


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_a_name_in_a_group_that_the_disk_has_damaged_costs_no_payload(reopen, tmp_path, bit):
    log = reopen()
    waiting(log, b"a", b"b", b"c")
    log.merge_waiting()
    (path,) = (tmp_path / "wal").glob("*.group")
    data = bytearray(path.read_bytes())
    data[3] ^= bit
    path.write_bytes(data)
    assert {bytes(payload) for segment in sealed(reopen()) for payload in segment} == {b"a", b"b", b"c"}


@pytest.mark.parametrize("byte", range(4, 8))
def test_a_flipped_length_bit_in_the_last_frame_is_a_dead_letter_a_log_line_and_counted_once(tmp_path, byte, caplog):
    lost = []

    def open_log():
        dead_letters = DeadLetters(tmp_path / "dead", "traces", lambda: lost.append(1))
        return SegmentLog(tmp_path / "wal", dead_letters)

    log = open_log()
    log.append(frames(b"first"))
    log.append(frames(b"last"))
    (path,) = (tmp_path / "wal").glob("*.wal")
    data = bytearray(path.read_bytes())
    header = len(data) - COMMIT_BYTES - len(b"last") - HEADER_BYTES
    data[header + byte] ^= 0x10
    path.write_bytes(data)
    assert sealed(open_log()) == [[b"first"]]
    (kept,) = (tmp_path / "dead").glob("*.bin")
    assert kept.read_bytes().endswith(b"last")
    assert "kept in" in caplog.text
    assert lost == [1], "the log reads a segment when it opens and when it is stored"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5, unique=True), st.data())
def test_reopening_after_a_cut_at_any_byte_keeps_every_whole_frame(tmp_path_factory, items, data):
    folder = tmp_path_factory.mktemp("log")
    log = SegmentLog(folder / "wal", DeadLetters(folder / "dead", "traces"))
    ends = []
    for item in items:
        log.append(frames(item))
        ends.append(log.pending[1] - COMMIT_BYTES)
    (path,) = (folder / "wal").glob("*.wal")
    cut = data.draw(st.integers(0, ends[-1] + COMMIT_BYTES))
    os.truncate(path, cut)
    again = SegmentLog(folder / "wal", DeadLetters(folder / "dead", "traces"))
    kept = [item for item, end in zip(items, ends, strict=True) if end <= cut]
    assert [payload for segment in sealed(again) for payload in segment] == kept
    assert all(again.seen(digest_of(item)) for item in kept)
    assert not (folder / "dead").exists()
    again.append(frames(b"after the crash"))
    again.seal()
    assert sealed(again) == [[b"after the crash"]]


class FullDisk:
    """Lets `room` bytes through to the real file, then fails as a full disk does."""

    def __init__(self, file, room):
        self._file = file
        self.room = room

    def write(self, data):
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._file.write(bytes(data)[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("fsync", list(Fsync))
def test_a_full_disk_leaves_no_trace_of_what_it_refused(tmp_path, fsync):
    log = SegmentLog(tmp_path / "wal", DeadLetters(tmp_path / "dead", "traces"), fsync=fsync)
    log.append(frames(b"before"))
    disk = log._active._file = FullDisk(log._active._file, room=30)
    with pytest.raises(OSError, match="No space left"):
        log.append(frames(b"refused" * 10))
    assert not log.seen(digest_of(b"refused" * 10))
    disk.room = 10_000
    log.append(frames(b"after"))
    log.seal()
    assert sealed(log) == [[b"before", b"after"]]


def test_segments_of_a_full_disk_are_sealed_without_what_it_refused(tmp_path):
    log = SegmentLog(tmp_path / "wal", DeadLetters(tmp_path / "dead", "traces"))
    log.append(frames(b"before"))
    log._active._file = FullDisk(log._active._file, room=30)
    with pytest.raises(OSError, match="No space left"):
        log.append(frames(b"refused" * 10))
    log.seal()
    assert sealed(log) == [[b"before"]]


def test_a_segment_whose_folder_cannot_be_synced_leaves_no_file(reopen, monkeypatch, tmp_path):
    """A folder whose fsync fails, as on some network disks, got a new empty file with every attempt."""
    log = reopen()
    with monkeypatch.context() as patched:
        patched.setattr("collector.wal.active.sync_folder", Mock(side_effect=OSError(errno.EIO, "bad disk")))
        for _ in range(3):
            with pytest.raises(OSError, match="bad disk"):
                log.append(frames(b"one"))
    assert [*(tmp_path / "wal").iterdir()] == []
    assert log.pending == (0, 0)
    log.append(frames(b"two"))
    log.seal()
    assert sealed(log) == [[b"two"]]


def test_a_segment_whose_first_append_failed_leaves_no_file(reopen, monkeypatch, tmp_path):
    log = reopen()
    monkeypatch.setattr("collector.wal.log.ActiveSegment.append", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        log.append(frames(b"refused"))
    log.seal()
    assert sealed(log) == []
    assert [*(tmp_path / "wal").iterdir()] == []


@pytest.mark.parametrize("after", [b"", b"after"])
def test_a_payload_whose_fsync_failed_is_not_stored(reopen, monkeypatch, tmp_path, after):
    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = reopen()
    log.append(frames(b"before"))
    with monkeypatch.context() as disk:
        disk.setattr("collector.wal.active.os.fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            log.append(frames(b"refused" * 10))
    if after:
        log.append(frames(after))
    log.seal()
    assert sealed(log) == [[b"before", *filter(None, [after])]]
    assert not (tmp_path / "dead_letters").exists()
