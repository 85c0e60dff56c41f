"""The models of processes' steps: each is learned from ten minutes of a process, and judges what comes later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, NamedTuple

from collector.ask.template import render
from collector.causes.split.judge import Laws
from collector.causes.split.learn import learn
from collector.causes.split.model import StepModel
from collector.causes.stage.reading import SECOND_NS, SETTINGS, Asked, Process, happened
from collector.store.store import Store

logger = logging.getLogger(__name__)

PERIOD_S: Final = 600
"""The time that one model is learned from."""
SETTLED_S: Final = 120
"""Steps of a period may come so long after its end."""
_OLDEST_S: Final = 86400
"""Periods that ended earlier are not learned from any more, unless requests of their time come."""
_PAST_S: Final = 7 * 86400
"""Nor are those that ended so much earlier: a model judges a week."""
_MOST: Final = 100
"""Periods of processes that are learned from in one round."""
VERSION: Final = 2
"""Of the rules by which requests are explained. Rows of a higher version replace those of a lower one."""


class Kind(NamedTuple):
    """Processes of one kind follow one law: those of a service that serve one model in one variant, to one tenant."""

    service: str
    variant: str
    model: str
    process_tenant: str
    """Empty: everybody's."""


@dataclass(frozen=True)
class Stored:
    """A model of a process, and the begin of its period in unix seconds, by which rows of `causes` name it."""

    at_s: int
    instance: str
    variant: str
    model: StepModel
    is_other: bool = False
    """Whether the process served another model by then, or the same one under another name, as an adapter has."""


@dataclass(frozen=True)
class Judges:
    """The models of earlier traffic that a process is judged by, as `explain_process` takes them."""

    own: Stored | None = None
    sister: Stored | None = None
    """Of another process of its kind, else of the process itself while it served another model."""
    version: Stored | None = None

    @property
    def at_s(self) -> int:
        """The begin of the period of the one that judges; 0: there is none."""
        one = self.own or self.sister
        return one.at_s if one else 0

    @property
    def laws(self) -> Laws:
        """The models themselves."""
        return Laws(*(one.model if one else None for one in (self.own, self.sister, self.version)))

    def name_of(self, kind: str) -> str:
        """What the process is slower than: a variant, an instance, or the time of its fastest law."""
        if kind == "earlier" and self.own:
            return datetime.fromtimestamp(self.own.model.anchor_ns // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        one = {"version": self.version, "sister": self.sister}.get(kind)
        return "" if one is None else one.variant if kind == "version" else one.instance


class References:
    """The models that judge the steps of processes after a time.

    That of the process itself, else of another one of its kind, else of itself while it served another model: names of
    models change on one device as adapters do, and a model of another speed is judged by itself. One that serves a
    single tenant may be judged by one that serves everybody, and not the other way round: what one tenant does changes
    nothing of another's answers.
    """

    def __init__(self, store: Asked, services: Iterable[str], before_s: int) -> None:
        """Reads the models that were learned from periods before the one of `before_s`. Raises the store's errors."""
        self._of_process: dict[tuple[int, Kind], Stored] = {}
        self._of_any_model: dict[tuple[int, Kind], Stored] = {}
        self._of_kind: dict[Kind, Stored] = {}
        self._variants: dict[Kind, list[Stored]] = {}
        parameters = {
            "services": sorted(set(services)),
            "version": VERSION,
            "before_s": before_s // PERIOD_S * PERIOD_S,
        }
        for row in _rows(store, "models", parameters):  # the newest first
            kind = kind_of(row)
            stored = Stored(row["at_s"], row["instance"], row["variant"], StepModel.of(row))
            self._of_process[row["process"], kind] = stored
            self._of_any_model.setdefault((row["process"], kind._replace(model="")), replace(stored, is_other=True))
            if kind not in self._of_kind:
                self._of_kind[kind] = stored
                self._variants.setdefault(kind._replace(variant=""), []).append(stored)

    def of(self, process: int, kind: Kind) -> Judges:
        """The models that judge a process of a kind."""
        kinds = [kind, kind._replace(process_tenant="")]
        own = self._of_process.get((process, kind))
        sisters = [] if own else [self._of_kind.get(one) for one in kinds]
        sisters.append(None if own else self._of_any_model.get((process, kind._replace(model=""))))
        versions = [
            stored
            for one in kinds
            for stored in self._variants.get(one._replace(variant=""), ())
            if stored.variant != kind.variant
        ]
        return Judges(own, next((one for one in sisters if one), None), next(iter(versions), None))

    def former(self, process: int, kind: Kind) -> StepModel | None:
        """The process's own newest model, from which its next one goes on."""
        newest = self._of_process.get((process, kind))
        return newest.model if newest else None


def kind_of(row: Mapping[str, Any]) -> Kind:
    """The kind of the process of a row."""
    return Kind(*(row[name] for name in Kind._fields))


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
        self._back_s: int | None = None
        self._without: set[tuple[int, int]] = set()
        """Processes and periods that have too few steps for a model."""

    def due(self, now_s: int) -> bool:
        """Whether a period may be over that was not learned from."""
        return self._since_s < self._until_s(now_s)

    def set_back(self, at_s: int) -> None:
        """Look at the periods since a time again: requests of then have come now, and their steps with them."""
        self._since_s = min(self._since_s, at_s // PERIOD_S * PERIOD_S)
        self._back_s = self._since_s
        self._without = {(process, at_s) for process, at_s in self._without if at_s < self._since_s}

    def run_once(self, now_s: int) -> bool:
        """Learn from the oldest periods that are over; tell whether none is left. Raises the store's errors."""
        until_s = self._until_s(now_s)
        oldest_s = until_s - (_OLDEST_S if self._back_s is None else _PAST_S)
        since_s = max(min(self._since_s, until_s - PERIOD_S), oldest_s)
        self._without = {(process, at_s) for process, at_s in self._without if at_s >= since_s}
        limit = _MOST + len(self._without)
        parameters = {"since_s": since_s, "until_s": until_s, "version": VERSION, "limit": limit}
        listed = list(_rows(self._store, "to_learn", parameters))
        todo = [row for row in listed if (row["process"], row["at_s"]) not in self._without][:_MOST]
        for at_s, rows in groupby(todo, key=lambda row: int(row["at_s"])):
            if self._stopping():
                return False
            self._learn(at_s, list(rows))
        done = len(todo) < _MOST
        if done:
            self._since_s, self._back_s = until_s, None
        return done

    def _until_s(self, now_s: int) -> int:
        return (now_s - SETTLED_S) // PERIOD_S * PERIOD_S

    def _learn(self, at_s: int, rows: Sequence[Mapping[str, Any]]) -> None:
        former = References(self._store, [row["service"] for row in rows], at_s)
        by_process = {row["process"]: row for row in rows}
        low, high = at_s * SECOND_NS, (at_s + PERIOD_S) * SECOND_NS - 1
        processes = [Process(key, row["service"], row["instance"], low, high) for key, row in by_process.items()]
        window = {"low_ns": low, "high_ns": high, "names": sorted({(one.service, one.instance) for one in processes})}
        served = {row["process"]: row["model"] for row in _rows(self._store, "served_models", window)}
        learned = []
        for process, rows_of in happened(self._store, processes):
            row = {**by_process[process.key], "model": served.get(process.key, "")}
            try:
                model = learn(
                    rows_of.requests,
                    rows_of.phases,
                    rows_of.steps,
                    kv_events=rows_of.copies,
                    former=former.former(process.key, kind_of(row)),
                )
            except (ArithmeticError, IndexError, ValueError) as error:  # LinAlgError is a ValueError
                self._failed(f"{process.service} {process.instance}", error)
                model = None
            if model is None:
                self._without.add((process.key, at_s))
            else:
                named = {name: row[name] for name in ("service", "instance", "process_tenant", "variant", "model")}
                learned.append({**named, "at": at_s, "version": VERSION, **model.row()})
        if learned:
            names = list(learned[0])
            self._store.client().insert("step_models", [[one[name] for name in names] for one in learned], names)


def _rows(store: Asked, name: str, parameters: dict[str, Any]) -> Iterable[dict[str, Any]]:
    answer = store.query(render(f"causes/stage/{name}", {}), parameters, SETTINGS)
    return (dict(zip(answer.column_names, row, strict=True)) for row in answer.result_rows)
