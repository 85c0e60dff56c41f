"""Group commit: many requests, one write, one fsync."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Final

from collector.base.once_a_minute import OnceAMinute
from collector.base.status import IngestStatus
from collector.wal.frame import HEADER_BYTES, Frame, digest_of
from collector.wal.log import SegmentLog
from tokentrail.shared.folders import words_of

PROBE_S: Final = 1.0
"""A log that failed is tried this often, so that it is ready again without waiting for traffic."""

logger = logging.getLogger(__name__)


class LogUnavailableError(RuntimeError):
    """The log cannot take the payload now (full, or its disk fails); the client should try again later."""


class GroupCommit:
    """Gives payloads to the log from one thread; the payloads that arrive during one fsync share the next.

    A future resolves to False when the payload is durable, to True when it already was (a repetition), and fails with
    `LogUnavailableError` when it is not in the log. Refusals are counted where they are answered; the collector's log
    has a line a minute.
    """

    def __init__(
        self, signal: str, log: SegmentLog, status: IngestStatus, *, line_due: OnceAMinute | None = None
    ) -> None:
        self.name = f"{signal} commit"
        self._signal = signal
        self._log = log
        self._status = status
        self._line_due = line_due or OnceAMinute()
        self._wake = threading.Condition()
        self._queue: dict[bytes, tuple[Frame, list[Future[bool]]]] = {}
        self._committing: dict[bytes, tuple[Frame, list[Future[bool]]]] = {}
        self._queued_bytes = 0
        self._stopping = False
        self._broken = False
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Begin to commit."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Take nothing more, commit the queue, and seal; False when something stays queued or unsealed."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        with self._wake:
            return not self._queue and not self._committing and self._log.seal_due_in_s() is None

    def submit(self, payload: bytes, days: tuple[int, int] = (0, 0)) -> Future[bool]:
        """Queue one payload and the days of its items; raises `LogUnavailableError` when the log is full or stopped."""
        digest = digest_of(payload)
        future: Future[bool] = Future()
        with self._wake:
            waiting = self._queue.get(digest) or self._committing.get(digest)
            if waiting:
                waiting[1].append(future)
            elif self._log.seen(digest):
                future.set_result(True)
            else:
                self._check_room(len(payload))
                self._queue[digest] = (Frame(digest, payload, days), [future])
                self._queued_bytes += HEADER_BYTES + len(payload)
                self._wake.notify()
        return future

    def _check_room(self, size: int) -> None:
        if self._stopping:
            msg = "the collector is shutting down"
            raise LogUnavailableError(msg)
        _, stored = self._log.pending
        limit = self._log.limits.max_bytes
        if stored + self._queued_bytes + HEADER_BYTES + size > limit:
            msg = (
                f"the log of {self._signal} is full ({limit} bytes wait for the store); "
                "the store must take its data first"
            )
            self._not_ready(f"{self._signal} log room", msg)
            raise LogUnavailableError(msg)

    def _run(self) -> None:
        while True:
            due_s = self._log.seal_due_in_s()
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._stopping, PROBE_S if self._broken else due_s)
                self._committing, self._queue, self._queued_bytes = self._queue, {}, 0
                stopping = self._stopping
            if self._committing or self._broken:
                self._commit()
            self._seal(now=stopping)
            self._status.wal_pending(self._signal, *self._log.pending, self._log.waiting_since_ns)
            if stopping:
                return

    def _commit(self) -> None:
        batch = self._committing
        failure: LogUnavailableError | None = None
        try:
            self._log.append([frame for frame, _ in batch.values()])
        except Exception as error:  # of any kind: the senders must get an answer, and this thread must go on
            failure = LogUnavailableError(f"the log of {self._signal} cannot be written: {words_of(error)}")
        self._report(failure)
        with self._wake:
            self._committing = {}
        for _, futures in batch.values():
            for nth, future in enumerate(futures):
                if failure:
                    future.set_exception(failure)
                else:
                    future.set_result(nth > 0)

    def _seal(self, *, now: bool) -> None:
        due_s = self._log.seal_due_in_s()
        if due_s is None or (due_s > 0 and not now):
            return
        try:
            self._log.seal()
        except OSError as error:
            self._report(LogUnavailableError(f"a segment of {self._signal} cannot be sealed: {words_of(error)}"))

    def _report(self, failure: LogUnavailableError | None) -> None:
        self._broken = failure is not None
        if failure is None:
            self._status.set_ready(f"{self._signal} log")
        else:
            self._not_ready(f"{self._signal} log", str(failure))

    def _not_ready(self, part: str, reason: str) -> None:
        self._status.set_not_ready(part, reason)
        if self._line_due.allows(part):
            logger.error("%s; senders are told to try again", reason)
