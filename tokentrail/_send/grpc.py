"""OTLP over gRPC, one call at a time. It needs grpcio, which `tokentrail[grpc]` installs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status as RpcStatus
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tokentrail._send.http import Endpoint, is_on_this_machine, tls_files, uninstrumented
from tokentrail._send.transport import SendResult, SendStatus
from tokentrail.shared.formatting import without_user

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""The OTLP specification's list of statuses after which a client tries again; RESOURCE_EXHAUSTED only with a delay."""
_COMPRESSION: Final = {
    Compression.NoCompression: grpc.Compression.NoCompression,
    Compression.Gzip: grpc.Compression.Gzip,
    Compression.Deflate: grpc.Compression.Deflate,
}


class OtlpGrpc:
    """A transport. A forked child opens a channel of its own, since it must not share its parent's sockets."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._shown = without_user(endpoint.url)
        self._pid = 0
        self._export: Any = None

    def __call__(self, body: bytes) -> SendResult:
        """Makes one call. Trouble of the network or the collector is a result and never an exception."""
        to = self._endpoint
        metadata = [(name.lower(), value) for name, value in to.headers.items()]
        try:
            if self._pid != os.getpid():
                self._export, self._pid = self._connect(), os.getpid()
            with uninstrumented():
                partial = self._export(body, timeout=to.timeout_s, metadata=metadata).partial_success
        except OSError as error:  # a TLS file that is not there, or not yet
            return SendResult(SendStatus.RETRY, f"{self._shown}: {error}")
        except ValueError as error:
            return SendResult(SendStatus.REFUSED, f"{self._shown} cannot be called: {error}")
        except grpc.RpcError as error:
            return self._refusal(error)
        return SendResult(SendStatus.DELIVERED, partial.error_message, rejected=max(partial.rejected_spans, 0))

    def _connect(self) -> Any:
        scheme, _, rest = self._endpoint.url.rpartition("://")
        authority = rest.rpartition("@")[2].partition("/")[0]  # gRPC has no user and no password in an address
        options: dict[str, Any] = {
            "compression": _COMPRESSION[self._endpoint.compression],
            "options": [
                ("grpc.primary_user_agent", "tokentrail"),
                ("grpc.enable_http_proxy", int(not is_on_this_machine(authority))),
            ],
        }
        if scheme == "https":
            channel = grpc.secure_channel(authority, self._credentials(), **options)
        else:
            channel = grpc.insecure_channel(authority, **options)
        return channel.unary_unary(_EXPORT, None, ExportTraceServiceResponse.FromString)

    def _credentials(self) -> grpc.ChannelCredentials:
        read = {name: Path(path).read_bytes() for name, path in tls_files(self._endpoint).items()}
        certificate = read.get("CLIENT_CERTIFICATE")
        key = read.get("CLIENT_KEY", certificate)  # one file may hold both; grpcio aborts the process without a key
        return grpc.ssl_channel_credentials(read.get("CERTIFICATE"), key, certificate)

    def _refusal(self, error: Any) -> SendResult:
        code, shown = error.code(), f"{self._shown} answered {error.code().name}: {error.details()}"
        delay_s = _retry_delay_s(error)
        if code in RETRYABLE or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and delay_s is not None):
            return SendResult(SendStatus.RETRY, shown, retry_after_s=delay_s)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in shown:
            return SendResult(SendStatus.TOO_LARGE, shown)
        return SendResult(SendStatus.REFUSED, shown)


def _retry_delay_s(error: Any) -> float | None:
    """The delay of a `RetryInfo` in the status details, in seconds."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            info = RetryInfo()
            for detail in RpcStatus.FromString(value).details:
                if detail.Unpack(info):
                    return float(info.retry_delay.ToTimedelta().total_seconds())
    return None
