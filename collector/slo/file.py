"""The SLOs of a running collector: read again when their file changes, with the history of their definitions."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from collector.base.durable import write_durably
from collector.base.watched_file import WatchedFile
from collector.slo.model import Slo, load_slos
from tokentrail.shared.durations import duration_text

logger = logging.getLogger(__name__)

_MOST_KEPT: Final = 200
"""Changes of the file that are remembered, the newest."""
Check = Callable[[Sequence[Slo]], None]


@dataclass(frozen=True)
class SloChange:
    """An SLO whose definition the collector took at a time: before it had another one, or none, or has none since."""

    at_ns: int
    name: str
    before: str
    """The definition in words; empty for a new SLO."""
    now: str
    """Empty for an SLO that is gone."""
    tenants: tuple[str, ...]
    """The tenants that it selects by name, before or now; empty for an SLO of all tenants."""


class SloFile:
    """The SLOs of a file, or of a caller. Any thread may call.

    A file that cannot be used leaves the SLOs as they were (`WatchedFile`). Each collector keeps the history of the
    definitions that it used in `slo_history.json` in its data folder, so that it knows of a change while it was away.
    """

    def __init__(
        self,
        path: Path | None = None,
        check: Check = lambda _: None,
        *,
        slos: Sequence[Slo] = (),
        folder: Path | None = None,
        clock: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file; raises ValueError with the problems, also those that `check` raises.

        Without a path, these are the SLOs. `folder` is where the history is; without one, it is this process's.
        """
        self._slos = tuple(slos)
        self._file = None
        self._clock = clock
        self._lock = threading.Lock()
        self._history = _History(folder)
        if path:

            def read(path: Path) -> tuple[Slo, ...]:
                slos = load_slos(path)
                check(slos)
                return slos

            self._file = WatchedFile(path, read, what="the SLOs", told=_told, monotonic_s=monotonic_s)
            self._slos = self._file.get()
        else:
            check(self._slos)
        self._history.note(self._slos, clock())

    def slos(self) -> tuple[Slo, ...]:
        """The SLOs of the newest file that can be used."""
        if self._file is None:
            return self._slos
        with self._lock:
            slos = self._file.get()
            if slos is not self._slos:
                self._slos = slos
                self._history.note(slos, self._clock())
            return slos

    @property
    def problem(self) -> str:
        """Why the newest file is not in use; empty while it is."""
        return self._file.problem if self._file else ""

    @property
    def refused(self) -> int:
        """How many files were not taken."""
        return self._file.refused if self._file else 0

    def changes(self, start_ns: int, end_ns: int) -> list[SloChange]:
        """The changes of definitions in a stretch of time, the earliest first."""
        self.slos()
        return [one for one in self._history.changes() if start_ns <= one.at_ns < end_ns]


def _told(slos: Sequence[Slo]) -> str:
    return f"{len(slos)} SLOs"


def definition(slo: Slo) -> str:
    """The promise in words, without the names of tenants: `95 % over 30 d, ttft ≤ 500 ms (3f1c52d0a9be)`."""
    thresholds = (f"{name} ≤ {duration_text(ns)}" for name, ns in slo.thresholds.given().items())
    objective = f"{(slo.objective * 100).normalize():f} %"
    return f"{', '.join((f'{objective} over {duration_text(slo.window)}', *thresholds))} ({slo.hash})"


Known = Mapping[str, Mapping[str, Any]]
"""By name, what is kept of an SLO."""


class _History:
    """The definitions that were in use since a time, the oldest first."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / "slo_history.json" if folder else None
        self._kept: list[tuple[int, Known]] = []
        if self._path is None:
            return
        try:
            self._kept = [
                (int(at_ns), {str(name): dict(one) for name, one in slos.items()})
                for at_ns, slos in json.loads(self._path.read_text("utf-8"))
            ]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be read, so earlier changes of the SLOs are not known: %s", self._path, error)

    def note(self, slos: Sequence[Slo], at_ns: int) -> None:
        """These are in use from now on."""
        known = {
            slo.name: {"hash": slo.hash, "told": definition(slo), "tenants": list(slo.select.get("tenant", ()))}
            for slo in slos
        }
        if self._kept and self._kept[-1][1] == known:
            return
        self._kept = [*self._kept, (at_ns, known)][-_MOST_KEPT - 1 :]
        if self._path is None:
            return
        try:
            write_durably(self._path, json.dumps(self._kept).encode())
        except OSError as error:
            logger.warning("the next start will not know of this change of the SLOs: %s", error)

    def changes(self) -> Iterator[SloChange]:
        """Each definition that was another before. The first ones that a collector ever had are no changes."""
        for (_, before), (at_ns, now) in pairwise(self._kept):
            for name in sorted({*before, *now}):
                old, new = before.get(name, {}), now.get(name, {})
                if old.get("hash") != new.get("hash"):
                    tenants = tuple(dict.fromkeys([*old.get("tenants", ()), *new.get("tenants", ())]))
                    yield SloChange(at_ns, name, str(old.get("told", "")), str(new.get("told", "")), tenants)
