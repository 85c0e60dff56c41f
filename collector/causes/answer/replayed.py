"""What would have been without a cause or a culprit, by replays of the recorded requests in simulated engines."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from collector.ask.times import HOUR_NS, SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.causes.answer.answer import HIDDEN_FROM, Culprit, ReplayOut, WithoutOut
from collector.causes.answer.request_times import Array, has_ended_ok, marks, of_ids, read_chosen
from collector.causes.split.columns import Bools, Columns, Floats
from collector.causes.split.judge import Laws
from collector.causes.split.names import PARTS
from collector.causes.split.replay import KV, LEAVABLE, REPLAYS, attainment_of, replay
from collector.causes.split.simulate import Scheduling
from collector.causes.stage.models import References, kind_of
from collector.causes.stage.reading import Happened, Process, happened
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.slo.model import Promise
from collector.sql.fragment import Fragment, all_of
from tokentrail.shared.formatting import percent

MOST_REPLAYED: Final = 3000
"""Requests of all processes together, the newest. One is replayed in 20 to 30 µs, twenty-one times for each cause."""
MOST_S: Final = 20.0
"""Causes that are not replayed by then keep the first order."""
MOST_MISSED: Final = 0.02
"""Of a replay with nothing left out, against what was recorded: one that misses by more knows something wrongly."""
_BEFORE_NS: Final = 60 * SECOND_NS
"""The engine is empty at the first arrival, so requests of so long before are replayed too."""
_EXACT: Final = 1e-9
_MOST_PROCESSES: Final = 100
_OWN: Final = "tokentrail"
_TOLD: Final = {"ttft", "tpot", "e2e"}
"""The latencies of a replay."""


@dataclass(frozen=True)
class _Served:
    """A process that can be replayed, with its requests among those that are asked about."""

    recorded: Happened
    scheduling: Scheduling
    laws: Laws
    place: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Of each of its requests, the place among those that are asked about; -1: it only ran beside them."""
    wanted: Bools

    @property
    def requests(self) -> Columns:
        return {**self.recorded.requests, "wanted": self.wanted}


@dataclass
class Replays:
    """The requests of a promise that are replayed. `without` replays them; it asks the store nothing."""

    promise: Promise
    window: Window
    marks: Array
    """Of each judged request, by which it is known."""
    good: Bools
    """Its recorded verdict."""
    ok: Bools
    """It ended ok. The verdict of others stands, since nobody knows how they would have gone on."""
    served: Sequence[_Served]
    shortened: str
    """Why the window is shorter than the one that was asked about; empty: it is not."""
    clock: float
    """When the time limit ends, by `time.monotonic`."""
    _known: dict[frozenset[str], WithoutOut | None] = field(default_factory=dict)
    _late: bool = False

    @property
    def out(self) -> ReplayOut:
        """What was replayed, once the causes were asked for."""
        good = "" if self.attainment is None else f"; {percent(self.attainment)} of these {len(self.good)} were good"
        shortened = f"{self.shortened}{good}" if self.shortened else ""
        late = "there was no time to replay all, so some causes have the first order" if self._late else ""
        return ReplayOut(
            start=rfc3339(self.window.start_ns),
            end=rfc3339(self.window.end_ns),
            requests=len(self.good),
            unknown=self.unknown,
            attainment=self.attainment,
            note="; ".join(filter(None, (shortened, late))) or None,
        )

    @property
    def attainment(self) -> float | None:
        """As it was recorded."""
        return float(self.good.mean()) if len(self.good) else None

    @property
    def unknown(self) -> int:
        """The requests whose recorded verdict stands."""
        placed = np.concatenate([np.empty(0, np.int64), *(one.place[one.wanted] for one in self.served)])
        return len(self.good) - int(self.ok[placed].sum())

    def without(self, causes: Collection[str]) -> WithoutOut | None:
        """The attainment without causes, in the order of PARTS. None: they cannot be left out, or there is no time."""
        if not {*causes} <= LEAVABLE:
            return None
        left_out = frozenset(causes) - KV | ({"wait_kv"} if KV & {*causes} else set())
        if left_out not in self._known:
            self._known[left_out] = self._replayed(left_out)
        answer = self._known[left_out]
        return answer and answer.model_copy(update={"causes": sorted(causes, key=PARTS.index)})

    def without_requests(self, left_out: Array) -> WithoutOut | None:
        """The attainment of the other requests if these rows of `read_chosen` had never come. None: nobody knows."""
        return self._replayed(frozenset(), marks(left_out["end_ns"], left_out["key"]))

    def refused(self) -> str | None:
        """Why no replay of these is to be believed; None: one with nothing left out tells what was recorded."""
        drafting = [one.recorded for one in self.served if np.any(np.asarray(one.recorded.steps["drafted_tokens"]) > 0)]
        if drafting:
            return "drafts were decoded, which a replay does not simulate"
        told, now = self._replayed(frozenset(), replays=0), self.attainment
        if told is None or told.attainment is None or now is None:
            return None
        if abs(told.attainment - now) <= max(MOST_MISSED, 1 / len(self.good)) + _EXACT:
            return None
        return (
            f"with nothing left out it tells {percent(told.attainment)} where {percent(now)} were good: it misses by"
            f" {100 * abs(told.attainment - now):.1f} points, and more than {100 * MOST_MISSED:.0f} are too many"
        )

    def _replayed(
        self, causes: frozenset[str], left_out: Array | None = None, replays: int = REPLAYS
    ) -> WithoutOut | None:
        gone = np.empty(0, np.uint64) if left_out is None else left_out
        rest = ~np.isin(self.marks, gone)
        kept, unknown = [], int(rest.sum())
        recorded_good = float(self.good[rest].mean()) if unknown else None
        limits: dict[str, Floats | float] = {name: float(ns) for name, ns in self.promise.thresholds.given().items()}
        for one in self.served:
            if time.monotonic() > self.clock:
                self._late = True
                return None
            outcome = replay(
                one.requests,
                one.recorded.phases,
                one.recorded.steps,
                scheduling=one.scheduling,
                kv_events=one.recorded.copies,
                reference=one.laws.own,
                sister=one.laws.sister,
                without=causes,
                left_out=np.isin(_marks(one.recorded.requests), gone),
                replays=replays,
            )
            if outcome is None:
                continue
            place = one.place[one.wanted]
            can = np.zeros(len(one.wanted), np.bool_)
            can[one.wanted] = self.ok[place]
            recorded = np.zeros(len(one.wanted), np.bool_)
            recorded[one.wanted] = self.good[place]
            outcome = replace(outcome, replayed=outcome.replayed & can)
            kept.append(outcome.kept(recorded, **limits))
            unknown -= int((outcome.replayed & outcome.wanted).sum())
            rest[place] = False
        if not kept:
            return None
        stands = np.broadcast_to(self.good[rest], (len(kept[0]), int(rest.sum())))
        told = attainment_of(np.concatenate([*kept, stands], 1), unknown)
        if told is None or recorded_good is None or unknown > HIDDEN_FROM * told.requests:
            return None
        return WithoutOut(
            causes=[],
            attainment=told.attainment,
            points=100 * (told.attainment - recorded_good),
            kind="replay",
            low=told.low,
            high=told.high,
        )


def read_replays(reader: Reader, population: Window, promise: Promise, most_s: float | None) -> Replays | str:
    """Read what a replay needs: the newest requests of these, and all that ran beside them. Or why there is none.

    What is not replayed within so many seconds keeps the first order.
    """
    if unknown := promise.thresholds.given().keys() - _TOLD:
        return f"a replay tells no {' and no '.join(sorted(unknown))}, which the thresholds need"
    if reader.tenant:
        return "a key of one tenant does not see the requests that ran beside its own"
    rows = reader.queries.rows(
        "replay_processes", {"filter": population.filter}, **population.bounds, limit=_MOST_PROCESSES
    )
    if not rows:
        return "no server told its requests"
    if others := sorted({row["engine"] for row in rows} - {_OWN}):
        return f"a replay knows the scheduler of {_OWN} alone, and not that of {', '.join(others)}"
    names = sorted({(row["service"], row["instance"]) for row in rows})
    since_ns = reader.queries.row("replay_since", names=names, **population.bounds, most=MOST_REPLAYED)["since_ns"]
    hour_ns = population.end_ns - HOUR_NS + _BEFORE_NS
    start_ns = max(population.start_ns, since_ns, hour_ns)
    shortened = ""
    if start_ns > population.start_ns:
        shortened = (
            f"only the newest requests are replayed: at most {MOST_REPLAYED} of the processes, and those of an hour"
        )
    window = replace(population, start_ns=start_ns)
    chosen = read_chosen(reader, window, [promise], 1)
    outcomes = Cells([promise]).judged(chosen["cell"]).outcomes(0)
    chosen, good = chosen[outcomes.good | outcomes.bad], outcomes.good[outcomes.good | outcomes.bad]
    processes = [
        Process(row["process"], row["service"], row["instance"], start_ns - _BEFORE_NS, population.end_ns)
        for row in rows
    ]
    references = References(reader.queries, [row["service"] for row in rows], start_ns // SECOND_NS)
    kinds = {row["process"]: kind_of(row) for row in rows}
    served, silent = [], []
    for process, there in happened(reader.queries, processes):
        if there.scheduling is None:
            silent.append(process.instance)
            continue
        place = _places(there.requests, chosen)
        laws = references.of(process.key, kinds[process.key]).laws
        served.append(_Served(there, there.scheduling, laws, place, place >= 0))
    if not served:
        return f"the engine has not told its limits: {', '.join(silent[:3])}"
    known = marks(chosen["end_ns"], chosen["key"])
    late = time.monotonic() + (MOST_S if most_s is None else most_s)
    replays = Replays(promise, window, known, good, has_ended_ok(chosen), served, shortened, late)
    return replays.refused() or replays


def read_of_culprit(reader: Reader, replays: Replays, culprit: Culprit) -> Array:
    """The requests of a tenant, or the one of a culprit, that came with those that are replayed."""
    if culprit.by == "tenant":
        of_culprit = Fragment("tenant = {culprit_tenant:String}", {"culprit_tenant": culprit.name})
    else:
        of_culprit = of_ids(culprit.trace_id or "", culprit.span_id)
    start_ns = max(0, replays.window.start_ns - _BEFORE_NS)
    before = replace(replays.window, start_ns=start_ns, filter=all_of(reader.tenant_filter, of_culprit))
    return read_chosen(reader, before, [replays.promise], 1)


def _places(requests: Columns, chosen: Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The place of each request among the chosen ones; -1 for one that is not there."""
    wanted, there = _marks(requests), marks(chosen["end_ns"], chosen["key"])
    if not len(there):
        return np.full(len(wanted), -1)
    order = np.argsort(there, kind="stable")
    place = order[np.minimum(np.searchsorted(there, wanted, sorter=order), len(there) - 1)]
    return np.where(there[place] == wanted, place, -1)


def _marks(requests: Columns) -> Array:
    """By which the requests of a process are known, as `marks` of chosen ones."""
    keys = np.asarray(requests["key"], np.uint64) & np.uint64(0xFFFFFFFF)
    return marks(np.asarray(requests["end"], np.int64), keys)
