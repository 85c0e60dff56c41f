"""Hands the arrivals that were read over to the trail, some answers at a time."""

from __future__ import annotations

import asyncio
from typing import Final

from tokentrail.proxy.tap import Tap

AT_ONCE: Final = 16
"""Answers that are flushed in one go. A chunk that arrives meanwhile waits for them, about 0.1 ms."""
FLUSH_S: Final = 0.5
"""Arrivals reach the trail so long after they were read at most, with the others of their answer."""


class Flushes:
    """Flushes twice a second the answers that brought something."""

    def __init__(self) -> None:
        self._unflushed: set[Tap] = set()
        self._flushing: list[Tap] = []
        self._will_flush = False

    def add(self, tap: Tap) -> None:
        """A chunk of this answer was read."""
        self._unflushed.add(tap)
        if not self._will_flush:
            self._flush_later()

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
