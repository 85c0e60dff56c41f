"""The time up to which the store has everything that this collector was sent. Silence after it proves nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

_BATCH_NS: Final = 2_000_000_000
"""The SDK sends once a second. Exporters of others with longer intervals are complete that much later."""
_LONGEST_RETRY_NS: Final = 35_000_000_000
"""Senders that were refused try again after 30.5 s at the latest (tokentrail._send), then send the waiting ones."""

OldestWaiting = Callable[[], int | None]
"""Unix ns of the oldest data that the store does not have yet; None when it has all."""


class Watermark:
    """Follows the logs. Call it for unix nanoseconds; any thread may.

    After a time without a store, or without a collector, senders need a while to send their own queues. The
    watermark stays where it was for as long, at most 35 s. For an outage from 100 s to 400 s:

        at 390 s    100 s    the log waits for the store
        at 400 s    100 s    the log is empty, and senders that were refused will try again
        at 435 s    435 s
    """

    def __init__(
        self,
        logs: Sequence[OldestWaiting],
        clock: Callable[[], int],
        *,
        lost_after_ns: int,
        heard_until_ns: int | None = None,
    ) -> None:
        """`heard_until_ns` is the last watermark of the process before this one, None without one."""
        self._logs = logs
        self._clock = clock
        self._lost_after_ns = lost_after_ns
        self._lock = threading.Lock()
        now = self._looked_ns = clock()
        self._held_ns = now if heard_until_ns is None else min(heard_until_ns, now)
        # A new process has heard nothing yet: engines get the time in which they announce their requests again.
        self._resumes_ns: int | None = now + lost_after_ns + min(now - self._held_ns, _LONGEST_RETRY_NS)
        self._announced_ns = self._resumes_ns

    def __call__(self) -> int:
        """The watermark now."""
        return self._look()[0]

    def complete_until(self) -> int:
        """The time up to which the store has the requests that ended, as far as senders batch for two seconds at most.

        A new process need not wait for announcements, but for those who could not send to the process before it.
        """
        heard_until, stored_until, now = self._look()
        if self._resumes_ns == self._announced_ns and now >= self._announced_ns - self._lost_after_ns:
            heard_until = stored_until
        return heard_until - _BATCH_NS

    def _look(self) -> tuple[int, int, int]:
        """The watermark, the time up to which what was received is stored, and the time now."""
        with self._lock:
            now = self._clock()
            waiting = [since for log in self._logs if (since := log()) is not None]
            stored_until = min([*waiting, now])
            is_held = self._resumes_ns is None or now < self._resumes_ns
            if now - stored_until > self._lost_after_ns:
                self._held_ns = min(self._held_ns, stored_until) if is_held else stored_until
                self._resumes_ns = None
            elif self._resumes_ns is None or now - self._looked_ns > self._lost_after_ns:
                # The outage is over, or nobody has looked for so long that there may have been one.
                self._resumes_ns = now + min(now - self._held_ns, _LONGEST_RETRY_NS)
            elif not is_held:
                self._held_ns = stored_until
            self._looked_ns = now
            return min(self._held_ns, stored_until), stored_until, now
