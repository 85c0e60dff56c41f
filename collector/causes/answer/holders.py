"""Who had the places and the KV blocks of an engine process while requests waited for them.

    a victim waits for 4 s; meanwhile tenant a has 3 places for 4 s, and tenant b has 4 places for 1 s
    tenant a: 12 of 16 place-seconds, so three quarters of what the victim lost

Only the waits of the victims count, so the window that is asked about changes nothing for the same victims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.ask.template import part
from collector.ask.times import SECOND_NS
from collector.causes.answer.beyond import Beyond, Bools, Floats
from collector.causes.answer.request_times import Weighed, marks, one_in
from collector.causes.split.names import PARTS
from collector.count.reader import Reader
from collector.sql.fragment import Fragment, all_of

Ints = npt.NDArray[np.int64]

_PLACE: Final = dict.fromkeys(("wait_batch", "wait_priority", "busy", "batch"), "place")
_KV: Final = dict.fromkeys(("wait_kv", "preempted", "recompute"), "tokens")
HELD: Final = {**_PLACE, **_KV}
"""The causes of which those are to blame who had the places or the KV blocks, and what a request had of them: one
place, or its tokens."""
_WHILE_RUNNING: Final = ("batch", "preempted", "recompute")
"""The victim has a place itself meanwhile, which takes nothing from it."""
MOST_STRETCHES: Final = 64
"""Of the times of victims: each row that is read is compared with all of them."""
MOSTHOLDERS: Final = 200_000
"""Of more requests, every second, third, … one is read, by its key, and stands for so many."""
_LEAST_SHARE: Final = 0.001
_BEFORE_NS: Final = 60 * SECOND_NS
"""Requests of so long before tell how densely they come otherwise."""
_LEAST_BURST: Final = 20
_LONGEST_BURST_S: Final = 10.0
_TIMES_AS_DENSE: Final = 5
HOLDER: Final = np.dtype(
    [
        *(("process", "<u8"), ("key", "<u4"), ("tenant", "<u8"), ("start_ns", "<i8"), ("begin_ns", "<i8")),
        *(("end_ns", "<i8"), ("weight", "<f8"), ("tokens", "<f8")),
    ]
)


@dataclass(frozen=True)
class Victims:
    """Requests that lost time to a cause, and when: while they waited, or while they ran."""

    process: npt.NDArray[np.uint64]
    mark: npt.NDArray[np.uint64]
    """By which a request is known (`explained.marks`)."""
    begin_ns: Ints
    end_ns: Ints
    lost: Floats
    """µs beyond the typical, by weight."""

    @classmethod
    def of(cls, rows: Weighed, beyond: Beyond, cause: str) -> Victims:
        """The requests that lost time to a cause. A wait ends where the request's own prompt begins to be computed; of
        a cause that is not in HELD, the whole time of a request counts."""
        lost = np.maximum(beyond.excess[PARTS.index(cause)], 0) * rows.weight
        of = np.flatnonzero(lost)
        times, ended = rows.times, rows.rows["end_ns"][of]
        first = times.ttft[:, of].sum(0)
        waited = first - times.ttft[PARTS.index("own_prompt"), of]
        began = ended - _ns(first + times.rest[:, of].sum(0))
        placed = began + _ns(waited)
        is_wait, runs = cause in HELD and cause not in _WHILE_RUNNING, cause in _WHILE_RUNNING
        return cls(
            rows.rows["process"][of],
            marks(ended, rows.rows["key"][of]),
            placed if runs else began,
            placed if is_wait else ended,
            lost[of],
        )

    def stretches(self) -> list[tuple[int, int]]:
        """The times of all victims together, as stretches that lie apart, unix ns; the smallest gaps are closed."""
        return joined(zip(self.begin_ns.tolist(), self.end_ns.tolist(), strict=True), MOST_STRETCHES)


def joined(times: Collection[tuple[int, int]] | Iterator[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Stretches that touch or overlap become one, and so do the nearest ones until there are at most so many."""
    apart: list[tuple[int, int]] = []
    for begin, end in sorted(times):
        if apart and begin <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((begin, end))
    if len(apart) <= most:
        return apart
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(apart)]
    kept = sorted(sorted(range(len(gaps)), key=lambda i: -gaps[i])[: most - 1])
    firsts, lasts = [0, *(i + 1 for i in kept)], [*kept, len(apart) - 1]
    return [(apart[first][0], apart[last][1]) for first, last in zip(firsts, lasts, strict=True)]


def ran_in(stretches: Sequence[tuple[int, int]], began_ns: str, until_ns: str) -> Fragment:
    """What ran, from one SQL expression until another, in one of these stretches."""
    ran = part("ran_in_stretches", {"began_ns": Fragment(began_ns), "until_ns": Fragment(until_ns)})
    bounds = {"from_ns": [begin for begin, _ in stretches], "until_ns": [end for _, end in stretches]}
    return Fragment(ran.sql, {**ran.parameters, **bounds})


def at_processes(victims: Collection[Victims]) -> Fragment:
    """All requests of the victims' processes: those that made others wait need not be among the ones asked about."""
    there = "cityHash64(engine, service, instance, process_tenant) IN {culprit_processes:Array(UInt64)}"
    return Fragment(there, {"culprit_processes": sorted({key for of in victims for key in of.process.tolist()})})


@dataclass(frozen=True)
class Held:
    """The requests that had places while others waited, and the names of their tenants."""

    rows: npt.NDArray[Any]
    tenants: Mapping[int, str]
    every: int = 1
    """Each row stands for so many."""
    not_told: float = 0.0
    """The share of them of which nobody tells when they got a place: they count from their first token."""

    def by_tenant(self, victims: Victims, cause: str) -> Counter[str]:
        """What the victims lost to a cause of HELD, in µs, by the tenant that had the places or blocks meanwhile.

        Where one tenant has all requests, that tells nothing.
        """
        numbers, tenant = self._numbered
        if len(numbers) < 2:
            return Counter()
        sums = np.zeros(len(numbers))
        for process in np.unique(victims.process).tolist():
            if (there := self._by_process.get(process)) is not None:
                parts = there.parts(victims, victims.process == process, cause)
                sums += np.bincount(tenant[there.of], parts, len(numbers))
        least = _LEAST_SHARE * float(victims.lost.sum())
        named = zip(numbers.tolist(), sums.tolist(), strict=True)
        return Counter({self.tenants.get(number, ""): us for number, us in named if us > least})

    def burst(self, tenant: str) -> tuple[float, float] | None:
        """How many requests of a tenant came at once while others waited, and within how many seconds; None: they came
        spread.

        Most of them came within some seconds, several times as densely as all requests otherwise.
        """
        is_its = self.rows["tenant"] == next((n for n, name in self.tenants.items() if name == tenant), None)
        came = np.sort(self.rows["start_ns"][is_its])
        n = -(-len(came) * 4 // 5)
        if n < _LEAST_BURST:
            return None
        lengths = came[n - 1 :] - came[: len(came) - n + 1]
        first = int(lengths.argmin())
        around = came[first] - lengths[first], came[first] + 2 * lengths[first]
        burst = came[(came >= around[0]) & (came <= around[1])]
        within_s = float(burst[-1] - burst[0]) / SECOND_NS
        of_all_s = float(np.ptp(self.rows["start_ns"])) / SECOND_NS
        usual = (len(self.rows) - len(burst)) / max(of_all_s - within_s, 1e-9)
        if within_s > _LONGEST_BURST_S or len(burst) < _TIMES_AS_DENSE * usual * within_s:
            return None
        in_it = is_its & (self.rows["start_ns"] >= burst[0]) & (self.rows["start_ns"] <= burst[-1])
        return float(self.rows["weight"][in_it].sum()) * self.every, within_s

    @cached_property
    def _numbered(self) -> tuple[npt.NDArray[np.uint64], Ints]:
        """The tenants, and the place of each row's one among them."""
        numbers, tenant = np.unique(self.rows["tenant"], return_inverse=True)
        return numbers, tenant

    @cached_property
    def _by_process(self) -> dict[int, _OfProcess]:
        order = np.argsort(self.rows["process"], kind="stable")
        processes, begins = np.unique(self.rows["process"][order], return_index=True)
        of_each = np.split(order, begins[1:])
        return {key: _OfProcess(self.rows, of) for key, of in zip(processes.tolist(), of_each, strict=True)}


class _OfProcess:
    """The holders of one process."""

    def __init__(self, rows: npt.NDArray[Any], of: Ints) -> None:
        """`of`: the places of its rows among all."""
        self.of, self._rows = of, rows[of]
        self._origin = int(self._rows["begin_ns"].min())
        self._begin, self._end = (_Sorted(_seconds(self._rows[name], self._origin)) for name in ("begin_ns", "end_ns"))

    def parts(self, victims: Victims, of: Bools, cause: str) -> Floats:
        """The part that each holder has in what these victims lost, µs."""
        rows, begin, end = self._rows, self._begin.times, self._end.times
        has = rows["weight"] * (1.0 if HELD[cause] == "place" else rows["tokens"])
        since, until = (_Sorted(_seconds(times, self._origin)) for times in (victims.begin_ns[of], victims.end_ns[of]))
        held = _until(until.times, self._begin, self._end, has) - _until(since.times, self._begin, self._end, has)
        own = np.zeros(len(held))
        places = np.zeros(0, np.int64)
        if cause in _WHILE_RUNNING:
            theirs = marks(rows["end_ns"], rows["key"])
            order = np.argsort(theirs)
            places = order[np.minimum(np.searchsorted(theirs, victims.mark[of], sorter=order), len(theirs) - 1)]
            overlap = np.maximum(np.minimum(until.times, end[places]) - np.maximum(since.times, begin[places]), 0)
            own = np.where(theirs[places] == victims.mark[of], has[places] * overlap, 0.0)
        others = held - own
        rate = np.where(others > 1e-9 * held, victims.lost[of] / np.where(others > 0, others, 1.0), 0.0)
        parts = has * (_until(end, since, until, rate) - _until(begin, since, until, rate))
        if len(places):
            np.subtract.at(parts, places, rate * own)
        return np.maximum(parts, 0.0)


class _Sorted:
    """Times, and the order in which they come."""

    def __init__(self, times: Floats) -> None:
        self.times = times
        self.order = np.argsort(times)
        self.sorted = times[self.order]


def read_held(reader: Reader, victims: Collection[Victims]) -> Held:
    """Read who ran beside these victims at their processes, and who still does.

    Nobody for a caller of one tenant, or without victims.
    """
    stretches = joined([one for of in victims for one in of.stretches()], MOST_STRETCHES)
    if reader.tenant or not stretches:
        return Held(np.empty(0, HOLDER), {})
    before = joined([(max(0, begin - _BEFORE_NS), end) for begin, end in stretches], MOST_STRETCHES)
    ran = ran_in(before, "toUnixTimestamp64Nano(start)", "toUnixTimestamp64Nano(end)")
    asked = {"ran": ran, "filter": all_of(reader.tenant_filter, at_processes(victims))}
    tenants = reader.queries.rows("explain_holding", asked)
    n, not_told = (sum(row[name] for row in tenants) for name in ("n", "not_told"))
    every = one_in(n, MOSTHOLDERS)
    rows = reader.queries.array("explain_holders", asked, HOLDER, every=every)
    still, names = _still_there(reader, asked["filter"], before[0][0])
    still["weight"] /= every  # all of them are read
    rows = np.concatenate([rows, still])
    names |= {row["number"]: row["name"] for row in tenants}
    if len(names) < 2:
        return Held(rows, {})
    return Held(rows, names, every, not_told / n if n else 0.0)


def _still_there(reader: Reader, at: Fragment, since_ns: int) -> tuple[npt.NDArray[Any], dict[int, str]]:
    """The rows of those that have not ended, with the names of their tenants: until now, or until they were lost."""
    bounds = {"start_ns": since_ns, "end_ns": reader.now_ns, "lost_after_ns": reader.lost_after_ns}
    found = reader.queries.rows("explain_open_holders", {"filter": at}, **bounds)
    if found:
        first_ns = min(row["start_ns"] for row in found)
        ended = {*reader.queries.array("ended_announced", {}, np.uint64, first_ns=first_ns).tolist()}
        found = [row for row in found if row["key"] not in ended]
    silent_ns = min(reader.now_ns, reader.heard_until_ns) - reader.lost_after_ns
    rows = [
        (
            *(row[name] for name in ("process", "request_key", "tenant_number", "start_ns", "begin_ns")),
            row["seen_ns"] if row["heard_ns"] < silent_ns else reader.now_ns,
            1.0,
            row["tokens"],
        )
        for row in found
    ]
    return np.array(rows, HOLDER), {row["tenant_number"]: row["tenant_name"] for row in found}


def _until(times: Floats, begin: _Sorted, end: _Sorted, rate: Floats) -> Floats:
    """Up to each time, the sum of a rate × how long it has lasted, of many that begin and end."""

    def since(starts: _Sorted) -> Floats:
        n = np.searchsorted(starts.sorted, times, "right")
        rates, products = (np.append(0.0, np.cumsum(values[starts.order])) for values in (rate, rate * starts.times))
        sums: Floats = times * rates[n] - products[n]
        return sums

    return since(begin) - since(end)


def _ns(us: Floats) -> Ints:
    return np.round(1000 * us).astype(np.int64)


def _seconds(ns: Ints, origin: int) -> Floats:
    seconds: Floats = (ns - origin) / SECOND_NS
    return seconds
