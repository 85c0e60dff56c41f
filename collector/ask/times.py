"""Writes points in time as the API spells them. Inside, they are unix nanoseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(ns: int) -> str:
    """UTC with a `Z`, and 0, 3, 6 or 9 digits after the second: as few as lose nothing."""
    seconds, rest = divmod(ns, SECOND_NS)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    digits = f"{rest:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z" if digits else f"{text}Z"
