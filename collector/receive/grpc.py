"""OTLP/gRPC: the `Export` method of each signal's service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo
from starlette.requests import ClientDisconnect

from collector.access.access import OPEN, Access
from collector.access.caller import Role
from collector.access.tls import Tls
from collector.base.status import IngestStatus
from collector.otlp.decompress import decompress, encoding_of_message
from collector.otlp.errors import BusyError, SlowError
from collector.receive.buffer import Buffer
from collector.receive.http import BodyLimits
from collector.receive.ingest import Ingest
from collector.receive.refusals import REFUSALS, REFUSED

_MAX_CALLS: Final = 256
"""Most calls that are answered or wait for their message, each on a thread."""
_MAX_CONNECTIONS: Final = 512
_HANDSHAKE_TIMEOUT_MS: Final = 10_000
_PATIENCE_S: Final = 5.0
"""A message may take so long to arrive while others wait to. Exporters give up after 10 s.

With 2 s, forty senders of 1 MB at 250 KB/s each refused one another, and half of them sent nothing in 30 s.
"""
_unpacking: Final = threading.Semaphore(4)
"""Calls whose messages are decompressed at a time: nobody knows before how large they become."""
_STATUS_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
"""grpc's own constants by the number that `google.rpc.Status` has."""


class _Calls(ThreadPoolExecutor):
    """The threads that answer calls. It counts the calls that were given to it and have not ended."""

    def __init__(self, name: str) -> None:
        super().__init__(_MAX_CALLS, thread_name_prefix=name)
        self._changed = threading.Condition()
        self.count = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue one call."""
        with self._changed:
            self.count += 1
        future = super().submit(*args, **kwargs)
        future.add_done_callback(self._ended)
        return future

    def wait_until_none(self, timeout_s: float) -> bool:
        """Wait for the end of all calls; False when some have not ended in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count == 0, timeout_s)

    def _ended(self, _: Future[Any]) -> None:
        with self._changed:
            self.count -= 1
            self._changed.notify_all()


class _Arrivals:
    """Places for messages that arrive.

    grpc holds a message while it arrives, and nobody knows before how large it becomes. So only as many arrive at a
    time as may be of the largest size together.
    """

    def __init__(self, limits: BodyLimits) -> None:
        self._places = threading.Semaphore(max(1, limits.under_way // limits.sent))
        self._lock = threading.Lock()
        self._waiting = 0

    @property
    def others_wait(self) -> bool:
        """Whether there are more messages than places."""
        return self._waiting > 0

    @contextmanager
    def place(self, timeout_s: float) -> Iterator[None]:
        """Wait for a place and hold it; raises `BusyError`."""
        with self._lock:
            self._waiting += 1
        try:
            free = self._places.acquire(timeout=timeout_s)
        finally:
            with self._lock:
                self._waiting -= 1
        if not free:
            msg = f"other messages arrive slowly, so this one was not read within {timeout_s:g} s; try again"
            raise BusyError(msg)
        try:
            yield
        finally:
            self._places.release()


class _Export:
    """One signal's `Export`. Messages stay bytes: gRPC would decompress them without a limit.

    It is a handler of a stream, because grpc waits for ever for the message of any other.
    """

    def __init__(
        self,
        ingest: Ingest,
        limits: BodyLimits,
        access: Access,
        message_timeout_s: float,
        buffer: Buffer,
        arrivals: _Arrivals,
    ) -> None:
        self._ingest = ingest
        self._buffer = buffer
        self._arrivals = arrivals
        self._limits = limits
        self._access = access
        self._message_timeout_s = message_timeout_s
        self._readers = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="otlp-grpc reader")

    def __call__(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answer one request when its payload is durable."""
        try:
            tenant = self._tenant(context)
            self._ingest.check_rate(tenant)
            message = self._read(messages)
            with self._buffer.share() as take:
                answer: bytes = self._accept(message, take, tenant).result().SerializeToString()
        except REFUSED as error:
            _refuse(context, self._ingest.status, error)
        return answer

    def _accept(self, message: bytes, take: Callable[[int], None], tenant: str) -> Future[Message]:
        take(len(message))
        with _unpacking:
            body = decompress(message, encoding_of_message(message), self._limits.decompressed)
            if body is not message:
                take(len(body))
        return self._ingest.accept(body, tenant)

    def _tenant(self, context: grpc.ServicerContext) -> str:
        keys = [str(value) for name, value in context.invocation_metadata() if name == "authorization"]
        route = f"{self._ingest.signal.grpc_service}/Export"
        # Browsers, in which names are rebound, do not speak gRPC, so its host is not checked.
        return self._access.admit(Role.INGEST, keys, address=context.peer(), route=route).tenant

    def _read(self, messages: Iterator[bytes]) -> bytes:
        """Wait for the message. The refusal of a slow one ends the call, and with it the reader's wait.

        grpc ends a call by itself whose encoding it does not know, zstd for example, and calls us all the same.
        """
        with self._arrivals.place(self._message_timeout_s):
            try:
                message = self._arrived(self._readers.submit(next, messages, None))
            except grpc.RpcError as error:
                raise ClientDisconnect from error
        if message is None:
            msg = "the call has no message"
            raise ClientDisconnect(msg)
        return message

    def _arrived(self, message: Future[bytes | None]) -> bytes | None:
        """Wait in pieces, to see whether others wait; raises `SlowError`."""
        ends = time.monotonic() + self._message_timeout_s
        while (left_s := ends - time.monotonic()) > 0:
            try:
                return message.result(min(left_s, _PATIENCE_S))
            except TimeoutError:
                if self._arrivals.others_wait:
                    msg = f"the message did not arrive within {_PATIENCE_S:g} s, and others wait; try again"
                    raise SlowError(msg) from None
        msg = f"the message did not arrive within {self._message_timeout_s:g} s; try again"
        raise SlowError(msg)


class _Busy:
    """Refuses a signal's calls because too many wait already.

    It has a thread of its own: those of the calls may all wait for the log.
    """

    def __init__(self, ingest: Ingest) -> None:
        self._status = ingest.status
        self.experimental_thread_pool = ThreadPoolExecutor(1)  # the name by which grpc finds it

    def __call__(self, _messages: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
        """Answer one call without reading its message."""
        _refuse(context, self._status, BusyError(f"{_MAX_CALLS} requests are under way; try again"))


def _refuse(context: grpc.ServicerContext, ingest_status: IngestStatus, error: Exception) -> NoReturn:
    refusal = REFUSALS[type(error)]
    ingest_status.refused(refusal.reason)
    status = refusal.status(error)
    retry_after_s = refusal.retry_after(error)
    if retry_after_s is not None:
        detail = AnyMessage()
        detail.Pack(RetryInfo(retry_delay=Duration(seconds=retry_after_s)))
        status.details.append(detail)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(_STATUS_CODES[refusal.code], status.message)
    raise AssertionError  # abort() raises


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Finds the method for a call.

    grpc's own limit of calls answers RESOURCE_EXHAUSTED without a time to retry, and a sender must then drop its data.
    """

    def __init__(
        self,
        ingests: Sequence[Ingest],
        limits: BodyLimits,
        calls: _Calls,
        access: Access,
        timeout_s: float,
        buffer: Buffer,
    ) -> None:
        self._calls = calls
        self._export: dict[str, Any] = {}
        self._busy: dict[str, Any] = {}
        arrivals = _Arrivals(limits)
        for ingest in ingests:
            method = f"/{ingest.signal.grpc_service}/Export"
            export = _Export(ingest, limits, access, timeout_s, buffer, arrivals)
            self._export[method] = grpc.stream_unary_rpc_method_handler(export)
            # A handler of a stream may answer before it has read a message.
            self._busy[method] = grpc.stream_unary_rpc_method_handler(_Busy(ingest))
        self._received = "; ".join(f"{i.signal.name}: call {i.signal.grpc_service}/Export" for i in ingests)
        self._unknown_method = grpc.unary_unary_rpc_method_handler(self._unknown)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Find a method. An unknown one is answered with the methods that there are."""
        methods = self._export if self._calls.count < _MAX_CALLS else self._busy
        return methods.get(handler_call_details.method, self._unknown_method)

    def _unknown(self, _message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"this collector receives {self._received}")
        raise AssertionError  # abort() raises


class GrpcReceiver:
    """A gRPC server on its own threads."""

    name = "otlp-grpc"

    def __init__(
        self,
        ingests: Sequence[Ingest],
        limits: BodyLimits,
        host: str,
        port: int,
        *,
        message_timeout_s: float = 30.0,
        access: Access = OPEN,
        tls: Tls | None = None,
        buffer: Buffer | None = None,
    ) -> None:
        """Bind at once; raises OSError when the address cannot be had. It may share the room for its bodies.

        A call is refused when its message has not arrived in its time.
        """
        self._calls = _Calls(self.name)
        buffer = buffer or Buffer(limits.under_way)
        self._server = grpc.server(
            self._calls,
            handlers=(_Handler(ingests, limits, self._calls, access, message_timeout_s, buffer),),
            options=[
                ("grpc.max_receive_message_length", limits.sent),
                # Else grpc lets the senders of fast connections send megabytes of a message that nobody reads.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.per_message_decompression", 0),
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", _MAX_CONNECTIONS),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
            ],
        )
        host = f"[{host}]" if ":" in host else host
        try:
            address = f"{host}:{port}"
            port = (
                self._server.add_secure_port(address, tls.grpc_credentials())
                if tls
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            msg = (
                f"cannot listen on {host}:{port}: another process has it, or this machine has no such address; "
                "set another --otlp-grpc"
            )
            raise OSError(msg) from error
        self.url = f"{'https' if tls else 'http'}://{host}:{port}"
        """The address that it listens on, with the real port."""

    def start(self) -> None:
        """Begin to receive."""
        self._server.start()

    def stop(self, timeout_s: float) -> bool:
        """Take nothing new and let the requests in progress be acknowledged; False when some were not in time."""
        deadline = time.monotonic() + timeout_s
        self._server.stop(timeout_s).wait(timeout_s)
        return self._calls.wait_until_none(deadline - time.monotonic())
