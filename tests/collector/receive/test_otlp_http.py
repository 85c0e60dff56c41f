import asyncio
import errno
import gzip
import json
import threading
import zlib
from dataclasses import replace

import pytest
import zstandard
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.testclient import TestClient

from collector.base.status import IngestStatus
from collector.otlp.checked import Checked, ItemLimits
from collector.otlp.decompress import decompress
from collector.otlp.signals import TRACES
from collector.receive.http import BodyLimits, create_otlp_app
from collector.receive.ingest import Ingest
from collector.wal.commit import GroupCommit, LogUnavailableError
from collector.wal.dead_letters import DeadLetters
from collector.wal.log import LogLimits, SegmentLog
from tests.support.otlp import Request, token_body

PROTOBUF = "application/x-protobuf"
BODY = token_body(count=3)
WAIT_S = 120


class Receiver:
    def __init__(self, folder):
        self.status = IngestStatus()
        limits = LogLimits(segment_age_s=3600.0, max_bytes=20_000)
        self.log = SegmentLog(folder / "wal", DeadLetters(folder / "dead", "traces"), limits=limits)
        self.commit = GroupCommit("traces", self.log, self.status)
        self.commit.start()
        self.ingest = Ingest(TRACES, self.commit, self.status, ItemLimits(max_bytes=5_000))
        self.client = TestClient(create_otlp_app([self.ingest], BodyLimits(sent=4_000, decompressed=8_000)))

    def post(self, body, content_type=PROTOBUF, **headers):
        headers = {"content-type": content_type} | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post("/v1/traces", content=body, headers=headers)

    def stored(self):
        """Everything that was acknowledged, after sealing."""
        self.commit.stop(WAIT_S)
        payloads = []
        while segment := self.log.next_sealed(0):
            frames = self.log.read(segment).frames
            payloads += [frame.payload for frame in frames]
            self.log.release(segment, [frame.digest for frame in frames])
        return payloads


@pytest.fixture
def receiver(tmp_path):
    receiver = Receiver(tmp_path)
    yield receiver
    receiver.commit.stop(WAIT_S)


def test_an_acknowledged_body_is_in_the_log(receiver):
    answer = receiver.post(BODY)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == PROTOBUF
    assert ExportTraceServiceResponse.FromString(answer.content) == ExportTraceServiceResponse()
    assert receiver.stored() == [BODY]


def test_a_body_that_cannot_be_written_is_unavailable_with_a_time_to_retry(receiver):
    def fail(_frames):
        raise OSError(errno.ENOSPC, "No space left on device")

    receiver.log.append = fail
    with pytest.raises(LogUnavailableError):
        receiver.ingest.accept(BODY).result(WAIT_S)
    answer = receiver.post(BODY)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert receiver.status.snapshot().payloads_rejected == {"overloaded": 1}


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress), ("identity", bytes)],
)
def test_encodings_are_undone_before_storing(receiver, encoding, compress):
    assert receiver.post(compress(BODY), content_encoding=encoding).status_code == 200
    assert receiver.stored() == [BODY]


def test_json_has_hexadecimal_ids(receiver):
    document = {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "5B8EFFF798038103D269B633813FC60C",
                                "spanId": "eee19b7ec3c1b174",
                                "parentSpanId": "eee19b7ec3c1b173",
                                "name": "from json",
                                "startTimeUnixNano": "1795000000000000000",
                                "endTimeUnixNano": 1795000000000000007,
                                "kind": 2,
                                "attributes": [{"key": "n", "value": {"intValue": "7"}}],
                                "fieldOfTheFuture": True,
                            }
                        ]
                    }
                ]
            }
        ]
    }
    answer = receiver.post(json.dumps(document), "Application/JSON; charset=utf-8")
    assert (answer.status_code, answer.json()) == (200, {})
    (payload,) = receiver.stored()
    expected = Request().message
    expected.ParseFromString(payload)
    (span,) = expected.resource_spans[0].scope_spans[0].spans
    assert span.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert span.span_id.hex() == "eee19b7ec3c1b174"
    assert span.parent_span_id.hex() == "eee19b7ec3c1b173"
    assert span.end_time_unix_nano == 1795000000000000007
    assert span.attributes[0].value.int_value == 7


def test_a_null_in_json_is_an_absent_field(receiver):
    times = {"startTimeUnixNano": "1795000000000000000", "endTimeUnixNano": "1795000000000000007"}
    root = times | {"traceId": "1" * 32, "spanId": "2" * 16, "parentSpanId": None, "attributes": None}
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [root, root | {"traceId": None}]}]}]}
    answer = receiver.post(json.dumps(document), "application/json")
    assert (answer.status_code, answer.json()["partialSuccess"]["rejectedSpans"]) == (200, "1")
    (payload,) = receiver.stored()
    (span,) = ExportTraceServiceRequest.FromString(payload).resource_spans[0].scope_spans[0].spans
    assert (span.trace_id.hex(), span.parent_span_id) == ("1" * 32, b"")


def test_rejected_spans_are_reported_and_the_others_stored(receiver):
    request = Request()
    request.span("good")
    good = request.body()
    request.span("bad", start=0, ns=1)
    answer = receiver.post(request.body())
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_spans) == (200, 1)
    assert "2000" in partial.error_message
    assert receiver.status.snapshot().spans_rejected == {"time": 1}
    assert receiver.stored() == [good]


@pytest.mark.parametrize(
    ("body", "headers", "status", "text", "reason"),
    [
        (b"\xff\xff", {}, 400, "ExportTraceServiceRequest", "malformed"),
        (b"x", {"content_encoding": "gzip"}, 400, "gzip", "encoding"),
        (b"x", {"content_encoding": "br"}, 415, "gzip", "encoding"),
        (bytes(4_001), {}, 413, "TOKENTRAIL_MAX_BODY_BYTES", "too_large"),
        (gzip.compress(bytes(9_000), mtime=0), {"content_encoding": "gzip"}, 413, "DECOMPRESSED", "too_large"),
    ],
)
def test_errors_are_a_status_in_the_requests_encoding(receiver, body, headers, status, text, reason):
    answer = receiver.post(body, **headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == PROTOBUF
    assert text in Status.FromString(answer.content).message
    assert receiver.status.snapshot().payloads_rejected == {reason: 1}
    assert receiver.stored() == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"1",
        b'{"resourceSpans": [1]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 5}]}]}]}',
        b"[" * 3_900,
        b'{"resourceSpans": [{"resource": {"attributes": [{"key": "a", "value": '
        + b'{"arrayValue": {"values": [' * 120
        + b"]}}" * 120
        + b"}]}}]}",
    ],
)
def test_malformed_json_is_a_400_in_json(receiver, body):
    answer = receiver.post(body, "application/json")
    assert answer.status_code == 400
    assert "OTLP" in answer.json()["message"]
    assert receiver.stored() == []


AT = 1795000000000000000
SPAN_WITH = '{"resourceSpans": [{"scopeSpans": [{"spans": [{%s}]}]}]}'


@pytest.mark.parametrize(
    "body",
    [
        SPAN_WITH % r'"name": "\ud800"',
        SPAN_WITH % r'"traceId": "\ud800"',
        SPAN_WITH % r'"\ud800": 1',
        SPAN_WITH % r'"kind": "\ud800"',
        SPAN_WITH % r'"status": {"code": "\udfff"}',
        SPAN_WITH % '"kind": 1e400',
        SPAN_WITH % '"kind": -Infinity',
        SPAN_WITH % '"startTimeUnixNano": 1e400',
        SPAN_WITH % '"attributes": [{"key": "a", "value": {"intValue": 1e400}}]',
        SPAN_WITH % '"attributes": [{"key": "a", "value": {"bytesValue": "***"}}]',
        SPAN_WITH % '"attributes": [{"key": "a", "value": {"bytes_value": "YQ==YQ=="}}]',
        r'{"resourceSpans": "\udfff"}',
        r'{"\ud800": 1}',
    ],
)
def test_json_that_protobuf_cannot_hold_is_a_400_with_the_reason(receiver, body):
    answer = receiver.post(body, "application/json")
    assert answer.status_code == 400
    assert "the body is not OTLP/JSON: " in answer.json()["message"]
    assert receiver.status.snapshot().payloads_rejected == {"malformed": 1}
    assert receiver.stored() == []


@pytest.mark.parametrize("text", ["-_8=", "-_8", "+/8="])
def test_bytes_in_json_are_base64_in_any_of_its_forms(receiver, text):
    value = f'"attributes": [{{"key": "a", "value": {{"bytesValue": "{text}"}}}}]'
    ids = f'"traceId": "{1:032x}", "spanId": "{1:016x}", "startTimeUnixNano": {AT}, "endTimeUnixNano": {AT}'
    assert receiver.post(SPAN_WITH % f"{ids}, {value}", "application/json").status_code == 200
    (stored,) = receiver.stored()
    assert b"\xfb\xff" in bytes(stored)


class OnLoop:
    """An application that remembers the thread of its event loop."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        self.thread = threading.get_ident()
        await self.app(scope, receive, send)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize(("size", "inline"), [(1_000_000, True), (1_500_000, False)])
def test_the_event_loop_checks_no_body_that_inflates_to_more_than_a_mebibyte(
    receiver, monkeypatch, compress, size, inline
):
    encoding = {bytes: "identity", gzip.compress: "gzip", zlib.compress: "deflate"}.get(compress, "zstd")
    checked, unpacked = [], []

    def check(body, limits):
        checked.append(threading.get_ident())
        return Checked(b"", 0)

    def unpack(body, name, most):
        unpacked.append((threading.get_ident(), most))
        return decompress(body, name, most)

    monkeypatch.setattr("collector.receive.http.decompress", unpack)
    ingest = replace(receiver.ingest, signal=replace(TRACES, check=check))
    app = OnLoop(create_otlp_app([ingest], BodyLimits(sent=2_000_000, decompressed=2_000_000)))
    headers = {"content-type": PROTOBUF, "content-encoding": encoding}
    answer = TestClient(app).post("/v1/traces", content=compress(bytes(size)), headers=headers)
    assert answer.status_code == 200
    assert [thread == app.thread for thread in checked] == [inline]
    assert all(most <= 1024 * 1024 for thread, most in unpacked if thread == app.thread)


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/grpc"])
def test_other_content_types_are_named(receiver, content_type):
    answer = receiver.post(BODY, content_type)
    assert answer.status_code == 415
    assert PROTOBUF in answer.json()["message"]


def test_a_body_may_be_as_large_as_the_limit(receiver):
    assert [receiver.post(b"\xff" * size).status_code for size in (4_000, 4_001)] == [400, 413]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/metrics", 404), ("POST", "/", 404), ("GET", "/v1/traces", 405), ("PUT", "/v1/traces", 405)],
)
def test_other_paths_say_what_is_received(receiver, method, path, status):
    answer = receiver.client.request(method, path)
    assert answer.status_code == status
    assert "/v1/traces" in answer.json()["message"]


def test_a_slash_behind_a_path_changes_nothing(receiver):
    headers = {"content-type": PROTOBUF}
    assert receiver.client.post("/v1/traces/", content=BODY, headers=headers, follow_redirects=False).status_code == 200
    assert receiver.stored() == [BODY]


def test_a_body_whose_client_goes_away_is_counted_and_not_stored(receiver):
    messages = iter([{"type": "http.request", "body": BODY, "more_body": True}, {"type": "http.disconnect"}])
    scope = {"type": "http", "method": "POST", "path": "/v1/traces", "headers": [(b"content-type", PROTOBUF.encode())]}
    sent = []

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    asyncio.run(receiver.client.app(scope, receive, send))
    assert sent[0]["status"] == 400
    assert receiver.status.snapshot().payloads_rejected["disconnected"] == 1
    assert receiver.stored() == []


def test_a_full_log_asks_to_come_again_and_keeps_what_it_acknowledged(receiver):
    answers = [receiver.post(token_body(trace=trace, count=20)) for trace in range(1, 12)]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused
    assert {answer.status_code for answer in refused} == {503}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
    assert receiver.status.snapshot().payloads_rejected == {"overloaded": len(refused)}
    assert len(receiver.stored()) == len(answers) - len(refused)


def test_the_same_body_twice_is_stored_once(receiver):
    assert [receiver.post(BODY).status_code for _ in range(3)] == [200, 200, 200]
    snapshot = receiver.status.snapshot()
    assert (snapshot.payloads_received, snapshot.payloads_duplicate) == (3, 2)
    assert receiver.stored() == [BODY]


def test_everything_received_is_counted(receiver):
    receiver.post(BODY)
    receiver.post(gzip.compress(token_body(trace=2, count=2)), content_encoding="gzip")
    snapshot = receiver.status.snapshot()
    assert snapshot.spans_received == 5
    assert snapshot.bytes_received == len(BODY) + len(token_body(trace=2, count=2))
