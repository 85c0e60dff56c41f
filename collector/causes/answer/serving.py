"""What an explanation says of the processes that served its requests: how far these are explained, by which laws, and
what to do about a cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, get_args

import numpy as np

from collector.ask.window import Window
from collector.causes.answer.answer import Culprit, Level, LevelOut, ModelOut
from collector.causes.answer.beyond import Beyond, Bools
from collector.causes.answer.culprits import lost_at
from collector.causes.answer.request_times import Rows
from collector.causes.answer.served import Served, advice, compared, read_models, read_processes
from collector.causes.answer.shortfalls import ReasonOut, reasons_of
from collector.count.reader import Reader

_MOST_MODELS: Final = 20
_MOST_REASONS: Final = 2


@dataclass(frozen=True)
class Serving:
    """The processes of some requests."""

    reader: Reader
    population: Window
    rows: Rows
    beyond: Beyond
    every: int
    """Of so many requests one was read."""
    is_whole: bool
    """Whether weights are whole numbers."""

    @cached_property
    def processes(self) -> Mapping[int, Served]:
        """By their numbers in the rows of causes."""
        return read_processes(self.reader, self.population, self.every) if self.rows.n else {}

    @property
    def titles(self) -> list[str]:
        """The processes, those with most of the requests first."""
        return [self.processes[number].process.title for number in self._by_requests]

    @cached_property
    def levels(self) -> list[LevelOut]:
        """How far the requests are explained, the best level first, with the reasons."""
        levels = []
        for number, level in reversed([*enumerate(get_args(Level))]):
            of_level = self.rows.rows["level"] == number
            if not of_level.any():
                continue
            served = {*self.rows.rows["process"][of_level].tolist()} & self.processes.keys()
            engines = sorted({self.processes[process].engine for process in served})
            weight = float(self.rows.weight[of_level].sum())
            why = self._reasons(of_level, engines) if level != "steps" else []
            more = ". ".join(one.text.rstrip(".") for one in why[:_MOST_REASONS])
            requests = round(weight) if self.is_whole else round(weight, 3)
            levels.append(LevelOut(level=level, requests=requests, engines=engines, reasons=why, more=more))
        return levels

    def models(self) -> list[ModelOut]:
        """The laws of the processes with most of the requests; none for a caller of one tenant."""
        if self.reader.tenant or not self.rows.n:
            return []
        most = [self.processes[number].process for number in [*self._by_requests][:_MOST_MODELS]]
        ends = self.rows.rows["end_ns"]
        return read_models(self.reader, (int(ends.min()), int(ends.max())), most)

    def advice(self, cause: str, culprits: Sequence[Culprit]) -> str:
        """What makes a cause less with the engines whose requests lost most to it."""
        if cause == "unexplained":
            of_levels = [one.action.rstrip(".") for level in self.levels for one in level.reasons[:_MOST_REASONS]]
            return ". ".join(dict.fromkeys(filter(None, of_levels)))
        return f"{compared(culprits, self.processes.values())}{advice(cause, self._engines_of(cause))}"

    @cached_property
    def _by_requests(self) -> dict[int, int]:
        """How many of the requests each process served, those with most first."""
        served = Counter(self.rows.rows["process"].tolist()).most_common()
        return {number: n for number, n in served if number in self.processes}

    @cached_property
    def _engines(self) -> list[str]:
        """The engines, those with most of the requests first."""
        engines: Counter[str] = Counter()
        for number, n in self._by_requests.items():
            engines[self.processes[number].engine] += n
        return [name for name, _ in engines.most_common()]

    def _engines_of(self, cause: str) -> list[str]:
        """The switches of engines whose requests lost little to a cause would not help."""
        lost = lost_at(self.rows, self.beyond, cause)
        most = max(lost.values(), default=0.0)
        theirs = {self.processes[key].engine for key, us in lost.items() if us > most / 10 and key in self.processes}
        return [engine for engine in self._engines if engine in theirs] or self._engines

    def _reasons(self, of: Bools, engines: Sequence[str]) -> list[ReasonOut]:
        rows = self.rows.rows[of]
        share, steps = (rows[name].astype(np.float64) for name in ("reason_share", "reason_steps"))
        return reasons_of(rows["reason"], share, steps, self.rows.weight[of], engines)
