"""The clock of a trail: wall time that never runs backwards within a process."""

from __future__ import annotations

import time
from typing import Final

STAMP_NS: Final = 1_000
"""Every stamp on the wire is a multiple of this: the store keeps microseconds, and sums must stay exact."""

_LAST_NS: Final = 2**63 - 1
_ANCHOR_NS: Final = time.time_ns() - time.perf_counter_ns()


def now_ns() -> int:
    """Unix nanoseconds, a multiple of 1,000. Anchored to wall time once per process and monotonic from there, so that
    a step of the system clock cannot make a latency negative.
    """
    return (_ANCHOR_NS + time.perf_counter_ns()) // STAMP_NS * STAMP_NS


def behind_ns() -> int:
    """Nanoseconds by which `now_ns` is behind the wall clock: it was set, or the machine slept."""
    return (time.time_ns() - now_ns()) // STAMP_NS * STAMP_NS


def floored(stamp_ns: int) -> int:
    """The stamp for the wire: floored to a multiple of 1,000 and clamped to 63 bits."""
    if type(stamp_ns) is int and 0 <= stamp_ns <= _LAST_NS:
        return stamp_ns - stamp_ns % STAMP_NS
    return bounded(stamp_ns) // STAMP_NS * STAMP_NS


def bounded(value: int) -> int:
    """The value, clamped to 63 bits."""
    return int(value if 0 <= value <= _LAST_NS else min(max(value, 0), _LAST_NS))
