"""Reads chunks after they have passed, when the event loop has nothing else to do at once."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from tokentrail.proxy.tap import Tap

AT_ONCE: Final = 16
"""Chunks that are read in one go. A chunk that arrives meanwhile waits for them, about 0.1 ms."""
FLUSH_S: Final = 0.5
"""Arrivals reach the trail so long after they were read at most, with the others of their answer."""


class Later:
    """Gives answers turns at reading their chunks. Of 100 streams that get a chunk at the same moment, all are served
    before the first chunk is read. The arrivals that were read are flushed twice a second.
    """

    def __init__(self) -> None:
        self._turns: deque[Tap] = deque()
        self._scheduled = False
        self._unflushed: set[Tap] = set()
        self._flushing: list[Tap] = []
        self._will_flush = False

    def read(self, tap: Tap) -> None:
        """Another chunk of this answer has passed."""
        self._turns.append(tap)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._read_some)

    def _read_some(self) -> None:
        self._scheduled = False
        for _ in range(min(AT_ONCE, len(self._turns))):
            tap = self._turns.popleft()
            tap.read_next()
            self._unflushed.add(tap)
        if not self._will_flush:
            self._flush_later()
        if self._turns:
            self._schedule()

    def _flush_later(self) -> None:
        self._will_flush = bool(self._unflushed)
        if self._will_flush:
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush_some)

    def _flush_some(self) -> None:
        if not self._flushing:
            self._flushing, self._unflushed = list(self._unflushed), set()
        for tap in self._flushing[:AT_ONCE]:
            tap.flush()
        del self._flushing[:AT_ONCE]
        if self._flushing:
            asyncio.get_running_loop().call_soon(self._flush_some)
        else:
            self._flush_later()
