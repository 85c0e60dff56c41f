"""The models of processes' steps: each is learned from ten minutes of a process, and judges what comes later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from collector.causes.learn import learn
from collector.causes.model import StepModel
from collector.explainer.reading import SECOND_NS, SETTINGS, Asked, Process, happened
from collector.query.template import render
from collector.store.store import Store

logger = logging.getLogger(__name__)

PERIOD_S: Final = 600
"""The time that one model is learned from."""
_SETTLED_S: Final = 120
"""Steps of a period may come so long after its end."""
_OLDEST_S: Final = 86400
"""Periods that ended earlier are not learned from any more."""
_MOST: Final = 100
"""Periods of processes that are learned from in one round."""
VERSION: Final = 1
"""Of the rules by which requests are explained. Rows of a higher version replace those of a lower one."""


@dataclass(frozen=True)
class Stored:
    """A model, and the begin of its period in unix seconds, by which rows of `causes` name it."""

    at_s: int
    model: StepModel


class References:
    """The models that judge the steps of processes after a time: of the process itself, else of its service."""

    def __init__(self, store: Asked, services: Iterable[str], before_s: int) -> None:
        """Reads the models that were learned from periods before the one of `before_s`. Raises the store's errors."""
        self._of_process: dict[int, tuple[str, Stored]] = {}
        self._of_service: dict[tuple[str, str], Stored] = {}
        parameters = {"services": sorted(set(services)), "before_s": before_s // PERIOD_S * PERIOD_S}
        for row in _rows(store, "models", parameters):  # the newest first
            stored = Stored(row["at_s"], StepModel.of(row))
            self._of_process[row["process"]] = row["variant"], stored
            self._of_service.setdefault((row["service"], row["variant"]), stored)

    def of(self, process: int, service: str, variant: str) -> Stored | None:
        """The model that judges a process. Another variant has another law."""
        newest = self._of_process.get(process)
        if newest and newest[0] == variant:
            return newest[1]
        return self._of_service.get((service, variant))

    def former(self, process: int, variant: str) -> StepModel | None:
        """The process's own newest model, from which its next one goes on."""
        newest = self._of_process.get(process)
        return newest[1].model if newest and newest[0] == variant else None


class Learner:
    """Learns a model from each period of each process that is over.

    Several collectors of a store may learn from one period. They get the same model, and its rows replace each other.
    """

    def __init__(
        self, store: Store, failed: Callable[[str, Exception], None], stopping: Callable[[], bool] = bool
    ) -> None:
        """`failed` is told the process and the error when no model can be made of its rows."""
        self._store = store
        self._failed = failed
        self._stopping = stopping
        self._since_s = 0
        self._without: set[tuple[int, int]] = set()
        """Processes and periods that have too few steps for a model."""

    def due(self, now_s: int) -> bool:
        """Whether a period may be over that was not learned from."""
        return self._since_s < self._until_s(now_s)

    def run_once(self, now_s: int) -> bool:
        """Learn from the oldest periods that are over; tell whether none is left. Raises the store's errors."""
        until_s = self._until_s(now_s)
        since_s = max(min(self._since_s, until_s - PERIOD_S), until_s - _OLDEST_S)
        self._without = {(process, at_s) for process, at_s in self._without if at_s >= since_s}
        parameters = {"since_s": since_s, "until_s": until_s, "limit": _MOST + len(self._without)}
        listed = list(_rows(self._store, "to_learn", parameters))
        todo = [row for row in listed if (row["process"], row["at_s"]) not in self._without][:_MOST]
        for at_s, rows in groupby(todo, key=lambda row: int(row["at_s"])):
            if self._stopping():
                return False
            self._learn(at_s, list(rows))
        done = len(todo) < _MOST
        if done:
            self._since_s = until_s
        return done

    def _until_s(self, now_s: int) -> int:
        return (now_s - _SETTLED_S) // PERIOD_S * PERIOD_S

    def _learn(self, at_s: int, rows: Sequence[Mapping[str, Any]]) -> None:
        former = References(self._store, [row["service"] for row in rows], at_s)
        by_process = {row["process"]: row for row in rows}
        low, high = at_s * SECOND_NS, (at_s + PERIOD_S) * SECOND_NS - 1
        processes = [Process(key, row["service"], row["instance"], low, high) for key, row in by_process.items()]
        learned = []
        for process, rows_of in happened(self._store, processes):
            row = by_process[process.key]
            try:
                model = learn(
                    rows_of.requests,
                    rows_of.phases,
                    rows_of.steps,
                    kv_events=rows_of.copies,
                    former=former.former(process.key, row["variant"]),
                )
            except (ArithmeticError, IndexError, ValueError) as error:  # LinAlgError is a ValueError
                self._failed(f"{process.service} {process.instance}", error)
                model = None
            if model is None:
                self._without.add((process.key, at_s))
            else:
                named = {name: row[name] for name in ("service", "instance", "process_tenant", "variant")}
                learned.append({**named, "at": at_s, "version": VERSION, **model.row()})
        if learned:
            names = list(learned[0])
            self._store.client().insert("step_models", [[one[name] for name in names] for one in learned], names)


def _rows(store: Asked, name: str, parameters: dict[str, Any]) -> Iterable[dict[str, Any]]:
    answer = store.query(render(f"explain/{name}", {}), parameters, SETTINGS)
    return (dict(zip(answer.column_names, row, strict=True)) for row in answer.result_rows)
