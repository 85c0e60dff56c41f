"""The interface of a transport, which sends one request body and says how it went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto


class SendStatus(Enum):
    """How one attempt to send a payload ended. `RETRY`: the payload stays queued. `TOO_LARGE`: its halves are sent.
    `REFUSED`: it is dropped.
    """

    DELIVERED = auto()
    RETRY = auto()
    TOO_LARGE = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class SendResult:
    """The answer of a transport. `rejected` spans of a delivered payload were not stored (OTLP partial success);
    `retry_after_s` is the collector's `Retry-After`.
    """

    status: SendStatus
    detail: str = ""
    rejected: int = 0
    retry_after_s: float | None = None


Transport = Callable[[bytes], SendResult]
"""Sends one request body. The HTTP transport is `tokentrail._send.http.OtlpHttp`."""
