"""The log: one segment is open, sealed segments wait for the store, stored ones are remembered for a while."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collector.wal import frame
from collector.wal.active import ActiveSegment
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import Frame
from collector.wal.policy import Fsync
from collector.wal.seen import SeenDigests
from collector.wal.segment import (
    INSERTED_SUFFIX,
    SEGMENT_SUFFIX,
    Contents,
    Segment,
    is_ours,
    list_segments,
    make_group,
    mark_inserted,
    new_segment_id,
    read_inserted,
    read_segment,
)

logger = logging.getLogger(__name__)

PAUSE: Final = 5.0
"""A segment that is not full is not sealed sooner than so many ages after the one before it. An insert of a few spans
costs almost as much as one of ten thousand."""
_LEAST_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Segments that wait are merged up to so many bytes at least: small ones, each an insert, may come faster than they are
stored."""
_LATELY_S: Final = 60.0
"""The bytes of a file that this process wrote so lately are still in memory: the disk cannot have damaged them."""


@dataclass(frozen=True)
class LogLimits:
    """Sizes in bytes, times in seconds."""

    segment_bytes: int = 64 * 1024 * 1024
    segment_age_s: float = 1.0
    max_bytes: int = 2 * 1024**3
    dedup_retention_s: float = 3600.0


class SegmentLog:
    """Durable payloads in order. One thread calls `append` and `seal`; any thread may call the rest.

    Ages are measured on the monotonic clock: somebody may set the wall clock, which only gives segments their ids.

    Opening a log recovers it: every segment that an earlier process left is sealed. Its complete frames count; a frame
    that a crash cut short does not, because nobody was promised it.
    """

    def __init__(
        self,
        folder: Path,
        dead_letters: DeadLetters,
        *,
        fsync: Fsync = Fsync.ACK,
        limits: LogLimits | None = None,
        unix_ns: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._dead_letters = dead_letters
        self._fsync = fsync
        self.limits = limits or LogLimits()
        self._unix_ns = unix_ns
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._awake = False
        self._active: ActiveSegment | None = None
        self._sealed_at_s = -math.inf
        self._seen = SeenDigests()
        self._written_at_s: dict[str, float] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._sealed = deque(list_segments(folder))
        self._sealed_bytes = sum(segment.size for segment in self._sealed)
        # An earlier process may have stored the oldest segment and died before it released it.
        self._tried_id = self._sealed[0].id if self._sealed else ""
        self._last_id = max((path.stem for path in folder.iterdir() if is_ours(path)), default="")
        self._recover()

    def seen(self, digest: bytes) -> bool:
        """Tell whether a payload with this digest is in the log, or was until lately."""
        with self._changed:
            return digest in self._seen

    @property
    def pending(self) -> tuple[int, int]:
        """Segments and bytes that the store does not have yet; a group counts as one segment."""
        with self._changed:
            active = self._active
            return len(self._sealed) + (active is not None), self._sealed_bytes + (active.size if active else 0)

    @property
    def waiting_since_ns(self) -> int | None:
        """Unix ns at which the oldest segment that the store does not have was opened; None when it has all."""
        with self._changed:
            waiting = self._sealed[0].id if self._sealed else self._last_id if self._active else ""
        return int(waiting.split("-")[0]) if waiting else None

    def append(self, frames: Sequence[Frame]) -> None:
        """Write payloads; on return they are durable. After an OSError none of them is in the log."""
        if self._active is None:
            segment_id = new_segment_id(self._unix_ns(), self._last_id)
            path = self._folder / f"{segment_id}{SEGMENT_SUFFIX}"
            self._active = ActiveSegment(path, fsync=self._fsync, opened_at_s=self._monotonic_s())
            self._last_id = segment_id
            self._written_at_s[segment_id] = self._monotonic_s()
        parts = [part for item in frames for part in (frame.header(item), item.payload)]
        parts.append(frame.commit_record(self._active.size + sum(map(len, parts))))
        self._active.append(b"".join(parts))
        with self._changed:
            self._seen.add(item.digest for item in frames)

    def seal_due_in_s(self) -> float | None:
        """Return the seconds until the open segment must be sealed; None when no segment is open."""
        if self._active is None:
            return None
        if self._active.size >= self.limits.segment_bytes:
            return 0.0
        age_s = self.limits.segment_age_s
        due_s = max(self._active.opened_at_s + age_s, self._sealed_at_s + PAUSE * age_s)
        return max(0.0, due_s - self._monotonic_s())

    def seal(self) -> None:
        """Hand the open segment, if any, to the writer."""
        if self._active is None:
            return
        segment = self._active.seal()
        self._sealed_at_s = self._monotonic_s()
        with self._changed:
            self._active = None
            if segment.size:
                self._sealed.append(segment)
                self._sealed_bytes += segment.size
            else:
                segment.path.unlink()
            self._changed.notify_all()

    def next_sealed(self, timeout_s: float) -> Segment | None:
        """Wait for the oldest sealed segment, until `wake`; it stays in the log until `release`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._sealed) or self._awake, timeout_s)
            if not self._sealed:
                return None
            self._tried_id = self._sealed[0].id
            return self._sealed[0]

    def wake(self) -> None:
        """Let nobody wait for a sealed segment any more."""
        with self._changed:
            self._awake = True
            self._changed.notify_all()

    def merge_waiting(self) -> None:
        """Make one group of the oldest segments that wait, up to the size of one segment or 16 MiB.

        The writer's thread calls it.

        A segment that may have been inserted under its own id stays alone: under another id it would be stored twice.
        """
        limit = max(self.limits.segment_bytes, _LEAST_GROUP_BYTES)
        with self._changed:
            members: list[Segment] = []
            size = 0
            for segment in self._sealed:
                size += segment.size
                if segment.members or segment.id == self._tried_id or size > limit:
                    break
                members.append(segment)
        group = make_group(members) if len(members) > 1 else None
        if group is None:
            return
        with self._changed:
            for _ in members:
                self._sealed.popleft()
            self._sealed.appendleft(group)

    def read(self, segment: Segment) -> Contents:
        """Read the payloads of a segment or a group; damaged frames become dead letters."""
        if not segment.members:
            age_s = self._monotonic_s() - self._written_at_s.get(segment.id, -math.inf)
            return read_segment(segment, self._dead_letters, verify=age_s > _LATELY_S)
        return Contents([item for member in segment.members for item in self.read(member).frames], undamaged=False)

    def release(self, segment: Segment, digests: Sequence[bytes], set_aside: Collection[bytes] = ()) -> None:
        """Drop a segment that the store has, and keep its digests for the retention time.

        The payloads with the digests `set_aside` are not in the store: they may be sent again.
        """
        now_s = self._monotonic_s()
        path = mark_inserted(segment, list(digests))
        with self._changed:
            self._sealed.remove(segment)
            self._sealed_bytes -= segment.size
            for member in segment.members or (segment,):
                self._written_at_s.pop(member.id, None)
            self._seen.forget(set_aside)
            self._seen.inserted(path, digests, now_s + self.limits.dedup_retention_s)
            expired = self._seen.expire(now_s)
        for old in expired:
            old.unlink(missing_ok=True)

    def _recover(self) -> None:
        for path in self._folder.glob("*.tmp"):
            path.unlink()
        if others := sorted(path.name for path in self._folder.iterdir() if not is_ours(path)):
            logger.warning("%s has files that are not of the log, which leaves them alone: %s", self._folder, others)
        stored = {path: path.stat().st_mtime for path in sorted(self._folder.glob(f"*{INSERTED_SUFFIX}"))}
        for path, modified_s in stored.items():
            # The wall clock may have been set while no collector ran, so the newest file counts as new.
            age_s = max(stored.values()) - modified_s
            self._seen.inserted(path, read_inserted(path), self._monotonic_s() - age_s + self.limits.dedup_retention_s)
        for segment in self._sealed:
            self._seen.add(item.digest for item in self.read(segment).frames)
