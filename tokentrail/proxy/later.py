"""Reads chunks after they have passed, when the event loop has nothing else to do at once."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from tokentrail.proxy.tap import Tap

AT_ONCE: Final = 16
"""Chunks that are read in one go. A chunk that arrives meanwhile waits for them, about 0.2 ms."""


class Later:
    """Whose turn it is to read a chunk. 100 streams that get a chunk at the same moment are all served before the first
    chunk is read.
    """

    def __init__(self) -> None:
        self._turns: deque[Tap] = deque()
        self._scheduled = False

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
            self._turns.popleft().read_next()
        if self._turns:
            self._schedule()
