"""Reads and writes points in time as the API spells them. Inside, they are unix nanoseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from collector.slo.durations import parse_duration

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_UNIX = re.compile(r"\d{1,12}(\.\d+)?", re.ASCII)
_LATEST_NS = 9_000_000_000 * SECOND_NS
"""The year 2255. Nanoseconds in 64 bits end in 2262."""


@dataclass(frozen=True)
class Moment:
    """A point in time, absolute or relative to now."""

    ns: int
    relative: bool

    def at(self, now_ns: int) -> int:
        """Unix nanoseconds of this point when the clock shows `now_ns`; never before 1970."""
        return max(0, now_ns + self.ns) if self.relative else self.ns


def parse_moment(text: str) -> Moment:
    """Read RFC 3339, unix seconds, `now`, or a duration before now as in `-15m`. Raises ValueError that lists these."""
    if text == "now":
        return Moment(0, relative=True)
    if text.startswith("-"):
        return Moment(-parse_duration(text[1:]), relative=True)
    if _UNIX.fullmatch(text):
        return _absolute(int(Decimal(text) * SECOND_NS), text)
    if match := _RFC3339.fullmatch(text):
        to_the_second, fraction, zone = match.groups()
        since = datetime.fromisoformat(f"{to_the_second}{'+00:00' if zone in 'Zz' else zone}") - _EPOCH
        return _absolute(since // timedelta(seconds=1) * SECOND_NS + int(f"{fraction or '0':0<9.9}"), text)
    msg = f"{text[:40]!r} is not a time: write RFC 3339 (2026-11-21T10:00:00Z), unix seconds, now, or -15m"
    raise ValueError(msg)


def _absolute(ns: int, text: str) -> Moment:
    if not 0 <= ns <= _LATEST_NS:
        msg = f"{text!r} is not between the years 1970 and 2255"
        raise ValueError(msg)
    return Moment(ns, relative=False)


def rfc3339(ns: int) -> str:
    """UTC with a `Z`, and 0, 3, 6 or 9 digits after the second: as few as lose nothing."""
    seconds, rest = divmod(ns, SECOND_NS)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    digits = f"{rest:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def clock_text(ns: int, now_ns: int) -> str:
    """A time in a sentence: `12:02 UTC`, with the day if that is not today's, and with the year if it is another."""
    moment, now = (_EPOCH + timedelta(seconds=at // SECOND_NS) for at in (ns, now_ns))
    day = "" if moment.date() == now.date() else f"{moment.day} {moment:%b} "
    year = "" if moment.year == now.year else f"{moment.year} "
    return f"{day}{year}{moment:%H:%M} UTC"
