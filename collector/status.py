"""What the ingest half knows about itself; `/metrics` and `/readyz` read it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class IngestSnapshot:
    """One consistent reading of `IngestStatus`. Counts are since the process started."""

    payloads_received: int
    payloads_duplicate: int
    payloads_rejected: dict[str, int]
    """By reason: `too_large`, `content_type`, `encoding`, `malformed`, `overloaded`."""
    payloads_dead_lettered: int
    spans_received: int
    spans_rejected: dict[str, int]
    """By reason, the names in `collector.receive.validate.Reason`."""
    bytes_received: int
    """After decompression."""
    segments_inserted: int
    wal_segments_pending: int
    """Sealed or open segments whose rows are not in the store yet."""
    wal_bytes_pending: int
    last_insert_unix_s: float
    """0.0 until the first insert."""
    ready: bool
    reason: str
    """Why not ready; empty when ready."""


@dataclass
class IngestStatus:
    """Counters and readiness, written by the receivers, the log and the writer; safe to use from any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: Counter[str] = field(default_factory=Counter)
    _payloads_rejected: Counter[str] = field(default_factory=Counter)
    _spans_rejected: Counter[str] = field(default_factory=Counter)
    _not_ready: dict[str, str] = field(default_factory=lambda: {"start": "the collector is starting"})
    _wal_pending: tuple[int, int] = (0, 0)
    _last_insert_unix_s: float = 0.0

    def received(self, *, spans: int, size: int, duplicate: bool, rejected: dict[str, int]) -> None:
        """Count one acknowledged payload; `rejected` spans by reason are among `spans`."""
        with self._lock:
            self._counts["payloads"] += 1
            self._counts["duplicates"] += duplicate
            self._counts["spans"] += spans
            self._counts["bytes"] += size
            self._spans_rejected.update(rejected)

    def refused(self, reason: str) -> None:
        """Count one payload that was answered with an error."""
        with self._lock:
            self._payloads_rejected[reason] += 1

    def inserted(self, at_unix_s: float) -> None:
        """Count one segment whose rows are in the store."""
        with self._lock:
            self._counts["segments"] += 1
            self._last_insert_unix_s = at_unix_s

    def dead_lettered(self) -> None:
        """Count one payload that the store refused."""
        with self._lock:
            self._counts["dead_lettered"] += 1

    def wal_pending(self, segments: int, size: int) -> None:
        """Set what the log holds that the store does not have yet."""
        with self._lock:
            self._wal_pending = (segments, size)

    def set_ready(self, part: str) -> None:
        """Record that `part` works. The collector is ready when every part is."""
        with self._lock:
            self._not_ready.pop(part, None)

    def set_not_ready(self, part: str, reason: str) -> None:
        """Record why `part` does not work."""
        with self._lock:
            self._not_ready[part] = reason

    def snapshot(self) -> IngestSnapshot:
        """Everything at once."""
        with self._lock:
            return IngestSnapshot(
                payloads_received=self._counts["payloads"],
                payloads_duplicate=self._counts["duplicates"],
                payloads_rejected=dict(self._payloads_rejected),
                payloads_dead_lettered=self._counts["dead_lettered"],
                spans_received=self._counts["spans"],
                spans_rejected=dict(self._spans_rejected),
                bytes_received=self._counts["bytes"],
                segments_inserted=self._counts["segments"],
                wal_segments_pending=self._wal_pending[0],
                wal_bytes_pending=self._wal_pending[1],
                last_insert_unix_s=self._last_insert_unix_s,
                ready=not self._not_ready,
                reason="; ".join(self._not_ready.values()),
            )
