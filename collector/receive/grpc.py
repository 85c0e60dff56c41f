"""OTLP/gRPC: the `Export` method of each signal's service."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo

from collector.receive.decompress import decompress, encoding_of_message
from collector.receive.http import BodyLimits
from collector.receive.ingest import Ingest
from collector.receive.refusals import REFUSALS, REFUSED

_THREADS: Final = 16
_MAX_CONCURRENT: Final = 256
_STATUS_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
"""grpc's own constants by the number that `google.rpc.Status` has."""


class _Export:
    """One signal's `Export`. Messages stay bytes: gRPC would decompress them without a limit."""

    def __init__(self, ingest: Ingest, limits: BodyLimits, in_progress: _InProgress) -> None:
        self._ingest = ingest
        self._limits = limits
        self._in_progress = in_progress

    def __call__(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer one request when its payload is durable."""
        with self._in_progress:
            try:
                body = decompress(message, encoding_of_message(message), self._limits.decompressed)
                answer: bytes = self._ingest.accept(body).result().SerializeToString()
            except REFUSED as error:
                self._refuse(context, error)
            return answer

    def _refuse(self, context: grpc.ServicerContext, error: Exception) -> NoReturn:
        refusal = REFUSALS[type(error)]
        self._ingest.status.refused(refusal.reason)
        status = refusal.status(error)
        if refusal.retry_after_s is not None:
            detail = AnyMessage()
            detail.Pack(RetryInfo(retry_delay=Duration(seconds=refusal.retry_after_s)))
            status.details.append(detail)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(_STATUS_CODES[refusal.code], status.message)
        raise AssertionError  # abort() raises


class _InProgress:
    """Counts the requests that are being answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.count -= 1


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Finds the method for a call."""

    def __init__(self, ingests: Sequence[Ingest], limits: BodyLimits, in_progress: _InProgress) -> None:
        self._methods = {
            f"/{ingest.signal.grpc_service}/Export": grpc.unary_unary_rpc_method_handler(
                _Export(ingest, limits, in_progress)
            )
            for ingest in ingests
        }
        self._received = "; ".join(f"{i.signal.name}: call {i.signal.grpc_service}/Export" for i in ingests)
        self._unknown_method = grpc.unary_unary_rpc_method_handler(self._unknown)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Find a method. An unknown one is answered with the methods that there are."""
        return self._methods.get(handler_call_details.method, self._unknown_method)

    def _unknown(self, _message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"this collector receives {self._received}")
        raise AssertionError  # abort() raises


class GrpcReceiver:
    """A gRPC server on its own threads."""

    name = "otlp-grpc"

    def __init__(self, ingests: Sequence[Ingest], limits: BodyLimits, host: str, port: int) -> None:
        """Bind at once; raises OSError when the address cannot be had."""
        self._in_progress = _InProgress()
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix=self.name),
            handlers=(_Handler(ingests, limits, self._in_progress),),
            maximum_concurrent_rpcs=_MAX_CONCURRENT,
            options=[
                ("grpc.max_receive_message_length", limits.sent),
                ("grpc.per_message_decompression", 0),
                ("grpc.so_reuseport", 0),
            ],
        )
        host = f"[{host}]" if ":" in host else host
        try:
            port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            msg = f"cannot listen on {host}:{port}: {error}"
            raise OSError(msg) from error
        self.url = f"http://{host}:{port}"
        """The address that it listens on, with the real port."""

    def start(self) -> None:
        """Begin to receive."""
        self._server.start()

    def stop(self, timeout_s: float) -> bool:
        """Take nothing new and let the requests in progress be acknowledged; False when some were not in time."""
        self._server.stop(timeout_s).wait(timeout_s)
        return self._in_progress.count == 0
