"""Which segments have requests that can be explained now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Any, Final, TypeVar

from collector.ask.template import render
from collector.causes.stage.models import SETTLED_S
from collector.causes.stage.reading import SECOND_NS, SETTINGS
from collector.store.store import Store

K = TypeVar("K")
V = TypeVar("V")

_A_STEP_NS: Final = SECOND_NS
_PAST_S: Final = 3600
"""A request that was received so long after its end is of the past: its steps are there, or will not come."""
_DAY_S: Final = 86400
_INSERT_S: Final = 600
"""Rows of an insert that runs now may be so old when it ends."""
_MOST_ROWS: Final = 20_000
_MOST_NAMES: Final = 100_000


@dataclass(frozen=True)
class Waits:
    """How long steps are waited for, in seconds since a segment was inserted."""

    soon_s: float = 15.0
    """An engine that has nothing to do ends its last step a little before the request, whose API server ends later."""
    patience_s: float = 60.0
    """Requests are explained by what is there then."""
    late_s: float = 900.0
    """Requests that lack steps are explained again when these come within this time."""
    law_s: tuple[float, ...] = (60.0, 300.0, 1500.0)
    """Requests that no law could judge are explained again at these ages: more steps are there, and at last a model."""
    others_s: float = 180.0
    """A collector explains what another one of the same store has left for so long."""


class Ripe(Enum):
    """What can be done with a segment."""

    NO = 0
    EXPLAIN = 1
    MARK = 2
    """It was explained, and what it lacked has not come in time."""


@dataclass(frozen=True)
class Ended:
    """The requests of a segment that ended in one engine process."""

    process: int
    service: str
    instance: str
    last_end_ns: int
    start_ns: int
    """When the first of them began."""
    is_past: bool
    is_late: bool
    """Whether some were received when models of their time may have been learned without them."""


@dataclass(frozen=True)
class Segment:
    """A segment whose requests are not explained. Times are in seconds; `first_s` and `last_s` are unix seconds."""

    name: str
    first_s: int
    last_s: int
    age_s: int
    requests: int
    ended: tuple[Ended, ...]

    @property
    def is_past(self) -> bool:
        """Whether its requests were received long after their end: their steps are there."""
        return any(one.is_past for one in self.ended)

    @property
    def is_late(self) -> bool:
        """Whether models of the time of its requests may have to be learned first."""
        return any(one.is_late for one in self.ended)


@dataclass(frozen=True)
class Lacking:
    """What the explanation of a segment lacked, of which it is explained again."""

    steps: frozenset[int] = frozenset()
    """Processes whose steps had not come."""
    law: bool = False
    """No law judged some of its requests."""
    at_age_s: int = 0
    """When it was explained."""


class Backlog:
    """Reads which segments are left, and remembers what was seen of them."""

    def __init__(self, store: Store, waits: Waits) -> None:
        self._store = store
        self._waits = waits
        self._since_s = 0
        self._own: dict[str, None] = {}
        self._last_steps: dict[int, int] = {}
        self._explained: dict[str, Lacking] = {}

    def came(self, segment: str) -> None:
        """This collector has stored a segment. It explains its own before those of others."""
        _remember(self._own, segment, None)

    def explained(self, segment: Segment, lacking: Lacking) -> bool:
        """It is explained now; tell whether for good: it lacked nothing that may still come."""
        _remember(self._explained, segment.name, replace(lacking, at_age_s=segment.age_s))
        steps_may_come = bool(lacking.steps) and segment.age_s < self._waits.late_s
        law_may_come = lacking.law and any(segment.age_s < age_s for age_s in self._waits.law_s)
        return segment.is_past or not (steps_may_come or law_may_come)

    def read(self, now_s: int) -> list[tuple[Segment, Ripe]]:
        """The segments that are left, the oldest first. Raises the store's errors."""
        since_s = max(min(self._since_s, now_s - _INSERT_S), now_s - _DAY_S)  # somebody may have set the clock back
        parameters = {"since_s": since_s, "late_s": _INSERT_S, "limit": _MOST_ROWS}
        rows = list(self._rows("due", parameters))
        segments = [_segment(name, list(some)) for name, some in groupby(rows, key=lambda row: str(row["segment"]))]
        if len(rows) == _MOST_ROWS and len(segments) > 1:
            segments.pop()  # some of its processes may be left out
        self._look_at_steps(segments)
        oldest_s = min((segment.first_s for segment in segments), default=now_s)
        self._since_s = min(oldest_s, now_s) - _INSERT_S
        return [(segment, self._ripe(segment)) for segment in segments]

    def waits(self, segment: Segment) -> bool:
        """Whether its requests have no rows in `causes` yet."""
        return segment.name not in self._explained

    def _look_at_steps(self, segments: Sequence[Segment]) -> None:
        ended = [one for segment in segments for one in segment.ended if not one.is_past]
        if not ended:
            return
        since_ns = min(one.last_end_ns for one in ended) - _A_STEP_NS
        names = sorted({(one.service, one.instance) for one in ended})
        for row in self._rows("last_steps", {"names": names, "since_ns": since_ns}):
            _remember(self._last_steps, row["process"], row["end_ns"])

    def _ripe(self, segment: Segment) -> Ripe:
        if not (self._store.embedded or segment.name in self._own) and segment.age_s < self._waits.others_s:
            return Ripe.NO
        if lacking := self._explained.get(segment.name):
            return self._again(segment, lacking)
        complete = all(self._is_complete(one, segment.age_s) for one in segment.ended)
        return Ripe.EXPLAIN if complete or segment.age_s >= self._waits.patience_s else Ripe.NO

    def _again(self, segment: Segment, lacking: Lacking) -> Ripe:
        """Whether a segment that was explained is explained again: what it lacked has come, or may have."""
        came = [one for one in segment.ended if one.process in lacking.steps and self._has_steps(one)]
        if came and segment.age_s < self._waits.late_s:
            return Ripe.EXPLAIN
        ages = [age_s for age_s in self._waits.law_s if age_s > lacking.at_age_s] if lacking.law else []
        if ages and segment.age_s >= ages[0]:
            return Ripe.EXPLAIN
        return Ripe.NO if ages or (lacking.steps and segment.age_s < self._waits.late_s) else Ripe.MARK

    def _has_steps(self, ended: Ended) -> bool:
        return self._last_steps.get(ended.process, 0) >= ended.last_end_ns - _A_STEP_NS

    def _is_complete(self, ended: Ended, age_s: int) -> bool:
        if ended.is_past:
            return age_s >= self._waits.soon_s
        last_ns = self._last_steps.get(ended.process, 0)
        return last_ns >= ended.last_end_ns or (
            age_s >= self._waits.soon_s and last_ns >= ended.last_end_ns - _A_STEP_NS
        )

    def _rows(self, name: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self._store.query(render(f"causes/stage/{name}", {}), parameters, SETTINGS)
        return [dict(zip(answer.column_names, row, strict=True)) for row in answer.result_rows]


def _segment(name: str, rows: Sequence[Mapping[str, Any]]) -> Segment:
    return Segment(
        name,
        min(row["first_s"] for row in rows),
        max(row["last_s"] for row in rows),
        min(row["age_s"] for row in rows),
        sum(row["requests"] for row in rows),
        tuple(
            Ended(
                row["process"],
                row["service"],
                row["instance"],
                row["last_end_ns"],
                row["start_ns"],
                is_past=row["ended_ago_s"] > row["age_s"] + _PAST_S,
                is_late=row["first_ended_ago_s"] > row["age_s"] + SETTLED_S,
            )
            for row in rows
        ),
    )


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Keep the newest names only."""
    known.pop(key, None)
    known[key] = value
    if len(known) > _MOST_NAMES:
        del known[next(iter(known))]
