"""A lock that lets those who wait go first."""

from __future__ import annotations

import threading


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
        self._owner = 0

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
        self._owner = 0
        self._held.release()
