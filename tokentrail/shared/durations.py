"""Reads and writes durations such as `500ms`. Inside, they are whole nanoseconds."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_PART = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(ns|us|ms|s|m|h|d|w)", re.ASCII)
_LONGEST_NS = 100 * 365 * _UNITS_NS["d"]


def parse_duration(text: str) -> int:
    """Nanoseconds of `500ms`, `1.5s`, `2m`, `1h30m`, `30d`.

    Raises ValueError that shows how to write one. Fractions of a nanosecond and more than 100 years are refused too.
    """
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        msg = f"{text[:40]!r} is not a duration: write a number and a unit, such as 500ms, 1.5s, 2m, 1h30m or 30d"
        raise ValueError(msg)
    total = sum((Decimal(number) * _UNITS_NS[unit] for number, unit in parts), Decimal(0))
    if total != int(total):
        msg = f"{text!r} is not a whole number of nanoseconds"
        raise ValueError(msg)
    if total > _LONGEST_NS:
        msg = f"{text!r} is longer than 100 years"
        raise ValueError(msg)
    return int(total)


def format_duration(ns: int) -> str:
    """The shortest single-unit text that `parse_duration` and Prometheus (down to ms) read back: `5m`, `1500ms`."""
    number, unit = _in_one_unit(ns)
    return f"{number}{unit}"


def duration_text(ns: int) -> str:
    """A duration as a sentence has it: `5 min`, `1500 ms`, `50 µs`."""
    number, unit = _in_one_unit(ns)
    return f"{number} {_UNITS_IN_TEXT.get(unit, unit)}"


def _in_one_unit(ns: int) -> tuple[int, str]:
    for unit in ("d", "h", "m", "s", "ms", "us"):
        if ns and ns % _UNITS_NS[unit] == 0:
            return ns // _UNITS_NS[unit], unit
    return ns, "ns"


_UNITS_IN_TEXT = {"m": "min", "us": "µs"}
