"""A failure that repeats is one line of the log in a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_EVERY_S: Final = 60.0


class OnceAMinute:
    """Tells whether a line of the log is due."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._next_s: dict[str, float] = {}

    def allows(self, subject: str) -> bool:
        """True once in a minute for each subject."""
        now_s = self._monotonic_s()
        if now_s < self._next_s.get(subject, now_s):
            return False
        self._next_s[subject] = now_s + _EVERY_S
        return True
