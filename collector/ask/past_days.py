"""Remembers answers about whole days until a row of these days changes: a long window costs its new rows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final, TypeVar

T = TypeVar("T")

Day = tuple[str, str]
"""A table and a partition of it, such as `20261120`."""
Version = tuple[int, ...]
"""Numbers of a partition that change with every insert and every deletion, and with no merge."""
Versions = Mapping[Day, Version]

MOST_BYTES: Final = 64 * 1024 * 1024


def partition(day: int) -> str:
    """The partition of a day, counted since 1970."""
    return (date(1970, 1, 1) + timedelta(day)).strftime("%Y%m%d")


def rows_in(version: Version) -> int:
    """The rows of a day, or of some hours of it."""
    return version[2] if version else 0


def size_of_columns(columns: Mapping[str, Sequence[Any]]) -> int:
    """About how many bytes of memory the columns of an answer take: 80 for each value, also of those inside lists."""
    return 80 * sum(map(_values, columns.values()))


def _values(column: Sequence[Any]) -> int:
    return len(column) + sum(_values(value) for value in column if isinstance(value, list | tuple))


class PastDays:
    """Answers by question, with the versions of the partitions that they were read from.

    A day of a table is a partition. ClickHouse numbers the blocks that are inserted into it, and the mutations:

        requests of 20261120    blocks 7 to 912, mutation 7, 333,000 rows     the answer is kept
        a late request arrives  blocks 7 to 913, mutation 7, 333,001 rows     it is read again
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[list[Version | None], Any, int]] = OrderedDict()
        self._bytes = 0

    def get(
        self,
        question: Hashable,
        reads: Sequence[Day],
        answer: Callable[[], T],
        size: Callable[[T], int],
        now: Versions,
    ) -> T:
        """The answer to a question that reads no other days than `reads`. `size` is the number of bytes that it takes.

        `now` are versions that were read before the answer. If an insert comes in between, the answer has more rows
        than its versions say, and the next versions are others.
        """
        read = [now.get(day) for day in reads]
        with self._lock:
            kept = self._kept.get(question)
            if kept and kept[0] == read:
                self._kept.move_to_end(question)
                return kept[1]  # type: ignore[no-any-return]
        value = answer()
        self._keep(question, read, value, size(value))
        return value

    def _keep(self, question: Hashable, read: list[Version | None], found: Any, size: int) -> None:
        size += 200 * (len(read) + 1)
        with self._lock:
            self._drop(question)
            self._kept[question] = read, found, size
            self._bytes += size
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, question: Hashable) -> None:
        _, _, size = self._kept.pop(question, ([], None, 0))
        self._bytes -= size
