"""Shuts trails down when their process ends. Children of `multiprocessing` do not run `atexit` functions."""

from __future__ import annotations

import atexit
import multiprocessing.util
import weakref
from multiprocessing import parent_process
from typing import Protocol


class Stoppable(Protocol):
    """A trail."""

    def shutdown(self) -> bool:
        """Sends the rest and ends."""


_finalizers: weakref.WeakKeyDictionary[Stoppable, multiprocessing.util.Finalize] = weakref.WeakKeyDictionary()


def register(trail: Stoppable) -> None:
    """Calls `trail.shutdown()` at the end of this process, and of each process that is forked from it."""
    atexit.register(trail.shutdown)
    if parent_process() is not None:
        _finalize(trail)
    multiprocessing.util.register_after_fork(trail, _finalize)


def unregister(trail: Stoppable) -> None:
    """Undoes `register`, so that the trail can be freed."""
    atexit.unregister(trail.shutdown)
    if finalizer := _finalizers.pop(trail, None):
        finalizer.cancel()


def _finalize(trail: Stoppable) -> None:
    """Registers with a child of `multiprocessing`, which forgets the finalizers of its parent before it calls this."""
    _finalizers[trail] = multiprocessing.util.Finalize(None, trail.shutdown, exitpriority=10)
