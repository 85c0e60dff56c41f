"""The export queue: it is bounded, keeps payloads while the collector is away, and accounts for every span."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from urllib3.util import Retry

from tokentrail._encode.envelope import Payload
from tokentrail._host.books import BUFFER_FULL, DISPLACED, EXPIRED, REFUSED, REJECTED, SAMPLED_OUT, SHUTDOWN, TrailStats
from tokentrail._host.guard import Guard
from tokentrail._send.queue import PayloadQueue, Queued
from tokentrail._send.transport import SendResult, SendStatus, Transport

RETRY_AFTER_MIN_S: Final = 0.05
RETRY_AFTER_MAX_S: Final = 300.0
"""The collector's `Retry-After` is obeyed within these bounds."""

MAX_ATTEMPTS: Final = 5
"""After so many attempts a payload lets the others pass. If one of them is delivered, this payload is at fault."""
JOINED_BYTES: Final = 64 << 10
"""Small payloads travel together, up to this size: a POST costs its sender about 0.5 ms. A collector checks a body of
tokens alone faster than one of all kinds, which is worth more for larger ones."""
MAX_AGE_S: Final = 3_600.0
"""A payload that is tried again for longer than this is dropped."""


class Exporter:
    """Sends payloads in order, each until the collector takes or refuses it. `offer` and `drop` never wait for it.

    `halves` splits a payload that the collector cannot take whole. Small payloads are joined to bodies of at most
    `joined_spans` (0: bodies that are compressed cannot be), but not while the collector is away, since a payload that
    has been sent is not displaced any more. `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        transport: Transport,
        guard: Guard,
        *,
        max_spans: int,
        max_bytes: int,
        halves: Callable[[Payload], list[Payload]],
        joined_spans: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._guard = guard
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._halves = halves
        self._joined = min(joined_spans, max_spans // 8), min(JOINED_BYTES, max_bytes // 8)
        self._clock = clock
        self._backoff = Retry(total=None, backoff_factor=0.5, backoff_max=30, backoff_jitter=0.5)
        self.reset()

    def reset(self) -> None:
        """Empties the queue and sets all counts to 0, as in a new process."""
        self.changed = threading.Condition()  # its lock is reentrant: a signal handler may call the trail at any point
        self._queue = PayloadQueue(self._max_spans, self._max_bytes)
        self._accepted = self._exported = self._delivered = 0
        self._drops: Counter[str] = Counter()
        self._retry = self._backoff
        self._retry_at_once = self._waiting = self._closed = False

    @property
    def stats(self) -> TrailStats:
        """The counts, all read at one moment; `pending` and `errors` are the trail's to add."""
        with self.changed:
            drops = dict(+self._drops)
            sampled_out = drops.pop(SAMPLED_OUT, 0)
            return TrailStats(self._accepted, self._exported, self._queue.spans, drops, sampled_out=sampled_out)

    def offer(
        self, *payloads: Payload, lost: Mapping[str, int] | None = None, handover: Callable[[], None] = lambda: None
    ) -> list[bool]:
        """Queues payloads; False for each one that is dropped. A full queue keeps its payloads, except that requests
        displace tokens and then steps. `lost` spans by reason never became a payload. `handover` is called under the
        lock, so that no span is counted twice or not at all.
        """
        with self.changed:
            handover()
            for reason, spans in (lost or {}).items():
                self.drop(spans, reason)
            queued = str(self._queue)
            taken = [self._take(payload) for payload in payloads]
            self.changed.notify_all()
        if not all(taken) and not self._closed:
            self._guard.warn(BUFFER_FULL, "tokentrail buffer full (%s): dropping", queued)
        return taken

    def drop(self, spans: int, reason: str) -> None:
        """Counts spans that never became a payload as accepted and dropped."""
        if spans:
            with self.changed:
                self._accepted += spans
                self._drops[reason] += spans

    def attempt(self) -> float | None:
        """Sends the oldest payload once. Returns the seconds until the next attempt, None when the queue is empty."""
        with self.changed:
            self._waiting = False
            if not self._queue:
                return None
            collector_answers = self._retry is self._backoff
            entry = self._queue.join_oldest(*self._joined) if collector_answers else self._queue.oldest
            entry.attempts += 1
        try:
            result = self._transport(entry.payload.body)
        except Exception as error:
            self._settle(entry, SendResult(SendStatus.REFUSED, repr(error)))
            self._guard.failed("sending", error)
            return 0.0
        return self._settle(entry, result)

    def run(self) -> None:
        """The body of the exporter thread: makes attempts until `close`."""
        while not self._closed:
            wait_s = self.attempt()
            with self.changed:
                if wait_s is None:
                    self.changed.wait_for(lambda: self._queue or self._closed)
                elif wait_s > 0:
                    self._waiting = True
                    self.changed.notify_all()
                    self.changed.wait_for(lambda: self._retry_at_once or self._closed, wait_s)
                    self._retry_at_once = False

    def drain(self, timeout_s: float) -> bool:
        """Waits until nothing is queued; False when the time is up first."""
        with self.changed:
            return self.changed.wait_for(lambda: not self._queue, timeout_s)

    def wait_for_room(self, timeout_s: float) -> None:
        """Waits until half of the queue is free, but not for a collector that is away."""
        with self.changed:
            self.changed.wait_for(lambda: self._closed or self._waiting or self._queue.half_empty, timeout_s)

    def retry_at_once(self) -> None:
        """Ends the present wait between two attempts; a process that is about to end has no time for it."""
        with self.changed:
            self._retry_at_once = True
            self.changed.notify_all()

    def close(self) -> int:
        """Ends the thread and drops the payloads that are still queued. Returns the number of their spans."""
        with self.changed:
            self._closed = True
            left = self._queue.spans
            while self._queue:
                self._remove(self._queue.oldest, SHUTDOWN)
            self.changed.notify_all()
            return left

    def _take(self, payload: Payload) -> bool:
        self._accepted += payload.spans
        if self._closed:
            self._drops[SHUTDOWN] += payload.spans
            return False
        for entry in self._queue.displaced_by(payload):
            self._remove(entry, DISPLACED)
        fits = self._queue.fits(payload)
        if fits:
            self._queue.append(Queued(payload, self._clock()))
        else:
            self._drops[BUFFER_FULL] += payload.spans
        return fits

    def _remove(self, entry: Queued, reason: str = "") -> None:
        self._queue.remove(entry)
        if reason:
            self._drops[reason] += entry.payload.spans

    def _settle(self, entry: Queued, result: SendResult) -> float:
        """Applies an answer. Messages are logged after the lock is free, since a log handler may use the trail."""
        warnings: list[tuple[str, str, int, str]] = []
        with self.changed:
            if entry not in self._queue:
                return 0.0  # `close` came during the attempt and has counted this payload
            spans, detail = entry.payload.spans, result.detail
            wait_s = 0.0
            if result.status is SendStatus.RETRY:
                wait_s = self._next_wait_s(result.retry_after_s)
                warnings.append(("retry", "tokentrail keeps %d spans and tries again: %s", self._queue.spans, detail))
                lost, reason = self._keep(entry)
            elif result.status is SendStatus.TOO_LARGE:
                lost, reason = self._split(entry), REFUSED
            elif result.status is SendStatus.REFUSED:
                self._remove(entry, REFUSED)
                self._retry = self._backoff
                lost, reason = spans, REFUSED
            else:
                lost, reason = min(result.rejected, spans), REJECTED
                self._remove(entry)
                self._retry = self._backoff
                self._delivered += 1
                self._exported += spans - lost
                if lost:
                    self._drops[REJECTED] += lost
                elif detail:
                    warnings.append(("warning", "tokentrail was told about %d delivered spans: %s", spans, detail))
            if lost:
                warnings.append((reason, "tokentrail lost %d spans: %s", lost, detail))
            self.changed.notify_all()
        for key, message, *args in warnings:
            self._guard.warn(key, message, *args)
        return wait_s

    def _keep(self, entry: Queued) -> tuple[int, str]:
        """Decides about a payload that could not be delivered now. Returns the spans that are lost, and the reason.

        A collector that is away refuses every payload. One that delivers others after this one had failed
        `MAX_ATTEMPTS` times cannot take this one: its halves are sent, down to the span that is at fault.
        """
        if self._clock() - entry.since_s >= MAX_AGE_S:
            self._remove(entry, EXPIRED)
            return entry.payload.spans, EXPIRED
        if entry.attempts < MAX_ATTEMPTS:
            entry.passed = self._delivered  # it is still the first one, so nothing passes it
            return 0, ""
        if self._delivered > entry.passed:
            return self._split(entry), REFUSED
        self._queue.send_later(entry)
        return 0, ""

    def _split(self, entry: Queued) -> int:
        """Puts the halves of a payload behind the others. Returns the spans that are lost: those of a single one."""
        halves = self._halves(entry.payload) if entry.payload.spans > 1 else []
        self._remove(entry, "" if halves else REFUSED)
        for half in halves:
            self._queue.append(Queued(half, entry.since_s, attempts=MAX_ATTEMPTS, passed=self._delivered))
        return 0 if halves else entry.payload.spans

    def _next_wait_s(self, retry_after_s: float | None) -> float:
        if len(self._retry.history) < 16:  # the backoff is at its longest well before
            self._retry = self._retry.increment("POST", error=None)
        backoff_s = self._retry.get_backoff_time() or self._retry.backoff_factor
        return backoff_s if retry_after_s is None else min(max(retry_after_s, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)


def deadline(timeout_s: float) -> Callable[[], float]:
    """Returns a function that gives the seconds left until the time-out, never negative."""
    end = time.monotonic() + timeout_s
    return lambda: max(end - time.monotonic(), 0.0)
