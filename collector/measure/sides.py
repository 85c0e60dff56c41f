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

from collector.answer import Answer
from collector.measure.alike import alike
from collector.measure.answers import Distribution, WindowOut, per_s
from collector.measure.chance import Floats, Sample
from collector.measure.evaluation import Counted, count
from collector.measure.itl import itl
from collector.measure.latencies import estimated, exact
from collector.measure.reader import Reader
from collector.measure.times import SECOND_NS
from collector.measure.window import Window
from collector.slo.counts import Counts, Number

Rows = Mapping[str, Floats]
"""Columns of sql/queries/compare_rows.sql, by name."""

LATENCIES: Final = {
    "ttft": ("input", "cached"),
    "tpot": ("input", "output"),
    "e2e": ("input", "cached", "output"),
    "gap": ("input", "output"),
}
"""The latencies that decide, and the tokens by which their requests are like each other."""
_ROW: Final = ("key", "start", "end", "weight", "ttft", "tpot", "e2e", "gap", "input", "cached", "output")
"""The columns of sql/queries/compare_rows.sql. Times are seconds, latencies nanoseconds."""
_MOST_ROWS: Final = 100_000
"""Of more requests a side, one of several is read for the intervals, and so of more tokens."""
_FEWEST: Final = 2
_BLOCKS: Final = 40
_PAUSE_S: Final = 900.0
"""Without a request for so long, a side has not run."""


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
    """Columns of sql/queries/compare_tokens.sql."""
    distributions: Mapping[str, Distribution]

    @cached_property
    def ran_s(self) -> float:
        """Seconds from the first start to the last end in the window, without pauses in which no request ran."""
        if not len(self.rows["start"]):
            return 0.0
        window = self.counted.window
        order = np.argsort(self.rows["start"])
        starts = np.maximum(self.rows["start"][order], window.start_ns / 1e9)
        until = np.maximum.accumulate(self.rows["end"][order])
        pauses = starts[1:] - until[:-1]
        return float(until[-1] - starts[0] - pauses[pauses > _PAUSE_S].sum())

    @property
    def running(self) -> float | None:
        """Requests that ran at a time, on average (Little's law)."""
        spans = (self.rows["end"] - self.rows["start"]) * self.rows["weight"] * self.one_of
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


def read_side(reader: Reader, name: str, window: Window, vantage: Sequence[str]) -> Side:
    """Read one side."""
    counted = count(reader, window, vantage, reader.slos)
    window = counted.window
    if counted.errors is None:
        latencies = exact(reader, window, counted.requests.ok)
    else:
        latencies, _ = estimated(reader, window)
    rows, one_of = read_rows(reader, window, counted.requests.total)
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


def read_rows(reader: Reader, window: Window, total: Number) -> tuple[Rows, int]:
    """What intervals are made from, of about `total` requests; and of how many one was read."""
    one_of = ceil(total / _MOST_ROWS) or 1
    table = reader.queries.array(
        "compare_rows", {"filter": window.filter}, (np.float64, len(_ROW)), of=one_of, **window.bounds
    )
    return dict(zip(_ROW, table.T, strict=True)), one_of


def alike_samples(a: Rows, b: Rows, latency: str) -> tuple[Sample, Sample] | None:
    """The values of a latency, weighed like for like; None when a side has too few of them."""
    rows = [_where(side, np.isfinite(side[latency])) for side in (a, b)]
    if min(len(one[latency]) for one in rows) < _FEWEST:
        return None
    first, second = (
        Sample(one[latency], one["weight"] * factors, features, block)
        for one, factors, features, block in _weighed(rows, latency)
    )
    return first, second


def alike_tokens(sides: Sequence[Rows], tokens: Sequence[Floats]) -> tuple[Sample, Sample] | None:
    """The waits for tokens, weighed like for like by the requests that they are of. All recorded tokens weigh the same.

    None when a side has too few requests with tokens.
    """
    rows = [_where(side, np.isin(side["key"], of[:, 0])) for side, of in zip(sides, tokens, strict=True)]
    rows = [{**one, "weight": np.ones(len(one["key"]))} for one in rows]
    if min(len(one["key"]) for one in rows) < _FEWEST:
        return None
    pair = []
    for (one, factors, features, block), of in zip(_weighed(rows, "tpot"), tokens, strict=True):
        keys, ns = of[np.isin(of[:, 0], one["key"])].T  # a request may have come between two queries
        order = np.argsort(one["key"])
        request = order[np.searchsorted(one["key"], keys, sorter=order)]
        pair.append(Sample(ns, factors[request], features[:, request], block[request], request))
    first, second = pair
    return first, second


def _where(rows: Rows, kept: npt.NDArray[np.bool_]) -> Rows:
    return {name: column[kept] for name, column in rows.items()}


def _weighed(rows: Sequence[Rows], latency: str) -> Iterator[tuple[Rows, Floats, Floats, npt.NDArray[np.int64]]]:
    """The rows of each side, with the factor of each request's weight, its features and its block of time."""
    a, b = ([one[name] for name in LATENCIES[latency]] for one in rows)
    matched = alike(a, b, (rows[0]["weight"], rows[1]["weight"]))
    return zip(rows, matched.factors, matched.features, _blocks([one["end"] for one in rows]), strict=True)


def _blocks(ends: Sequence[Floats]) -> list[npt.NDArray[np.int64]]:
    """The block of time of each request, with the same numbers on both sides."""
    width = max(max(float(np.ptp(side)) for side in ends) / _BLOCKS, 1e-3)
    _, numbers = np.unique(np.floor(np.concatenate(ends) / width), return_inverse=True)
    return [numbers[: len(ends[0])], numbers[len(ends[0]) :]]
