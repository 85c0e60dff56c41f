"""The two background threads: one builds payloads from records, the other sends them."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
from opentelemetry.sdk.resources import Resource

from tokentrail._build.assemble import Assembler
from tokentrail._build.metrics import metrics_of
from tokentrail._encode.envelope import Envelope, Payload, Rank
from tokentrail._encode.wire import Block
from tokentrail._host.books import MALFORMED, SHUTDOWN, TrailStats
from tokentrail._host.clock import behind_ns, now_ns
from tokentrail._host.gate import Breaks, Gate
from tokentrail._host.guard import Guard
from tokentrail._record.records import END, Batch, Records, kind_of, spans_waiting, take
from tokentrail._send.compression import body_compression, compressor
from tokentrail._send.export import Exporter, deadline
from tokentrail.config import MAX_PAYLOAD_BYTES, Settings
from tokentrail.semconv import SCHEMA_URL, SCOPE_NAME

BATCH_SPANS: Final = 16_000
"""About so many spans are built at once: enough to amortise NumPy's calls, few enough to stay in the CPU's cache."""
SPAN_BYTES: Final = 256
"""Room that a batch takes in the queue for each of its spans, about."""
MOST_BEHIND_NS: Final = 10 * 10**9
"""Spans may be so far from the wall clock before they follow it."""
_NOTHING: Final = Batch([], [])


class Pipeline:
    """Turns the records of the hot path into payloads and queues them for the collector. `capacity` is the most spans
    that the queue takes.
    """

    def __init__(
        self,
        records: Records,
        exporter: Exporter,
        settings: Settings,
        resource: Callable[[], Resource],
        guard: Guard,
        *,
        version: str,
        ids: np.random.Generator | None = None,
        clock: Callable[[], int] = now_ns,
        background: bool = True,
    ) -> None:
        self._records = records
        self._exporter = exporter
        self._settings = settings
        self._resource = resource
        self._guard = guard
        self._version = version
        self._clock = clock
        self._background = background
        self._compress = compressor(body_compression(settings.endpoint))
        self._metrics = metrics_of(settings.meter_provider)
        self.capacity = settings.max_queue_spans
        spans, size = settings.max_queue_spans, settings.max_queue_bytes
        self._batch_spans = max(min(BATCH_SPANS, spans // 4, size // 4 // SPAN_BYTES), 1)
        self._payload_spans = max(min(settings.max_payload_spans, spans // 8), 1)
        self._payload_bytes = min(MAX_PAYLOAD_BYTES, size // 8)
        self._start(ids or np.random.default_rng())
        self._metrics.watch(self)
        os.register_at_fork(
            before=_on_living(self, Pipeline._before_fork),
            after_in_parent=_on_living(self, Pipeline._after_fork_in_parent),
            after_in_child=_on_living(self, Pipeline._after_fork_in_child),
        )

    def _start(self, ids: np.random.Generator) -> None:
        self._pid = os.getpid()
        self._gate = Gate()
        self._asked = threading.Condition()  # its lock is reentrant: a signal handler may flush during a flush
        self._asks = self._answered = 0
        self._stopping = self._ended = False
        self._batch = _NOTHING
        self._take_break: Callable[[], object] = Breaks() if self._background else lambda: None
        settings = self._settings
        self._assembler = Assembler(
            self._guard, settings.max_request_age_s, ids, settings.sampling, self._metrics.record, self._take_break
        )
        self._envelope = Envelope(self._resource(), SCOPE_NAME, self._version, SCHEMA_URL)
        if self._background:
            threading.Thread(target=self._assemble, name="tokentrail-assemble", daemon=True).start()
            threading.Thread(target=self._exporter.run, name="tokentrail-export", daemon=True).start()

    @property
    def stands_still(self) -> bool:
        """Whether this process was forked without Python's fork hooks, so that none of the threads runs in it."""
        return self._background and self._pid != os.getpid()

    @property
    def stats(self) -> TrailStats:
        """The exporter's counts and, from the same moment, those of the records that wait or are being built."""
        with self._exporter.changed:
            waiting = self._records.copy()  # one step for the threads that append
            pending = spans_waiting(waiting) + self._batch.spans
            stats = self._exporter.stats
        return replace(
            stats,
            accepted=stats.accepted + pending,
            pending=pending,
            abandoned=self._assembler.abandoned,
            errors=self._guard.errors,
            left_out=self._assembler.left_out,
        )

    def flush(self, timeout_s: float) -> bool:
        """Builds, then waits until the queue is empty. False when the time is up first."""
        if self.stands_still:
            return False
        left_s = deadline(timeout_s)
        if self._background:
            built = self._ask(left_s())
        else:
            built = self._build()
            self._send()
        return self._exporter.drain(left_s()) and built

    def shutdown(self, timeout_s: float) -> bool:
        """Flushes, without the present wait for a retry, then ends the threads. Requests that are still open end as
        abandoned. False when the time was not enough; the rest is dropped.
        """
        if self.stands_still:
            return False
        self._stopping = True
        self._exporter.retry_at_once()
        flushed = self.flush(timeout_s)
        with self._asked:
            self._ended = True
            self._asked.notify_all()
        left = self._exporter.close()
        self._drop_records()
        stats = self.stats
        if lost := stats.drops.get(SHUTDOWN, 0) + stats.pending:
            self._guard.warn(SHUTDOWN, "tokentrail ends without %d spans, which could not be sent in time", lost)
        return flushed and left == 0

    def _ask(self, timeout_s: float) -> bool:
        """Has the assembler thread build, and waits for it. False when the time is up first."""
        with self._asked:
            self._asks += 1
            mine = self._asks
            self._asked.notify_all()
            answered = self._asked.wait_for(lambda: self._ended or self._answered >= mine, timeout_s)
        self._drop_records()
        return answered

    def _assemble(self) -> None:
        """The body of the assembler thread. No other thread builds, so that nobody's time-out depends on a build."""
        while not self._ended:
            with self._asked:
                self._asked.wait_for(
                    lambda: self._ended or self._asks > self._answered, self._settings.schedule_delay_s
                )
                asks = self._asks
            with suppress(Exception):  # the guard of a strict trail has kept it for `flush`
                self._build()
            with self._asked:
                self._answered = asks
                self._asked.notify_all()

    def _build(self) -> bool:
        """Builds payloads from the records so far and queues them, batch by batch. Announcements may be due even
        without records. The last build of a trail ends the requests that are still open.
        """
        self._follow_clock()
        left = self._records.waiting
        stopping = self._stopping
        while not self._ended:
            if not self._gate.acquire():
                return False
            try:
                built = self._build_batch()
                left -= built
                if left <= 0 and stopping:
                    stopping = False
                    left = self._assembler.abandon_all(self._clock())
            finally:
                self._gate.release()
            if left <= 0:
                return True
            self._make_room()
        self._drop_records()
        return True

    def _follow_clock(self) -> None:
        """Lets the spans of new requests follow a wall clock that was set. Those under way keep their latencies."""
        behind = behind_ns() if self._clock is now_ns else 0
        if abs(jumped := behind - self._assembler.bench.behind_ns) > MOST_BEHIND_NS:
            self._assembler.bench.behind_ns = behind
            self._guard.warn(
                "clock",
                "the system's clock went %+.0f s, because it was set or the machine slept. Latencies are right. The "
                "spans of requests under way keep the time from before, and those of new requests have the new one",
                jumped / 1e9,
            )

    def _make_room(self) -> None:
        """Lets the exporter send between two batches, so that a burst does not overflow the queue."""
        if self._background:
            self._exporter.wait_for_room(self._settings.schedule_delay_s)
        else:
            self._send()

    def _send(self) -> None:
        while self._exporter.attempt() == 0.0:
            pass

    def _build_batch(self) -> int:
        """Builds one batch and queues it. Returns the number of its records.

        Tokens and steps are queued first. The span of a request is built after that, and says how many of the tokens
        found no room.
        """
        assembler, now = self._assembler, self._clock()  # before: each token that was recorded by now is in the batch
        with self._exporter.changed:
            batch = self._batch = take(self._records, self._batch_spans)
        try:
            steps = assembler.build_steps(batch, now)
            requests = Batch([], [other for other in batch.others if kind_of(other[0]) is END])
            refused = self._queue([(Rank.TOKENS, steps.tokens), (Rank.STEPS, steps.engine)], left=requests)
            for tokens in refused:
                assembler.lose(steps.owners[tokens])
            self._queue([(Rank.REQUESTS, assembler.build_requests(now, is_behind=not batch.is_all))], left=_NOTHING)
        except Exception as error:
            self._exporter.offer(lost={MALFORMED: self._batch.spans}, handover=self._hand_over(_NOTHING))
            self._guard.failed("building a batch", error)
        return len(batch)

    def _queue(self, ranks: Sequence[tuple[Rank, Sequence[Block]]], *, left: Batch) -> list[slice]:
        """Makes payloads of blocks and queues them; `left` are the records of the batch that are still to be built.
        Returns the rows of the first rank that found no room.
        """
        payloads: list[Payload] = []
        lost = self._assembler.take_lost()
        for rank, blocks in ranks:
            try:
                payloads += self._payloads(blocks, rank)
            except Exception as error:
                lost[MALFORMED] += sum(block.count for block in blocks)
                self._guard.failed("building a batch", error)
        taken = self._exporter.offer(*payloads, lost=lost, handover=self._hand_over(left))
        refused, row = [], 0
        self._take_break()
        for payload, fits in zip(payloads, taken, strict=True):
            if payload.rank is ranks[0][0] and not fits:
                refused.append(slice(row, row + payload.spans))
            row += payload.spans
        return refused

    def _hand_over(self, left: Batch) -> Callable[[], None]:
        """Returns the call by which the exporter, under its lock, takes over the count of a batch's records."""

        def hand_over() -> None:
            self._batch = left

        return hand_over

    def _payloads(self, blocks: Sequence[Block], rank: Rank) -> list[Payload]:
        made = []
        for payload in self._envelope.payloads(blocks, max_spans=self._payload_spans, max_bytes=self._payload_bytes):
            self._take_break()
            made.append(Payload(self._compress(payload.body), payload.spans, rank))
        return made

    def _drop_records(self) -> None:
        """Counts the records that came too late to be built as dropped, once the trail has ended."""
        if self._ended:
            with self._exporter.changed:
                self._exporter.drop(take(self._records, sys.maxsize).spans, SHUTDOWN)

    def _before_fork(self) -> None:
        self._gate.acquire()

    def _after_fork_in_parent(self) -> None:
        self._gate.release()

    def _after_fork_in_child(self) -> None:
        """The child forgets the parent's records, which the parent sends; it has counts and threads of its own."""
        self._records.clear()
        self._assembler.forget()
        self._exporter.reset()
        self._start(np.random.default_rng())


def _on_living(pipeline: Pipeline, do: Callable[[Pipeline], None]) -> Callable[[], None]:
    """A fork hook that does not keep the pipeline alive. Python cannot unregister such hooks."""
    reference = weakref.ref(pipeline)

    def hook() -> None:
        if living := reference():
            do(living)

    return hook
