"""ITL over a window: exact percentiles over tokens, from how many tokens had each duration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from collector.ask.past_days import partition
from collector.ask.queries import Queries
from collector.ask.slices import narrow, whole_hours
from collector.ask.times import DAY_NS, HOUR_NS
from collector.ask.window import Window
from collector.count.answers import LEVELS, Distribution, seconds
from collector.slo.judge import column_of
from collector.sql.fragment import Fragment

_DENSE: Final = 2**20
_PLACES_FOR_EACH: Final = 4
"""Short durations have a place each in one array. It has so many places at most, and so many for each duration."""
_ROW: Final = np.dtype([("us", "<u8"), ("n", "<u8")])
_ROW_BYTES: Final = 800
"""About the memory of one row of numbers/queries/timeseries_itl.sql."""

T = TypeVar("T")
Array = npt.NDArray[Any]
Counts = tuple[Array, Array]
"""Durations in µs, and how many tokens had each."""
Buckets = list[dict[str, Any]]
"""Rows of numbers/queries/timeseries_itl.sql."""


@dataclass(frozen=True)
class _Asked(Generic[T]):
    """A question about the tokens of whole hours of a day, under the name by which its answers are remembered.

    `read` takes the start and the end of the hours, and the start of their first request. Without one, the answer is
    `nothing`. `size` is the memory of an answer.
    """

    name: tuple[Any, ...]
    read: Callable[[int, int, int | None], T]
    nothing: T
    size: Callable[[T], int]


_NONE: Final[Counts] = (np.empty(0, np.uint8), np.empty(0, np.uint8))


def itl(queries: Queries, window: Window, first_ns: int | None = None) -> Distribution:
    """The distribution over tokens. Without a token, no request is read.

    No request of the window began before `first_ns`. None: the store is asked for the first start.
    """
    return distribution(*_counts(queries, window, first_ns)) if _has_tokens(queries, window) else Distribution.empty()


def itl_by(queries: Queries, window: Window, column: str) -> dict[str, Distribution]:
    """The distribution over the tokens of each value of a column that has some; the tokens of a short window."""
    first_ns = first_start(queries, window.filter, **window.bounds) if _has_tokens(queries, window) else None
    if first_ns is None:
        return {}
    fragments = {"column": column_of(column, "by"), "filter": window.filter}
    columns = queries.columns("itl_by_group", fragments, **window.bounds, first_ns=first_ns)
    values, place = np.unique(np.array(columns["value"], object), return_inverse=True)
    us, n = (np.array(columns[name], np.int64) for name in ("duration_us", "n"))
    return {value: distribution(us[place == i], n[place == i]) for i, value in enumerate(values.tolist())}


def _has_tokens(queries: Queries, window: Window) -> bool:
    """Tell whether there may be a token; one that is as old as the window's end, where nothing is remembered."""
    if queries.remembers:
        return queries.may_have_rows("tokens")
    return bool(queries.rows("itl_exists", end_ns=window.end_ns))


def distribution(values_us: Array, counts: Array) -> Distribution:
    """The distribution of ascending values that occur `counts` times each, as `numpy.percentile` has it.

    values [10, 30], counts [3, 1]: 10, 10, 10, 30    p90 has the rank 0.9 · 3 = 2.7, between 10 and 30: 24
    """
    if not values_us.size:
        return Distribution.empty()
    return Distribution(
        count=int(counts.sum()),
        mean=seconds(float(np.average(values_us.astype(np.uint64) * 1000, weights=counts))),
        max=seconds(int(values_us[-1]) * 1000),
        **dict(zip(LEVELS, map(seconds, _percentiles_ns(values_us, counts)), strict=True)),
    )


def _percentiles_ns(values_us: Array, counts: Array) -> list[float]:
    """The percentiles of `LEVELS`, as `distribution` has them."""
    values_ns, until = values_us.astype(np.uint64) * 1000, counts.cumsum()
    ranks = np.array([*LEVELS.values()]) * float(until[-1] - 1)
    low, high = (
        values_ns[np.searchsorted(until, part(ranks), side="right")].astype(float) for part in (np.floor, np.ceil)
    )
    percentiles: list[float] = (low + (ranks - np.floor(ranks)) * (high - low)).tolist()
    return percentiles


def added(parts: Sequence[Counts]) -> Counts:
    """Add counts by duration; the durations ascend."""
    us, n = (np.concatenate(arrays) for arrays in zip(_NONE, *parts, strict=True))
    is_short = us < min(_DENSE, _PLACES_FOR_EACH * len(us))
    dense = np.bincount(us[is_short], weights=n[is_short]).astype(np.int64)
    long_us, places = np.unique(us[~is_short], return_inverse=True)
    sparse = np.bincount(places, weights=n[~is_short], minlength=len(long_us)).astype(np.int64)
    known = np.flatnonzero(dense)
    return np.concatenate([known.astype(np.uint64), long_us.astype(np.uint64)]), np.concatenate([dense[known], sparse])


def stretches(start_ns: int, end_ns: int) -> Iterator[tuple[int, int, bool]]:
    """Divide a window into whole days, the whole hours of its first and of its last day, and the rest.

    True for all but the rest:

    12 Nov 18:30 to 14 Nov 06:20    12 Nov 18:30 to 19:00, 19 to 24 h, 13 Nov, 14 Nov 0 to 6 h, 6:00 to 6:20
    """
    at_ns = start_ns
    for first, last in whole_hours(start_ns, end_ns, each_day=True):
        if at_ns < first * HOUR_NS:
            yield at_ns, first * HOUR_NS, False
        at_ns = last * HOUR_NS
        yield first * HOUR_NS, at_ns, True
    if at_ns < end_ns:
        yield at_ns, end_ns, False


def by_bucket(queries: Queries, window: Window, step_ns: int) -> Buckets:
    """The percentiles over the tokens of each bucket that has some, the oldest first.

    A query holds each token of its buckets in memory, so that weeks are read day by day, where days and buckets divide
    each other:

        step 1 h     one query for each day, whose buckets are remembered
        step 7 d     the tokens of seven days by their duration, from which the percentiles follow
        step 7 h     one query for the whole window
    """
    if not _has_tokens(queries, window):
        return []
    if _divides_into_days(queries, window) and step_ns % DAY_NS == 0:
        firsts = range(window.start_ns // step_ns * step_ns, window.end_ns, step_ns)
        return [row for first in firsts for row in _of_many_days(queries, window, first, first + step_ns)]
    read = partial(_read_buckets, queries, window, step_ns)
    asked = _Asked[Buckets](("itl by bucket", step_ns), read, [], lambda rows: _ROW_BYTES * len(rows))
    if not _divides_into_days(queries, window) or DAY_NS % step_ns:
        return read(window.start_ns, window.end_ns, None)
    midnights = range(-(-window.start_ns // DAY_NS) * DAY_NS, window.end_ns, DAY_NS)
    now = queries.versions()
    buckets: Buckets = []
    for a, b in pairwise(sorted({window.start_ns, *midnights, window.end_ns})):
        if ("requests", partition(a // DAY_NS)) in now:
            of_day: Buckets = _remembered(queries, window, a, b, asked) if b - a == DAY_NS else read(a, b, None)
            buckets += of_day
    return buckets


def _of_many_days(queries: Queries, window: Window, first_ns: int, last_ns: int) -> Buckets:
    bucket = replace(window, start_ns=max(first_ns, window.start_ns), end_ns=min(last_ns, window.end_ns))
    us, n = _counts(queries, bucket, None)
    if not us.size:
        return []
    *quantiles, _ = _percentiles_ns(us, n)
    return [{"bucket_ns": first_ns, "n": int(n.sum()), "quantiles": quantiles, "largest": int(us[-1]) * 1000}]


def _divides_into_days(queries: Queries, window: Window) -> bool:
    """Tell whether days can be asked about, each with the requests that ended in it and all their tokens.

    A filter that looks at other requests of the window depends on more than a day.
    """
    return queries.remembers and "start_ns" not in window.filter.parameters


def _counts(queries: Queries, window: Window, first_ns: int | None) -> Counts:
    """How many tokens of the window's requests had each duration."""
    if not _divides_into_days(queries, window):
        return added([_read(queries, window, window.start_ns, window.end_ns, first_ns)])
    asked = _Asked(("itl",), partial(_read, queries, window), _NONE, _size)
    divided = [*stretches(window.start_ns, window.end_ns)]
    days = [(a, b) for a, b, whole in divided if whole and b - a == DAY_NS]
    others = [
        _remembered(queries, window, a, b, asked) if whole else asked.read(a, b, first_ns)
        for a, b, whole in divided
        if not (whole and b - a == DAY_NS)
    ]
    return added([*others, _of_days(queries, window, days, asked)])


def _of_days(queries: Queries, window: Window, days: Sequence[tuple[int, int]], asked: _Asked[Counts]) -> Counts:
    """The counts of whole days together. They are remembered for all days, since adding thirty days takes a while.

    The store is not asked about a day without requests: a window may begin years before the first one.
    """
    now = queries.versions() if days else {}
    days = [(a, b) for a, b in days if ("requests", partition(a // DAY_NS)) in now]
    if not days:
        return _NONE

    def add() -> Counts:
        return added([_remembered(queries, window, a, b, asked) for a, b in days])

    last = days[-1][1] // DAY_NS
    reads = [day for day in now if day[1] < partition(last)]
    return queries.remembered(("itl of days", days[0][0], days[-1][1], _key(window)), reads, add, _size, now)


def _remembered(queries: Queries, window: Window, start_ns: int, end_ns: int, asked: _Asked[T]) -> T:
    """The answer about whole hours of a day. Their tokens may lie in days before, when a request took long."""
    day, first, last = start_ns // DAY_NS, start_ns // HOUR_NS, end_ns // HOUR_NS
    question = start_ns, end_ns, _key(window)
    of_requests = queries.versions_of("requests", first, last)
    first_ns = queries.remembered(
        ("first start", *question),
        [*of_requests],
        lambda: first_start(queries, window.filter, start_ns, end_ns),
        lambda _: 0,
        of_requests,
    )
    if first_ns is None:
        return asked.nothing
    first_day = min(first_ns // DAY_NS, day)
    reads = {
        **of_requests,
        **queries.versions_of("tokens", first_day * 24, day * 24),
        **queries.versions_of("tokens", day * 24, last),
    }
    return queries.remembered(
        (*asked.name, *question), [*reads], lambda: asked.read(start_ns, end_ns, first_ns), asked.size, reads
    )


def _read_buckets(
    queries: Queries, window: Window, step_ns: int, start_ns: int, end_ns: int, first_ns: int | None
) -> Buckets:
    first_ns = first_start(queries, window.filter, start_ns, end_ns) if first_ns is None else first_ns
    if first_ns is None:
        return []
    bounds = {"first_ns": first_ns, "start_ns": start_ns, "end_ns": end_ns}
    return queries.rows("timeseries_itl", {"filter": window.filter}, step_ns=step_ns, **bounds)


def _read(queries: Queries, window: Window, start_ns: int, end_ns: int, first_ns: int | None) -> Counts:
    first_ns = first_start(queries, window.filter, start_ns, end_ns) if first_ns is None else first_ns
    if first_ns is None:
        return _NONE
    bounds = {"first_ns": first_ns, "start_ns": start_ns, "end_ns": end_ns}
    rows = queries.array("itl", {"filter": window.filter}, _ROW, **bounds)
    return narrow(rows["us"]), narrow(rows["n"])


def first_start(queries: Queries, matching: Fragment, start_ns: int, end_ns: int) -> int | None:
    """When the first of the requests began that ended ok in this time; None without one."""
    first: int | None = queries.row("first_start", {"filter": matching}, start_ns=start_ns, end_ns=end_ns)["first_ns"]
    return first


def _key(window: Window) -> tuple[str, str]:
    return window.filter.sql, repr(sorted(window.filter.parameters.items()))


def _size(counts: Counts) -> int:
    return sum(array.nbytes for array in counts)
