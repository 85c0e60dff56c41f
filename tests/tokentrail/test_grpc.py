"""The gRPC transport against a real server."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.tokentrail.support import T0, run
from tokentrail import Endpoint, Settings, Trail
from tokentrail._send.grpc import OtlpGrpc
from tokentrail._send.http import GRPC
from tokentrail._send.transport import SendStatus
from tokentrail.testing import parse_spans


class Collector(TraceServiceServicer):
    """Answers with the next of `script`: an answer, or (code, details, seconds of a RetryInfo or None)."""

    def __init__(self):
        self.script, self.calls, self.url = [], [], ""

    def Export(self, request, context):  # noqa: N802
        self.calls.append((request, dict(context.invocation_metadata())))
        answer = self.script.pop(0) if self.script else ExportTraceServiceResponse()
        if isinstance(answer, ExportTraceServiceResponse):
            return answer
        code, details, delay_s = answer
        if delay_s is not None:
            info = RetryInfo()
            info.retry_delay.FromMilliseconds(round(delay_s * 1_000))
            detail = Any()
            detail.Pack(info)
            status = Status(code=code.value[0], details=[detail]).SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", status),))
        return context.abort(code, details)


@pytest.fixture
def receiver():
    servicer = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(servicer, server)
    servicer.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(0)


def send(receiver, **given):
    return OtlpGrpc(Endpoint.to(receiver.url, protocol=GRPC, **given))(b"")


def test_a_proxy_stands_between_this_machine_and_others_alone(receiver, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert send(receiver).status is SendStatus.DELIVERED
        with ThreadPoolExecutor(1) as pool:
            elsewhere = OtlpGrpc(Endpoint.to("http://collector.test:4317", protocol=GRPC, timeout_s=60))
            answer = pool.submit(elsewhere, b"")
            connection, _ = proxy.accept()
            with connection:
                assert connection.recv(1000).startswith(b"CONNECT collector.test:4317 ")
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            assert answer.result().status is SendStatus.RETRY


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_a_trail_over_grpc(receiver, compression):
    endpoint = Endpoint.to(receiver.url, protocol=GRPC, headers={"Authorization": "Bearer x"}, compression=compression)
    trail = Trail(Settings(endpoint, strict=True), service_name="mine")
    trail.step(0, T0, T0, [])
    assert trail.shutdown(120)
    ((request, metadata),) = receiver.calls
    assert [span.name for span in parse_spans(request.SerializeToString())] == ["tokentrail.step"]
    assert metadata["authorization"] == "Bearer x"
    assert metadata["user-agent"].startswith("tokentrail")


def test_partial_success_is_told(receiver):
    partial = ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
    receiver.script = [ExportTraceServiceResponse(partial_success=partial)]
    outcome = send(receiver)
    assert (outcome.status, outcome.rejected, outcome.detail) == (SendStatus.DELIVERED, 3, "too old")


@pytest.mark.parametrize(
    ("code", "delay_s", "status"),
    [
        (grpc.StatusCode.UNAVAILABLE, None, SendStatus.RETRY),
        (grpc.StatusCode.UNAVAILABLE, 7.0, SendStatus.RETRY),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None, SendStatus.RETRY),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 2.5, SendStatus.RETRY),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, None, SendStatus.REFUSED),
        (grpc.StatusCode.UNIMPLEMENTED, None, SendStatus.REFUSED),
        (grpc.StatusCode.UNAUTHENTICATED, 1.0, SendStatus.REFUSED),
    ],
)
def test_statuses_mean_again_or_never(receiver, code, delay_s, status):
    receiver.script = [(code, "no room", delay_s)]
    outcome = send(receiver)
    assert outcome.status is status
    assert outcome.retry_after_s == (delay_s if status is SendStatus.RETRY else None)
    assert all(part in outcome.detail for part in (receiver.url, code.name, "no room"))


def test_a_message_that_is_too_large_is_split(receiver):
    outcome = OtlpGrpc(Endpoint.to(receiver.url, protocol=GRPC))(bytes(5 << 20))  # grpcio takes 4 MiB by default
    assert outcome.status is SendStatus.TOO_LARGE


def test_nobody_listening_is_tried_again():
    assert OtlpGrpc(Endpoint.to("http://127.0.0.1:9", protocol=GRPC, timeout_s=2))(b"").status is SendStatus.RETRY


@pytest.mark.parametrize(
    "piece", [b"", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"x"], ids=["silent", "drips", "no HTTP/2"]
)
def test_a_server_that_does_not_answer_is_given_up_after_the_timeout(piece):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def serve():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                while not ended.wait(0.05):
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        answer = OtlpGrpc(Endpoint.to(url, protocol=GRPC, timeout_s=0.5))(b"")
        ended.set()
        thread.join()
    assert answer.status is SendStatus.RETRY


def test_a_slash_in_a_password_begins_no_path():
    result = OtlpGrpc(Endpoint("http://user:sec/ret@127.0.0.1:9", {}))(b"")
    assert ("127.0.0.1" in result.detail, "sec" in result.detail) == (True, False)


def test_an_address_that_is_none_is_refused():
    outcome = OtlpGrpc(Endpoint.to("http://[::1", protocol=GRPC, timeout_s=2))(b"")
    assert (outcome.status, "http://[::1 cannot be called" in outcome.detail) == (SendStatus.REFUSED, True)


def test_a_client_certificate_without_a_key_of_its_own_does_not_end_the_process(tmp_path):
    """grpcio checks this with an assertion that ends the process, so the test has one of its own."""
    certificate = tmp_path / "ours.pem"
    certificate.write_text("no certificate")
    code = (
        "import os, tokentrail, tokentrail._send.http as http; from tokentrail._send.grpc import OtlpGrpc; "
        f"to = http.Endpoint.to('https://127.0.0.1:9', protocol='grpc', client_certificate='{certificate}'); "
        "print(OtlpGrpc(to)(b'').status.name)"
    )
    assert run(code, "http://127.0.0.1:9").split() == ["RETRY"]


def test_a_missing_ca_file_is_waited_for_and_https_is_encrypted(receiver, tmp_path):
    ca = tmp_path / "ca.pem"
    endpoint = Endpoint.to(receiver.url.replace("http", "https"), protocol=GRPC, certificate=str(ca), timeout_s=2)
    transport = OtlpGrpc(endpoint)
    outcome = transport(b"")
    assert (outcome.status, "ca.pem" in outcome.detail) == (SendStatus.RETRY, True)
    ca.write_text("")
    assert transport(b"").status is SendStatus.RETRY  # the server speaks no TLS
    assert receiver.calls == []


def test_the_call_is_not_traced_by_instrumentations(receiver, monkeypatch):
    seen = []
    transport = OtlpGrpc(Endpoint.to(receiver.url, protocol=GRPC))
    call = transport._connect()

    def export(*given, **how):
        seen.append(get_value(_SUPPRESS_INSTRUMENTATION_KEY))
        return call(*given, **how)

    monkeypatch.setattr(transport, "_connect", lambda: export)
    assert transport(ExportTraceServiceRequest().SerializeToString()).status is SendStatus.DELIVERED
    assert (seen, get_value(_SUPPRESS_INSTRUMENTATION_KEY)) == ([True], None)


def test_grpcio_is_imported_only_for_its_protocol():
    code = (
        "import sys, os, tokentrail; os.environ.update({}); tokentrail.Trail.from_env(); print('grpc' in sys.modules)"
    )
    assert run(code, "http://127.0.0.1:9/v1/traces").split() == ["False"]
    code = code.replace("{}", "{'OTEL_EXPORTER_OTLP_PROTOCOL': 'grpc'}")
    assert run(code, "http://127.0.0.1:9").split() == ["True"]
