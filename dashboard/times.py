"""Times as the URL holds them, and as people type them: on the clock of the page."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from tokentrail.shared import moments
from tokentrail.shared.moments import parse_moment


def written(at: datetime) -> str:
    """A time as the URL holds it: RFC 3339 in UTC, with milliseconds where there are some."""
    precision = "milliseconds" if at.microsecond else "seconds"
    return at.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def span(start: str, end: str, now: datetime, zone: tzinfo) -> tuple[str, str]:
    """Both bounds of a range as RFC 3339; what names no zone is on the clock of `zone`.

    Times with a zone stay as they are, to the nanosecond, and so does what is no time: the API says what is wrong.
    """
    now_ns = round(now.timestamp() * 1000) * 1_000_000
    try:
        both = parse_moment(start, zone), parse_moment(end, zone)
    except ValueError:
        return start, end
    found = (written(datetime.fromtimestamp(ns / 1e9, UTC)) for ns in moments.bounds(*both, now_ns))
    begin, until = (
        text if "T" in text and not moments.needs_zone(text) else at
        for text, at in zip((start, end), found, strict=True)
    )
    return begin, until
