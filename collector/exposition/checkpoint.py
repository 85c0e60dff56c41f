"""Counters on the disk: a process that follows another one continues its counters, and counts the rest.

`counters.json` has the counters and the segments that they include. `counters.segments` has the segments that the store
took since, one a line. A value is on the disk before a scrape sees it, so that no counter ever goes back:

    segment 7 is stored        counters.segments: 7
    segment 7 is counted       counters.json: 12 requests, counted: 7       counters.segments: empty
    the next scrape            12 requests
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from collector.exposition import metrics
from collector.exposition.metrics import Metric
from collector.exposition.series import Histogram, Labels, LabelSets, Series
from collector.wal.durable import write_durably

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_BY_NAME: Final = {metric.name: metric for metric in metrics.ALL}


class Checkpoint:
    """The two files in a folder; without a folder, nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._state = folder / "counters.json" if folder else None
        self._segments = folder / "counters.segments" if folder else None

    def load(self) -> tuple[dict[str, Any], list[str]]:
        """The state that was saved last, empty without one, and the segments that it does not include."""
        if not (self._state and self._segments):
            return {}, []
        state: dict[str, Any] = {}
        try:
            state = json.loads(self._state.read_text("utf-8"))
            if state.get("version") != _VERSION:
                logger.warning("%s is of another version; counters begin at 0", self._state)
                state = {}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError) as error:
            logger.warning("%s cannot be read, so counters begin at 0: %s", self._state, error)
            state = {}
        counted = set(state.get("counted", ()))
        lines: list[str] = []
        try:
            lines = self._segments.read_text("utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("%s cannot be read, so segments may be missing in the counters: %s", self._segments, error)
        return state, [segment for segment in dict.fromkeys(lines) if segment and segment not in counted]

    def note(self, segment: str) -> None:
        """Remember that the store has a segment, also after a power cut. Raises OSError."""
        if self._segments:
            with self._segments.open("a", encoding="utf-8") as file:
                file.write(f"{segment}\n")
                file.flush()
                os.fsync(file.fileno())

    def save(self, state: Mapping[str, Any], uncounted: Iterable[str]) -> None:
        """Replace both files. Raises OSError."""
        if self._state and self._segments:
            write_durably(self._state, json.dumps({"version": _VERSION, **state}).encode())
            write_durably(self._segments, "".join(f"{segment}\n" for segment in uncounted).encode())


def dump_series(series: Series, scraped: set[tuple[Metric, Labels]]) -> dict[str, Any]:
    """The values as JSON. Exemplars are left out."""

    def about(metric: Metric, labels: Labels) -> list[Any]:
        return [metric.name, labels, series.created.get((metric, labels)), (metric, labels) in scraped]

    return {
        "counters": [
            [*about(metric, labels), n] for metric, values in series.counters.items() for labels, n in values.items()
        ],
        "gauges": [
            [metric.name, labels, value] for metric, values in series.gauges.items() for labels, value in values.items()
        ],
        "histograms": [
            [*about(metric, labels), list(h.edges), h.counts, h.sum_ns]
            for metric, values in series.histograms.items()
            for labels, h in values.items()
        ],
    }


def with_all_labels(names: Sequence[str], labels: Sequence[str]) -> Labels | None:
    """The labels of a series that was saved; None where they are others than now.

    A series of an older version has no tenant of a process: all processes belonged to all tenants.
    """
    if len(labels) == len(names) - 1 and metrics.PROCESS_TENANT in names:
        at = names.index(metrics.PROCESS_TENANT)
        labels = [*labels[:at], "", *labels[at:]]
    return tuple(labels) if len(labels) == len(names) else None


def load_series(state: Mapping[str, Any]) -> tuple[Series, set[tuple[Metric, Labels]]]:
    """The values, and the keys of those that a scrape has seen. Metrics with other labels than now are left out."""
    series, scraped = Series(), set()

    def key_of(name: str, labels: list[str], created: float | None, seen: bool) -> tuple[Metric, Labels] | None:
        metric = _BY_NAME.get(name)
        named = None if metric is None else with_all_labels(metric.labels, labels)
        if metric is None or named is None:
            return None
        key = metric, named
        if created is not None:
            series.created[key] = created
        if seen:
            scraped.add(key)
        return key

    for *about, n in state.get("counters", ()):
        if key := key_of(*about):
            series.add(*key, n)
    for name, labels, value in state.get("gauges", ()):
        if key := key_of(name, labels, None, False):
            series.set(*key, value)
    for *about, edges, counts, sum_ns in state.get("histograms", ()):
        if key := key_of(*about):
            histogram = Histogram(edges)
            histogram.counts, histogram.sum_ns = counts, sum_ns
            series.histograms.setdefault(key[0], {})[key[1]] = histogram
    return series, scraped


def load_label_sets(
    names: tuple[str, ...], saved: Sequence[Any], most: int, gone: Callable[[Labels], None]
) -> LabelSets:
    """Label sets with the time of their last use. `gone` is called with one that loses its place."""
    of_now = ((with_all_labels(names, labels), used_ns) for labels, used_ns in saved)
    used = {labels: used_ns for labels, used_ns in of_now if labels is not None}
    return LabelSets(names, most, used, gone)
