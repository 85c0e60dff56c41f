"""The digests of payloads that were acknowledged lately, by which repetitions are recognised."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Group:
    until_s: float
    path: Path
    digests: tuple[bytes, ...]


class SeenDigests:
    """Digests of acknowledged payloads: for ever while they wait for the store, for a while after."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()
        self._inserted: deque[_Group] = deque()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, digests: Iterable[bytes]) -> None:
        """Remember payloads that wait in the log."""
        self._digests.update(digests)

    def forget(self, digests: Iterable[bytes]) -> None:
        """Forget payloads that wait no longer and are not in the store."""
        self._digests.difference_update(digests)

    def inserted(self, path: Path, digests: Iterable[bytes], until_s: float) -> None:
        """Remember payloads that the store has, until a time of the monotonic clock.

        `path` is the file that holds the same digests.
        """
        group = _Group(until_s, path, tuple(digests))
        self._digests.update(group.digests)
        self._inserted.append(group)

    def expire(self, now_s: float) -> list[Path]:
        """Forget digests that are past their time; return the files that are no longer needed."""
        paths = []
        while self._inserted and self._inserted[0].until_s <= now_s:
            group = self._inserted.popleft()
            self._digests.difference_update(group.digests)
            paths.append(group.path)
        return paths
