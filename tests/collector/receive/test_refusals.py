"""Both receivers answer an error as the one table says."""

from dataclasses import replace

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient

from collector.access.access import AmbiguousError, ForbiddenError, UnauthenticatedError, WrongHostError
from collector.access.limits import LimitedError
from collector.otlp.errors import (
    BrokenEncodingError,
    BusyError,
    MalformedError,
    SlowError,
    TooLargeError,
    UnsupportedContentTypeError,
    UnsupportedEncodingError,
)
from collector.otlp.signals import TRACES
from collector.receive.grpc import GrpcReceiver
from collector.receive.http import BodyLimits, create_otlp_app
from collector.receive.refusals import REFUSALS
from collector.wal.commit import LogUnavailableError
from tests.collector.receive.test_otlp_http import Receiver

LIMITS = BodyLimits(sent=4_000, decompressed=8_000)
PROTOBUF = {"content-type": "application/x-protobuf"}
EXPECTED = {
    TooLargeError: ("too_large", 413, grpc.StatusCode.INVALID_ARGUMENT, None),
    UnsupportedContentTypeError: ("content_type", 415, grpc.StatusCode.INVALID_ARGUMENT, None),
    UnsupportedEncodingError: ("encoding", 415, grpc.StatusCode.INVALID_ARGUMENT, None),
    BrokenEncodingError: ("encoding", 400, grpc.StatusCode.INVALID_ARGUMENT, None),
    MalformedError: ("malformed", 400, grpc.StatusCode.INVALID_ARGUMENT, None),
    LogUnavailableError: ("overloaded", 503, grpc.StatusCode.UNAVAILABLE, 2),
    SlowError: ("slow", 408, grpc.StatusCode.UNAVAILABLE, 1),
    BusyError: ("busy", 503, grpc.StatusCode.UNAVAILABLE, 1),
    AmbiguousError: ("ambiguous", 400, grpc.StatusCode.INVALID_ARGUMENT, None),
    UnauthenticatedError: ("unauthenticated", 401, grpc.StatusCode.UNAUTHENTICATED, None),
    ForbiddenError: ("forbidden", 403, grpc.StatusCode.PERMISSION_DENIED, None),
    WrongHostError: ("wrong_host", 421, grpc.StatusCode.PERMISSION_DENIED, None),
    LimitedError: ("limited", 429, grpc.StatusCode.RESOURCE_EXHAUSTED, 3),
    ClientDisconnect: ("disconnected", 400, grpc.StatusCode.CANCELLED, None),
}


@pytest.fixture
def refusing(tmp_path):
    """Makes an `Ingest` whose check raises this error."""
    receiver = Receiver(tmp_path)

    def refuse(error):
        def check(body, limits):
            raise error("why", retry_after_s=3) if error is LimitedError else error("why")

        return replace(receiver.ingest, signal=replace(TRACES, check=check))

    yield refuse
    receiver.commit.stop(20)


def test_every_refusal_is_listed_here():
    assert EXPECTED.keys() == REFUSALS.keys()


@pytest.mark.parametrize("error", EXPECTED)
def test_over_http(refusing, error):
    reason, http_status, code, retry_after_s = EXPECTED[error]
    ingest = refusing(error)
    answer = TestClient(create_otlp_app([ingest], LIMITS)).post("/v1/traces", content=b"\n", headers=PROTOBUF)
    assert (answer.status_code, answer.headers.get("retry-after")) == (
        http_status,
        retry_after_s and str(retry_after_s),
    )
    assert Status.FromString(answer.content) == Status(code=code.value[0], message="why")
    assert ingest.status.snapshot().payloads_rejected == {reason: 1}


@pytest.mark.parametrize("error", EXPECTED)
def test_over_grpc(refusing, error):
    reason, _, code, retry_after_s = EXPECTED[error]
    ingest = refusing(error)
    server = GrpcReceiver([ingest], LIMITS, "127.0.0.1", 0)
    server.start()
    try:
        with (
            grpc.insecure_channel(server.url.removeprefix("http://")) as channel,
            pytest.raises(grpc.RpcError) as refused,
        ):
            channel.unary_unary(f"/{TRACES.grpc_service}/Export")(b"\n", timeout=120, wait_for_ready=True)
    finally:
        server.stop(1.0)
    assert (refused.value.code(), refused.value.details()) == (code, "why")
    status = Status.FromString(dict(refused.value.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (code.value[0], "why")
    retry = RetryInfo()
    assert [detail.Unpack(retry) for detail in status.details] == ([True] if retry_after_s else [])
    assert retry.retry_delay.seconds == (retry_after_s or 0)
    assert ingest.status.snapshot().payloads_rejected == {reason: 1}
