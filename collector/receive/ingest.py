"""What both receivers do with a request: check it, give it to the log, and say what became of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from collector.receive.validate import Checked, SpanLimits, check, check_parsed
from collector.status import IngestStatus
from collector.wal.commit import GroupCommit


@dataclass(frozen=True)
class Ingest:
    """The way into the log. The returned future resolves when the payload is durable: only then answer the client."""

    commit: GroupCommit
    status: IngestStatus
    limits: SpanLimits

    def accept(self, body: bytes) -> Future[ExportTraceServiceResponse]:
        """Take a protobuf request; raises `MalformedError` or, now or in the future, `LogUnavailableError`."""
        return self._submit(check(body, self.limits), len(body))

    def accept_parsed(self, request: ExportTraceServiceRequest) -> Future[ExportTraceServiceResponse]:
        """Take a request that came in another encoding."""
        body = request.SerializeToString(deterministic=True)
        return self._submit(check_parsed(request, body, self.limits), len(body))

    def _submit(self, checked: Checked, size: int) -> Future[ExportTraceServiceResponse]:
        done: Future[bool] = self.commit.submit(checked.payload) if checked.payload else _resolved(False)
        return _then(done, lambda duplicate: self._acknowledge(checked, size, duplicate))

    def _acknowledge(self, checked: Checked, size: int, duplicate: bool) -> ExportTraceServiceResponse:
        rejected = {str(reason): count for reason, count in checked.rejected.items()}
        self.status.received(spans=checked.spans, size=size, duplicate=duplicate, rejected=rejected)
        if not rejected:
            return ExportTraceServiceResponse()
        return ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(
                rejected_spans=checked.rejected.total(), error_message=checked.message
            )
        )


def _resolved(value: bool) -> Future[bool]:
    future: Future[bool] = Future()
    future.set_result(value)
    return future


def _then(
    source: Future[bool], transform: Callable[[bool], ExportTraceServiceResponse]
) -> Future[ExportTraceServiceResponse]:
    """A future of the transformed result; a client that goes away cannot cancel what is being written."""
    target: Future[ExportTraceServiceResponse] = Future()
    target.set_running_or_notify_cancel()

    def settle(done: Future[bool]) -> None:
        if error := done.exception():
            target.set_exception(error)
        else:
            target.set_result(transform(done.result()))

    source.add_done_callback(settle)
    return target
