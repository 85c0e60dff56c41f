"""Divides the payloads of a segment into inserts: bounded in days, and plain rows apart from raw OTLP.

The division follows from the payloads alone, so a segment that is inserted again is divided in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from collector.otlp.signals import PlainRows
from collector.otlp.tokens import Columns
from collector.wal.frame import Frame

_LEAST_ROWS: Final = 1000
"""Fewer plain rows are not worth an insert of their own beside that of the other payloads."""
_MOST_DAYS: Final = 100
"""Each day is a partition of each table, which ClickHouse writes as files of its own."""
_LATEST_DAY: Final = 2**16


@dataclass(frozen=True)
class Part:
    """One insert of columns, one of raw OTLP, or both."""

    token: str
    """The deduplication token of the raw OTLP. Tokens of columns begin with it."""
    columns: Sequence[Columns]
    """The rows of each payload that has plain ones."""
    frames: Sequence[Frame]
    """The payloads, without the rows that are in `columns`."""


def parts_of(segment_id: str, frames: Sequence[Frame], plain: PlainRows | None) -> list[Part]:
    """Return the inserts of a segment, in order."""
    divided = _by_days(frames)
    tokens = [segment_id] if len(divided) == 1 else [f"{segment_id}.d{n}" for n in range(len(divided))]
    return [Part(token, *_columns_apart(part, plain)) for token, part in zip(tokens, divided, strict=True)]


def row_count(columns: Sequence[Columns]) -> int:
    """Count the rows of all columns."""
    return sum(len(next(iter(some.values()))) for some in columns)


def _by_days(frames: Sequence[Frame]) -> list[list[Frame]]:
    """Divide payloads so that the days of each part, from the first to the last, are no more than 100.

    days of the payloads   1-1  1-1  1-90  50-120  120-121
    parts                  [ d0          ] [ d1           ]     1-120 would be too many
    """
    parts: list[list[Frame]] = [[]]
    first, last = _LATEST_DAY, 0
    for frame in frames:
        first, last = min(first, frame.days[0]), max(last, frame.days[1])
        if last - first >= _MOST_DAYS and parts[-1]:
            parts.append([])
            first, last = frame.days
        parts[-1].append(frame)
    return parts


def _columns_apart(frames: list[Frame], plain: PlainRows | None) -> tuple[list[Columns], list[Frame]]:
    """Return the columns of the plain rows, if they are worth an insert, and the payloads without these rows."""
    read = [plain.apart(frame.payload) if plain else (None, frame.payload) for frame in frames]
    columns = [part for part, _ in read if part is not None]
    if row_count(columns) < _LEAST_ROWS:
        return [], frames
    rest = [replace(frame, payload=payload) for frame, (_, payload) in zip(frames, read, strict=True) if payload]
    return columns, rest
