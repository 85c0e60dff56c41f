"""Segments that wait are merged to groups."""

import errno
import os

import pytest

from collector.wal.frame import COMMIT_BYTES, HEADER_BYTES, digest_of
from tests.collector.wal.opened import sealed, waiting

MIB = 1024 * 1024
FRAME_BYTES = HEADER_BYTES + COMMIT_BYTES


@pytest.mark.parametrize(
    ("segment_bytes", "merged"), [(100, b"ab"), (16 * MIB, b"ab"), (18 * MIB, b"abc"), (18 * MIB - 1, b"ab")]
)
def test_segments_that_wait_are_merged_up_to_the_size_of_one_or_16_mib_and_stay_in_order(reopen, segment_bytes, merged):
    log = reopen(segment_bytes=segment_bytes)
    sizes = {b"a": 8 * MIB, b"b": 8 * MIB, b"c": 2 * MIB, b"d": 17 * MIB, b"e": FRAME_BYTES + 1}
    waiting(log, *(letter * (size - FRAME_BYTES) for letter, size in sizes.items()))
    before = log.pending[1]
    log.merge_waiting()
    log.merge_waiting()
    assert log.pending == (5 - len(merged) + 1, before)
    assert b"".join(payload[:1] for payload in sealed(log)[0]) == merged


def test_what_waits_is_counted_to_the_byte_when_groups_come_and_go(reopen):
    log = reopen()
    for _ in range(3):
        waiting(log, b"a" * 200, b"b" * 100, b"c" * 100)
        before = log.pending[1]
        log.merge_waiting()
        assert log.pending == (1, before)
        sealed(log)
        assert log.pending == (0, 0)


def test_one_segment_is_no_group(reopen):
    log = reopen()
    waiting(log, b"a")
    log.merge_waiting()
    assert (log.pending[0], log.next_sealed(0).members) == (1, ())


def test_a_group_is_the_same_after_a_restart(reopen):
    log = reopen()
    waiting(log, b"a", b"b")
    log.merge_waiting()
    waiting(log, b"c")
    log.merge_waiting()
    group = log.next_sealed(0)
    assert len(group.members) == 2, "a group stays as it was written down"
    assert group.id == f"{group.members[0].id}.g2", "it sorts where its oldest segment did"
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


@pytest.mark.parametrize("removed", range(3))
def test_a_crash_while_a_stored_group_is_released_stores_nothing_again(reopen, tmp_path, removed):
    log = reopen()
    waiting(log, b"a", b"b", b"c")
    log.merge_waiting()
    group = log.next_sealed(0)
    kept = {path: path.read_bytes() for path in (group.path, *(member.path for member in group.members[removed:]))}
    log.release(group, [digest_of(payload) for payload in (b"a", b"b", b"c")])
    assert not any(path.exists() for path in kept)
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


@pytest.mark.parametrize("failing", [1, 2], ids=["of the file", "of the folder"])
def test_a_group_whose_fsync_fails_leaves_no_file_and_its_segments_alone(reopen, monkeypatch, tmp_path, failing):
    """A file that stayed would be found by each later attempt, and a full disk would keep it for ever."""
    log = reopen()
    waiting(log, b"a", b"b")
    calls, fsync = iter(range(1, 1000)), os.fsync

    def full(descriptor):
        if next(calls) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as disk:
        disk.setattr("collector.base.durable.os.fsync", full)
        log.merge_waiting()
    assert next(calls) > failing, "the disk was asked"
    assert log.pending[0] == 2
    assert [path.suffix for path in sorted((tmp_path / "wal").iterdir())] == [".wal", ".wal"]
    waiting(log, b"c")
    log.merge_waiting()
    assert [payload for segment in sealed(log) for payload in segment] == [b"a", b"b", b"c"]


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


def test_a_group_whose_segments_are_gone_is_removed(reopen, tmp_path):
    log = reopen()
    waiting(log, b"a", b"b")
    log.merge_waiting()
    for path in (tmp_path / "wal").glob("*.wal"):
        path.unlink()
    assert reopen().pending == (0, 0)
    assert list((tmp_path / "wal").iterdir()) == []
