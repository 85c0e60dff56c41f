"""The face that every stage of the collector shows to the service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Stage(Protocol):
    """A part of the collector that works on threads of its own: a server, a log's commit, a store's writer."""

    @property
    def name(self) -> str:
        """The stage's name, for log lines."""

    def start(self) -> None:
        """Begin to work. A stage is started once."""

    def stop(self, timeout_s: float) -> bool:
        """Take nothing new, hand on the work in progress, and return after `timeout_s` seconds at the latest.

        True: the stage has handed on everything that it held. A stage may be stopped twice, or without a start.
        """


@contextmanager
def held(lock: threading.Lock, busy: str, timeout_s: float) -> Iterator[None]:
    """Hold a lock until the context ends. Raises TimeoutError, which says what is `busy`, if it is not free in time."""
    if not lock.acquire(timeout=timeout_s):
        msg = f"{busy} for {timeout_s:.0f} s"
        raise TimeoutError(msg)
    try:
        yield
    finally:
        lock.release()


class ThreadStage:
    """A stage of one thread, which works until `_stopping` is set and holds nothing that it must hand on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stop(self, timeout_s: float) -> bool:
        """Stop behind the work in progress; False when it takes longer."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        raise NotImplementedError
