"""Counts what was stored, segment by segment, and what is bad before it has ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from prometheus_client import Metric as Family
from prometheus_client.samples import Exemplar

from collector.exposition import names
from collector.exposition.series import LabelSets, Series
from collector.slo.judge import bad_now_by_slo, good, selected
from collector.slo.model import Slo
from collector.sql.queries import Queries

SECOND_NS: Final = 1_000_000_000
MOST_LABEL_SETS: Final = 500
"""Label sets of requests, three histograms each; and engine processes."""
IDLE_NS: Final = 3600 * SECOND_NS
"""Series that nothing happened to for this long are no longer exposed, until something does."""
MOST_PENDING: Final = 60
"""Segments that wait for the next scrape; more are counted at once, so that nothing piles up when nobody scrapes."""
SEGMENT_AGE_NS: Final = 24 * 3600 * SECOND_NS
"""How long ago the rows of a new segment may be from: bounds what has to be read to find them."""

SEMCONV_EDGES_MS: Final = {
    names.TTFT: (1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000),
    names.TPOT: (10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500),
    names.E2E: tuple(10 * 2**i for i in range(14)),
}
"""Bucket boundaries that OpenTelemetry's GenAI conventions advise."""
_METRIC = {"ttft": names.TTFT, "tpot": names.TPOT, "e2e": names.E2E}


def bucket_edges(slos: Sequence[Slo]) -> dict[str, list[int]]:
    """By threshold name: the advised boundaries and every SLO's own, so that a bucket says exactly how many met it."""
    return {
        name: sorted(
            {ms * 1_000_000 for ms in SEMCONV_EDGES_MS[metric]} | {t[name] for t in _thresholds(slos) if name in t}
        )
        for name, metric in _METRIC.items()
    }


def _thresholds(slos: Sequence[Slo]) -> list[dict[str, int]]:
    return [slo.thresholds.given() for slo in slos]


def _request_labels(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[key] for key in ("model", "engine", "service", "variant", "tenant", "slo_class"))


class Ledger:
    """Counters since this process started. `on_segment` and `advance` may be called from any thread.

    A request in flight is counted for an SLO when it is first known to be bad, and remembered until it ends, so that it
    is counted once; a counter never decreases, also when the request is cancelled later.
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
        self._label_sets = LabelSets(names.REQUEST, MOST_LABEL_SETS)
        self._processes = LabelSets(names.PROCESS, MOST_LABEL_SETS)
        self._bad_early: dict[str, dict[str, int]] = {slo.name: {} for slo in slos}
        self._started_ns = self._lost_until_ns = clock()
        for slo in slos:
            self._series.set(names.SLO_OBJECTIVE, (slo.name,), float(slo.objective))
            self._series.add(names.SLO_REQUESTS, (slo.name,))
            self._series.add(names.SLO_GOOD, (slo.name,))
        self._series.add(names.OVERFLOW)

    def on_segment(self, segment_id: str) -> None:
        """Remember that this segment's rows are in the store; they are counted at the next scrape."""
        self._pending.append(segment_id)
        if len(self._pending) >= MOST_PENDING:
            with self._lock:
                self._count_segments()

    def advance(self) -> None:
        """Count all segments that were stored and all requests that have become bad. Raises what the store raises, and
        has then lost nothing: the next call continues."""
        with self._lock:
            self._count_segments()
            self._count_in_flight()
            self._forget(self._clock())

    def _forget(self, now: int) -> None:
        for sets in (self._label_sets, self._processes):
            for labels in sets.forget_before(now - IDLE_NS):
                self._series.drop(sets.names, labels)
        for slo, keys in self._bad_early.items():
            self._bad_early[slo] = {key: at for key, at in keys.items() if at >= now - SEGMENT_AGE_NS}

    def families(self) -> list[Family]:
        """The counters as they are."""
        with self._lock:
            return list(self._series.families())

    def _count_segments(self) -> None:
        segments = list(self._pending)
        if not segments:
            return
        known = {"segments": segments, "since_ns": self._clock() - SEGMENT_AGE_NS}
        totals = self._queries.ask("segment_requests", **known)
        edges = {f"{name}_edges": [0, *edges] for name, edges in self._edges.items()}
        buckets = self._queries.ask("segment_histograms", **known, **edges)
        judged = [self._judged(slo, known) for slo in self._slos]
        evictions = self._queries.ask("segment_kv_events", **known)
        starts = self._queries.ask("segment_cold_starts", **known)
        for _ in segments:
            self._pending.popleft()
        self._add_requests(totals)
        self._add_histograms(buckets)
        for slo, row in zip(self._slos, judged, strict=True):
            self._series.add(names.SLO_REQUESTS, (slo.name,), row["judged"])
            self._series.add(names.SLO_GOOD, (slo.name,), row["good"])
            for key in row["known"]:
                del self._bad_early[slo.name][key]
        self._add_kv_events(evictions)
        self._add_cold_starts(starts)

    def _judged(self, slo: Slo, known: dict[str, Any]) -> dict[str, Any]:
        conditions = {"selected": selected(slo.select, "slo"), "good": good(slo.thresholds, "slo")}
        return self._queries.ask_one("segment_slo", conditions, **known, counted=sorted(self._bad_early[slo.name]))

    def _add_requests(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            labels = self._label_sets.admit(asked := _request_labels(row), self._clock())
            if labels != asked:
                self._series.add(names.OVERFLOW, (), row["n"])
            self._series.add(names.REQUESTS, (*labels, row["status"]), row["n"])
            self._series.add(names.TOKENS, (*labels, "input"), row["tokens_in"])
            self._series.add(names.TOKENS, (*labels, "output"), row["tokens_out"])
            self._series.add(names.CACHED_TOKENS, labels, row["tokens_cached"])

    def _add_histograms(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            labels = self._label_sets.admit(_request_labels(row), self._clock())
            exemplar = Exemplar({"trace_id": row["trace"]}, row["value_ns"] / SECOND_NS, row["at_ns"] / SECOND_NS)
            histogram = self._series.histogram(_METRIC[row["metric"]], labels, self._edges[row["metric"]])
            histogram.add(row["over_ns"], row["n"], row["sum_ns"], exemplar)

    def _add_kv_events(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            process = self.see((row["service"], row["instance"]))
            self._series.add(names.KV_EVICTED, (*process, row["reason"]), row["evicted"])
            if row["reason"] == "preemption":
                self._series.add(names.PREEMPTIONS, process, row["n"])
                self._series.raise_to(names.LAST_PREEMPTION, process, row["last_ns"] / SECOND_NS)

    def _add_cold_starts(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            process = self.see((row["service"], row["instance"]))
            self._series.add(names.COLD_STARTS, process, row["n"])
            if self._series.raise_to(names.COLD_START_END, process, row["ended_ns"] / SECOND_NS):
                self._series.set(names.COLD_START_DURATION, process, row["duration_ns"] / SECOND_NS)

    def _count_in_flight(self) -> None:
        now = self._clock()
        # Silence can only be held against an engine for the time in which this process listened.
        listened = now - self._started_ns >= self._lost_after_ns
        rows = self._queries.ask(
            "in_flight_bad",
            {"bad_for": bad_now_by_slo(self._slos), "filter": selected({}, "")},
            start_ns=self._lost_until_ns,
            end_ns=now,
            lost_after_ns=self._lost_after_ns,
        )
        violations = dict.fromkeys(self._bad_early, 0)
        for row in rows:
            if row["is_lost"] and not listened:
                continue
            if row["is_lost"]:
                self._add_lost(row)
            for slo, bad in zip(self._slos, row["by_slo"], strict=True):
                if bad:
                    violations[slo.name] += not row["is_lost"]
                    self._count_bad_early(slo.name, row["key"], now)
        for name, n in violations.items():
            self._series.set(names.SLO_IN_FLIGHT, (name,), n)
        if listened:
            self._lost_until_ns = now

    def _count_bad_early(self, slo: str, key: str, now: int) -> None:
        if key not in self._bad_early[slo]:
            self._series.add(names.SLO_REQUESTS, (slo,), 1)
        self._bad_early[slo][key] = now

    def _add_lost(self, row: dict[str, Any]) -> None:
        process = self.see((row["service"], row["instance"]))
        self._series.add(names.LOST, process, 1)
        self._series.raise_to(names.LAST_LOST, process, row["lost_at_ns"] / SECOND_NS)

    def processes(self) -> list[tuple[str, ...]]:
        """The engine processes that were seen lately."""
        with self._lock:
            return list(self._processes.used_ns)

    def see(self, process: tuple[str, str]) -> tuple[str, ...]:
        """Admit an engine process; its counters start at 0, so that its first event is an increase."""
        with self._lock:
            labels = self._processes.admit(process, self._clock())
            for metric in (names.LOST, names.PREEMPTIONS, names.COLD_STARTS):
                self._series.add(metric, labels)
            self._series.add(names.KV_EVICTED, (*labels, "preemption"))
            return labels
