"""The explainer: soon after a request's end it stores where the request's time went."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
from clickhouse_connect.driver.exceptions import ClickHouseError
from numpy.typing import NDArray

from collector.ask.template import render
from collector.base.once_a_minute import OnceAMinute
from collector.base.stage import ThreadStage, held
from collector.base.status import IngestStatus
from collector.base.store_errors import StoreError, is_unavailable, reason_of
from collector.causes.split.columns import Columns
from collector.causes.split.requests import explain_process
from collector.causes.stage.backlog import Backlog, Lacking, Ripe, Segment, Waits
from collector.causes.stage.models import PERIOD_S, Judges, Kind, Learner, References
from collector.causes.stage.reading import SECOND_NS, SETTINGS, Happened, Process, happened, with_more
from collector.causes.stage.rows import Parts
from collector.store.part_folders import PartFolders
from collector.store.store import Store

logger = logging.getLogger(__name__)

_ROUND_S: Final = 10.0
"""Between two rounds, at least: each costs 0.1 s, and reads the steps again in which its requests ran."""
_USUAL_SHARE: Final = 0.02
_CATCHING_UP_SHARE: Final = 0.25
"""The pause behind a round makes its time no larger share than this, of a collector that is up to date, or behind."""
_LONGEST_ROUND_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 120.0
"""While the store answers with errors."""
_MOST_REQUESTS: Final = 20_000
"""Most requests that are explained together, unless one segment has more."""
_MOST_ATTEMPTS: Final = 4
"""A segment is tried so often while the store answers with an error."""
_LATER_S: Final = 2 * PERIOD_S
_OF_STEPS: Final = {"no_steps", "steps_late", "steps_missing"}
_OF_LAW: Final = {"few_steps", "scatter", "fit", "outliers"}
"""The reasons for which requests are explained again: their steps may come, or a law for them."""
_INSERT: Final = {"async_insert": 0, **SETTINGS}

Wanted = Mapping[str, Sequence[Any]]
"""The columns of `explain/wanted.sql`."""
Failed = (ArithmeticError, IndexError, KeyError, ValueError)
"""What numpy raises for numbers that no rule expects. Such a process's requests stay unexplained."""


def pause_after(took_s: float, *, done: bool) -> float:
    """Seconds until the next round, behind one that took so many; not `done`: requests are left that can be explained.

    A round of 0.1 s is followed by 10 s, one of 1 s by 49 s, one of 10 s by 60 s; one that is not done by thrice its
    time.
    """
    pause_s = took_s * (1 / _CATCHING_UP_SHARE - 1)
    return max(pause_s, _ROUND_S, min(took_s * (1 / _USUAL_SHARE - 1), _LONGEST_ROUND_S)) if done else pause_s


class Explainer(ThreadStage):
    """A stage that stores the causes of each segment's requests once their steps are there, or have not come in time.

    The rows of a segment that was explained just before a crash are written again, and replace those from before it.
    """

    def __init__(
        self,
        store: Store,
        status: IngestStatus,
        *,
        waits: Waits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("explainer")
        self._store = store
        self._status = status
        self._clock = clock
        self._part_folders = PartFolders(store.folder)
        self._backlog = Backlog(store, waits or Waits())
        self._learner = Learner(store, self._failed, self._stopping.is_set)
        self._set_back: set[str] = set()
        """Segments that came late, for which the learner was set back."""
        self._attempts: dict[str, int] = {}
        self._lines = OnceAMinute()
        self._working = threading.Lock()
        self._news = threading.Event()
        self._news.set()  # a process before this one may have left requests
        self._told: list[Callable[[str], None]] = []

    def on_segment(self, segment: str) -> None:
        """Explain the requests of a segment that was inserted now, when their steps are there."""
        self._backlog.came(segment)
        self._news.set()

    def on_explained(self, told: Callable[[str], None]) -> None:
        """Call this with each segment whose requests have rows of causes; again when they are explained again."""
        self._told.append(told)

    def paused(self, timeout_s: float) -> AbstractContextManager[None]:
        """Wait until nothing is being written, and hold the next insert until the context ends; raises TimeoutError."""
        return held(self._working, f"the {self.name} has been at one insert", timeout_s)

    def start(self) -> None:
        """Begin to explain."""
        self._thread.start()

    def run_once(self) -> bool:
        """Learn and explain what can be by now; tell whether nothing is left that can. Raises the store's errors."""
        now_s = int(self._clock())
        left = self._backlog.read(now_s)
        for segment, _ in left:
            if segment.name not in self._set_back and segment.is_late:
                start_ns = min(one.start_ns for one in segment.ended if one.is_late)
                self._learner.set_back(start_ns // SECOND_NS)
        self._set_back = {segment.name for segment, _ in left if segment.is_late}
        learned = not self._learner.due(now_s) or self._learner.run_once(now_s)
        self._mark([segment for segment, how in left if how is Ripe.MARK])
        ripe = [one for one, how in left if how is Ripe.EXPLAIN and (learned or not one.is_late)]
        some = _first(ripe)
        self._explain(some)
        done = {segment.name for segment in some}
        waiting = [segment for segment, _ in left if segment.name not in done and self._backlog.waits(segment)]
        self._status.explain_waiting(max((segment.age_s for segment in waiting), default=None))
        if left:
            self._news.set()
        return learned and len(some) == len(ripe)

    def _run(self) -> None:
        pause_s = _ROUND_S
        while not self._stopping.wait(pause_s):
            if not self._store.is_open or not (self._news.is_set() or self._learner.due(int(self._clock()))):
                pause_s = _ROUND_S
                continue
            self._news.clear()
            began_s = time.monotonic()
            try:
                done = self.run_once()
            except (ClickHouseError, StoreError, OSError) as error:
                self._news.set()
                self._status.explain_failed()
                if self._lines.allows("store"):
                    logger.warning("requests wait to be explained: %s (they are tried again)", reason_of(error))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                pause_s = pause_after(time.monotonic() - began_s, done=done)

    def _explain(self, segments: Sequence[Segment]) -> None:
        """Explain segments together. What the store refuses is tried in halves, and a segment alone a few times."""
        if not segments or self._stopping.is_set():
            return
        try:
            self._write(segments)
        except (ClickHouseError, OSError) as error:
            if is_unavailable(error):
                raise
            if len(segments) > 1:
                half = len(segments) // 2
                self._explain(segments[:half])
                self._explain(segments[half:])
                return
            (segment,) = segments
            attempts = self._attempts[segment.name] = self._attempts.get(segment.name, 0) + 1
            if attempts < _MOST_ATTEMPTS:
                raise
            logger.warning("the requests of segment %s cannot be explained: %s", segment.name, reason_of(error))
            self._status.explain_failed()
            self._mark(segments, refused=reason_of(error))
        for segment in segments:
            self._attempts.pop(segment.name, None)

    def _write(self, segments: Sequence[Segment]) -> None:
        place = {"first_s": min(s.first_s for s in segments), "last_s": max(s.last_s for s in segments)}
        answer = self._store.query(
            render("causes/stage/wanted", {}), {**place, "segments": [segment.name for segment in segments]}, SETTINGS
        )
        wanted = dict(zip(answer.column_names, answer.result_columns, strict=True))
        if wanted:
            parts = self._parts(wanted)
            if self._stopping.is_set():
                return
            columns = parts.columns()
            with self._working:
                self._store.client().insert(
                    "causes", list(columns.values()), list(columns), column_oriented=True, settings=_INSERT
                )
                self._part_folders.sync()  # before the mark, which says that the rows are there
            self._status.explained(parts.levels)
            for segment in segments:
                for told in self._told:
                    told(segment.name)
        lacking = _lacking(wanted, parts) if wanted else {}
        self._mark([one for one in segments if self._backlog.explained(one, lacking.get(one.name, Lacking()))])

    def _mark(self, segments: Sequence[Segment], *, refused: str = "") -> None:
        names = [segment.name for segment in segments]
        if not names:
            return
        with self._working:
            self._store.command(render("causes/stage/mark", {}), {"segments": names, "refused": refused})

    def _parts(self, wanted: Wanted) -> Parts:
        """Explain the requests of each process. Those that measured at a client know no engine process."""
        parts = Parts(wanted)
        for some in _slices(np.array(wanted["end"], np.int64)):
            self._explain_some(parts, wanted, some)
        return parts

    def _explain_some(self, parts: Parts, wanted: Wanted, some: NDArray[np.int64]) -> None:
        """Explain some rows, which ended in one slice of time: one model judges them."""
        processes, rows = _processes(wanted, some)
        services = {wanted["service"][row] for row in some}
        end_s = wanted["end"][some[0]] // SECOND_NS
        references = References(self._store, services, end_s)
        kinds = {process.key: _kind(wanted, rows[process.key]) for process in processes}
        judges = {key: references.of(key, kind) for key, kind in kinds.items()}
        if any(one.at_s == 0 for one in judges.values()):
            # Nothing earlier judges the first requests of a process: a law that was learned since does.
            later = References(self._store, services, end_s + _LATER_S)
            judges = {key: one if one.at_s else later.of(key, kinds[key]) for key, one in judges.items()}
        windows = [
            process
            if (own := judges[process.key].own) and own.model.holds
            else with_more(process, len(rows[process.key]))
            for process in processes
        ]
        for process, rows_of in happened(self._store, windows):
            if self._stopping.is_set():
                break
            try:
                self._explain_process(parts, wanted, rows[process.key], rows_of, judges[process.key])
            except Failed as error:
                self._failed(f"{process.service} {process.instance}", error)

    def _explain_process(
        self, parts: Parts, wanted: Wanted, rows: NDArray[np.int64], recorded: Happened, judges: Judges
    ) -> None:
        keys = np.asarray(recorded.requests["key"])
        asked = np.array([wanted["key"][row] for row in rows], np.uint64)
        if not len(keys):  # clients alone measured them
            return
        order = np.argsort(keys, kind="stable")
        place = order[np.minimum(np.searchsorted(keys, asked, sorter=order), len(keys) - 1)]
        there = keys[place] == asked
        place, rows = place[there], rows[there]
        requests: Columns = {**recorded.requests, "wanted": np.isin(np.arange(len(keys)), place)}
        laws = judges.laws
        explained = explain_process(
            requests,
            recorded.phases,
            recorded.steps,
            kv_events=recorded.copies,
            limits=recorded.limits,
            reference=laws.own,
            sister=laws.sister,
            version=laws.version,
        )
        parts.put(rows, explained, place, judges)

    def _failed(self, process: str, error: Exception) -> None:
        """Count a process whose rows make no sense to the algorithm."""
        self._status.explain_failed()
        if self._lines.allows("process"):
            logger.warning("requests of the process %s cannot be explained", process, exc_info=error)


def _kind(wanted: Wanted, rows: NDArray[np.int64]) -> Kind:
    """The kind of a process, by most of its rows."""
    first = int(rows[0])
    (variant, model), _ = Counter((wanted["variant"][row], wanted["model"][row]) for row in rows).most_common(1)[0]
    return Kind(wanted["service"][first], variant, model, wanted["process_tenant"][first])


def _lacking(wanted: Wanted, parts: Parts) -> dict[str, Lacking]:
    """What each segment lacked for an explanation step by step."""
    steps: dict[str, set[int]] = {}
    for row in parts.lacking(_OF_STEPS):
        steps.setdefault(wanted["segment"][row], set()).add(wanted["process"][row])
    law = {wanted["segment"][row] for row in parts.lacking(_OF_LAW)}
    return {name: Lacking(frozenset(steps.get(name, ())), name in law) for name in steps.keys() | law}


def _first(ripe: Sequence[Segment]) -> Sequence[Segment]:
    """The first segments, with so many requests as are explained together."""
    total = np.cumsum([segment.requests for segment in ripe])
    return ripe[: max(1, int(np.searchsorted(total, _MOST_REQUESTS, "right")))]


def _slices(end: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Rows by their end (ns), in slices no longer than a model's period: a segment of the past may have hours."""
    order = np.argsort(end, kind="stable")
    while len(order):
        count = int(np.searchsorted(end[order], end[order[0]] + PERIOD_S * SECOND_NS, "right"))
        yield order[:count]
        order = order[count:]


def _processes(wanted: Wanted, some: NDArray[np.int64]) -> tuple[list[Process], dict[int, NDArray[np.int64]]]:
    """The processes of some rows, each with the time in which its requests ran, and their rows."""
    key = np.array(wanted["process"], np.uint64)
    start, end = (np.array(wanted[name], np.int64) for name in ("start", "end"))
    order = some[np.argsort(key[some], kind="stable")]
    begins = np.flatnonzero(np.append(True, key[order][1:] != key[order][:-1])[: len(order)])
    processes, rows = [], {}
    for of_process in np.split(order, begins[1:]):
        first = int(of_process[0])
        process = Process(
            int(key[first]),
            wanted["service"][first],
            wanted["instance"][first],
            int(start[of_process].min()),
            int(end[of_process].max()),
        )
        processes.append(process)
        rows[process.key] = of_process
    return processes, rows
