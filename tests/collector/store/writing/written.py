"""A writer with its log, and payloads that the store reads otherwise than Protobuf does."""

import json

from collector.base.status import IngestStatus
from collector.otlp.signals import TRACES
from collector.store.writer import Writer
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import Frame, digest_of
from collector.wal.log import SegmentLog
from tests.support.otlp import Request

WAIT_S = 120


class Setup:
    def __init__(self, folder, store, **kwargs):
        self.folder = folder
        self.store = store
        self.status = IngestStatus()
        self.status.set_ready("start")
        self.dead_letters = DeadLetters(folder / "dead", "traces", self.status.dead_lettered)
        self.log = SegmentLog(folder / "wal", self.dead_letters)
        self.segments = []
        self.writer = self.another_writer(**kwargs)
        self.writer.on_segment(self.segments.append)

    def another_writer(self, **kwargs):
        return Writer(TRACES, self.log, self.store, self.status, self.dead_letters, **kwargs)

    def segment(self, *payloads):
        self.segment_that_waits(*payloads)
        return self.log.next_sealed(0)

    def segment_that_waits(self, *payloads):
        self.log.append([Frame(digest_of(payload), payload) for payload in payloads])
        self.log.seal()

    def dead(self):
        return {
            path: json.loads(path.with_suffix(".json").read_text()) for path in (self.folder / "dead").glob("*.bin")
        }

    def tokens(self):
        sql = "SELECT reinterpretAsUInt128(reverse(trace_id)) AS trace, count() FROM tokens GROUP BY trace"
        return dict(self.store.query(sql).result_rows)


def unreadable(trace):
    """Passes for protobuf, but not for a column of 16 bytes."""
    request = Request().tokens(trace=trace, count=1)
    request.scope_spans.spans[0].trace_id = b"x" * 20
    return request.body()


class ClaimedElsewhere:
    """Claims of which another collector has those of some payloads. They fail at first."""

    def __init__(self, *payloads):
        self.payloads = payloads
        self.failures = 2
        self.withdrawn = []

    def claimed(self, segment, frames):
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("connection refused")
        return [frame for frame in frames if frame.payload not in self.payloads]

    def withdraw(self, segment, digests):
        self.withdrawn.append((segment, set(digests)))


def misread(trace):
    """A request of three tokens, one of which has its name as a varint."""
    request = Request().tokens(trace=trace, count=3)
    request.scope_spans.spans[1].ClearField("name")
    request.scope_spans.spans[1].MergeFromString(b"\x28\x05")
    return request.body()


MANY = 1200


def joined(*payloads):
    """One payload, as a sender joins them."""
    return (b"".join(payloads),)


def alone(*payloads):
    return payloads
