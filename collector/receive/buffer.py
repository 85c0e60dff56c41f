"""The memory that bodies under way may have together, over HTTP and gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collector.otlp.errors import BusyError


class Buffer:
    """The bytes of all requests under way. A request that is alone may be as large as a single body may be."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._used = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Give a function that takes bytes for one request, and take them back at its end.

        The function raises `BusyError` when the requests under way have too many.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                if self._used > taken and self._used + size > self._limit:
                    msg = f"the requests under way have more than {self._limit} bytes; try again"
                    raise BusyError(msg)
                self._used += size
                taken += size

        try:
            yield take
        finally:
            with self._lock:
                self._used -= taken
