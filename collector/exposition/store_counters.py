"""Counters of `/metrics` that come from the store: stored segments, and requests that are bad while in flight."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from prometheus_client import Metric as Family
from prometheus_client.samples import Exemplar

from collector.exposition import metrics
from collector.exposition.series import LabelSets, Series
from collector.in_flight import InFlight, read_in_flight
from collector.slo.judge import selected, verdict
from collector.slo.model import Slo
from collector.sql.fragment import TRUE
from collector.sql.queries import Queries

SECOND_NS: Final = 1_000_000_000
MOST_LABEL_SETS: Final = 500
"""Most label sets of requests, with three histograms each, and most engine processes."""
IDLE_NS: Final = 3600 * SECOND_NS
"""A label set without an event for this long is no longer exposed, until the next event."""
MOST_PENDING: Final = 60
"""At so many uncounted segments they are counted without waiting for a scrape, so that they do not pile up."""
SEGMENT_AGE_NS: Final = 24 * 3600 * SECOND_NS
"""The rows of a new segment are at most this old. It bounds the rows that are read to find them."""

SEMCONV_EDGES_MS: Final = {
    metrics.TTFT: (1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000),
    metrics.TPOT: (10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500),
    metrics.E2E: tuple(10 * 2**i for i in range(14)),
}
"""Bucket boundaries that OpenTelemetry's GenAI conventions advise."""
_METRIC = {"ttft": metrics.TTFT, "tpot": metrics.TPOT, "e2e": metrics.E2E}
"""The histogram of each threshold's latency."""


def bucket_edges(slos: Sequence[Slo]) -> dict[str, list[int]]:
    """Bucket edges by threshold name: the advised ones and every SLO's threshold, so that a bucket is exact for it."""
    return {
        name: sorted(
            {ms * 1_000_000 for ms in SEMCONV_EDGES_MS[metric]} | {t[name] for t in _thresholds(slos) if name in t}
        )
        for name, metric in _METRIC.items()
    }


def _thresholds(slos: Sequence[Slo]) -> list[dict[str, int]]:
    return [slo.thresholds.given() for slo in slos]


def _request_labels(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[column] for column in metrics.REQUEST_LABELS.values())


class StoreCounters:
    """Counters since this process started. `on_segment` and `update` may be called from any thread.

    A request in flight is counted for an SLO when it is first known to be bad. It is remembered until it ends, so that
    it is counted once. A counter never decreases, also when the request is cancelled later.
    """

    def __init__(self, queries: Queries, slos: Sequence[Slo], *, lost_after_ns: int, clock: Callable[[], int]) -> None:
        self._series = Series()
        self._queries = queries
        self._slos = slos
        self._edges = bucket_edges(slos)
        self._lost_after_ns = lost_after_ns
        self._clock = clock
        self._lock = threading.RLock()
        self._pending: deque[str] = deque()
        self._label_sets = LabelSets(metrics.REQUEST, MOST_LABEL_SETS)
        self._processes = LabelSets(metrics.PROCESS, MOST_LABEL_SETS)
        self._counted_in_flight: dict[str, dict[str, int]] = {slo.name: {} for slo in slos}
        self._started_ns = self._lost_until_ns = clock()
        for slo in slos:
            self._series.set(metrics.SLO_OBJECTIVE, (slo.name,), float(slo.objective))
            self._series.add(metrics.SLO_REQUESTS, (slo.name,))
            self._series.add(metrics.SLO_GOOD, (slo.name,))
            self._series.add(metrics.SLO_UNDETERMINED, (slo.name,))
        self._series.add(metrics.OVERFLOW)

    def on_segment(self, segment_id: str) -> None:
        """Remember that this segment's rows are in the store; they are counted at the next scrape."""
        self._pending.append(segment_id)
        if len(self._pending) >= MOST_PENDING:
            with self._lock:
                self._count_segments()

    def update(self) -> InFlight:
        """Count all segments that were stored and all requests that have become bad; return the requests in flight.

        Segments come first: a request that ends in between is then in flight no more, and is not counted twice. When
        the store raises, nothing is lost: the next call continues.
        """
        with self._lock:
            self._count_segments()
            now = self._clock()
            in_flight = read_in_flight(
                self._queries, TRUE, start_ns=self._lost_until_ns, end_ns=now, lost_after_ns=self._lost_after_ns
            )
            self._count_in_flight(in_flight, now)
            self._forget_idle(now)
            return in_flight

    def _forget_idle(self, now: int) -> None:
        for sets in (self._label_sets, self._processes):
            for labels in sets.forget_before(now - IDLE_NS):
                self._series.drop(sets.names, labels)
        for slo, keys in self._counted_in_flight.items():
            self._counted_in_flight[slo] = {key: at for key, at in keys.items() if at >= now - SEGMENT_AGE_NS}

    def families(self) -> list[Family]:
        """The counters as they are now."""
        with self._lock:
            return list(self._series.families())

    def _count_segments(self) -> None:
        segments = list(self._pending)
        if not segments:
            return
        bounds = {"segments": segments, "since_ns": self._clock() - SEGMENT_AGE_NS}
        totals = self._queries.rows("segment_requests", **bounds)
        edges = {f"{name}_edges": [0, *edges] for name, edges in self._edges.items()}
        buckets = self._queries.rows("segment_histograms", **bounds, **edges)
        judged = [self._judged(slo, bounds) for slo in self._slos]
        evictions = self._queries.rows("segment_kv_events", **bounds)
        starts = self._queries.rows("segment_cold_starts", **bounds)
        for _ in segments:
            self._pending.popleft()
        self._add_requests(totals)
        self._add_histograms(buckets)
        for slo, row in zip(self._slos, judged, strict=True):
            self._series.add(metrics.SLO_REQUESTS, (slo.name,), row["judged"])
            self._series.add(metrics.SLO_GOOD, (slo.name,), row["good"])
            self._series.add(metrics.SLO_UNDETERMINED, (slo.name,), row["undetermined"])
            for key in row["ended"]:
                del self._counted_in_flight[slo.name][key]
        self._add_kv_events(evictions)
        self._add_cold_starts(starts)

    def _judged(self, slo: Slo, bounds: dict[str, Any]) -> dict[str, Any]:
        judged = verdict(slo.thresholds, "slo")
        fragments = {
            "selected": selected(slo.select, "slo"),
            "good": judged.good,
            "undetermined": judged.undetermined,
        }
        return self._queries.row("segment_slo", fragments, **bounds, counted=sorted(self._counted_in_flight[slo.name]))

    def _add_requests(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            labels = self._label_sets.admit(asked := _request_labels(row), self._clock())
            if labels != asked:
                self._series.add(metrics.OVERFLOW, (), row["n"])
            self._series.add(metrics.REQUESTS, (*labels, row["status"]), row["n"])
            for metric, key, tokens in (
                (metrics.TOKENS, (*labels, "input"), row["tokens_in"]),
                (metrics.TOKENS, (*labels, "output"), row["tokens_out"]),
                (metrics.CACHED_TOKENS, labels, row["tokens_cached"]),
            ):
                if tokens is not None:
                    self._series.add(metric, key, tokens)

    def _add_histograms(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            labels = self._label_sets.admit(_request_labels(row), self._clock())
            exemplar = Exemplar({"trace_id": row["trace"]}, row["value_ns"] / SECOND_NS, row["at_ns"] / SECOND_NS)
            histogram = self._series.histogram(_METRIC[row["metric"]], labels, self._edges[row["metric"]])
            histogram.add(row["over_ns"], row["n"], row["sum_ns"], exemplar)

    def _add_kv_events(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            process = self.admit_process((row["service"], row["instance"]))
            self._series.add(metrics.KV_EVICTED, (*process, row["reason"]), row["evicted"])
            if row["reason"] == "preemption":
                self._series.add(metrics.PREEMPTIONS, process, row["n"])
                self._series.raise_to(metrics.LAST_PREEMPTION, process, row["last_ns"] / SECOND_NS)

    def _add_cold_starts(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            process = self.admit_process((row["service"], row["instance"]))
            self._series.add(metrics.COLD_STARTS, process, row["n"])
            if self._series.raise_to(metrics.COLD_START_END, process, row["ended_ns"] / SECOND_NS):
                self._series.set(metrics.COLD_START_DURATION, process, row["duration_ns"] / SECOND_NS)

    def _count_in_flight(self, in_flight: InFlight, now: int) -> None:
        # An engine process is silent only if this collector has listened for as long.
        listened = now - self._started_ns >= self._lost_after_ns
        lost = in_flight.is_lost & listened
        for i in np.flatnonzero(lost).tolist():
            self._add_lost(in_flight.processes[i], int(in_flight.lost_at_ns[i]))
        for slo in self._slos:
            bad = in_flight.bad(slo.thresholds)
            self._series.set(metrics.SLO_IN_FLIGHT, (slo.name,), int(np.count_nonzero(in_flight.selected(slo) & bad)))
            for i in np.flatnonzero(in_flight.selected(slo) & (bad | lost)).tolist():
                self._count_violation(slo.name, in_flight.key(i), now)
        if listened:
            self._lost_until_ns = now

    def _count_violation(self, slo: str, key: str, now: int) -> None:
        if key not in self._counted_in_flight[slo]:
            self._series.add(metrics.SLO_REQUESTS, (slo,), 1)
        self._counted_in_flight[slo][key] = now

    def _add_lost(self, process: tuple[str, str], lost_at_ns: int) -> None:
        labels = self.admit_process(process)
        self._series.add(metrics.LOST, labels, 1)
        self._series.raise_to(metrics.LAST_LOST, labels, lost_at_ns / SECOND_NS)

    def processes(self) -> list[tuple[str, ...]]:
        """Labels of the engine processes that were seen in the last hour."""
        with self._lock:
            return list(self._processes.used_ns)

    def admit_process(self, process: tuple[str, str]) -> tuple[str, ...]:
        """The labels of an engine process. Its counters start at 0, so that its first event is an increase."""
        with self._lock:
            labels = self._processes.admit(process, self._clock())
            for metric in (metrics.LOST, metrics.PREEMPTIONS, metrics.COLD_STARTS):
                self._series.add(metric, labels)
            self._series.add(metrics.KV_EVICTED, (*labels, "preemption"))
            return labels
