"""Sums over the requests that ended in a window, by bands of time. A sampled request adds its weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collector.api.times import SECOND_NS
from collector.sql.fragment import TRUE, Fragment, merged
from collector.sql.queries import Queries, partition

_DAY_NS: Final = 86_400 * SECOND_NS
_LEAST_DAYS: Final = 3
"""So many whole days in a row are worth a query of their own."""
_LAST_DAY: Final = 65_000
"""Days since 1970. ClickHouse puts all days after the year 2149 into one partition."""
_IS_SAMPLED: Final = "is_sampled"

Sums = Mapping[str, Any]


@dataclass(frozen=True)
class Summand:
    """Adds 1, or `value` where it is known, for every request that meets `where`. `with_variance`: its standard error
    is wanted too, should requests be sampled."""

    where: Fragment = TRUE
    value: str = "1"
    with_variance: bool = False

    def unweighted(self) -> str:
        """The aggregate over requests that all stand for themselves."""
        if self.value == "1":
            return "count()" if self.where == TRUE else f"countIf({self.where.sql})"
        return f"sumIf({self.value}, {self.where.sql})"

    def weighted(self) -> str:
        """The Horvitz-Thompson estimate: the sum of weight · value."""
        return f"sumIf(weight * ({self.value}), {self.where.sql})"

    def variance(self) -> str:
        """The estimated variance of a weighted count, when every request was kept on its own: Σ w(w - 1)."""
        return f"sumIf(weight * (weight - 1), {self.where.sql})" if self.with_variance else "0."


@dataclass(frozen=True)
class Slice:
    """A part of a window that one query reads: which rows, and the band of each."""

    ended: Fragment
    band: Fragment
    days: tuple[int, int] | None = None
    """These days alone, from the first up to before the last, counted since 1970."""
    table: str = "requests"

    def columns(
        self, queries: Queries, query: str, fragments: Mapping[str, Fragment], matching: Fragment
    ) -> Mapping[str, Sequence[Any]]:
        """The columns of a query that reads these rows. An answer about whole days is remembered.

        A filter that looks at other requests of the window depends on more than these days.
        """
        fragments = {**fragments, "ended": self.ended, "filter": matching}
        if self.days is None or "start_ns" in matching.parameters:
            return queries.columns(query, fragments)
        return queries.of_days(query, fragments, self.table, *self.days)


def slices(moments: Sequence[int], table: str = "requests", column: str = "end") -> Iterator[Slice]:
    """Divides a window into whole days and the rest. `moments` are its end and the starts of its bands, newest first.

    `column` has the day of the table's rows. Days are partitions of the table, so their rows need no comparison of
    times. With one band, and days of 10 h:

        moments 75 h, 12 h    band 1: days [20 h, 70 h) by partition, then [12 h, 20 h) and [70 h, 75 h) by time
    """
    in_days: list[Fragment] = []
    for band in range(1, len(moments)):
        first, last = -(-moments[band] // _DAY_NS), min(moments[band - 1] // _DAY_NS, _LAST_DAY)
        if last - first >= _LEAST_DAYS:
            days = {f"day{band}_{key}": partition(day) for key, day in (("first", first), ("last", last))}
            bounds = {f"day{band}_{key}_ns": day * _DAY_NS for key, day in (("first", first), ("last", last))}
            yield Slice(
                Fragment(
                    f"_partition_id >= {{day{band}_first:String}} AND _partition_id < {{day{band}_last:String}}", days
                ),
                Fragment(str(band)),
                (first, last),
                table,
            )
            in_days.append(Fragment(f"NOT ({_between(column, f'day{band}_first_ns', f'day{band}_last_ns')})", bounds))
    starts = {f"band{i}_ns": moment for i, moment in enumerate(moments[1:], 1)}
    bands = "".join(f"{column} >= {_time(name)}, {i}, " for i, name in enumerate(starts, 1) if i < len(starts))
    window = Fragment(_between(column, "start_ns", "end_ns"), {"start_ns": moments[-1], "end_ns": moments[0]})
    rest = [window, *in_days]
    yield Slice(
        Fragment(" AND ".join(part.sql for part in rest), merged(rest)),
        Fragment(f"multiIf({bands}{len(starts)})", starts) if bands else Fragment("1"),
    )


def _time(name: str) -> str:
    return f"fromUnixTimestamp64Nano({{{name}:Int64}})"


def _between(column: str, first: str, last: str) -> str:
    return f"{column} >= {_time(first)} AND {column} < {_time(last)}"


@dataclass(frozen=True)
class Summed:
    """The sums by band. `sampled`: they are estimates, with variances under `{name}_variance`."""

    by_band: Mapping[int, Sums]
    sampled: bool

    @property
    def total(self) -> Sums:
        """The sums of all bands together."""
        return add_all(self.by_band.values())


def add_all(rows: Iterable[Sums]) -> Sums:
    """One sum of each name; None only when none of the values is known."""
    total: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            before = total.get(name)
            total[name] = value if before is None else before + (value or 0)
    return total


def sums(queries: Queries, matching: Fragment, parts: Sequence[Slice], summands: Mapping[str, Summand]) -> Summed:
    """Compute every summand. Requests are counted when all stand for themselves; otherwise their weights are added."""
    asked = {name: s.unweighted() for name, s in summands.items()} | {_IS_SAMPLED: "countIf(is_sampled)"}
    parameters = merged([s.where for s in summands.values()])
    counted = _query(queries, matching, parts, asked, parameters)
    if not any(row[_IS_SAMPLED] for row in counted.values()):
        return Summed(counted, sampled=False)
    estimated = {name: s.weighted() for name, s in summands.items()}
    variances = {f"{name}_variance": s.variance() for name, s in summands.items() if s.with_variance}
    return Summed(_query(queries, matching, parts, estimated | variances, parameters), sampled=True)


def _query(
    queries: Queries,
    matching: Fragment,
    parts: Sequence[Slice],
    asked: Mapping[str, str],
    parameters: Mapping[str, Any],
) -> dict[int, Sums]:
    columns = Fragment(f"[{', '.join(asked.values())}]", parameters)
    by_band: dict[int, list[Sums]] = defaultdict(list)
    for part in parts:
        found = part.columns(queries, "sums", {"by": part.band, "sums": columns}, matching)
        for band, values in zip(found["by"], found["sums"], strict=True):
            by_band[band].append(dict(zip(asked, values, strict=True)))
    return {band: add_all(rows) for band, rows in by_band.items()}
