"""Recognises stamps that are no unix nanoseconds of the present."""

from __future__ import annotations

import time
from typing import Final

from tokentrail._encode.wire import I64

FAR_NS: Final = 86_400 * 10**9
"""A stamp further than this from now is a mistake of the engine, or of one of the two clocks."""
_UNITS: Final = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3}
_MONOTONIC: Final = {
    "time.monotonic_ns": time.monotonic_ns,
    "time.perf_counter_ns": time.perf_counter_ns,
    "time.process_time_ns": time.process_time_ns,
}


def far_from(now: int, stamps: I64) -> I64:
    """The stamps that are further than `FAR_NS` from now."""
    far: I64 = stamps[(stamps < now - FAR_NS) | (stamps > now + FAR_NS)]
    return far


def probable_unit(stamp: int, now: int) -> str:
    """Says which value was probably given in place of unix nanoseconds.

    now = 1_800_000_000_000_000_000; 1_800_000_000 is "seconds": times 10**9 it is now
    """
    for unit, ns in _UNITS.items():
        if abs(stamp * ns - now) < FAR_NS:
            return unit
    for clock, read in _MONOTONIC.items():
        for unit, ns in {"nanoseconds": 1, **_UNITS}.items():
            if stamp > 0 and abs(stamp * ns - read()) < FAR_NS:
                return f"{unit} of {clock.removesuffix('_ns')}"
    return "unknown"
