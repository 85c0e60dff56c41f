"""The payloads that wait for the collector, within limits. In a full queue the spans of a higher rank take the place of
those of a lower one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tokentrail._encode.envelope import Payload, Rank

SHARES: Final = {Rank.TOKENS: 0.75, Rank.STEPS: 0.875, Rank.REQUESTS: 1.0}
"""The part of the queue that payloads of a rank may fill, so that requests still find room when tokens do not."""


@dataclass(slots=True, eq=False)
class Queued:
    """A payload in the queue. `passed` is the number of payloads that had been delivered when it began to fail."""

    payload: Payload
    since_s: float
    attempts: int = 0
    passed: int = 0


class PayloadQueue:
    """A queue of at most that many spans and bytes; a payload larger than the queue travels alone. Not thread-safe."""

    def __init__(self, max_spans: int, max_bytes: int) -> None:
        self.spans = 0
        self._bytes = 0
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._entries: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: Queued) -> bool:
        return entry in self._entries

    @property
    def oldest(self) -> Queued:
        """The payload that is sent next."""
        return self._entries[0]

    @property
    def half_empty(self) -> bool:
        """Whether half of the queue is free, in spans and in bytes."""
        return 2 * self.spans <= self._max_spans and 2 * self._bytes <= self._max_bytes

    def append(self, entry: Queued) -> None:
        """Queues a payload behind the others, with room for it or without."""
        self._entries.append(entry)
        self.spans += entry.payload.spans
        self._bytes += len(entry.payload.body)

    def remove(self, entry: Queued) -> None:
        """Takes a payload out."""
        self._entries.remove(entry)
        self.spans -= entry.payload.spans
        self._bytes -= len(entry.payload.body)

    def send_later(self, entry: Queued) -> None:
        """Moves a payload behind the others."""
        self._entries.remove(entry)
        self._entries.append(entry)

    def join_oldest(self, most_spans: int, most_bytes: int) -> Queued:
        """Joins the payloads behind the oldest one to it, within both limits, and returns it. One that has been sent
        stays as it is, since a collector recognises the bytes of a retry.

            tokens 40 kB, steps 2 kB, requests 9 kB, tokens 40 kB; at most 64 kB
            51 kB, tokens 40 kB         OTLP request bodies are joined by joining their bytes
        """
        joined: list[Queued] = []
        spans = size = 0
        for entry in self._entries:
            spans, size = spans + entry.payload.spans, size + len(entry.payload.body)
            if entry.attempts or spans > most_spans or size > most_bytes:
                break
            joined.append(entry)
        if len(joined) > 1:
            for _ in joined:
                self._entries.popleft()
            bodies, counts, _ = zip(*(entry.payload for entry in joined), strict=True)
            self._entries.appendleft(Queued(Payload(b"".join(bodies), sum(counts)), joined[0].since_s))
        return self.oldest

    def fits(self, payload: Payload) -> bool:
        """Whether the payload finds room within the share of its rank."""
        share = SHARES[payload.rank]
        return not self._entries or (
            self.spans + payload.spans <= self._max_spans * share
            and self._bytes + len(payload.body) <= self._max_bytes * share
        )

    def displaced_by(self, payload: Payload) -> Iterator[Queued]:
        """The payloads that this one displaces, as far as it needs their room: tokens before steps, the newest first.
        A payload that has been sent is not displaced, since the collector may have it.
        """
        lower = [entry for entry in self._entries if entry.payload.rank < payload.rank and not entry.attempts]
        lower.sort(key=lambda entry: -entry.payload.rank)  # stable: the newest tokens are last
        while lower and not self.fits(payload):
            yield lower.pop()

    def __str__(self) -> str:
        return f"{self.spans} spans, {self._bytes} bytes"
