"""A window in slices, each read by one query: whole days and hours, of which answers are remembered, and the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from collector.ask.past_days import Versions, partition, rows_in, size_of_columns
from collector.ask.queries import Queries
from collector.ask.template import part
from collector.ask.times import HOUR_NS, SECOND_NS
from collector.sql.fragment import Fragment, any_of

_LEAST_DAYS: Final = 3
_LEAST_HOURS: Final = 4
"""The fewest whole days in a row, and the fewest hours of one day, that are worth a query of their own."""
_LAST_DAY: Final = 65_000
"""Days since 1970. ClickHouse puts all days after the year 2149 into one partition."""
_COUNTS_AT: Final = part("counts_at", {}).sql
ARRIVED: Final = "ingested_at"
"""The column of requests that says when the store got them."""
_LONGEST_INSERT_NS: Final = 600 * SECOND_NS
"""Rows of an insert have the time of its beginning, and are seen at its end. It does not last longer."""

_LARGEST_WHOLE: Final = 2.0**53
"""Up to here, floats are as exact as whole numbers."""

Arrays = Mapping[str, npt.NDArray[Any]]
T = TypeVar("T")


def _columns_of(rows: npt.NDArray[Any]) -> Arrays:
    return {name: rows[name] for name in rows.dtype.names or ()}


@dataclass(frozen=True)
class Slice:
    """A part of a window that one query reads: which rows, and the band of each."""

    ended: Fragment
    band: Fragment
    hours: tuple[int, int] | None = None
    """These hours alone, from the first up to before the last, counted since 1970: whole days, or a part of one."""
    table: str = "requests"
    column: str = "end"

    def columns(
        self, queries: Queries, query: str, fragments: Mapping[str, Fragment], matching: Fragment
    ) -> Mapping[str, Sequence[Any]]:
        """The columns of a query that reads these rows."""
        return self._remembered(
            queries, query, fragments, matching, queries.columns, size_of_columns, lambda: defaultdict(list)
        )

    def packed(self, queries: Queries, query: str, fragments: Mapping[str, Fragment], matching: Fragment) -> Arrays:
        """What `columns` gives, as arrays: of narrow numbers, and of objects for texts and tuples.

        Lists take forty times as much memory: one time series would push out what all other answers remember.
        """

        def ask(query: str, fragments: Mapping[str, Fragment]) -> Arrays:
            return {name: _packed(values) for name, values in queries.columns(query, fragments).items()}

        return self._remembered(queries, query, fragments, matching, ask, _size_of_arrays, dict)

    def arrays(
        self,
        queries: Queries,
        query: str,
        fragments: Mapping[str, Fragment],
        matching: Fragment,
        row: np.dtype[Any],
        made: tuple[Callable[[npt.NDArray[Any]], Arrays], Hashable] = (_columns_of, ()),
    ) -> Arrays:
        """What `columns` gives, as arrays of narrow numbers. `row` has the names and the types of the columns.

        `made` makes other arrays of them, which are remembered in their place; with all that it depends on.
        """
        make, depends_on = made

        def narrowed(rows: npt.NDArray[Any]) -> Arrays:
            return {name: narrow(found) for name, found in make(rows).items()}

        def ask(query: str, fragments: Mapping[str, Fragment]) -> Arrays:
            return narrowed(queries.array(query, fragments, row))

        def nothing() -> Arrays:
            return narrowed(np.empty(0, row))

        return self._remembered(queries, query, fragments, matching, ask, _size_of_arrays, nothing, depends_on)

    def _remembered(
        self,
        queries: Queries,
        query: str,
        fragments: Mapping[str, Fragment],
        matching: Fragment,
        ask: Callable[[str, Mapping[str, Fragment]], T],
        size: Callable[[T], int],
        nothing: Callable[[], T],
        depends_on: Hashable = (),
    ) -> T:
        """The answer about whole hours is remembered, and is `nothing` while these days have no rows.

        A filter with times looks at other requests of the window too.
        """
        fragments = {**fragments, "ended": self.ended, "filter": matching}
        if self.hours is None or not queries.remembers or "start_ns" in matching.parameters:
            return ask(query, fragments)
        reads = queries.versions_of(self.table, *self.hours)
        if self.column == ARRIVED:  # the days of these rows may be others, and only a deletion changes them
            deletions = queries.deletions_of(self.table)
            reads = {**reads, **deletions}
            has_rows = self.hours[1] * HOUR_NS > _first_arrival_ns(queries, deletions) - _LONGEST_INSERT_NS
        else:
            has_rows = any(map(rows_in, reads.values()))
        if not has_rows:
            return nothing()
        return queries.of_hours((query, depends_on), fragments, reads, lambda: ask(query, fragments), size)


def _first_arrival_ns(queries: Queries, deletions: Versions) -> int:
    """When the first request arrived that is stored; 0 while there is none. Later inserts bring later arrivals."""
    asked = queries.remembered(
        "first_arrival", [*deletions], lambda: queries.columns("first_arrival"), size_of_columns, deletions
    )
    return int(asked["first_ns"][0])


def _packed(values: Sequence[Any]) -> npt.NDArray[Any]:
    """A column as an array. Equal texts are one object; in lists of numbers, None becomes NaN."""
    if len(values) and isinstance(values[0], str | tuple):
        known: dict[str, Any] = {}
        same = (known.setdefault(value, value) if isinstance(value, str) else value for value in values)
        return np.fromiter(same, object, len(values))
    return narrow(np.array(values, float if len(values) and isinstance(values[0], list) else None))


def _size_of_arrays(arrays: Arrays) -> int:
    return sum(map(_size, arrays.values()))


def _size(array: npt.NDArray[Any]) -> int:
    different = {id(value): value for value in array.tolist()} if array.dtype == object else {}
    return array.nbytes + size_of_columns({"": [*different.values()]})


def narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers in as few bytes as hold the largest of them, if they are whole and not negative.

    Without numbers one byte: signed ones of 64 bits would make unsigned ones of another slice floats, which round.
    """
    if not values.size:
        return values.astype(np.uint8)
    is_float = values.dtype.kind == "f"
    if values.min() < 0 or (is_float and not (values == np.floor(values)).all()):
        return values
    if is_float and values.max() > _LARGEST_WHOLE:
        return values
    return values.astype(np.min_scalar_type(int(values.max())))


def is_short(start_ns: int, end_ns: int) -> bool:
    """Tell whether a window has no stretch of hours that is remembered."""
    return end_ns - start_ns < _LEAST_HOURS * HOUR_NS


def slices(
    moments: Sequence[int], table: str = "requests", column: str = "end", now_ns: int | None = None
) -> Iterator[Slice]:
    """Divides a window into whole days, whole hours of other days, and the rest. All but the rest is remembered.

    `moments` are its end and the starts of its bands, newest first. `column` has the day of the table's rows, or is
    `ARRIVED`. Days are partitions of the table, so their rows need no comparison of times. `now_ns`: rows may arrive
    until then; without it, until the window's end. With one band, and days of 10 h:

        moments 75.5 h, 12 h    band 1: hours [12 h, 20 h), days [20 h, 70 h) by partition, hours [70 h, 75 h), the rest
    """
    whole: list[tuple[int, int]] = []
    complete_ns = (now_ns or moments[0]) - _LONGEST_INSERT_NS if column == ARRIVED else moments[0]
    for band in range(1, len(moments)):
        end_ns = min(moments[band - 1], complete_ns)
        for first, last in whole_hours(moments[band], end_ns, days_alone=table != "requests"):
            whole.append((first * HOUR_NS, last * HOUR_NS))
            if last - first >= _LEAST_DAYS * 24 and column != ARRIVED:
                days = {f"day{band}_{key}": partition(hour // 24) for key, hour in (("first", first), ("last", last))}
                sql = f"_partition_id >= {{day{band}_first:String}} AND _partition_id < {{day{band}_last:String}}"
                ended = Fragment(sql, days)
            else:
                ended = _between(column, "whole", *whole[-1])
            yield Slice(ended, Fragment(str(band)), (first, last), table, column)
    gaps = [(a, b) for a, b in pairwise(sorted([moments[-1], *chain(*whole), moments[0]]))]
    starts = {f"band{i}_ns": moment for i, moment in enumerate(moments[1:], 1)}
    time = _COUNTS_AT if column == "end" else column
    bands = "".join(f"{time} >= {_time(name)}, {i}, " for i, name in enumerate(starts, 1) if i < len(starts))
    *earlier, latest = ((a, b) for a, b in gaps[::2])
    rest = [_between(column, f"rest{i}", a, b) for i, (a, b) in enumerate(earlier) if a < b]
    if latest[0] < latest[1]:
        rest.append(_latest(*latest) if column == "end" else _between(column, "latest", *latest))
    if rest or not whole:
        yield Slice(any_of(*rest), Fragment(f"multiIf({bands}{len(starts)})", starts) if bands else Fragment("1"))


def whole_hours(
    start_ns: int, end_ns: int, *, days_alone: bool = False, each_day: bool = False
) -> Iterator[tuple[int, int]]:
    """Stretches of whole hours that are worth a query of their own: many days in a row, or several hours of a day.

    They are counted since 1970. `each_day`: no stretch has more than a day.
    """
    first, last = -(-start_ns // HOUR_NS), min(end_ns // HOUR_NS, _LAST_DAY * 24)
    midnight, last_midnight = -(-first // 24) * 24, last // 24 * 24
    edges = [first, midnight, last_midnight, last]
    if each_day or last_midnight - midnight < _LEAST_DAYS * 24:
        edges = [first, *range(midnight, last_midnight + 1, 24), last]
    least = _LEAST_DAYS * 24 if days_alone else _LEAST_HOURS
    yield from ((a, b) for a, b in pairwise(edges) if b - a >= least)


def _time(name: str) -> str:
    return f"fromUnixTimestamp64Nano({{{name}:Int64}})"


def _latest(first_ns: int, last_ns: int) -> Fragment:
    """The requests of the latest part of a window, as ask/sql/ended_in_window.sql has them."""
    read = f"end >= {_time('latest_first_ns')} AND end < {_time('latest_last_ns')} + INTERVAL 1 DAY"
    counted = _between(_COUNTS_AT, "latest", first_ns, last_ns)
    return Fragment(f"{read} AND {counted.sql}", counted.parameters)


def _between(column: str, name: str, first_ns: int, last_ns: int) -> Fragment:
    sql = f"{column} >= {_time(f'{name}_first_ns')} AND {column} < {_time(f'{name}_last_ns')}"
    return Fragment(sql, {f"{name}_first_ns": first_ns, f"{name}_last_ns": last_ns})
