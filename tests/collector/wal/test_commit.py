import threading

import pytest

from collector.base.once_a_minute import OnceAMinute
from collector.base.status import IngestStatus
from collector.otlp.checked import ItemLimits
from collector.otlp.signals import TRACES
from collector.otlp.validate import DAY_NS
from collector.receive.ingest import Ingest
from collector.wal.commit import GroupCommit, LogUnavailableError
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import HEADER_BYTES
from collector.wal.log import LogLimits, SegmentLog
from tests.support.otlp import T0, token_body

WAIT_S = 120


class GatedLog(SegmentLog):
    """A real log whose appends wait for a gate, and which can be told to fail."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.batches = []
        self.failure = None

    def append(self, frames):
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if self.failure:
            raise self.failure
        self.batches.append([frame.payload for frame in frames])
        super().append(frames)


@pytest.fixture
def status():
    return IngestStatus()


@pytest.fixture
def log(tmp_path):
    return GatedLog(
        tmp_path / "wal",
        DeadLetters(tmp_path / "dead", "traces"),
        limits=LogLimits(segment_bytes=10**6, segment_age_s=3600.0, max_bytes=1000),
    )


@pytest.fixture
def commit(log, status):
    commit = GroupCommit("traces", log, status)
    commit.start()
    yield commit
    log.gate.set()
    commit.stop(WAIT_S)


def test_a_future_resolves_when_the_payload_is_in_the_log(commit, log):
    assert commit.submit(b"a").result(WAIT_S) is False
    assert log.batches == [[b"a"]]


def test_requests_that_arrive_during_a_write_share_the_next(commit, log):
    log.gate.clear()
    first = commit.submit(b"first")
    assert log.entered.wait(WAIT_S)
    others = [commit.submit(bytes([n])) for n in range(20)]
    assert not first.done()
    log.gate.set()
    assert [future.result(WAIT_S) for future in [first, *others]] == [False] * 21
    assert [len(batch) for batch in log.batches] == [1, 20]


def test_a_repetition_is_acknowledged_and_written_once(commit, log):
    log.gate.clear()
    first = commit.submit(b"a")
    assert log.entered.wait(WAIT_S)
    during_the_write = commit.submit(b"a")
    log.gate.set()
    assert (first.result(WAIT_S), during_the_write.result(WAIT_S)) == (False, True)
    assert commit.submit(b"a").result(WAIT_S) is True
    assert log.batches == [[b"a"]]


def test_a_repetition_of_a_payload_that_waits_for_its_write_is_written_once(commit, log):
    log.gate.clear()
    first = commit.submit(b"first")
    assert log.entered.wait(WAIT_S)
    waiting = [commit.submit(b"a") for _ in range(2)]
    log.gate.set()
    assert [future.result(WAIT_S) for future in [first, *waiting]] == [False, False, True]
    assert log.batches == [[b"first"], [b"a"]]


def test_a_payload_is_written_with_its_days(commit, log):
    assert commit.submit(b"a", (20_000, 20_001)).result(WAIT_S) is False
    commit.stop(WAIT_S)
    (item,) = log.read(log.next_sealed(0)).frames
    assert item.days == (20_000, 20_001)


def test_a_request_is_written_with_the_days_of_its_spans(tmp_path, status):
    log = SegmentLog(tmp_path / "wal", DeadLetters(tmp_path / "dead", "traces"))
    commit = GroupCommit("traces", log, status)
    commit.start()
    ingest = Ingest(TRACES, commit, status, ItemLimits())
    two_days = token_body(count=1, start=T0 - DAY_NS) + token_body(count=1)
    ingest.accept(two_days).result(WAIT_S)
    commit.stop(WAIT_S)
    (item,) = log.read(log.next_sealed(0)).frames
    assert item.days == (T0 // DAY_NS - 1, T0 // DAY_NS)


def test_a_failure_of_any_kind_is_answered_and_the_thread_goes_on(commit, log):
    log.failure = ValueError("a frame that cannot be")
    with pytest.raises(LogUnavailableError, match="a frame that cannot be"):
        commit.submit(b"first").result(WAIT_S)
    log.failure = None
    assert commit.submit(b"second").result(WAIT_S) is False


def test_an_answer_that_cannot_be_made_is_an_error_and_no_silence(commit, status, monkeypatch):
    def fail(*_, **__):
        raise ValueError("no answer")

    monkeypatch.setattr(status, "received", fail)
    with pytest.raises(ValueError, match="no answer"):
        Ingest(TRACES, commit, status, ItemLimits()).accept(token_body(count=1)).result(WAIT_S)


def test_a_disk_that_fails_refuses_says_so_and_recovers_without_traffic(commit, log, status):
    status.set_ready("start")
    log.failure = OSError(28, "No space left on device")
    with pytest.raises(LogUnavailableError, match="No space left"):
        commit.submit(b"a").result(WAIT_S)
    assert "No space left" in status.snapshot().reason
    log.failure = None
    log.entered.clear()
    assert log.entered.wait(WAIT_S), "the log is tried again although nobody sends"
    assert commit.submit(b"a").result(WAIT_S) is False, "what was refused was not remembered as seen"
    assert status.snapshot().ready


def test_a_full_log_refuses_until_the_store_has_taken_something(commit, log, status):
    status.set_ready("start")
    assert commit.submit(b"a" * 900).result(WAIT_S) is False
    with pytest.raises(LogUnavailableError, match="full"):
        commit.submit(b"b" * 900)
    assert "full" in status.snapshot().reason


def test_a_log_takes_as_many_bytes_as_it_may_have_and_no_more(commit):
    with pytest.raises(LogUnavailableError, match="full"):
        commit.submit(b"a" * (1001 - HEADER_BYTES))
    assert commit.submit(b"a" * (1000 - HEADER_BYTES)).result(WAIT_S) is False


def test_payloads_that_wait_for_their_write_take_room_until_it_is_done(commit, log):
    log.gate.clear()
    first = commit.submit(b"first")
    assert log.entered.wait(WAIT_S)
    second = commit.submit(b"a" * 350)
    third = commit.submit(b"b" * 350)
    with pytest.raises(LogUnavailableError, match="full"):
        commit.submit(b"c" * 350)
    log.gate.set()
    assert [future.result(WAIT_S) for future in (first, second, third)] == [False] * 3
    assert commit.submit(b"d" * 100).result(WAIT_S) is False, "those that were written do not count twice"


def test_refusals_are_one_line_of_the_log_a_minute(log, status, caplog):
    now_s = [0.0]
    commit = GroupCommit("traces", log, status, line_due=OnceAMinute(lambda: now_s[0]))
    commit.submit(b"a" * 900)
    log.failure = OSError(28, "No space left on device")

    def refuse(times):
        for n in range(times):
            with pytest.raises(LogUnavailableError, match="full"):
                commit.submit(bytes([n]) * 900)
            commit._commit()
        return [record.message.split(";")[0] for record in caplog.records]

    full = "the log of traces is full (1000 bytes wait for the store)"
    broken = "the log of traces cannot be written: No space left on device"
    assert refuse(50) == [full, broken]
    now_s[0] = 59.9
    assert refuse(50) == [full, broken]
    now_s[0] = 60.0
    assert refuse(50) == [full, broken] * 2


def test_a_segment_that_cannot_be_sealed_is_not_handed_on(commit, log, status, monkeypatch):
    assert commit.submit(b"a").result(WAIT_S) is False
    monkeypatch.setattr(log, "seal", lambda: (_ for _ in ()).throw(OSError("disk")))
    assert commit.stop(WAIT_S) is False
    assert "cannot be sealed: disk" in status.snapshot().reason


def test_stopping_commits_what_is_queued_seals_and_takes_nothing_more(log, status):
    commit = GroupCommit("traces", log, status)
    queued = commit.submit(b"queued")
    commit.start()
    assert commit.stop(WAIT_S)
    assert queued.result(0) is False
    assert log.next_sealed(0) is not None
    with pytest.raises(LogUnavailableError, match="shutting down"):
        commit.submit(b"late")


def test_what_waits_for_too_long_is_told_with_its_size_and_age(commit, log, status):
    commit.submit(b"a" * 500).result(WAIT_S)
    commit.stop(WAIT_S)
    since_ns, size = log.waiting_since_ns, log.pending[1] / 1e6
    status.behind_after_s = 65.0
    told = []
    for seconds in (-3600, 65, 66):
        status.unix_ns = lambda seconds=seconds: since_ns + seconds * 10**9
        told.append(status.snapshot().behind)
    assert told == ["", "", f"{size:.1f} MB of traces wait for the store, the oldest for 66 s"]
