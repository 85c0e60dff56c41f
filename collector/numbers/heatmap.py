"""Requests by time and latency: how many, how many bad, how many failed, in a grid for a chart."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log2
from typing import Final

import numpy as np

from collector.ask.times import SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import WindowOut
from collector.count.hops import without_doubles
from collector.count.reader import Reader
from collector.count.verdicts import wanted
from collector.slo.counts import Number, as_number
from collector.slo.judge import LARGEST_US
from collector.slo.model import Slo
from collector.sql.fragment import Fragment, all_of
from tokentrail.shared.parameters import Latency

_CELL: Final = np.dtype([("x", "<u2"), ("y", "<u2"), ("n", "<f8"), ("bad", "<f8"), ("failed", "<f8")])
_LEAST_OCTAVES: Final = 1.0
_KNOWN: Final = {"tpot": f"tpot_us BETWEEN 1 AND {LARGEST_US} AND tpot_at_most_ns IS NULL"}


class Cell(Answer):
    """Requests that ended in one column of time with one row of latency."""

    x: int
    """The column, from 0."""
    y: int | None
    """The row, from 0; null: they have no latency, as most failed ones."""
    requests: Number
    bad: Number
    failed: Number


class Heatmap(Answer):
    """`/heatmap`."""

    window: WindowOut
    metric: str
    start: str
    """When the first column begins."""
    column_s: float
    """The width of a column; the last one ends with the window."""
    edges_s: list[float]
    """The bounds of the rows, one more than rows, evenly spaced in the logarithm; empty where no latency is known."""
    thresholds_s: list[float]
    """What SLOs that select such requests promise of this latency, ascending."""
    cells: list[Cell]
    """Cells that have requests, by column and row."""


def heatmap(
    reader: Reader,
    window: Window,
    vantage: Sequence[str],
    metric: Latency,
    columns: int,
    rows: int,
    slo: Slo | None,
) -> Heatmap:
    """Count the requests that ended in a window in a grid. Bad ones are those of `slo`, or without it of all SLOs."""
    told = WindowOut.of(window, reader.complete_ns)
    if slo is None:
        window = without_doubles(reader, window, vantage)
    chosen, _ = wanted(reader, window, slo, None)
    bad, _ = wanted(reader, window, slo, "bad")
    fragments = {
        "us": Fragment(f"{metric}_us"),
        "known": Fragment(_KNOWN.get(metric, f"{metric}_us BETWEEN 1 AND {LARGEST_US}")),
        "filter": all_of(window.filter, chosen),
    }
    extent = reader.queries.row("heatmap_range", fragments, **window.bounds)
    low, high = _octaves(extent["least_us"], extent["most_us"], rows)
    width_ns = ceil((window.end_ns - window.start_ns) / columns)
    grid = reader.queries.array(
        "heatmap", {**fragments, "bad": bad}, _CELL, **window.bounds,
        width_ns=width_ns, columns=columns, rows=rows, low=low, step=(high - low) / rows,
    )  # fmt: skip
    slos = reader.slos if slo is None else [slo]
    return Heatmap(
        window=told,
        metric=metric,
        start=rfc3339(window.start_ns),
        column_s=width_ns / SECOND_NS,
        edges_s=(2 ** np.linspace(low, high, rows + 1) / 1e6).tolist() if extent["most_us"] else [],
        thresholds_s=sorted({ns / SECOND_NS for one in slos if (ns := one.thresholds.given().get(metric))}),
        cells=[
            Cell(x=x, y=y - 1 if y else None, requests=as_number(n), bad=as_number(bad_ones), failed=as_number(failed))
            for x, y, n, bad_ones, failed in grid.tolist()
        ],
    )


def _octaves(least_us: int, most_us: int, rows: int) -> tuple[float, float]:
    """The logarithms (base 2) of the lowest and the highest bound of the rows. Latencies lie below the highest one.

    They are multiples of a twelfth of an octave, so that a chart that is drawn again has the same rows.
    """
    if not most_us:
        return 0.0, _LEAST_OCTAVES
    low, high = floor(12 * log2(least_us)) / 12, (floor(12 * log2(most_us)) + 1) / 12
    return low, max(high, low + _LEAST_OCTAVES)
