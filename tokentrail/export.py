"""The export queue: it is bounded, keeps payloads while the collector is away, and accounts for every span."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from urllib3.util import Retry

from tokentrail.guard import Guard
from tokentrail.wire import Payload

RETRY_AFTER_MIN_S: Final = 0.05
RETRY_AFTER_MAX_S: Final = 300.0
"""The collector's `Retry-After` is obeyed within these bounds."""

# Reasons of drops; docs/sdk.md defines them.
BUFFER_FULL: Final = "buffer_full"
REFUSED: Final = "refused"
REJECTED: Final = "rejected"
SHUTDOWN: Final = "shutdown"


class SendStatus(Enum):
    """How one attempt to send a payload ended. `RETRY`: the payload stays queued. `REFUSED`: it is dropped."""

    DELIVERED = auto()
    RETRY = auto()
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
"""Sends one request body. The HTTP transport is `tokentrail.http.OtlpHttp`."""


@dataclass(frozen=True, slots=True)
class TrailStats:
    """Counts of spans: `accepted = exported + dropped + queued`, at all times. `drops` splits `dropped` by reason.

    `pending` counts records (steps, requests) that become spans within the schedule delay. `errors` counts failures of
    the SDK itself and wrong calls of it. `left_out` counts requests that sampling left out; their spans are in no other
    count.
    """

    accepted: int = 0
    exported: int = 0
    queued: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    errors: int = 0
    left_out: int = 0

    @property
    def dropped(self) -> int:
        """Spans that are lost."""
        return sum(self.drops.values())


class Exporter:
    """Sends payloads in order, each until the collector takes or refuses it. `offer` and `drop` never wait for it."""

    def __init__(self, transport: Transport, guard: Guard, *, max_spans: int, max_bytes: int) -> None:
        self._transport = transport
        self._guard = guard
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._backoff = Retry(total=None, backoff_factor=0.5, backoff_max=30, backoff_jitter=0.5)
        self.reset()

    def reset(self) -> None:
        """Empties the queue and sets all counts to 0, as in a new process."""
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[Payload] = deque()
        self._queued = self._bytes = self._accepted = self._exported = 0
        self._drops: Counter[str] = Counter()
        self._retry = self._backoff
        self._retry_at_once = self._closed = False

    @property
    def stats(self) -> TrailStats:
        """The counts, all read at one moment; `pending` and `errors` are the trail's to add."""
        with self._changed:
            return TrailStats(self._accepted, self._exported, self._queued, dict(+self._drops))

    def offer(self, payload: Payload) -> None:
        """Queues a payload. A full queue drops the new payload and keeps those that wait."""
        with self._changed:
            self._accepted += payload.spans
            if self._closed:
                self._drops[SHUTDOWN] += payload.spans
            elif self._queued + payload.spans > self._max_spans or self._bytes + len(payload.body) > self._max_bytes:
                self._drops[BUFFER_FULL] += payload.spans
                self._guard.warn(
                    BUFFER_FULL, "tokentrail buffer full (%d spans, %d bytes): dropping", self._queued, self._bytes
                )
            else:
                self._queue.append(payload)
                self._queued += payload.spans
                self._bytes += len(payload.body)
                self._changed.notify_all()

    def drop(self, spans: int, reason: str) -> None:
        """Counts spans that never became a payload as accepted and dropped."""
        with self._changed:
            self._accepted += spans
            self._drops[reason] += spans

    def attempt(self) -> float | None:
        """Sends the oldest payload once. Returns the seconds until the next attempt, None when the queue is empty."""
        with self._changed:
            payload = self._queue[0] if self._queue else None
        if payload is None:
            return None
        try:
            result = self._transport(payload.body)
        except Exception as error:
            self._settle(payload, SendResult(SendStatus.REFUSED, repr(error)))
            self._guard.failed("sending", error)
            return 0.0
        return self._settle(payload, result)

    def run(self) -> None:
        """The body of the exporter thread: makes attempts until `close`."""
        while not self._closed:
            wait_s = self.attempt()
            with self._changed:
                if wait_s is None:
                    self._changed.wait_for(lambda: self._queue or self._closed)
                elif wait_s > 0:
                    self._changed.wait_for(lambda: self._retry_at_once or self._closed, wait_s)
                    self._retry_at_once = False

    def drain(self, timeout_s: float) -> bool:
        """Waits until nothing is queued; False when the time is up first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, timeout_s)

    def retry_at_once(self) -> None:
        """Ends the present wait between two attempts; a process that is about to end has no time for it."""
        with self._changed:
            self._retry_at_once = True
            self._changed.notify_all()

    def close(self) -> int:
        """Ends the thread and drops the payloads that are still queued. Returns the number of their spans."""
        with self._changed:
            left = self._queued
            if left:
                self._drops[SHUTDOWN] += left
            self._queue.clear()
            self._queued = self._bytes = 0
            self._closed = True
            self._changed.notify_all()
            return left

    def _settle(self, payload: Payload, result: SendResult) -> float:
        with self._changed:
            if not self._queue or self._queue[0] is not payload:
                return 0.0  # `close` came during the attempt and has counted this payload
            if result.status is SendStatus.RETRY:
                self._guard.warn("retry", "tokentrail keeps %d spans and tries again: %s", self._queued, result.detail)
                return self._next_wait_s(result.retry_after_s)
            self._queue.popleft()
            self._queued -= payload.spans
            self._bytes -= len(payload.body)
            self._retry = self._backoff
            lost = payload.spans if result.status is SendStatus.REFUSED else min(result.rejected, payload.spans)
            self._exported += payload.spans - lost
            if lost:
                reason = REFUSED if result.status is SendStatus.REFUSED else REJECTED
                self._drops[reason] += lost
                self._guard.warn(reason, "tokentrail lost %d spans: %s", lost, result.detail)
            elif result.detail:
                self._guard.warn("warning", "tokentrail: %s", result.detail)
            self._changed.notify_all()
            return 0.0

    def _next_wait_s(self, retry_after_s: float | None) -> float:
        if len(self._retry.history) < 16:  # the backoff is at its longest well before
            self._retry = self._retry.increment("POST", error=None)
        backoff_s = self._retry.get_backoff_time() or self._retry.backoff_factor
        return backoff_s if retry_after_s is None else min(max(retry_after_s, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)


def deadline(timeout_s: float) -> Callable[[], float]:
    """Returns a function that gives the seconds left until the time-out, never negative."""
    end = time.monotonic() + timeout_s
    return lambda: max(end - time.monotonic(), 0.0)
