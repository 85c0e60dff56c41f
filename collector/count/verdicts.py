"""The verdicts of single requests: of each SLO that selects one, with the thresholds that it missed, and of all SLOs.

Ended requests are judged as the cells by which `/slos` counts them, so all verdicts add up to its counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

import numpy as np

from collector.ask.slices import slices
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.in_flight import Bools, InFlight
from collector.count.population import Population, read_ended
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.slo.judge import selects
from collector.slo.judged import Judged, Outcomes
from collector.slo.model import Slo
from collector.sql.fragment import FALSE, TRUE, Fragment
from tokentrail.shared.parameters import Threshold, Verdict

_NOT_BAD: Final[tuple[Verdict, ...]] = ("good", "undetermined", "excused", "pending")


class Miss(Answer):
    """A threshold that a request missed."""

    threshold: Threshold
    limit_s: float
    value_s: float
    """The request's latency, or its wait until now."""
    over_s: float


class SloVerdict(Answer):
    """The verdict of one SLO that selects the request."""

    slo: str
    verdict: Verdict
    missed: list[Miss]


@dataclass(frozen=True)
class Judgement:
    """The verdict of all SLOs together, as the summary counts it, and of each that selects the request."""

    of_all_slos: Verdict
    by_slo: list[SloVerdict]


def wanted(
    reader: Reader, window: Window, slo: Slo | None, asked: Verdict | None, missed: Threshold | None = None
) -> tuple[Fragment, int | None]:
    """Ended requests that `slo` selects and that have this verdict: of it, or of all SLOs together without it.

    `missed`: that missed this threshold of the SLO, or of any that selects them. They and those with a verdict are
    found by their cells, of which a window has few, and their rows in the window are counted.
    """
    if asked is None and missed is None:
        return (TRUE if slo is None else selects(slo, "chosen")), None
    cells, parts = Cells(reader.slos), slices([window.end_ns, window.start_ns])
    ended = read_ended(reader.queries, window.filter, cells, parts, others=Fragment("count()"))
    judged, chosen = ended.judged, [*range(len(reader.slos))] if slo is None else [reader.slos.index(slo)]
    flags = np.ones(len(judged), bool) if missed is None else judged.missed_of(missed, chosen)
    if asked is not None:
        flags = flags & getattr(judged.of_all_slos() if slo is None else judged.outcomes(*chosen), asked)
    return in_cells(cells, ended, flags, asked or "missed"), sum(compress(ended.others, ended.having(flags)))


def in_cells(cells: Cells, ended: Population, flags: Bools, name: str) -> Fragment:
    """The ended requests in the cells with these flags. `name` keeps the parameters of several apart."""
    numbers = {**cells.cell.parameters, f"{name}_cells": ended.judged.numbers[flags].tolist()}
    return Fragment(f"{cells.cell.sql} IN {{{name}_cells:Array(UInt64)}}", numbers) if flags.any() else FALSE


def in_flight_with_verdict(
    in_flight: InFlight, slos: Sequence[Slo], slo: Slo | None, asked: Verdict | None, missed: Threshold | None = None
) -> Bools:
    """Which requests that have not ended are selected and have this verdict, and missed this threshold. A lost one is
    bad.
    """
    judged = in_flight.judged(slos if slo is None else [slo])
    late = np.ones(in_flight.size, bool) if missed is None else judged.missed_of(missed, range(len(judged.promises)))
    return late & _in_flight_with(judged, slo, asked)


def _in_flight_with(judged: Judged, slo: Slo | None, asked: Verdict | None) -> Bools:
    outcomes, chosen = judged.of_all_slos(), judged.selected_by_any
    match asked:
        case None:
            return np.ones(len(judged), bool) if slo is None else chosen
        case "bad":
            return outcomes.bad
        case "pending":
            return chosen & ~outcomes.bad
        case "unselected" if slo is None:
            return ~chosen
    return np.zeros(len(judged), bool)


def column(slos: Sequence[Slo]) -> Fragment:
    """The column `judged` of queries over `requests`: a request's cell, by which `of_ended` judges it."""
    return Cells(slos).cell


def of_ended(slos: Sequence[Slo], rows: Sequence[Mapping[str, Any]]) -> list[Judgement]:
    """The judgements of rows of `requests` with the column `judged`."""
    judged = Cells(slos).judged([row["judged"] for row in rows])
    return _judgements(slos, judged, dict(enumerate(map(_latencies, rows))))


def _latencies(row: Mapping[str, Any]) -> dict[str, float]:
    """Without a token, the request was cancelled before the first one: it waited for it all the time."""
    ttft_ns = row["e2e_ns"] if row["ttft_ns"] is None else row["ttft_ns"]
    visible_ns = ttft_ns if row["first_visible_ns"] is None else row["first_visible_ns"]
    others = {name: row[f"{name}_ns"] for name in ("tpot", "e2e", "gap")}
    return {"ttft": ttft_ns, "first_visible": visible_ns} | others


def of_open(slos: Sequence[Slo], in_flight: InFlight, places: Sequence[int]) -> list[Judgement]:
    """The judgements of requests that have not ended, up to their latest announcement."""
    first_ns, elapsed_ns = in_flight.first_token_ns, in_flight.elapsed_ns
    latencies = {"ttft": first_ns, "tpot": (elapsed_ns - first_ns) / in_flight.later_tokens, "e2e": elapsed_ns}
    latencies |= {"gap": in_flight.gap_ns, "first_visible": first_ns}
    by_place = {i: {name: float(values[i]) for name, values in latencies.items()} for i in places}
    return _judgements(slos, in_flight.judged(slos), by_place)


def _judgements(slos: Sequence[Slo], judged: Judged, latencies: Mapping[int, Mapping[str, float]]) -> list[Judgement]:
    """The judgements of the requests at these places."""
    of_all, each = judged.of_all_slos(), [judged.outcomes(number) for number in range(len(slos))]
    missed = [[judged.missed(name, ns) for name, ns in slo.thresholds.given().items()] for slo in slos]
    judgements = []
    for i, took in latencies.items():
        by_slo = [
            SloVerdict(
                slo=slo.name, verdict=_verdict(outcomes, i), missed=_misses(slo, [flags[i] for flags in past], took)
            )
            for slo, outcomes, past in zip(slos, each, missed, strict=True)
            if outcomes.selected[i]
        ]
        judgements.append(Judgement(_verdict(of_all, i) if by_slo else "unselected", by_slo))
    return judgements


def _verdict(outcomes: Outcomes, i: int) -> Verdict:
    """The verdict on a request that is selected."""
    return next((name for name in _NOT_BAD if getattr(outcomes, name)[i]), "bad")


def _misses(slo: Slo, flags: Sequence[int | bool], latencies: Mapping[str, float]) -> list[Miss]:
    given = slo.thresholds.given()
    return [
        Miss(
            threshold=name,  # type: ignore[arg-type]  # a field of Thresholds
            limit_s=given[name] / 1e9,
            value_s=latencies[name] / 1e9,
            over_s=(latencies[name] - given[name]) / 1e9,
        )
        for name, flag in zip(given, flags, strict=True)
        if flag
    ]
