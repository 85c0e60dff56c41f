"""The log after a kill or a power cut at every moment: nothing acknowledged is lost, or forgotten as stored."""

import itertools
from unittest.mock import Mock

import pytest

from collector.access.limits import Limiter
from collector.base.status import IngestStatus
from collector.otlp.signals import TRACES
from collector.pipeline.chain import Chain
from collector.pipeline.settings import Settings
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import Frame, digest_of
from collector.wal.log import SegmentLog
from tests.support.crash import Disk, restore
from tests.support.otlp import token_body

WAIT_S = 120
PAYLOADS = [bytes([letter]) * 50 for letter in b"abcdef"]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    return Disk(tmp_path / "wal", monkeypatch)


@pytest.fixture
def opened(tmp_path):
    """Opens the log of a state in a folder of its own."""
    numbers = itertools.count()

    def open_state(state):
        folder = tmp_path / f"after-{next(numbers)}"
        return SegmentLog(restore(state, folder / "wal"), DeadLetters(folder / "dead", "traces"))

    return open_state


def log_in(tmp_path):
    return SegmentLog(tmp_path / "wal", DeadLetters(tmp_path / "dead", "traces"))


def append(log, *payloads):
    log.append([Frame(digest_of(payload), payload) for payload in payloads])


def waiting(log):
    """The payloads of all segments that the store would get."""
    return [bytes(frame.payload) for segment in log._sealed for frame in log.read(segment).frames]


def test_a_payload_is_on_the_disk_when_append_returns(tmp_path, disk, opened):
    log = log_in(tmp_path)
    for n, payload in enumerate(PAYLOADS, start=1):
        append(log, payload)
        if n == 3:
            log.seal()
        for state in (disk.killed(), disk.power_cut()):
            assert waiting(opened(state)) == PAYLOADS[:n]


def test_a_payload_is_on_the_disk_when_its_sender_is_told(tmp_path, disk, opened):
    chain = Chain(TRACES, Settings(data_dir=tmp_path), Mock(embedded=True), IngestStatus(), Limiter())
    chain.commit.start()
    body = token_body()
    assert chain.ingest.accept(body).result(WAIT_S) == TRACES.response()
    state = disk.power_cut()
    assert waiting(opened(state)) == [body]
    assert chain.commit.stop(WAIT_S)


def test_no_crash_while_segments_are_stored_and_released_loses_a_payload_or_the_memory_of_it(tmp_path, disk, opened):
    log = log_in(tmp_path)
    for payloads in (PAYLOADS[:1], PAYLOADS[1:3], PAYLOADS[3:5]):
        append(log, *payloads)
        log.seal()
    log.next_sealed(0)
    disk.crashes.clear()
    stored, crashes_before = {}, {}
    for _ in range(2):  # the first segment alone, then a group of two
        segment = log.next_sealed(0)
        frames = log.read(segment).frames
        stored[segment.id] = {bytes(frame.payload) for frame in frames}
        crashes_before[segment.id] = len(disk.crashes)
        log.release(segment, [frame.digest for frame in frames])
        log.merge_waiting()
    assert len(stored) == 2
    assert {len(payloads) for payloads in stored.values()} == {1, 4}
    assert len(disk.crashes) > 20
    for n, (event, state) in enumerate(disk.crashes):
        known = set().union(*(stored[name] for name, crashes in crashes_before.items() if crashes <= n))
        again = opened(state)
        for payload in PAYLOADS[:5]:
            assert again.seen(digest_of(payload)), (event, payload)
        for segment in again._sealed:
            # What is inserted again is inserted under the token under which the store knows it, or is new to the store.
            waits = {bytes(frame.payload) for frame in again.read(segment).frames}
            assert waits == stored[segment.id] if segment.id in stored else not waits & known, event


def test_a_crash_before_the_digests_of_a_stored_segment_are_written_keeps_the_segment(tmp_path, monkeypatch):
    log = log_in(tmp_path)
    append(log, PAYLOADS[0])
    log.seal()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("collector.wal.segment.write_durably", killed)
    with pytest.raises(KeyboardInterrupt):
        log.release(log.next_sealed(0), [digest_of(PAYLOADS[0])])
    monkeypatch.undo()
    assert waiting(log_in(tmp_path)) == [PAYLOADS[0]]


def test_repetitions_are_known_after_two_restarts(tmp_path):
    log = log_in(tmp_path)
    append(log, *PAYLOADS[:2])
    log.seal()
    segment = log.next_sealed(0)
    log.release(segment, [digest_of(payload) for payload in PAYLOADS[:2]])
    append(log, PAYLOADS[2])
    for _ in range(2):
        again = log_in(tmp_path)
        assert [again.seen(digest_of(payload)) for payload in PAYLOADS[:4]] == [True, True, True, False]


class FailsOnce:
    """A file that takes half of one write and then fails."""

    def __init__(self, file):
        self._file = file
        self.failed = False

    def write(self, data):
        if self.failed:
            return self._file.write(data)
        self.failed = True
        self._file.write(bytes(data)[: len(data) // 2])
        raise OSError(28, "No space left on device")

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_an_append_behind_a_failed_one_stands_where_the_failed_one_began(tmp_path):
    log, clean = log_in(tmp_path), log_in(tmp_path / "clean")
    append(log, PAYLOADS[0])
    log._active._file = FailsOnce(log._active._file)
    with pytest.raises(OSError, match="No space left"):
        append(log, PAYLOADS[1])
    append(log, PAYLOADS[2])
    append(clean, PAYLOADS[0])
    append(clean, PAYLOADS[2])
    (file,), (expected,) = ((folder / "wal").glob("*.wal") for folder in (tmp_path, tmp_path / "clean"))
    assert file.read_bytes() == expected.read_bytes()


def test_every_table_that_keeps_rows_is_synced_at_each_insert_and_merge_and_remembers_its_inserts(module_store):
    sql = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
    tables = dict(module_store.query(sql).result_rows)
    assert "fsync_after_insert = 1" in tables["schema_version"]
    assert "min_rows_to_fsync_after_merge = 1" in tables.pop("schema_version")
    assert {"requests", "tokens", "payload_claims"} <= tables.keys()
    for name, engine in tables.items():
        for setting in (
            "fsync_after_insert = 1",
            "min_rows_to_fsync_after_merge = 1",
            "non_replicated_deduplication_window = 10000",
            "concurrent_part_removal_threshold = 1000000000",
        ):
            assert setting in engine, (name, setting)
