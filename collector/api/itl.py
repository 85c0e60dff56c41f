"""ITL over a window: exact percentiles over tokens, from how many tokens had each duration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.api.answers import LEVELS, Distribution, seconds
from collector.api.parameters import Window
from collector.api.sums import LEAST_HOURS, is_short, narrow
from collector.api.times import DAY_NS, HOUR_NS
from collector.sql.fragment import Fragment
from collector.sql.queries import Queries, partition

_DENSE: Final = 2**20
_PLACES_FOR_EACH: Final = 4
"""Short durations have a place each in one array. It has so many places at most, and so many for each duration."""
_ROW: Final = np.dtype([("us", "<u8"), ("n", "<u8")])

Array = npt.NDArray[Any]
Counts = tuple[Array, Array]
"""Durations in µs, and how many tokens had each."""
_NONE: Final[Counts] = (np.empty(0, np.uint8), np.empty(0, np.uint8))


def itl(queries: Queries, window: Window, first_ns: int | None = None) -> Distribution:
    """The distribution over tokens. Without a token that is old enough, no request is read.

    No request of the window began before `first_ns`. None: the store is asked for the first start.
    """
    return distribution(*_counts(queries, window, first_ns)) if _has_tokens(queries, window) else Distribution.empty()


def _has_tokens(queries: Queries, window: Window) -> bool:
    """Tell whether any token may be as old as the window's end. To look at the days costs as much as a short window."""
    if not queries.remembers:
        return bool(queries.rows("itl_exists", end_ns=window.end_ns))
    if is_short(window.start_ns, window.end_ns):
        return queries.may_have_rows("tokens")
    last = partition(window.end_ns // DAY_NS)
    return any(table == "tokens" and day <= last for table, day in queries.versions())


def distribution(values_us: Array, counts: Array) -> Distribution:
    """The distribution of ascending values that occur `counts` times each, as `numpy.percentile` has it.

    values [10, 30], counts [3, 1]: 10, 10, 10, 30    p90 has the rank 0.9 · 3 = 2.7, between 10 and 30: 24
    """
    if not values_us.size:
        return Distribution.empty()
    values_ns, until = values_us.astype(np.uint64) * 1000, counts.cumsum()
    ranks = np.array([*LEVELS.values()]) * float(until[-1] - 1)
    low, high = (
        values_ns[np.searchsorted(until, part(ranks), side="right")].astype(float) for part in (np.floor, np.ceil)
    )
    percentiles = low + (ranks - np.floor(ranks)) * (high - low)
    return Distribution(
        count=int(until[-1]),
        mean=seconds(float(np.average(values_ns, weights=counts))),
        max=seconds(int(values_ns[-1])),
        **dict(zip(LEVELS, map(seconds, percentiles.tolist()), strict=True)),
    )


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
    """Divide a window into whole days, the hours before the first of them, the hours of the last day, and the rest.

    True for a day, an hour before the first day, and the whole hours of the last day together:

    12 Nov 21:30 to 14 Nov 06:20    12 Nov 21:30 to 22:00, 22 to 23 h, 23 to 24 h, 13 Nov, 14 Nov 0 to 6 h, 6:00 to 6:20
    """
    midnight, last = -(-start_ns // DAY_NS) * DAY_NS, end_ns // DAY_NS * DAY_NS
    if midnight > last:
        yield from _within_a_day(start_ns, end_ns)
        return
    hour = -(-start_ns // HOUR_NS) * HOUR_NS
    if start_ns < hour:
        yield start_ns, hour, False
    for at in range(hour, midnight, HOUR_NS):
        yield at, at + HOUR_NS, True
    for at in range(midnight, last, DAY_NS):
        yield at, at + DAY_NS, True
    yield from _within_a_day(last, end_ns)


def _within_a_day(start_ns: int, end_ns: int) -> Iterator[tuple[int, int, bool]]:
    first, last = -(-start_ns // HOUR_NS) * HOUR_NS, end_ns // HOUR_NS * HOUR_NS
    if last - first < LEAST_HOURS * HOUR_NS:
        first = last = end_ns
    yield from ((a, b, a == first) for a, b in ((start_ns, first), (first, last), (last, end_ns)) if a < b)


def _counts(queries: Queries, window: Window, first_ns: int | None) -> Counts:
    """How many tokens of the window's requests had each duration.

    A request belongs to the day in which it ended, with all its tokens. A filter that looks at other requests of the
    window depends on more than a day.
    """
    if not queries.remembers or "start_ns" in window.filter.parameters:
        return added([_read(queries, window, window.start_ns, window.end_ns, first_ns)])
    divided = [*stretches(window.start_ns, window.end_ns)]
    days = [(a, b) for a, b, whole in divided if whole and b - a == DAY_NS]
    others = [
        _remembered(queries, window, a, b) if whole else _read(queries, window, a, b, first_ns)
        for a, b, whole in divided
        if not (whole and b - a == DAY_NS)
    ]
    return added([*others, _of_days(queries, window, days)])


def _of_days(queries: Queries, window: Window, days: Sequence[tuple[int, int]]) -> Counts:
    """The counts of whole days together. They are remembered for all days, since adding thirty days takes a while.

    The store is not asked about a day without requests: a window may begin years before the first one.
    """
    now = queries.versions() if days else {}
    days = [(a, b) for a, b in days if ("requests", partition(a // DAY_NS)) in now]
    if not days:
        return _NONE

    def add() -> Counts:
        return added([_remembered(queries, window, a, b) for a, b in days])

    last = days[-1][1] // DAY_NS
    reads = [day for day in now if day[1] < partition(last)]
    return queries.remembered(("itl of days", days[0][0], days[-1][1], _key(window)), reads, add, _size, now)


def _remembered(queries: Queries, window: Window, start_ns: int, end_ns: int) -> Counts:
    """The counts of whole hours of a day. Their tokens may lie in days before, when a request took long."""
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
        return _NONE
    first_day = min(first_ns // DAY_NS, day)
    reads = {
        **of_requests,
        **queries.versions_of("tokens", first_day * 24, day * 24),
        **queries.versions_of("tokens", day * 24, last),
    }
    return queries.remembered(
        ("itl", *question), [*reads], lambda: _read(queries, window, start_ns, end_ns, first_ns), _size, reads
    )


def _read(queries: Queries, window: Window, start_ns: int, end_ns: int, first_ns: int | None) -> Counts:
    bounds = {"start_ns": start_ns, "end_ns": end_ns}
    if first_ns is None:
        first_ns = first_start(queries, window.filter, **bounds)
    if first_ns is None:
        return _NONE
    rows = queries.array("itl", {"filter": window.filter}, _ROW, first_ns=first_ns, **bounds)
    return narrow(rows["us"]), narrow(rows["n"])


def first_start(queries: Queries, matching: Fragment, start_ns: int, end_ns: int) -> int | None:
    """When the first of the requests began that ended ok in this time; None without one."""
    found: int | None = queries.row("first_start", {"filter": matching}, start_ns=start_ns, end_ns=end_ns)["first_ns"]
    return found


def _key(window: Window) -> tuple[str, str]:
    return window.filter.sql, repr(sorted(window.filter.parameters.items()))


def _size(counts: Counts) -> int:
    return sum(array.nbytes for array in counts)
