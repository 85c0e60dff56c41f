"""Telemetry never breaks its host, and always breaks our tests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("tokentrail")


class Throttle:
    """Lets one message per key through in `every_s` seconds, so that a failure that repeats cannot flood a log."""

    def __init__(self, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._next: dict[str, float] = {}

    def allows(self, key: str) -> bool:
        """True once per key and interval."""
        now = self._clock()
        if now < self._next.get(key, now):
            return False
        self._next[key] = now + self._every_s
        return True


class Guard:
    """Takes the errors that must not reach the engine: counts and logs them, or, when `strict`, raises them."""

    def __init__(self, *, strict: bool = False, throttle: Throttle | None = None) -> None:
        self.strict = strict
        self.errors = 0  # a diagnostic: two threads may in theory lose a count, no lock is worth that
        self._throttle = throttle or Throttle()
        self._first: Exception | None = None

    def failed(self, doing: str, error: Exception) -> None:
        """An error of ours while `doing` something (a short constant text: messages are throttled by it)."""
        if self.strict:
            self._first = self._first or error
            raise error
        self.errors += 1
        if self._throttle.allows(doing):
            logger.error("tokentrail failed %s: %s", doing, error, exc_info=error)

    def reraise(self) -> None:
        """Raises, when strict, the first error that a background thread met."""
        if self._first:
            raise self._first

    def misuse(self, what: str, detail: object) -> None:
        """The host used the SDK wrongly; what it said is ignored and the trail stays consistent."""
        self.errors += 1
        if self._throttle.allows(what):
            logger.warning("tokentrail ignored %s: %r", what, detail)

    def warn(self, key: str, message: str, *args: object) -> None:
        """A condition outside the SDK (an unreachable collector, a full buffer), logged once a minute per key."""
        if self._throttle.allows(key):
            logger.warning(message, *args)
