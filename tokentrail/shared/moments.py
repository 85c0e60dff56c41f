"""Reads points in time as people and programs write them. Inside, they are unix nanoseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

from tokentrail.shared.durations import parse_duration

_SECOND_NS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WRITTEN = re.compile(
    rf"""(?:(?P<date>\d{{4}}-\d\d-\d\d) | (?P<day>\d\d?)[ ](?P<month>{"|".join(_MONTHS)})(?:[ ](?P<year>\d{{4}}))?)?
    (?:(?:[Tt ]|^)(?P<time>\d\d?:\d\d(?::\d\d)?)(?:\.(?P<fraction>\d+))?)?
    (?:[ ]?(?P<zone>[Zz]|[+-]\d\d:\d\d|[A-Za-z][A-Za-z0-9_+/-]*))?""",
    re.ASCII | re.VERBOSE,
)
"""A date, a time of day, or both, as RFC 3339 and our tables and sentences have them, with or without a zone."""
_UNIX = re.compile(r"\d{1,12}(\.\d+)?", re.ASCII)
_LATEST_NS = 9_000_000_000 * _SECOND_NS
"""The year 2255. Nanoseconds in 64 bits end in 2262."""


@dataclass(frozen=True)
class Moment:
    """A point in time, absolute or relative to now."""

    ns: int
    relative: bool

    def at(self, now_ns: int) -> int:
        """Unix nanoseconds of this point when the clock shows `now_ns`; never before 1970."""
        return max(0, now_ns + self.ns) if self.relative else self.ns


@dataclass(frozen=True)
class _Newest(Moment):
    """A time of day, or a day of a year: the newest one that is not after now."""

    local: datetime
    """Of any year, and of any day if it is a time of day. It has a zone."""
    is_daily: bool

    def at(self, now_ns: int) -> int:
        now = (_EPOCH + timedelta(microseconds=now_ns // 1000)).astimezone(self.local.tzinfo)
        for before in range(9):  # 29 February is eight years old at most
            try:
                if self.is_daily:
                    day = now - timedelta(days=before)
                    found = self.local.replace(year=day.year, month=day.month, day=day.day)
                else:
                    found = self.local.replace(year=now.year - before)
            except ValueError:  # no such day in that year
                continue
            if found <= now:
                return max(0, _ns_of(found))
        return 0


def parse_moment(text: str, zone: tzinfo = UTC) -> Moment:
    """Read RFC 3339, unix seconds, `now`, a duration before now as in `-15m`, or a time as people write it.

    That is a date, a time of day or both, with a zone (`Z`, `+02:00`, `Europe/Berlin`) or in `zone`: `14:00`,
    `2026-11-21 14:00`, `21 Nov 14:00 UTC`, `2026-11-21`. Without a day or a year it is the newest one that is not after
    now. Raises ValueError that lists these.
    """
    if text == "now":
        return Moment(0, relative=True)
    if text.startswith("-"):
        return Moment(-parse_duration(text[1:]), relative=True)
    if _UNIX.fullmatch(text):
        return _absolute(int(Decimal(text) * _SECOND_NS), text)
    if (match := _WRITTEN.fullmatch(text)) and (match["date"] or match["day"] or match["time"]):
        try:
            return _written(match, text, zone)
        except (LookupError, OSError):  # no such zone
            pass
        except ValueError as error:
            if "1970" in str(error):
                raise
    msg = (
        f"{text[:40]!r} is not a time: write RFC 3339 (2026-11-21T10:00:00Z), 14:00, 2026-11-21 14:00, a date, "
        "unix seconds, now, or -15m; without a zone it is UTC"
    )
    raise ValueError(msg)


def needs_zone(text: str) -> bool:
    """Whether a text is a date or a time of day that names no zone."""
    match = _WRITTEN.fullmatch(text)
    return match is not None and not match["zone"] and bool(match["date"] or match["day"] or match["time"])


def bounds(start: Moment, end: Moment, now_ns: int) -> tuple[int, int]:
    """Both bounds of a window in unix nanoseconds when the clock shows `now_ns`.

    A relative start counts before an end that is a time. So does a start that would not be before the end otherwise:
    `23:00` to `01:00` begins on the day before. The start of an empty window is not before its end.
    """
    begin, until = start.at(now_ns), end.at(now_ns)
    if begin >= until or (start.relative and not end.relative):
        begin = start.at(until)
    return begin, until


def _written(match: re.Match[str], text: str, zone: tzinfo) -> Moment:
    zone = _zone(match["zone"]) if match["zone"] else zone
    hours = match["time"] or "00:00"
    clock = time.fromisoformat(hours if hours[2] == ":" else f"0{hours}")
    if match["date"]:
        day = datetime.fromisoformat(match["date"]).date()
    else:
        month = 1 if match["month"] is None else _MONTHS.index(match["month"]) + 1
        day = datetime(int(match["year"] or 2024), month, int(match["day"] or 1)).date()  # a leap year
    local = datetime.combine(day, clock, zone)
    if not match["date"] and not match["year"]:
        return _Newest(0, False, local, is_daily=match["day"] is None)
    ns = _ns_of(local) + int(f"{match['fraction'] or '0':0<9.9}")
    return _absolute(ns, text)


def _ns_of(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(seconds=1) * _SECOND_NS


def _zone(name: str) -> tzinfo:
    if name in ("Z", "z", "UTC"):
        return UTC
    if name[0] in "+-":
        return datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo or UTC
    return ZoneInfo(name)


def _absolute(ns: int, text: str) -> Moment:
    if not 0 <= ns <= _LATEST_NS:
        msg = f"{text!r} is not between the years 1970 and 2255"
        raise ValueError(msg)
    return Moment(ns, relative=False)
