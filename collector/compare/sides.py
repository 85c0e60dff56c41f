"""The sides of a comparison: their requests and tokens as they are, and weighed like for like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.compare.alike import alike
from collector.compare.chance import Floats, Ints, Sample
from collector.compare.ran import PAUSE_S
from collector.compare.strata import Strata
from collector.compare.wandering import BLOCKS
from collector.count.answers import Distribution, WindowOut, per_s
from collector.count.evaluation import Counted, count, open_requests
from collector.count.in_flight import InFlight
from collector.count.reader import Reader
from collector.numbers.itl import itl
from collector.numbers.latencies import estimated, exact
from collector.slo.cells import Cells
from collector.slo.counts import Counts, Number
from collector.slo.judged import Judged, Outcomes
from collector.slo.model import Promise
from collector.sql.fragment import Fragment

Rows = Mapping[str, Floats]
"""Columns of compare/queries/compare_rows.sql, by name. `bad` is 1 or 0, and NaN for a request that no SLO judges;
`undetermined` is 1 where nobody tells whether a request was good; `slos` has a number for each set of SLOs that select
a request;
`together` has a number for each session, NaN without one; `by NAME` that of a dimension's value (`Stratum.values`)."""

LATENCIES: Final = {
    "ttft": ("input", "cached"),
    "tpot": ("input", "output"),
    "e2e": ("input", "cached", "output"),
    "gap": ("input", "output"),
}
"""The latencies that decide, and the tokens by which their requests are like each other."""
_OF_BAD: Final = ("input", "cached")
"""The tokens by which judged requests are like each other. The answer's length is not known of one that failed."""
_ROW: Final = ("key", "start", "end", "weight", "ttft", "tpot", "e2e", "gap", "input", "cached", "output")
"""The columns of compare/queries/compare_rows.sql. Times are seconds, latencies nanoseconds."""
_MOST_ROWS: Final = 100_000
"""Of more requests a side, one of several is read for the intervals, and so of more tokens."""
_FEWEST: Final = 2
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_MOST_OF_BOTH: Final = 0.5
"""Sides whose common time is a larger part of all are of one time."""


class SideOut(Answer):
    """One side of a comparison."""

    name: str
    window: WindowOut
    requests: Counts
    ran_s: float = Field(
        description="The time in which it ran: from its first request to its last, without long pauses"
    )
    requests_per_s: float | None = Field(description="Over `ran_s`, as all rates here")
    output_tokens_per_s: float | None
    goodput_per_s: float | None
    running: float | None = Field(description="Requests that ran at a time, on average over `ran_s`")
    attainment: float | None
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution
    gap_s: Distribution


@dataclass(frozen=True)
class Side:
    """The requests of one side."""

    name: str
    counted: Counted
    rows: Rows
    one_of: int
    tokens: Floats
    """Columns of compare/queries/compare_tokens.sql."""
    distributions: Mapping[str, Distribution]

    @cached_property
    def ran_s(self) -> float:
        """Seconds from the first start to the last end in the window, without pauses in which no request ran."""
        ended = self._ended
        if not len(ended["start"]):
            return 0.0
        window = self.counted.window
        order = np.argsort(ended["start"])
        starts = np.maximum(ended["start"][order], window.start_ns / 1e9)
        until = np.maximum.accumulate(ended["end"][order])
        pauses = starts[1:] - until[:-1]
        return float(until[-1] - starts[0] - pauses[pauses > PAUSE_S].sum())

    @property
    def _ended(self) -> Rows:
        return where(self.rows, np.isfinite(self.rows["key"]))

    @property
    def running(self) -> float | None:
        """Requests that ran at a time, on average (Little's law)."""
        ended = self._ended
        spans = (ended["end"] - ended["start"]) * ended["weight"] * self.one_of
        return float(spans.sum()) / self.ran_s if self.ran_s else None

    def answer(self) -> SideOut:
        """The side as the answer tells it."""
        requests, sums = self.counted.requests, self.counted.sums
        tokens = sums.get("tokens_out")
        return SideOut(
            name=self.name,
            window=WindowOut.of(self.counted.window, self.counted.complete_ns),
            requests=requests,
            ran_s=self.ran_s,
            requests_per_s=per_s(requests.total, self.ran_s),
            output_tokens_per_s=per_s(tokens, self.ran_s),
            goodput_per_s=per_s(requests.good if requests.good_is_known else None, self.ran_s),
            running=self.running,
            attainment=requests.attainment,
            **{f"{name}_s": self.distributions[name] for name in ("itl", *LATENCIES)},
        )


def read_side(reader: Reader, name: str, window: Window, vantage: Sequence[str], strata: Strata) -> Side:
    """Read one side."""
    counted = count(reader, window, vantage, reader.slos)
    window = counted.window
    if counted.errors is None:
        latencies = exact(reader, window, counted.requests.ok)
    else:
        latencies, _ = estimated(reader, window)
    rows, one_of = read_rows(reader, counted, reader.slos, strata)
    with_itl = {**latencies, "itl": itl(reader.queries, window, counted.first_ns)}
    tokens = _read_tokens(reader, window, with_itl["itl"].count, one_of, rows["start"])
    return Side(name, counted, rows, one_of, tokens, with_itl)


def _read_tokens(reader: Reader, window: Window, total: Number, one_of: int, starts: Floats) -> Floats:
    """Of about `total` tokens, those of one request in `one_of`; or some of these, if they are too many."""
    if not total or not len(starts):
        return np.empty((0, 2))
    each, first_ns = ceil(total / one_of / _MOST_ROWS), int(starts.min() * SECOND_NS)
    asked = {"first_ns": first_ns, "of": one_of, "each": each, **window.bounds}
    return reader.queries.array("compare_tokens", {"filter": window.filter}, (np.float64, 2), **asked)


def read_rows(reader: Reader, counted: Counted, promises: Sequence[Promise], strata: Strata) -> tuple[Rows, int]:
    """What intervals are made from; and of how many requests one was read. Those in flight and lost are behind them."""
    window, one_of, cells = counted.window, ceil(counted.requests.total / _MOST_ROWS) or 1, Cells(promises)
    names = [*_ROW, "high", "low", *(f"by {one.name}" for one in strata.kinds)]
    names += [] if strata.cluster is None else ["together"]
    cell = f"toUInt64({cells.cell.sql})"
    halves = [f"toFloat64(bitShiftRight({cell}, 32))", f"toFloat64(bitAnd({cell}, 4294967295))"]
    more = Fragment(", ".join([*halves, *strata.columns()]), {**cells.cell.parameters, **strata.parameters})
    fragments = {"filter": window.filter, "more": more}
    table = reader.queries.array("compare_rows", fragments, (np.float64, len(names)), of=one_of, **window.bounds)
    rows = dict(zip(names, table.T, strict=True))
    numbers = rows.pop("high").astype(np.uint64) << np.uint64(32) | rows.pop("low").astype(np.uint64)
    different, place = np.unique(numbers, return_inverse=True)
    judged_by = cells.judged(different)
    outcomes, judges = judged_by.of_all_slos(), _sets(judged_by, len(promises))
    rows["bad"] = _bad(outcomes)[place]
    rows["undetermined"] = outcomes.undetermined[place].astype(np.float64)
    rows["slos"] = judges[place]
    in_flight = open_requests(reader, window)
    open_judged = in_flight.judged(promises)
    judged = _bad(open_judged.of_all_slos())
    chosen = np.isfinite(judged) if one_of == 1 else np.zeros(0, bool)
    sets = _sets(open_judged, len(promises))
    return _with_open(rows, in_flight.where(chosen) if chosen.any() else None, judged, sets, strata, window), one_of


def _sets(judged: Judged, promises: int) -> Floats:
    """A number for each set of promises that select a cell, the same on both sides: a hash of 53 bits."""
    numbers = np.zeros(len(judged), np.uint64)
    for i in range(promises):
        numbers = (numbers ^ (judged.outcomes(i).selected + np.uint64(1))) * _ODD
    return (numbers >> np.uint64(11)).astype(np.float64)


def _bad(outcomes: Outcomes) -> Floats:
    """1 for bad, 0 for good, NaN for what is not judged."""
    return np.where(outcomes.bad, 1.0, np.where(outcomes.good, 0.0, np.nan))


def _with_open(
    rows: Rows, open_: InFlight | None, judged: Floats, sets: Floats, strata: Strata, window: Window
) -> Rows:
    """The rows, and behind them those that have not ended and are bad: of middle length, since nobody tells it."""
    if open_ is None or not open_.size:
        return rows
    unknown, ends = np.full(open_.size, np.nan), np.minimum(open_.lost_at_ns, window.end_ns - 1) / 1e9
    ends = np.where(open_.is_lost, ends, (window.end_ns - 1) / 1e9)
    behind = dict.fromkeys(rows, unknown) | {"start": ends, "end": ends, "weight": np.ones(open_.size)}
    for name in _OF_BAD:
        known = rows[name][np.isfinite(rows[name])]
        behind[name] = np.full(open_.size, np.median(known) if known.size else np.nan)
    behind["bad"], behind["slos"] = judged[np.isfinite(judged)], sets[np.isfinite(judged)]
    for one in strata.kinds:
        number = {value: place for place, value in enumerate(one.values, 1)}
        behind[f"by {one.name}"] = np.array([number.get(value, 0) for value in open_.values(one.name)], float)
    return {name: np.concatenate([column, behind[name]]) for name, column in rows.items()}


def alike_samples(a: Rows, b: Rows, latency: str) -> tuple[Sample, Sample] | None:
    """The values of a latency, or of `bad`, weighed like for like; None when a side has too few of them."""
    rows = [where(side, np.isfinite(side[latency])) for side in (a, b)]
    if min(len(one[latency]) for one in rows) < _FEWEST:
        return None
    first, second = (
        Sample(one[latency], one["weight"] * factors, features, block, clusters=_clusters(one), seconds=seconds)
        for one, factors, features, block, seconds in _weighed(rows, latency)
    )
    return first, second


def bad_samples(a: Rows, b: Rows) -> list[tuple[Sample, Sample]]:
    """The judged requests, 1 for a bad one, weighed like for like; and two suppositions about the undetermined ones:
    those of A are good and those of B bad, and the opposite. Without undetermined ones, the judged ones alone.

    Of undetermined requests only bad ones are ever judged, as those that missed a threshold, so the judged ones alone
    look worse than all are. Requests that other SLOs select than any of the other side are left out: their promises are
    others. Empty when a side has too few judged requests.
    """
    of_a, of_b = (side["slos"][np.isfinite(side["bad"])] for side in (a, b))
    both = np.intersect1d(of_a, of_b)
    a, b = (where(side, np.isin(side["slos"], both)) for side in (a, b))
    judged = alike_samples(a, b, "bad")
    if judged is None:
        return []
    if not any((side["undetermined"] == 1).any() for side in (a, b)):
        return [judged]
    supposed = [alike_samples(_supposed(a, bad), _supposed(b, 1 - bad), "bad") for bad in (0.0, 1.0)]
    return [judged, *(pair for pair in supposed if pair)]


def _supposed(rows: Rows, bad: float) -> Rows:
    """The rows, where the undetermined ones are bad (1) or good (0)."""
    return {**rows, "bad": np.where(rows["undetermined"] == 1, bad, rows["bad"])}


def alike_tokens(sides: Sequence[Rows], tokens: Sequence[Floats]) -> tuple[Sample, Sample] | None:
    """The waits for tokens, weighed like for like by the requests that they are of. All recorded tokens weigh the same.

    None when a side has too few requests with tokens.
    """
    rows = [where(side, np.isin(side["key"], of[:, 0])) for side, of in zip(sides, tokens, strict=True)]
    rows = [{**one, "weight": np.ones(len(one["key"]))} for one in rows]
    if min(len(one["key"]) for one in rows) < _FEWEST:
        return None
    pair = []
    for (one, factors, features, block, seconds), of in zip(_weighed(rows, "tpot"), tokens, strict=True):
        keys, ns = of[np.isin(of[:, 0], one["key"])].T  # a request may have come between two queries
        order = np.argsort(one["key"])
        request = order[np.searchsorted(one["key"], keys, sorter=order)]
        of_session = _clusters(one)
        clusters = None if of_session is None else of_session[request]
        pair.append(Sample(ns, factors[request], features[:, request], block[request], request, clusters, seconds))
    first, second = pair
    return first, second


def where(rows: Rows, kept: npt.NDArray[np.bool_]) -> Rows:
    """These rows alone."""
    return rows if kept.all() else {name: column[kept] for name, column in rows.items()}


def _weighed(rows: Sequence[Rows], latency: str) -> Iterator[tuple[Rows, Floats, Floats, Ints, float]]:
    """The rows of each side, with the factor of each request's weight, its features, its block of time, and the length
    of the time.
    """
    lengths = LATENCIES.get(latency, _OF_BAD)
    a, b = ([one[name] for name in lengths] for one in rows)
    kinds = [(rows[0][name].astype(int), rows[1][name].astype(int)) for name in rows[0] if name.startswith("by ")]
    blocks, seconds = _blocks([one["end"] for one in rows])
    together = max(map(np.max, blocks)) < BLOCKS
    times = (blocks[0], blocks[1]) if together else None
    matched = alike(a, b, (rows[0]["weight"], rows[1]["weight"]), kinds, times)
    return zip(rows, matched.factors, matched.features, blocks, seconds, strict=True)


def _clusters(rows: Rows) -> Ints | None:
    """The session of each request, counted from 0; one without a session is one alone."""
    if "together" not in rows:
        return None
    known = np.isfinite(rows["together"])
    own = np.where(known, rows["together"], -1.0 - np.arange(len(known)))
    return np.unique(own, return_inverse=True)[1]


def _blocks(ends: Sequence[Floats]) -> tuple[list[Ints], list[float]]:
    """The block of each request and the length of all blocks. Sides whose times overlap have the same blocks."""
    edges = [(float(side.min()), float(side.max())) for side in ends]
    overlap = min(high for _, high in edges) - max(low for low, _ in edges)
    whole = min(low for low, _ in edges), max(high for _, high in edges)
    if overlap > _MOST_OF_BOTH * (whole[1] - whole[0]):
        edges = [whole, whole]
        apart = 0
    else:
        apart = BLOCKS
    blocks = []
    for number, (side, (low, high)) in enumerate(zip(ends, edges, strict=True)):
        width = max(high - low, 1e-3) / BLOCKS
        blocks.append(np.minimum((side - low) // width, BLOCKS - 1).astype(np.int64) + number * apart)
    return blocks, [max(high - low, 1e-3) for low, high in edges]
