"""Lets other threads go first: a lock that its owner cannot take again before them, and breaks in long work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

WORK_S: Final = 0.001
BREAK_S: Final = 0.000_05
"""A thread that builds takes a break after so long. Another thread that wakes waits for its turn until then; without
breaks it would wait for the interpreter's switch interval, 5 ms.
"""


class Gate:
    """Held for one batch at a time. A thread that releases it and takes it again at once cannot starve another, as it
    can with a plain lock, since everybody waits in `_next` for the one who is next.

        builder holds the gate      fork: takes `_next`, waits for the gate
        builder releases the gate   fork: has the gate, frees `_next`
        builder wants `_next`       it waits as long as fork stands there, and gets the gate after fork
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._held = threading.Lock()
        self._owner: int | None = None

    def acquire(self) -> bool:
        """Waits for the gate. False when this thread holds it already: it was interrupted by a signal handler."""
        if self._owner == threading.get_ident():
            return False
        with self._next:
            self._held.acquire()
            self._owner = threading.get_ident()
        return True

    def release(self) -> None:
        """Lets the next one in."""
        self._owner = None
        self._held.release()


class Breaks:
    """Calls between two pieces of work: each lets the other threads run, if the last break was `WORK_S` ago.

    0.0 ms   a break ends, the work goes on
    0.6 ms   called: nothing
    1.1 ms   called: sleeps, and the next waiting thread gets the interpreter
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._due = 0.0

    def __call__(self) -> None:
        """Sleeps for a moment, if a break is due."""
        if self._clock() >= self._due:
            self._sleep(BREAK_S)
            self._due = self._clock() + WORK_S
