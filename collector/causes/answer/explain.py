"""Explains slow requests: which causes took their time beyond typical requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from collector.ask.times import rfc3339
from collector.ask.window import Window
from collector.causes.answer import request_times as explained
from collector.causes.answer.answer import Culprit, Explanation, Part, Selected, TypicalOut
from collector.causes.answer.beyond import Beyond, Floats, shares
from collector.causes.answer.culprits import OF_PROMPTS, exemplars, lost_at, of_holders, of_kv, of_processes, of_prompts
from collector.causes.answer.explain_notes import compared, missing, places
from collector.causes.answer.holders import HELD, Held, Victims, read_held
from collector.causes.answer.replayed import Replays
from collector.causes.answer.request_times import MOST_CHOSEN, MOST_TYPICAL, Array, Explained, Rows, read_judged
from collector.causes.answer.sentence import sentence
from collector.causes.answer.serving import Serving
from collector.causes.answer.slower import read_slower
from collector.causes.answer.slowest import by_group, by_model, slowest
from collector.causes.answer.typical import TypicalOfModels, good_ones, typical_of
from collector.causes.answer.waiting import waiting
from collector.causes.answer.without import Question, WhatIf
from collector.causes.split.names import PARTS, load_causes
from collector.count import verdicts
from collector.count.answers import WindowOut
from collector.count.evaluation import Counted, count, open_requests
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.slo.counts import Number
from collector.slo.judge import selects
from collector.sql.fragment import TRUE, all_of


def explain(reader: Reader, window: Window, vantage: Sequence[str], question: Question) -> Explanation:
    """The answer of `/explain`. An SLO selects one vantage, whose rows count also where a server reported them too."""
    at = vantage or (question.slo.select["vantage"] if question.slo else ())
    counted = count(reader, window, at, question.promises)
    sampled = counted.errors is not None
    of_slo = TRUE if question.slo is None else selects(question.slo, "chosen")
    population = replace(counted.window, filter=all_of(counted.window.filter, of_slo))
    cells = Cells(question.promises)
    if question.metric is None:
        judged = counted.population.judged
        bad, tail_us = judged.of_all_slos().bad & judged.ended, None
        asked = verdicts.in_cells(cells, counted.population, bad, "bad")
        expected = float(counted.population.count(bad))
    else:
        tail = explained.read_percentile(reader, population, question.metric, question.quantile, sampled=sampled)
        tail_us = tail.us
        asked = explained.in_tail(question.metric, tail_us)
        expected = tail.known * (1 - question.quantile)
    chosen_window = replace(population, filter=all_of(population.filter, asked))
    every = explained.one_in(expected, MOST_CHOSEN)
    every_typical = explained.one_in(counted.requests.total, MOST_TYPICAL)
    chosen = explained.read_chosen(reader, chosen_window, question.promises, every)
    known = Explained.nothing()
    if len(chosen):
        known = explained.read_explained(reader, population, chosen_window, cells, every_typical, every)
    is_sample = max(every, every_typical) > 1
    scale = expected / float(chosen["weight"].sum()) if every > 1 and len(chosen) else 1.0
    rows, pool, since_ns = Rows.of(chosen, known, scale), known.one_in(every_typical), population.start_ns
    if question.metric is None:
        models, read = np.unique(rows.rows["model"]), partial(read_judged, reader, cells=cells)
        pool, since_ns = good_ones(read, population, pool, cells, lambda judged: judged.of_all_slos().good, models)
    else:
        pool = pool.at(np.flatnonzero(pool.rows["ok"]))
    is_tail_alone = bool(question.metric and question.quantile) and pool.n <= rows.n
    typical = None if is_tail_alone else typical_of(pool)
    answer = _Answer(
        reader, question, counted, population, chosen, every, scale, is_sample, rows, tail_us, typical, since_ns
    )
    return answer.build()


@dataclass(frozen=True)
class _Answer:
    """All that was read, from which the fields of the answer follow."""

    reader: Reader
    question: Question
    counted: Counted
    population: Window
    chosen: Array
    every: int
    """Of so many chosen requests one is read, by its key."""
    scale: float
    """Each of `chosen` stands for so many."""
    is_sample: bool
    """There were too many to read all, of the chosen ones or of those among which typical ones are looked for."""
    rows: Rows
    tail_us: float | None
    """Where the tail begins; None for a verdict."""
    typical: TypicalOfModels | None
    since_ns: int
    """The first of the typical ones ended then or later."""

    def build(self) -> Explanation:
        question, in_flight = self.question, open_requests(self.reader, self.counted.window)
        what_if = self._what_if
        without = [] if what_if.hidden else [what_if.without(causes) for causes in question.without]
        parts, selected, attainment = self._parts(), self._selected(), self.counted.requests.attainment
        groups = by_group(parts, self.rows, self._beyond, what_if.without)
        replay = what_if.replays.out if isinstance(what_if.replays, Replays) else None
        is_tail, value_s = question.metric is not None, explained.as_seconds(self.tail_us)
        judged = in_flight.judged(question.promises)
        bad = judged.of_all_slos().in_flight_violations
        if question.slo:
            in_flight, bad = in_flight.where(judged.selected_by_any), bad[judged.selected_by_any]
        not_ended = waiting(self.reader, self.counted.window, in_flight, bad)
        return Explanation(
            window=WindowOut.of(self.counted.window, self.counted.complete_ns),
            slo=question.slo.name if question.slo else None,
            metric=question.metric,
            quantile=question.quantile if is_tail else None,
            value_s=value_s if is_tail else None,
            selected=selected,
            typical=self._typical(),
            attainment=attainment,
            judged=self._number(float(self.counted.requests.tally.judged)),
            parts=parts,
            groups=groups,
            unexplained_s=self._unexplained_s,
            without=without,
            without_hidden=what_if.hidden,
            replay=replay,
            levels=self._serving.levels,
            models=self._serving.models(),
            slower=read_slower(self.reader, self.population, {*self.rows.rows["process"].tolist()}),
            not_ended=not_ended,
            estimated=self.counted.errors is not None or self.is_sample,
            sentence=sentence(
                selected,
                parts,
                groups,
                question.metric,
                question.quantile,
                value_s,
                attainment,
                replay.attainment if replay else None,
                not_ended,
            ),
            note=self._note(),
            slowest=slowest(self.reader, self.rows, self._beyond, question.slowest) if question.slowest else [],
            by_model=by_model(self.reader, self.population, self.rows, self._beyond, whole=self.counted.errors is None),
        )

    @cached_property
    def _beyond(self) -> Beyond:
        typical = None if self.typical is None else self.typical.like(self.rows.rows["model"])
        return Beyond.of(self.rows.times, typical, explained.parts_of(self.question.metric))

    def _sum(self, values: Floats) -> float:
        """The sum over the requests by weight, in seconds."""
        return float((values * self.rows.weight).sum()) / 1e6

    @cached_property
    def _unexplained_s(self) -> float:
        return self._sum(self._beyond.time[PARTS.index("unexplained")])

    def _selected(self) -> Selected:
        return Selected(
            requests=self._number(self._weight),
            explained=self._number(float(self.rows.weight.sum())),
            failed=self._number(self.scale * float(self.chosen["weight"][explained.has_failed(self.chosen)].sum())),
            time_s=self._sum(self._beyond.time.sum(0)),
            start=rfc3339(int(self.chosen["end_ns"].min())) if len(self.chosen) else None,
            end=rfc3339(int(self.chosen["end_ns"].max())) if len(self.chosen) else None,
            processes=self._serving.titles,
        )

    @property
    def _weight(self) -> float:
        """How many requests are chosen."""
        return self.scale * float(self.chosen["weight"].sum())

    def _number(self, weight: float) -> Number:
        """A count; a sum of weights may have a fraction."""
        return round(weight, 3) if self.counted.errors is not None else round(weight)

    def _typical(self) -> TypicalOut | None:
        if self.typical is None or not self.rows.n:
            return None
        kind = "good requests" if self.question.metric is None else "requests that ended ok,"
        earlier = f" since {rfc3339(self.since_ns)}" if self.since_ns < self.population.start_ns else ""
        return TypicalOut(
            text=f"the middle half of {kind} of the same model{earlier}",
            start=rfc3339(self.since_ns),
            end=rfc3339(self.population.end_ns),
            ttft_requests=self.typical.n,
            ttft_from_s=self.typical.ttft[0] / 1e6,
            ttft_to_s=self.typical.ttft[1] / 1e6,
        )

    @cached_property
    def _what_if(self) -> WhatIf:
        time_s = self._sum(self._beyond.time.sum(0))
        return WhatIf(
            self.reader,
            self.question,
            self.counted,
            self.population,
            self.rows,
            chosen=self._weight,
            unexplained=self._unexplained_s / time_s if time_s else 0.0,
        )

    def _parts(self) -> list[Part]:
        """The causes that took time from the selected requests or from typical ones, the largest excess first: of the
        groups, and in each."""
        if not self.rows.n:
            return []
        beyond, weight, is_compared = self._beyond, self.rows.weight, self.typical is not None
        time_s, typical_s = ((values * weight).sum(1) / 1e6 for values in (beyond.time, beyond.typical))
        excess_s = time_s - typical_s
        most = np.bincount(beyond.most() + 1, weight, len(PARTS) + 1)[1:]
        by_cause = shares(excess_s.tolist())
        told = [i for i in range(len(PARTS)) if time_s[i] or typical_s[i]]
        of_group = [load_causes()[name].group for name in PARTS]
        by_group_s = Counter[str]()
        for group, value in zip(of_group, excess_s.tolist(), strict=True):
            by_group_s[group] += max(value, 0)
        told.sort(key=lambda i: (-by_group_s[of_group[i]], of_group[i], -excess_s[i], -time_s[i]))
        examples = exemplars(self.reader, self.rows, beyond)
        culprits = self._culprits(time_s)
        what_if = self._what_if
        return [
            Part(
                cause=PARTS[i],
                group=of_group[i],
                time_s=float(time_s[i]),
                typical_s=float(typical_s[i]) if is_compared else None,
                excess_s=float(excess_s[i]) if is_compared else None,
                share=by_cause[i] if is_compared else None,
                requests=self._number(float(most[i])) if is_compared else None,
                without=None
                if what_if.hidden or PARTS[i] == "unexplained"
                else what_if.without([PARTS[i]], share=by_cause[i] if is_compared else None),
                culprits=what_if.of_culprits(culprits[PARTS[i]]),
                exemplars=examples[PARTS[i]],
                advice=self._serving.advice(PARTS[i], culprits[PARTS[i]]),
            )
            for i in told
        ]

    def _culprits(self, time_s: Floats) -> Mapping[str, list[Culprit]]:
        culprits: dict[str, list[Culprit]] = defaultdict(list)
        if suffered_s := float(sum(time_s[PARTS.index(name)] for name in OF_PROMPTS)):
            to_blame = of_prompts(self.reader, [self._victims[name] for name in OF_PROMPTS], suffered_s=suffered_s)
            culprits |= dict.fromkeys(OF_PROMPTS, to_blame)
        for name in ("preempted", "recompute"):
            culprits[name] = of_kv(self.reader, self.counted.window, self.rows, self._beyond, name)
        for name in PARTS:
            of_place = of_processes(lost_at(self.rows, self._beyond, name), self._serving.processes, name)
            culprits[name] = [*culprits[name], *of_place] if name in OF_PROMPTS else culprits[name] or of_place
            if name in HELD:
                culprits[name] = [*culprits[name], *of_holders(self._held, self._victims[name], name)]
        return culprits

    @cached_property
    def _victims(self) -> Mapping[str, Victims]:
        return {name: Victims.of(self.rows, self._beyond, name) for name in (*OF_PROMPTS, *HELD)}

    @cached_property
    def _held(self) -> Held:
        return read_held(self.reader, [self._victims[name] for name in HELD])

    @cached_property
    def _serving(self) -> Serving:
        whole = self.counted.errors is None
        return Serving(self.reader, self.population, self.rows, self._beyond, self.every, is_whole=whole)

    def _note(self) -> str | None:
        """What the answer lacks, and why."""
        replays, with_good = self._what_if.replays, self.question.metric is None
        notes = [
            missing(self.every * len(self.chosen), self.every * self.rows.n, self._serving.levels),
            compared(self.rows, self.typical, with_good=with_good),
            places(self._held),
            f"no replay: {replays}" if isinstance(replays, str) else None,
        ]
        return "; ".join(filter(None, notes)) or None
