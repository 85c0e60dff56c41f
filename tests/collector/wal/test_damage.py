"""Crashes, damaged frames, full disks and folders that cannot be synced."""

import errno
import json
import os
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import COMMIT_BYTES, HEADER_BYTES, digest_of
from collector.wal.log import SegmentLog
from collector.wal.policy import Fsync
from tests.collector.wal.opened import frames, sealed


def test_a_stored_segment_whose_file_a_crash_brought_back_is_not_stored_again(reopen, tmp_path):
    log = reopen()
    log.append(frames(b"a"))
    log.seal()
    segment = log.next_sealed(0)
    kept = segment.path.read_bytes()
    log.release(segment, [digest_of(b"a")])
    segment.path.write_bytes(kept)
    again = reopen()
    assert sealed(again) == []
    assert again.seen(digest_of(b"a"))
    assert not segment.path.exists()


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


@settings(max_examples=60)
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
