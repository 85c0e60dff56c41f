import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from collector.otlp.signals import TRACES
from collector.pipeline.settings import split_address
from collector.receive.buffer import Buffer
from collector.receive.grpc import GrpcReceiver
from collector.receive.http import BodyLimits
from tests.collector.receive.test_otlp_http import Receiver
from tests.support.otlp import Request, token_body

BODY = token_body(count=3)
WAIT_S = 120


@contextmanager
def receiving(folder, limits, **options):
    """A receiver with a gRPC server and a channel to it."""
    receiver = Receiver(folder)
    server = GrpcReceiver([receiver.ingest], limits, "127.0.0.1", 0, **options)
    server.start()
    receiver.server = server  # type: ignore[attr-defined]
    receiver.channel = grpc.insecure_channel(server.url.removeprefix("http://"))  # type: ignore[attr-defined]
    yield receiver
    receiver.channel.close()  # type: ignore[attr-defined]
    server.stop(1.0)
    receiver.commit.stop(WAIT_S)


@pytest.fixture
def receiver(tmp_path):
    buffer = Buffer(10_000_000)
    with receiving(tmp_path, BodyLimits(sent=4_000, decompressed=8_000), buffer=buffer) as receiver:
        receiver.buffer = buffer
        yield receiver


def export(receiver, body, method=f"/{TRACES.grpc_service}/Export", **kwargs):
    return receiver.channel.unary_unary(method)(body, timeout=WAIT_S, wait_for_ready=True, **kwargs)


def status_of(error):
    metadata = dict(error.trailing_metadata())
    return Status.FromString(metadata["grpc-status-details-bin"])


@pytest.mark.parametrize(
    "compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate]
)
def test_an_acknowledged_message_is_in_the_log(receiver, compression):
    assert export(receiver, BODY, compression=compression) == b""
    assert receiver.stored() == [BODY]


def test_rejected_spans_are_reported(receiver):
    request = Request()
    request.span("good")
    request.span("bad", start=0, ns=1)
    answer = ExportTraceServiceResponse.FromString(export(receiver, request.body()))
    assert answer.partial_success.rejected_spans == 1


@pytest.mark.parametrize(
    ("body", "compression", "text", "reason"),
    [
        (b"\xff\xff", None, "ExportTraceServiceRequest", "malformed"),
        (b"\x1f\x8b no gzip", None, "gzip", "encoding"),
        (bytes(9_000_000), grpc.Compression.Gzip, "larger", None),
        (bytes(4_001), grpc.Compression.NoCompression, "larger", None),
        (bytes(9_000), grpc.Compression.Gzip, "DECOMPRESSED", "too_large"),
    ],
)
def test_errors_say_what_is_wrong(receiver, body, compression, text, reason):
    with pytest.raises(grpc.RpcError, match=text) as refused:
        export(receiver, body, compression=compression)
    if reason:
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert text in status_of(refused.value).message
        assert receiver.status.snapshot().payloads_rejected == {reason: 1}
    else:
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert receiver.stored() == []


def test_a_full_log_is_unavailable_with_a_time_to_retry(receiver):
    bodies = [token_body(trace=trace, count=20) for trace in range(1, 12)]
    with pytest.raises(grpc.RpcError) as refused:
        [export(receiver, body) for body in bodies]
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    retry = RetryInfo()
    assert status_of(refused.value).details[0].Unpack(retry)
    assert retry.retry_delay.seconds > 0


def test_calls_beyond_the_limit_are_unavailable_with_a_time_to_retry_and_an_exporter_delivers_them_later(receiver):
    gate = threading.Event()
    append = receiver.log.append
    receiver.log.append = lambda frames: gate.wait(WAIT_S) and append(frames)
    call = receiver.channel.unary_unary(f"/{TRACES.grpc_service}/Export")
    waiting = [call.future(token_body(trace=1), timeout=WAIT_S, wait_for_ready=True) for _ in range(256)]
    while receiver.server._calls.count < 256:
        time.sleep(0.01)
    with pytest.raises(grpc.RpcError) as refused:
        export(receiver, token_body(trace=2))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    retry = RetryInfo()
    assert status_of(refused.value).details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 1
    assert receiver.status.snapshot().payloads_rejected == {"busy": 1}

    tracer_provider = TracerProvider(shutdown_on_exit=False)
    span = tracer_provider.get_tracer("t").start_span("late")
    span.end()
    exporter = OTLPSpanExporter(endpoint=receiver.server.url, insecure=True, timeout=WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        exported = pool.submit(exporter.export, [span])
        while receiver.status.snapshot().payloads_rejected["busy"] < 2:
            time.sleep(0.01)
        gate.set()
        assert exported.result(WAIT_S) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert [future.result() for future in waiting] == [b""] * 256
    assert b"late" in b"".join(receiver.stored())


@pytest.fixture
def wait_for_messages(receiver):
    """Puts a server in front of the receiver that waits so many seconds for a message."""
    servers = []

    def serve(message_timeout_s):
        limits = BodyLimits(sent=4_000_000, decompressed=8_000_000)
        server = GrpcReceiver([receiver.ingest], limits, "127.0.0.1", 0, message_timeout_s=message_timeout_s)
        server.start()
        servers.append(server)
        receiver.channel.close()
        receiver.channel = grpc.insecure_channel(server.url.removeprefix("http://"))
        return receiver

    yield serve
    for server in servers:
        server.stop(1.0)


@pytest.fixture
def impatient(wait_for_messages):
    return wait_for_messages(3.0)


def half_sent(receiver):
    """A call whose message never comes."""
    gone = threading.Event()

    def messages():
        gone.wait(WAIT_S)
        yield from ()

    return receiver.channel.stream_unary(f"/{TRACES.grpc_service}/Export").future(messages(), timeout=WAIT_S), gone


def test_the_bytes_of_all_calls_under_way_are_limited(receiver):
    """60 calls of 71 KiB that unpack to 60 MiB each had taken 4.8 GB."""
    body = Request().body() + Request(big="r" * 500).body()
    with receiver.buffer.share() as take:
        take(10_000_000 - 600)  # as other requests under way do
        with pytest.raises(grpc.RpcError) as refused:
            export(receiver, body, compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the requests under way have more than 10000000 bytes; try again" in refused.value.details()
        assert [detail.Is(RetryInfo.DESCRIPTOR) for detail in status_of(refused.value).details] == [True]
        assert export(receiver, BODY[:0]) == b""
    for _ in range(20):
        assert export(receiver, body, compression=grpc.Compression.Gzip) == b""
    with receiver.buffer.share() as take:
        take(10_000_000)
        with pytest.raises(grpc.RpcError):
            export(receiver, BODY)


def header(name, value):
    """A header of HTTP/2 that stands in no table."""
    return bytes([0, len(name), *name.encode(), len(value), *value.encode()])


def frame(kind, flags, payload, stream=1):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def raw_call(receiver, *, encoding, message):
    """Send a call as an exporter with this compression does, and return the answer up to its status."""
    path = f"/{TRACES.grpc_service}/Export"
    told = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a", "te": "trailers"}
    told |= {"content-type": "application/grpc", "grpc-encoding": encoding}
    headers = frame(1, 4, b"".join(header(*item) for item in told.items()))
    with socket.create_connection(split_address(receiver.server.url.removeprefix("http://")), WAIT_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b"", stream=0) + headers)
        connection.sendall(frame(0, 1, message))
        answer = b""
        while b"grpc-message" not in answer:
            received = connection.recv(65536)
            assert received, answer
            answer += received
    return answer


def counted(receiver, reason):
    deadline = time.monotonic() + WAIT_S
    while not (found := receiver.status.snapshot().payloads_rejected.get(reason)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("encoding", "flag", "said"),
    [
        ("zstd", 1, b"Error parsing 'grpc-encoding' metadata"),
        ("snappy", 1, b"Error parsing 'grpc-encoding' metadata"),
        ("identity", 1, b"Compression bit set but no encoding configured"),
    ],
)
def test_a_call_that_grpc_itself_refuses_is_counted_and_is_no_payload(receiver, encoding, flag, said):
    assert said in raw_call(receiver, encoding=encoding, message=bytes([flag, 0, 0, 0, 3]) + b"abc")
    assert counted(receiver, "disconnected") == 1
    assert receiver.status.snapshot().payloads_received == 0


def test_a_call_without_a_message_is_no_payload_and_one_with_an_empty_message_is(receiver):
    call = receiver.channel.stream_unary(f"/{TRACES.grpc_service}/Export")
    with pytest.raises(grpc.RpcError, match="the call has no message"):
        call(iter(()), timeout=WAIT_S, wait_for_ready=True)
    assert receiver.status.snapshot().payloads_received == 0
    assert export(receiver, b"") == b""
    assert receiver.status.snapshot().payloads_received == 1
    assert receiver.stored() == []


def test_a_good_call_does_not_wait_until_slow_ones_are_refused(wait_for_messages):
    patient = wait_for_messages(3600.0)
    calls = [half_sent(patient) for _ in range(40)]
    assert export(patient, BODY) == b""
    assert not any(call.done() for call, _ in calls)
    for call, gone in calls:
        call.cancel()
        gone.set()
    assert patient.stored() == [BODY]


def test_messages_that_do_not_arrive_in_time_are_refused_with_a_time_to_retry(impatient):
    calls = [half_sent(impatient) for _ in range(40)]
    for call, gone in calls:
        error = call.exception(WAIT_S)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "within 3 s" in status_of(error).message
        retry = RetryInfo()
        assert status_of(error).details[0].Unpack(retry)
        assert retry.retry_delay.seconds == 1
        gone.set()
    assert impatient.status.snapshot().payloads_rejected == {"slow": 40}
    assert export(impatient, BODY) == b""
    assert impatient.stored() == [BODY]


def test_connections_beyond_the_limit_are_closed(receiver, monkeypatch):
    monkeypatch.setattr("collector.receive.grpc._MAX_CONNECTIONS", 3)
    server = GrpcReceiver([receiver.ingest], BodyLimits(4_000, 8_000), "127.0.0.1", 0)
    server.start()
    address = server.url.removeprefix("http://")
    method = f"/{TRACES.grpc_service}/Export"
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(address, options=own) for _ in range(4)]
    try:
        for channel in channels[:3]:
            assert channel.unary_unary(method)(BODY, timeout=WAIT_S) == b""
        with pytest.raises(grpc.RpcError) as refused:
            channels[3].unary_unary(method)(BODY, timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        channels[0].close()
        assert channels[3].unary_unary(method)(BODY, timeout=WAIT_S, wait_for_ready=True) == b""
    finally:
        for channel in channels:
            channel.close()
        server.stop(1.0)


def test_a_connection_that_does_not_speak_is_closed(receiver, monkeypatch):
    """grpc's own time is 60 s, in which silent connections fill the places of senders."""
    monkeypatch.setattr("collector.receive.grpc._HANDSHAKE_TIMEOUT_MS", 200)
    server = GrpcReceiver([receiver.ingest], BodyLimits(4_000, 8_000), "127.0.0.1", 0)
    server.start()
    try:
        with socket.create_connection(split_address(server.url.removeprefix("http://")), timeout=30) as silent:
            while silent.recv(65536):  # the server's settings come first
                pass
            assert silent.recv(1) == b""
    finally:
        server.stop(1.0)


def test_an_address_of_ipv6_is_listened_at(receiver):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this system has no IPv6")
    server = GrpcReceiver([receiver.ingest], BodyLimits(4_000, 8_000), "::1", 0)
    server.start()
    try:
        assert server.url.startswith("http://[::1]:")
        with grpc.insecure_channel(server.url.removeprefix("http://")) as channel:
            assert channel.unary_unary(f"/{TRACES.grpc_service}/Export")(BODY, timeout=WAIT_S) == b""
    finally:
        server.stop(1.0)


def test_other_services_say_what_is_received(receiver):
    with pytest.raises(grpc.RpcError, match="TraceService") as refused:
        export(receiver, b"", method="/opentelemetry.proto.collector.metrics.v1.MetricsService/Export")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_address_in_use_is_named(receiver):
    ingests = [receiver.ingest]  # the same objects, another server
    first = GrpcReceiver(ingests, BodyLimits(1, 1), "127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match=first.url.removeprefix("http://")):
            GrpcReceiver(ingests, BodyLimits(1, 1), *split_address(first.url.removeprefix("http://")))
    finally:
        first.stop(0)


def test_an_address_that_cannot_be_had_names_the_setting(receiver):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"listen on 127.0.0.1:{port}: another process .* set another --otlp-grpc"):
            GrpcReceiver([receiver.ingest], BodyLimits(4_000, 8_000), "127.0.0.1", port)
