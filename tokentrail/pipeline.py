"""The two background threads: one builds payloads from records, the other sends them."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
from opentelemetry.sdk.resources import Resource

from tokentrail.assemble import MALFORMED, Assembler
from tokentrail.clock import now_ns
from tokentrail.config import MAX_PAYLOAD_BYTES, Settings, compressor
from tokentrail.export import Exporter, deadline
from tokentrail.guard import Guard
from tokentrail.records import Record, spans_in, take
from tokentrail.semconv import SCHEMA_URL, SCOPE_NAME
from tokentrail.wire import Envelope, Payload

BATCH_SPANS: Final = 16_000
"""About so many spans are built at once: enough to amortise NumPy's calls, few enough to stay in the CPU's cache."""


class Pipeline:
    """Turns the records of the hot path into payloads and queues them for the collector."""

    def __init__(
        self,
        records: deque[Record],
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
        self._compress = compressor(settings.endpoint)
        self._start(ids or np.random.default_rng())
        os.register_at_fork(
            before=_on_living(self, Pipeline._before_fork),
            after_in_parent=_on_living(self, Pipeline._after_fork_in_parent),
            after_in_child=_on_living(self, Pipeline._after_fork_in_child),
        )

    def _start(self, ids: np.random.Generator) -> None:
        self._building = threading.Lock()
        self._stopping = threading.Event()
        self._assembler = Assembler(self._guard, self._exporter.drop, ids, self._settings.sampling)
        self._envelope = Envelope(self._resource(), SCOPE_NAME, self._version, SCHEMA_URL)
        if self._background:
            threading.Thread(target=self._assemble, name="tokentrail-assemble", daemon=True).start()
            threading.Thread(target=self._exporter.run, name="tokentrail-export", daemon=True).start()

    def _assemble(self) -> None:
        stopping = self._stopping
        while not stopping.wait(self._settings.schedule_delay_s):
            self.build()

    def build(self) -> None:
        """Builds payloads from the records so far and queues them. Announcements may be due even without records."""
        with self._building:
            left = len(self._records)
            while True:
                batch = take(self._records, BATCH_SPANS)
                left -= len(batch)
                self._queue(batch)
                if left <= 0:
                    return

    def _queue(self, batch: list[Record]) -> None:
        try:
            for payload in self._payloads(batch):
                self._exporter.offer(payload)
        except Exception as error:
            self._exporter.drop(sum(map(spans_in, batch)), MALFORMED)
            self._guard.failed("building a batch", error)

    @property
    def left_out(self) -> int:
        """Requests that sampling left out."""
        return self._assembler.left_out

    def flush(self, timeout_s: float) -> bool:
        """Builds, then waits until the queue is empty. False when the time is up first."""
        left_s = deadline(timeout_s)
        self.build()
        if not self._background:
            while self._exporter.attempt() == 0.0:
                pass
        return self._exporter.drain(left_s())

    def shutdown(self, timeout_s: float) -> bool:
        """Flushes, without the present wait for a retry, then ends the threads. False when it dropped queued spans."""
        self._stopping.set()
        self._exporter.retry_at_once()
        self.flush(timeout_s)
        return self._exporter.close() == 0

    def _payloads(self, batch: list[Record]) -> list[Payload]:
        blocks = self._assembler.build(batch, self._clock())
        limits = {"max_spans": self._settings.max_payload_spans, "max_bytes": MAX_PAYLOAD_BYTES}
        made = self._envelope.payloads(blocks, **limits)
        return [Payload(self._compress(payload.body), payload.spans) for payload in made]

    def _before_fork(self) -> None:
        self._building.acquire()

    def _after_fork_in_parent(self) -> None:
        self._building.release()

    def _after_fork_in_child(self) -> None:
        """The child forgets the parent's records, which the parent sends; it has counts and threads of its own."""
        self._records.clear()
        self._assembler.abandon()
        self._exporter.reset()
        self._start(np.random.default_rng())


def _on_living(pipeline: Pipeline, do: Callable[[Pipeline], None]) -> Callable[[], None]:
    """A fork hook that does not keep the pipeline alive. Python cannot unregister such hooks."""
    reference = weakref.ref(pipeline)

    def hook() -> None:
        if living := reference():
            do(living)

    return hook
