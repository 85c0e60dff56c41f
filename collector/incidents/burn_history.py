"""The requests by which budgets burned, read from the store by the minute in which they arrived, and their lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.ask.slices import ARRIVED, Arrays, slices
from collector.ask.template import part
from collector.ask.times import DAY_NS
from collector.ask.window import Window
from collector.count.in_flight import InFlight
from collector.count.population import NOTHING, read_ended
from collector.count.reader import Reader
from collector.slo.burn import BurnRule
from collector.slo.burn_between import STEP_NS
from collector.slo.burn_history import MINUTE_NS, Minutes
from collector.slo.cells import Cells
from collector.slo.model import Slo
from collector.sql.fragment import Fragment

Floats = npt.NDArray[np.float64]
Key = tuple[str, str | None]
"""The name of an SLO, and one of the tenants to which it is a promise each; None: all requests."""

_ROW: Final = np.dtype(
    [
        ("minute", "<i8"), ("cell", "<u8"), ("tenant", "<u2"), ("n", "<f8"), ("variance", "u1"), ("sums", "u1"),
        ("first_ns", "<i8"), ("last_ns", "<i8"), ("sampled", "<u8"),
    ]
)  # fmt: skip
"""The columns of count/queries/cells.sql, as they are asked for here."""
_NEVER_NS: Final = 2**62
_ENDED: Final = part("counts_at", {}).sql


def longest_ns(rules: Sequence[BurnRule]) -> int:
    """The longest window that one of these rules looks at."""
    return max((rule.long_ns for rule in rules), default=0)


class History:
    """The judged and the bad requests of SLOs, and of their tenants, by minute of arrival."""

    def __init__(
        self,
        reader: Reader,
        window: Window,
        tenants: Mapping[str, Sequence[str]],
        in_flight: InFlight,
        longest_ns: int,
    ) -> None:
        """`tenants` of each SLO, by its name; `longest_ns` is that of all rules.

        The history of the window has the longest window of a rule before it. A burn may be older, at most as old as its
        SLO's window is long: `go_back` reads more.
        """
        self._reader, self._window, self._in_flight = reader, window, in_flight
        self._slos = {slo.name: slo for slo in reader.slos}
        self._tenants = {name: sorted(of) for name, of in tenants.items()}
        self.keys: list[Key] = [(name, of) for name in self._slos for of in (None, *self._tenants[name])]
        """All SLOs, each followed by its tenants."""
        self._names = sorted({*chain.from_iterable(self._tenants.values())})
        self._asked_ns = max(0, window.start_ns - longest_ns)
        oldest = min([self._asked_ns, *(self._oldest_ns(slo) for slo in self._slos.values())])
        self._parts = days_back(oldest, window.end_ns)
        self._start_ns, self._read = window.end_ns, [self._lost()]
        while self._start_ns > self._asked_ns and self.go_back():
            pass

    def _oldest_ns(self, slo: Slo) -> int:
        return max(0, min(self._asked_ns, self._window.end_ns - slo.window))

    def go_back(self) -> bool:
        """Read some days before those that are known; False when nobody asks for more."""
        between = next(self._parts, None)
        if between is None:
            return False
        self._start_ns = between[0]
        self._read += self._counted(*between)
        return True

    def minutes(self, key: Key, *, asked: bool = False) -> Minutes:
        """The requests of one of them up to the minute of the window's end.

        `asked`: only from the longest window of a rule before the window on, although older ones may be known.
        """
        oldest_ns = self._oldest_ns(self._slos[key[0]])
        start_ns = max(self._start_ns, self._asked_ns) if asked else self._start_ns
        first = max(start_ns, oldest_ns) // MINUTE_NS
        length = (self._window.end_ns - 1) // MINUTE_NS - first + 1
        place = self.keys.index(key)
        judged, bad = np.zeros((2, length))
        for one in self._read:
            minute = one["minute"].astype(np.int64)  # of an empty slice they are bytes
            known = (minute >= first) & (minute < first + length)
            at = minute[known] - first
            judged[at] += one["judged"][place][known]
            bad[at] += one["bad"][place][known]
        return Minutes(first, judged, bad, is_all=start_ns <= oldest_ns)

    def steps(self, key: Key, first: int, last: int) -> tuple[Floats, Floats]:
        """The judged and the bad requests of one of them in each step from one minute to another one."""
        start_ns, end_ns = max(0, first * MINUTE_NS), min((last + 1) * MINUTE_NS, self._window.end_ns)
        place, of_first = self.keys.index(key), first * MINUTE_NS // STEP_NS
        judged, bad = np.zeros((2, (last + 1 - first) * MINUTE_NS // STEP_NS))
        for one in [*self._counted(start_ns, end_ns, STEP_NS), self._lost(STEP_NS)]:
            at = one["minute"].astype(np.int64) - of_first
            known = (at >= 0) & (at < len(judged))
            judged[at[known]] += one["judged"][place][known]
            bad[at[known]] += one["bad"][place][known]
        return judged, bad

    def bad(self) -> dict[Key, float]:
        """How many requests of each were bad in all minutes that are known."""
        sums = sum(np.asarray(one["bad"].sum(axis=1, dtype=np.float64)) for one in self._read)
        return dict(zip(self.keys, np.asarray(sums).tolist(), strict=True))

    def _counted(self, start_ns: int, end_ns: int, each_ns: int = MINUTE_NS) -> list[Arrays]:
        cells = Cells(self._reader.slos)
        names = {"history_tenants": self._names, "history_places": [*range(1, len(self._names) + 1)]}
        place = "transform(tenant, {history_tenants:Array(String)}, {history_places:Array(UInt16)}, 0::UInt16)"
        tenant = Fragment(f"toUInt16({place})", names) if self._names else Fragment("0::UInt16")

        def counted(rows: npt.NDArray[Any]) -> Arrays:
            return self._by_minute(cells, rows)

        depends_on = (*(slo.hash for slo in self._reader.slos), *self.keys)
        return _read(self._reader, self._window, (start_ns, end_ns), cells, (counted, depends_on), tenant, each_ns)

    def _by_minute(self, cells: Cells, rows: npt.NDArray[Any]) -> Arrays:
        different, cell = np.unique(rows["cell"], return_inverse=True)
        minutes, at = np.unique(rows["minute"], return_inverse=True)
        of_cells, width = cells.judged(different), len(self._names) + 1
        judged: list[Floats] = []
        bad: list[Floats] = []
        for number, slo in enumerate(self._slos.values()):
            outcomes = of_cells.outcomes(number)
            for counts, flags in ((judged, outcomes.good | outcomes.bad), (bad, outcomes.bad)):
                n = rows["n"] * flags[cell]
                counts.append(np.bincount(at, n, len(minutes)).astype(np.float64))
                if tenants := self._tenants[slo.name]:
                    by_tenant = np.bincount(rows["tenant"].astype(int) * len(minutes) + at, n, width * len(minutes))
                    counts += [by_tenant.reshape(width, -1)[1 + self._names.index(name)] for name in tenants]
        return {"minute": minutes, "judged": np.array(judged), "bad": np.array(bad)}

    def _lost(self, each_ns: int = MINUTE_NS) -> Arrays:
        """The lost requests, which count when they were given up."""
        lost = self._in_flight.where(self._in_flight.is_lost)
        judged = lost.judged(self._reader.slos)
        tenant = np.array(lost.columns["tenant"], object)
        rows = []
        for number, slo in enumerate(self._slos.values()):
            bad = judged.outcomes(number).bad
            rows += [bad, *(bad & (tenant == name) for name in self._tenants[slo.name])]
        minutes, at = np.unique(lost.lost_at_ns // each_ns, return_inverse=True)
        counts = np.array([np.bincount(at, row, len(minutes)) for row in rows]).reshape(len(rows), len(minutes))
        return {"minute": minutes, "judged": counts, "bad": counts}


@dataclass(frozen=True)
class Burned:
    """A burn of an SLO, or one of its tenants, of which the bad requests are looked for in these minutes of arrival."""

    slo: Slo
    tenant: str | None
    first: int
    last: int | None
    """None: up to the window's end."""


@dataclass(frozen=True)
class EndedOfBurn:
    """Bad requests of a burn that ended: when the first and the last of those did that arrived in its minutes, and the
    rows between, which are those of a list. None without any.
    """

    first_ns: int | None = None
    last_ns: int | None = None
    rows: int = 0


def ended_of_burns(reader: Reader, window: Window, burns: Sequence[Burned]) -> list[EndedOfBurn]:
    """The bad requests of each burn. Requests burn when they arrive; lists have those that ended since a time."""
    if not burns:
        return []
    times = _times(reader, window, burns)
    known = [one for one in times if one.first_ns is not None]
    if not known:
        return times
    edges = {ns for one in known for ns in (one.first_ns, one.last_ns) if ns is not None}
    moments = sorted({*edges, window.end_ns}, reverse=True)
    parts, others = slices(moments), Fragment("count()")
    ended = read_ended(reader.queries, window.filter, _cells(burns), parts, others=others)
    band = {ns: number for number, ns in enumerate(moments)}

    def rows(place: int, one: EndedOfBurn) -> int:
        if one.first_ns is None or one.last_ns is None:
            return 0
        between = (ended.band > band[one.last_ns]) & (ended.band <= band[one.first_ns])
        return sum(compress(ended.others, ended.having(ended.judged.outcomes(place).bad) & between))

    return [EndedOfBurn(one.first_ns, one.last_ns, rows(place, one)) for place, one in enumerate(times)]


def _cells(burns: Sequence[Burned]) -> Cells:
    return Cells([burn.slo for burn in burns], tenants=[burn.tenant for burn in burns])


def _times(reader: Reader, window: Window, burns: Sequence[Burned]) -> list[EndedOfBurn]:
    """When the first bad request of each burn ended, and the end of its list: behind the last, or the window's."""
    cells = _cells(burns)

    def ends(rows: npt.NDArray[Any]) -> Arrays:
        return _ends_by_minute(cells, len(burns), rows)

    judged_by = tuple((burn.slo.hash, burn.tenant) for burn in burns)
    oldest_ns = min(burn.first for burn in burns) * MINUTE_NS
    parts = days_back(min(oldest_ns, window.end_ns), window.end_ns)
    read = [one for part in parts for one in _read(reader, window, part, cells, (ends, judged_by))]
    times = []
    for place, burn in enumerate(burns):
        first_ns, last_ns = _NEVER_NS, 0
        for one in read:
            last = window.end_ns if burn.last is None else burn.last
            during = (one["minute"] >= burn.first) & (one["minute"] <= last)
            first_ns = min(first_ns, int(one["first_ns"][place][during].astype(np.int64).min(initial=_NEVER_NS)))
            last_ns = max(last_ns, int(one["last_ns"][place][during].astype(np.int64).max(initial=0)))
        end_ns = window.end_ns if burn.last is None else min(last_ns + 1, window.end_ns)
        is_any = first_ns < min(end_ns, _NEVER_NS)
        times.append(EndedOfBurn(first_ns, end_ns) if is_any else EndedOfBurn())
    return times


def _ends_by_minute(cells: Cells, burns: int, rows: npt.NDArray[Any]) -> Arrays:
    """For each minute, when the first and the last bad request of each burn ended."""
    different, cell = np.unique(rows["cell"], return_inverse=True)
    minutes, at = np.unique(rows["minute"], return_inverse=True)
    first_ns = np.full((burns, len(minutes)), _NEVER_NS)
    last_ns = np.zeros((burns, len(minutes)), np.int64)
    of_cells = cells.judged(different)
    for place in range(burns):
        is_bad = of_cells.outcomes(place).bad[cell]
        np.minimum.at(first_ns[place], at[is_bad], rows["first_ns"][is_bad])
        np.maximum.at(last_ns[place], at[is_bad], rows["last_ns"][is_bad])
    return {"minute": minutes, "first_ns": first_ns, "last_ns": last_ns}


def days_back(start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    """Stretches that reach back to a start or farther: the present day, then 1, 2, 4, … whole days before."""
    midnight, days = end_ns // DAY_NS * DAY_NS, 1
    yield max(start_ns, midnight), end_ns
    while midnight > start_ns:
        earlier = max(midnight - days * DAY_NS, start_ns // DAY_NS * DAY_NS)
        yield earlier, midnight
        midnight, days = earlier, 2 * days


def _read(
    reader: Reader,
    window: Window,
    between_ns: tuple[int, int],
    cells: Cells,
    made: tuple[Any, Any],
    tenant: Fragment = Fragment("0::UInt16"),  # noqa: B008 - it is frozen
    each_ns: int = MINUTE_NS,
) -> list[Arrays]:
    """Arrays by minute, or by another step, numbered since 1970, of each slice. A minute lies in one hour, so in one
    slice.

    What is made of the cells is remembered, and not the cells, of which a minute may have as many as it has requests.
    """
    fragments = {
        "by": Fragment(f"intDiv(toUnixTimestamp64Nano(toDateTime64({ARRIVED}, 9)), {each_ns})"),
        "cell": Fragment(f"toUInt64({cells.cell.sql})", cells.cell.parameters),
        "tenant_group": tenant,
        "n": Fragment("sum(weight)"),
        "others": Fragment(f"(toUnixTimestamp64Nano(min({_ENDED})), toUnixTimestamp64Nano(max({_ENDED})))"),
        **dict.fromkeys(("variance", "sums"), NOTHING),
    }
    parts = slices([*reversed(between_ns)], column=ARRIVED, now_ns=window.end_ns)
    return [one.arrays(reader.queries, "cells", fragments, window.filter, _ROW, made) for one in parts]
