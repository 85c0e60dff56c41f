"""The SDK's errors never reach the engine, except in tests, where they are raised."""

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
    """Counts and logs the errors that must not reach the engine, or, when `strict`, raises them."""

    def __init__(self, *, strict: bool = False, throttle: Throttle | None = None) -> None:
        self.strict = strict
        self.errors = 0  # without a lock: two threads may lose a count, which a diagnostic can bear
        self._throttle = throttle or Throttle()
        self._first: Exception | None = None

    def failed(self, doing: str, error: Exception) -> None:
        """An error in the SDK. `doing` is a short constant text; log messages are throttled by it."""
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

    def misuse(self, mistake: str, detail: object, *, times: int = 1) -> None:
        """The engine called the SDK wrongly, `times` times. The call is ignored, counted and logged."""
        self.errors += times
        if self._throttle.allows(mistake):
            logger.warning("tokentrail ignored %s: %r", mistake, detail)

    def warn(self, key: str, message: str, *args: object) -> None:
        """Logs a trouble outside the SDK, such as an unreachable collector, once a minute per key."""
        if self._throttle.allows(key):
            logger.warning(message, *args)
