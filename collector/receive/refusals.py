"""One table of refusals: the answer of both receivers to each error, and the label under which it is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status
from starlette.requests import ClientDisconnect

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
from collector.wal.commit import LogUnavailableError


@dataclass(frozen=True)
class Refusal:
    """How an error is answered and counted. The answer's message is the error's own."""

    reason: str
    """Value of the label `reason` of `tokentrail_collector_payloads_rejected_total`."""
    http_status: int
    code: Code.ValueType
    """The code of the answer's `google.rpc.Status`, and the gRPC status code."""
    retry_after_s: int | None = None
    """When the client should try again; None when the error says so itself, or trying again cannot help."""

    def retry_after(self, error: Exception) -> int | None:
        """Return the seconds after which the client should try again."""
        return error.retry_after_s if isinstance(error, LimitedError) else self.retry_after_s

    def status(self, error: Exception) -> Status:
        """Describe the error as OTLP wants it in the body of an answer.

        A message may quote a lone surrogate of the request, which no UTF-8 text has; it is written as an escape.
        """
        message = str(error).encode("utf-8", "backslashreplace").decode("utf-8")
        return Status(code=self.code, message=message)


REFUSALS: Final[dict[type[Exception], Refusal]] = {
    TooLargeError: Refusal("too_large", 413, Code.INVALID_ARGUMENT),
    UnsupportedContentTypeError: Refusal("content_type", 415, Code.INVALID_ARGUMENT),
    UnsupportedEncodingError: Refusal("encoding", 415, Code.INVALID_ARGUMENT),
    BrokenEncodingError: Refusal("encoding", 400, Code.INVALID_ARGUMENT),
    MalformedError: Refusal("malformed", 400, Code.INVALID_ARGUMENT),
    LogUnavailableError: Refusal("overloaded", 503, Code.UNAVAILABLE, retry_after_s=2),
    SlowError: Refusal("slow", 408, Code.UNAVAILABLE, retry_after_s=1),
    BusyError: Refusal("busy", 503, Code.UNAVAILABLE, retry_after_s=1),
    AmbiguousError: Refusal("ambiguous", 400, Code.INVALID_ARGUMENT),
    UnauthenticatedError: Refusal("unauthenticated", 401, Code.UNAUTHENTICATED),
    ForbiddenError: Refusal("forbidden", 403, Code.PERMISSION_DENIED),
    WrongHostError: Refusal("wrong_host", 421, Code.PERMISSION_DENIED),
    LimitedError: Refusal("limited", 429, Code.RESOURCE_EXHAUSTED),
    ClientDisconnect: Refusal("disconnected", 400, Code.CANCELLED),
}
REFUSED: Final = tuple(REFUSALS)
"""The errors that are answered with a refusal, for `except`."""
