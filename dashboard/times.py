"""Times as the URL holds them, and as people type them: on the clock of the page."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo

from tokentrail.shared.formatting import instant

_RELATIVE = re.compile(r"-((?:\d+(?:\.\d+)?(?:d|h|ms|m|s))+)")
_UNIX = re.compile(r"\d{1,11}(?:\.\d+)?")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_TYPED = re.compile(r"(?:(\d{4}-\d\d-\d\d)(?:[Tt ]|$))?(\d?\d:\d\d(?::\d\d)?)?", re.ASCII)


def written(at: datetime) -> str:
    """A time as the URL holds it: RFC 3339 in UTC, with milliseconds where there are some."""
    precision = "milliseconds" if at.microsecond else "seconds"
    return at.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def absolute(text: str, now: datetime, zone: tzinfo = UTC) -> str:
    """A time as RFC 3339. Others than these are for the API to read or to refuse.

    now, -1h30m                            relative to now
    1763719230                             unix seconds
    14:00, 2026-11-21 14:00, 2026-11-21    on the clock of `zone`; without a day, the newest that is not after now
    """
    if _UNIX.fullmatch(text):
        return written(datetime.fromtimestamp(float(text), UTC))
    with suppress(ValueError):  # no such day or hour
        if text and (match := _TYPED.fullmatch(text)):
            return written(_on_clock(match[1], match[2], now.astimezone(zone)))
    match = _RELATIVE.fullmatch(text)
    if text != "now" and not match:
        return text
    parts = re.findall(r"(\d+(?:\.\d+)?)(d|h|ms|m|s)", text)
    ago = timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in parts))
    return written(now - ago)


def _on_clock(day: str | None, clock: str | None, now: datetime) -> datetime:
    at = time.fromisoformat((clock or "00:00").rjust(5, "0"))
    if day is not None:
        return datetime.combine(datetime.fromisoformat(day), at, now.tzinfo)
    today = datetime.combine(now, at, now.tzinfo)
    return today if today <= now else datetime.combine(now - timedelta(days=1), at, now.tzinfo)


def span(start: str, end: str, now: datetime, zone: tzinfo) -> tuple[str, str]:
    """Both bounds of a range by `absolute`. A time of day is the newest before the end: `23:00` to `01:00`."""
    begin, until = absolute(start, now, zone), absolute(end, now, zone)
    if re.fullmatch(r"[\d:]*:[\d:]*", start):
        with suppress(ValueError):  # an end that is none
            begin = absolute(start, min(instant(until), now), zone)
    return begin, until
