"""OTLP/gRPC: `TraceService.Export`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from collector.receive.decompress import BrokenEncodingError, TooLargeError, decompress, encoding_of_message
from collector.receive.http import RETRY_AFTER_S, BodyLimits
from collector.receive.ingest import Ingest
from collector.receive.validate import MalformedError
from collector.wal.commit import LogUnavailableError

SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
_THREADS: Final = 16
_MAX_CONCURRENT: Final = 256


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Messages stay bytes: gRPC would decompress them without a limit, and the log stores them as they are."""

    def __init__(self, ingest: Ingest, limits: BodyLimits) -> None:
        self._ingest = ingest
        self._limits = limits
        self._export_method = grpc.unary_unary_rpc_method_handler(self._export)
        self._unknown_method = grpc.unary_unary_rpc_method_handler(self._unknown)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Find a method; unknown ones get an answer that says which there are."""
        known = handler_call_details.method == f"/{SERVICE}/Export"
        return self._export_method if known else self._unknown_method

    def _export(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            body = decompress(message, encoding_of_message(message), self._limits.decompressed)
            answer: bytes = self._ingest.accept(body).result().SerializeToString()
        except TooLargeError as error:
            self._refuse(context, "too_large", Status(code=Code.INVALID_ARGUMENT, message=str(error)))
        except BrokenEncodingError as error:
            self._refuse(context, "encoding", Status(code=Code.INVALID_ARGUMENT, message=str(error)))
        except MalformedError as error:
            self._refuse(context, "malformed", Status(code=Code.INVALID_ARGUMENT, message=str(error)))
        except LogUnavailableError as error:
            status = Status(code=Code.UNAVAILABLE, message=str(error))
            detail = AnyMessage()
            detail.Pack(RetryInfo(retry_delay=Duration(seconds=RETRY_AFTER_S)))
            status.details.append(detail)
            self._refuse(context, "overloaded", status)
        return answer

    def _refuse(self, context: grpc.ServicerContext, reason: str, status: Status) -> NoReturn:
        self._ingest.status.refused(reason)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        code = {code.value[0]: code for code in grpc.StatusCode}[status.code]
        context.abort(code, status.message)
        raise AssertionError  # abort() raises

    def _unknown(self, _message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"this collector receives traces: call {SERVICE}/Export")
        raise AssertionError  # abort() raises


class GrpcReceiver:
    """A gRPC server on its own threads."""

    def __init__(self, ingest: Ingest, limits: BodyLimits, host: str, port: int) -> None:
        """Bind at once; raises OSError when the address cannot be had."""
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="otlp-grpc"),
            handlers=(_Handler(ingest, limits),),
            maximum_concurrent_rpcs=_MAX_CONCURRENT,
            options=[
                ("grpc.max_receive_message_length", limits.sent),
                ("grpc.per_message_decompression", 0),
                ("grpc.so_reuseport", 0),
            ],
        )
        self._host = f"[{host}]" if ":" in host else host
        try:
            self._port = self._server.add_insecure_port(f"{self._host}:{port}")
        except RuntimeError as error:
            msg = f"cannot listen on {self._host}:{port}: {error}"
            raise OSError(msg) from error

    @property
    def url(self) -> str:
        """Where it listens, with the real port."""
        return f"http://{self._host}:{self._port}"

    def start(self) -> None:
        """Begin to receive."""
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Take nothing new and give the requests in progress some time to be acknowledged."""
        self._server.stop(grace_s).wait()
