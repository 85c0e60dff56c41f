"""Runs the queries of the rooms, `collector/*/queries/`, for the API, `/metrics` and the store's own work."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from clickhouse_connect.driver.query import QueryResult

from collector.ask.past_days import Day, PastDays, Versions, partition, size_of_columns
from collector.ask.template import no_rows_without, part, render
from collector.sql.fragment import Fragment, Table, merged
from collector.store import Store

T = TypeVar("T")

_MOST_SESSIONS: Final = 64
_SMALL_BYTES: Final = 65_536
_TIMES: Final = {"requests": "end", "tokens": "minute"}
"""The column by which the rows of a table are counted by hour."""


class Queries:
    """Runs queries on a store. `fragments` stand in the SQL by name, `parameters` are bound."""

    def __init__(self, store: Store, settings: Callable[[], Mapping[str, Any]] = dict) -> None:
        """`settings` is called for the store's settings of each query."""
        self._store = store
        self._settings = settings
        self._past = PastDays()
        self._filled: set[str] = set()
        self._known: OrderedDict[str, Versions] = OrderedDict()
        self._answered: dict[str, Any] | None = None

    def for_one_answer(self) -> Queries:
        """These queries for one answer, whose parts share rows and columns: an equal question is asked once.

        Large arrays are asked for each time: no two parts want the same, and an answer over weeks has many.
        """
        made = copy(self)
        made._answered = {}
        return made

    @property
    def remembers(self) -> bool:
        """Answers about whole days are remembered. On a cluster, each query may be answered by another replica."""
        return not self._store.layout.cluster

    def _reads_nothing(self, query: str) -> bool:
        """Tell whether the tables of a query are empty. Outside of a session, asking this costs more than it saves."""
        tables = no_rows_without(query)
        if not tables or not self.remembers or "log_comment" not in self._settings():
            return False
        return not self.may_have_rows(*tables)

    def may_have_rows(self, *tables: str) -> bool:
        """Tell whether one of these tables has rows, or had some earlier: a query of an emptied table finds nothing."""
        if not self._filled & {*tables}:
            self._filled.update(table for table, _ in self.versions())
        return bool(self._filled & {*tables})

    def versions(self) -> Versions:
        """The versions of all days when the session first asked for them: its answer is of that moment."""
        session = self._settings().get("log_comment", "")
        known = self._known.get(session)
        if known is None:
            rows = self.rows("day_versions")
            known = {(row["name"], row["partition"]): tuple(row["version"]) for row in rows}
            if session:
                self._known[session] = known
            while len(self._known) > _MOST_SESSIONS:
                self._known.popitem(last=False)
        return known

    def versions_of(self, table: str, first: int, last: int) -> Versions:
        """The versions of a table's rows from an hour up to before another, counted since 1970: of days, or of a part.

        New rows come into the newest day all the time, and few into its past hours. While no row of the day is
        deleted, hours with as many rows as before have the same rows:

            at 10:05    the hours 0 to 9: from block 7 on, mutation 7, 90,000 rows    the answer is kept
            at 10:06    the day has 60 rows more, and these hours have 90,000         it is the same
        """
        now = self.versions()
        days = [(table, partition(day)) for day in range(first // 24, -(-last // 24))]
        newest = max((day for of, day in now if of == table), default="")
        if last % 24 == 0 or days[-1][1] != newest:
            return {day: now.get(day, ()) for day in days}
        (day,) = days
        by_time = {"table": Table(table), "time": Fragment(_TIMES[table])}
        counted = self.remembered(
            ("rows by hour", *day),
            days,
            lambda: self.columns("rows_by_hour", by_time, partition=newest),
            size_of_columns,
            now,
        )
        n = sum(n for hour, n in zip(counted["hour"], counted["n"], strict=True) if first <= hour < last)
        first_block, _, _, mutation = now[day]
        return {(table, f"{newest} {first}-{last}"): (first_block, mutation, n)}

    def count(self, table: str, during: str, matching: Fragment, **bounds: int) -> int:
        """How many rows of a table match, in a window: `during` is `ended_in_window` or `started_in_window`."""
        fragments = {"table": Table(table), "in_window": part(during, {}), "filter": matching}
        return int(self.row("rows_in_window", fragments, **bounds)["n"])

    def deletions_of(self, table: str) -> Versions:
        """A version that changes when rows of a table were deleted, or its oldest or newest day went or came."""
        of_table = {day: version for (of, day), version in self.versions().items() if of == table}
        days = [int(day) for day in of_table if day.isdecimal()]
        mutation = max((version[3] for version in of_table.values()), default=0)
        return {(table, "deletions"): (mutation, min(days, default=0), max(days, default=0))}

    def remembered(
        self,
        question: Hashable,
        reads: Sequence[Day],
        answer: Callable[[], T],
        size: Callable[[T], int],
        now: Versions | None = None,
    ) -> T:
        """The answer to a question, read again when a row of the days that it reads has changed (`PastDays.get`)."""
        if not self.remembers:
            return answer()
        sees = self._settings().get("additional_table_filters", "")
        return self._past.get((sees, question), reads, answer, size, self.versions() if now is None else now)

    def of_hours(
        self,
        question: Hashable,
        fragments: Mapping[str, Fragment],
        reads: Versions,
        answer: Callable[[], T],
        size: Callable[[T], int],
    ) -> T:
        """The remembered answer to a question that reads tables with these versions (`versions_of`)."""
        asked = ((name, part.sql, repr(sorted(part.parameters.items()))) for name, part in fragments.items())
        return self.remembered((question, *asked), [*reads], answer, size, reads)

    def rows(
        self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any
    ) -> list[dict[str, Any]]:
        """The rows of the result, by column name. An answer of the API asks no table that has no rows."""
        if self._reads_nothing(query):
            return []
        result = self._once((query, fragments, parameters), lambda: self._result(query, fragments, parameters))
        return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]

    def row(self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any) -> dict[str, Any]:
        """The only row of the result, for queries that always have one."""
        (row,) = self.rows(query, fragments, **parameters)
        return row

    def columns(
        self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any
    ) -> dict[str, Sequence[Any]]:
        """The columns of the result, by name. A result without rows may come without names: every column is empty."""
        if self._reads_nothing(query):
            return defaultdict(list)
        result = self._once((query, fragments, parameters), lambda: self._result(query, fragments, parameters))
        return defaultdict(list, zip(result.column_names, result.result_columns, strict=True))

    def array(
        self, query: str, fragments: Mapping[str, Fragment], row: npt.DTypeLike, /, **parameters: Any
    ) -> npt.NDArray[Any]:
        """The rows of the result as an array. `row` has the columns' types, all of a fixed width."""
        if self._reads_nothing(query):
            return np.empty(0, row)
        return self._once((query, fragments, row, parameters), lambda: self._array(query, fragments, row, parameters))

    def query(self, sql: str, parameters: dict[str, Any], settings: Mapping[str, Any]) -> QueryResult:
        """Run SQL of another folder with these settings, and those of the caller's session before them."""
        return self._store.query(sql, parameters, {**settings, **self._settings()})

    def binary(self, sql: str, parameters: dict[str, Any], settings: Mapping[str, Any]) -> bytes:
        """Run SQL as `query` does, for rows in ClickHouse's RowBinary format."""
        return self._store.binary(sql, parameters, {**settings, **self._settings()})

    def _once(self, asked: tuple[Any, ...], ask: Callable[[], T]) -> T:
        question = repr(asked)
        if self._answered is not None and question in self._answered:
            return self._answered[question]  # type: ignore[no-any-return]
        answer = ask()
        if self._answered is not None and getattr(answer, "nbytes", 0) <= _SMALL_BYTES:
            self._answered[question] = answer
        return answer

    def _array(
        self, query: str, fragments: Mapping[str, Fragment], row: npt.DTypeLike, parameters: Mapping[str, Any]
    ) -> npt.NDArray[Any]:
        sql = render(query, fragments)
        packed = self._store.binary(sql, {**parameters, **merged([*fragments.values()])}, self._settings())
        return np.frombuffer(packed, np.dtype(row))

    def _result(
        self, query: str, fragments: Mapping[str, Fragment] | None, parameters: Mapping[str, Any]
    ) -> QueryResult:
        fragments = fragments or {}
        sql = render(query, fragments)
        return self._store.query(sql, {**parameters, **merged([*fragments.values()])}, self._settings())
