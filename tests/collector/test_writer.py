import json

import pytest

from collector.signals import TRACES
from collector.status import IngestStatus
from collector.store.insert import insert_otlp
from collector.store.writer import Writer
from collector.wal.commit import GroupCommit, LogUnavailableError
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import Frame, digest_of
from collector.wal.log import LogLimits, SegmentLog
from tests.support.otlp import Request, token_body

WAIT_S = 20


class Setup:
    def __init__(self, folder, store, **kwargs):
        self.folder = folder
        self.store = store
        self.status = IngestStatus()
        self.status.set_ready("start")
        self.dead_letters = DeadLetters(folder / "dead", "traces")
        self.log = SegmentLog(folder / "wal", self.dead_letters)
        self.segments = []
        self.writer = self.another_writer(**kwargs)
        self.writer.on_segment(self.segments.append)

    def another_writer(self, **kwargs):
        return Writer(TRACES, self.log, self.store, self.status, self.dead_letters, **kwargs)

    def segment(self, *payloads):
        self.log.append([Frame(digest_of(payload), payload) for payload in payloads])
        self.log.seal()
        return self.log.next_sealed(0)

    def dead(self):
        return {
            path: json.loads(path.with_suffix(".json").read_text()) for path in (self.folder / "dead").glob("*.bin")
        }

    def tokens(self):
        sql = "SELECT reinterpretAsUInt128(reverse(trace_id)) AS trace, count() FROM tokens GROUP BY trace"
        return dict(self.store.query(sql).result_rows)


@pytest.fixture
def setup(tmp_path, module_store):
    module_store.client().command("TRUNCATE TABLE tokens")
    return lambda **kwargs: Setup(tmp_path, module_store, **kwargs)


def unreadable(trace):
    """Passes for protobuf, but not for a column of 16 bytes."""
    request = Request().tokens(trace=trace, count=1)
    request.scope_spans.spans[0].trace_id = b"x" * 20
    return request.body()


def test_a_segment_becomes_rows_and_leaves_the_log(setup):
    s = setup()
    segment = s.segment(token_body(trace=1), token_body(trace=2))
    s.writer.write(segment)
    assert s.tokens() == {1: 3, 2: 3}
    assert s.segments == [segment.id]
    assert s.log.pending == (0, 0)
    snapshot = s.status.snapshot()
    assert (snapshot.segments_inserted, snapshot.ready) == (1, True)
    assert snapshot.last_insert_unix_s > 0


@pytest.mark.parametrize("bad_at", [{0}, {4}, {1, 3}, {0, 1, 2, 3, 4}])
def test_only_the_payloads_that_the_store_refuses_are_set_aside(setup, bad_at):
    s = setup()
    payloads = [unreadable(n) if n in bad_at else token_body(trace=n + 1) for n in range(5)]
    s.writer.write(s.segment(*payloads))
    assert s.tokens() == {n + 1: 3 for n in range(5) if n not in bad_at}
    assert {path.read_bytes() for path in s.dead()} == {payloads[n] for n in bad_at}
    assert all("FixedString" in why["reason"] for why in s.dead().values())
    assert s.status.snapshot().payloads_dead_lettered == len(bad_at)
    assert s.log.pending == (0, 0)


def test_a_crash_in_the_middle_of_setting_aside_adds_nothing_twice(setup):
    s = setup()
    payloads = [token_body(trace=1), unreadable(9), token_body(trace=2), token_body(trace=3)]
    segment = s.segment(*payloads)
    calls = []

    def crash_after_an_insert(store, signal, body, token):
        calls.append(token)
        insert_otlp(store, signal, body, token)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        s.another_writer(insert=crash_after_an_insert).write(segment)
    s.another_writer().write(segment)
    assert s.tokens() == {1: 3, 2: 3, 3: 3}
    assert len(s.dead()) == 1


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


def test_a_failing_callback_stops_nothing(setup, caplog):
    s = setup()
    s.writer.on_segment(lambda segment: 1 / 0)
    s.writer.write(s.segment(token_body(trace=1)))
    assert s.log.pending == (0, 0)
    assert "ZeroDivisionError" in caplog.text


def test_draining_writes_what_is_sealed(setup):
    s = setup()
    for trace in (1, 2, 3):
        s.segment(token_body(trace=trace))
    s.writer.start()
    assert s.writer.stop(timeout_s=30.0)
    assert s.tokens() == {1: 3, 2: 3, 3: 3}


def test_draining_gives_up_on_a_store_that_is_away_and_keeps_the_segments(setup):
    def away(store, signal, body, token):
        raise ConnectionError("away")

    s = setup(insert=away)
    s.segment(token_body(trace=1))
    s.writer.start()
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
    s.writer.write(segment)
    assert s.status.snapshot().ready
