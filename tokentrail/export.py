"""Payloads out: a bounded queue that outlives a dead collector, and the books that say where every span went."""

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
"""Within these bounds the collector says when to come back: not at once for ever, not tomorrow."""
BUFFER_FULL: Final = "buffer_full"
REFUSED: Final = "refused"
REJECTED: Final = "rejected"
SHUTDOWN: Final = "shutdown"


class SendStatus(Enum):
    """What became of one attempt to send."""

    DELIVERED = auto()
    RETRY = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class SendResult:
    """A verdict; `rejected` spans of a delivered payload were not taken, `retry_after_s` is the collector's wish."""

    status: SendStatus
    detail: str = ""
    rejected: int = 0
    retry_after_s: float | None = None


Transport = Callable[[bytes], SendResult]


@dataclass(frozen=True, slots=True)
class TrailStats:
    """Where the spans went: `accepted = exported + dropped + queued`, at all times.

    `pending` records (steps, requests) are not spans yet; they become so within the schedule delay. `drops` splits
    `dropped` by reason. `errors` counts our own failures and misuses of the SDK.
    """

    accepted: int = 0
    exported: int = 0
    queued: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    errors: int = 0

    @property
    def dropped(self) -> int:
        """Spans that were not delivered and never will be."""
        return sum(self.drops.values())


class Exporter:
    """Sends payloads in order, each until it is delivered or refused. `offer` and `drop` never block on the network."""

    def __init__(self, transport: Transport, guard: Guard, *, max_spans: int, max_bytes: int) -> None:
        self._transport = transport
        self._guard = guard
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._backoff = Retry(total=None, backoff_factor=0.5, backoff_max=30, backoff_jitter=0.5)
        self.reset()

    def reset(self) -> None:
        """Empty books and an empty queue, as in a new process."""
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[Payload] = deque()
        self._queued = self._bytes = self._accepted = self._exported = 0
        self._drops: Counter[str] = Counter()
        self._retry = self._backoff
        self._hurried = self._closed = False

    @property
    def stats(self) -> TrailStats:
        """The books, all read at one moment."""
        with self._changed:
            return TrailStats(self._accepted, self._exported, self._queued, dict(self._drops))

    def offer(self, payload: Payload) -> None:
        """Queues a payload, or drops it when there is no room: what waits longest has the first claim."""
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
        """Books spans that never became a payload."""
        with self._changed:
            self._accepted += spans
            self._drops[reason] += spans

    def attempt(self) -> float | None:
        """Sends the oldest payload once. Seconds to wait before the next attempt, or None when nothing is queued."""
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
        """The exporter thread: attempts until `close`."""
        while not self._closed:
            wait_s = self.attempt()
            with self._changed:
                if wait_s is None:
                    self._changed.wait_for(lambda: self._queue or self._closed)
                elif wait_s > 0:
                    self._changed.wait_for(lambda: self._hurried or self._closed, wait_s)
                    self._hurried = False

    def drain(self, timeout_s: float) -> bool:
        """Waits until nothing is queued; False when the time is up first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, timeout_s)

    def hurry(self) -> None:
        """Cuts the present wait between attempts short: the process is about to end."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self) -> int:
        """Ends the thread and books what is still queued as dropped; the number of those spans."""
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
                return 0.0  # closed while it was under way: already booked
            if result.status is SendStatus.RETRY:
                self._guard.warn("retry", "tokentrail keeps %d spans and tries again: %s", self._queued, result.detail)
                return self._pause(result.retry_after_s)
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

    def _pause(self, retry_after_s: float | None) -> float:
        if len(self._retry.history) < 16:  # the backoff is at its longest well before
            self._retry = self._retry.increment("POST", error=None)
        backoff_s = self._retry.get_backoff_time() or self._retry.backoff_factor
        return backoff_s if retry_after_s is None else min(max(retry_after_s, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)


def deadline(timeout_s: float) -> Callable[[], float]:
    """A function that tells the seconds left, never negative."""
    end = time.monotonic() + timeout_s
    return lambda: max(end - time.monotonic(), 0.0)
