"""Requests that counters include before they end: those that are bad in flight, and those that are lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

KEEP_NS: Final = 24 * 3600 * 1_000_000_000
"""A request that has been neither in flight nor ended for so long is forgotten."""
MOST: Final = 100_000
"""Most requests that are remembered. Beyond them the oldest are forgotten; the end of one of these counts again."""


@dataclass
class Early:
    """One request."""

    seen_ns: int
    """When it was last seen in flight."""
    late: set[str] = field(default_factory=set)
    """The SLOs for which it is past a threshold. That stays true."""
    lost: set[str] = field(default_factory=set)
    """The SLOs for which it is bad because nothing is heard of it. If it is not late too, its end may differ."""
    is_lost: bool = False
    """It is counted as lost."""
    given_up_ns: int = 0
    """When it was counted as lost: after an outage, long after its silence began."""
    is_over: bool = False
    """It has ended. Another copy of its end changes nothing."""


class EarlyRequests:
    """Remembers each request by its key (trace id and span id), so that it is counted once."""

    def __init__(self, saved: Iterable[tuple[str, dict[str, Any]]] = ()) -> None:
        """`saved` is an answer of `dump`."""
        self._by_key = {
            key: Early(**{**fields, "late": set(fields["late"]), "lost": set(fields["lost"])}) for key, fields in saved
        }

    def dump(self) -> list[tuple[str, dict[str, Any]]]:
        """All of them as JSON has it."""
        return [
            (key, {**asdict(early), "late": sorted(early.late), "lost": sorted(early.lost)})
            for key, early in self._by_key.items()
        ]

    def __len__(self) -> int:
        """The number of requests."""
        return len(self._by_key)

    def get(self, key: str) -> Early | None:
        """The request of a key; None for one that is not counted."""
        return self._by_key.get(key)

    def seen(self, key: str, now_ns: int) -> Early:
        """The request of a key, which is in flight now."""
        early = self._by_key.setdefault(key, Early(now_ns))
        early.seen_ns = now_ns
        return early

    def keys_in_parts(self, size: int) -> Iterator[list[str]]:
        """All keys, so many at a time."""
        keys = sorted(self._by_key)
        for i in range(0, len(keys), size):
            yield keys[i : i + size]

    def forget(self, now_ns: int) -> int:
        """Drop the old ones. Returns how many were dropped only because there are too many."""
        self._by_key = {key: early for key, early in self._by_key.items() if early.seen_ns >= now_ns - KEEP_NS}
        too_many = len(self._by_key) - MOST
        if too_many <= 0:
            return 0
        for key in sorted(self._by_key, key=lambda key: self._by_key[key].seen_ns)[:too_many]:
            del self._by_key[key]
        return too_many
