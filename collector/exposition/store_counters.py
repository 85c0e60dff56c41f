"""Counters of `/metrics` that come from the store: of its segments, and of requests that are bad while in flight."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
from prometheus_client import Metric as Family

from collector.exposition import metrics
from collector.exposition.cause_counters import MOST_SERVED, SUMS, CauseCounters
from collector.exposition.checkpoint import Checkpoint, dump_series, load_label_sets, load_series
from collector.exposition.clocks import Clocks
from collector.exposition.early import EarlyRequests
from collector.exposition.filled import FilledTables
from collector.exposition.histograms import add_latencies, bucket_edges, drop_old_histograms
from collector.exposition.series import OTHER, SECOND_NS, Keys, Labels, LabelSets, admitted, is_other
from collector.exposition.slo_counters import SloCounters
from collector.measure.in_flight import InFlight
from collector.once_a_minute import OnceAMinute
from collector.process import Process
from collector.query.queries import Queries
from collector.slo.model import Slo
from collector.sql.fragment import Fragment
from collector.store.early_claims import EarlyClaims, EarlyCount

logger = logging.getLogger(__name__)

MOST_LABEL_SETS: Final = 500
"""Most label sets of requests, with three histograms each, and most engine processes."""
_MOST_REASONS: Final = 50
IDLE_NS: Final = 3600 * SECOND_NS
"""An engine process without an event for this long is no longer exposed. A label set of requests stays for the longest
window of an SLO, and makes room for others after this time."""
MOST_AT_ONCE: Final = 500
"""The most segments that one query counts."""
SEGMENT_AGE_NS: Final = 24 * 3600 * SECOND_NS
"""The rows of a new segment are at most this old. It bounds the rows that are read to find them."""
_REMEMBERED: Final = 4000
"""How many counted segments are remembered: the writer names one twice if the process died before it was released, and
the explainer if it explains its requests again."""
_EXPLAINED: Final = "/explained"
"""Behind a segment's id: its requests are explained. The two are counted apart, each once."""
_KEYS_AT_ONCE: Final = 5000
YOUNG_S: Final = 180
"""A series that is older when a scrape sees it first shows its value at once: its first increase is long over."""
_SAVE_EVERY_NS: Final = 60 * SECOND_NS
"""The watermark alone is worth a write after this time."""


class StoreCounters:
    """Counters of this collector. They go on where the process before this one ended. Any thread may call.

    A request in flight is counted for an SLO when it is first known to be bad, and a lost one when it is given up; both
    are remembered by their key, so that each counts once. One of the collectors that share a store counts it. A counter
    never decreases: when a lost request comes back and was not bad after all, it is added to the good ones, so that the
    number of bad ones is right again.
    """

    def __init__(
        self,
        queries: Queries,
        filled: FilledTables,
        slos: Sequence[Slo],
        *,
        clock: Callable[[], int],
        folder: Path | None = None,
        claims: EarlyClaims | None = None,
        tenant_histograms: bool = False,
    ) -> None:
        """`claims` are for a store that several collectors share. Without `tenant_histograms`, the histograms of
        all tenants are one.
        """
        self._queries = queries
        self._filled = filled
        self._clock = clock
        self._lock = threading.RLock()
        self._checkpoint = Checkpoint(folder)
        state, uncounted = self._checkpoint.load()
        self._pending: deque[str] = deque(uncounted)
        self._counted: deque[str] = deque(state.get("counted", ()), maxlen=_REMEMBERED)
        self._series, self._scraped = load_series(state)

        def load(name: str, names: tuple[str, ...], most: int) -> LabelSets:
            return load_label_sets(names, state.get(name, ()), most, partial(self._series.drop, names))

        self._label_sets = load("label_sets", metrics.REQUEST, MOST_LABEL_SETS)
        self._processes = load("processes", metrics.PROCESS, MOST_LABEL_SETS)
        self._served = load("served", metrics.SERVED, MOST_SERVED)
        self._tenant_histograms = tenant_histograms
        self._latencies = load_label_sets(
            metrics.REQUEST, state.get("latencies", ()), MOST_LABEL_SETS, self._series.drop_histograms
        )
        self._early = EarlyRequests(state.get("early", ()))
        self._claims = claims
        self.clocks = Clocks()
        self._collector: str = state.get("collector") or uuid4().hex
        self._claims_read: int = state.get("claims_read", 0)
        self._may_have_claimed = claims is not None  # and died before it counted them
        self.heard_until_ns: int | None = state.get("heard_until_ns")
        """The watermark of the last refresh, also of the process before this one; None at first."""
        self._born_ns: int = state.get("born_ns", clock())
        self._unsaved = not state
        self._overflow_is_told = False
        self._line_due = OnceAMinute()
        self._saved_until_ns = 0
        now_s = clock() / SECOND_NS
        self.use(slos)
        self._of_causes = CauseCounters(self._series, self._served, clock)
        for kind in ("requests", "models", "tenants"):
            self._series.add(metrics.OVERFLOW, (kind,), at_s=now_s)
        for metric in (metrics.EARLY_FORGOTTEN, metrics.LABELS_CUT):
            self._series.add(metric, at_s=now_s)
        if claims:
            self.save()  # the claims have this collector's name: it must know it after a crash

    def use(self, slos: Sequence[Slo]) -> None:
        """Count for these SLOs from now on. Those that have a counter go on with it; those that are gone have none."""
        with self._lock:
            self._edges = bucket_edges(slos)
            self._longest_ns = max([IDLE_NS, *(slo.window for slo in slos)])
            drop_old_histograms(self._series, self._edges)
            self._of_slos = SloCounters(self._series, slos, self._early, self._clock)

    def on_segment(self, segment_id: str) -> None:
        """Remember that this segment's rows are in the store; they are counted at the next refresh."""
        with self._lock:
            if segment_id in self._counted or segment_id in self._pending:
                return
            self._pending.append(segment_id)
            try:
                self._checkpoint.note(segment_id)
            except OSError as error:
                logger.warning("a segment is not counted if this process ends now: %s", error)

    def on_explained(self, segment_id: str) -> None:
        """Remember that the causes of this segment's requests are in the store. Only the first time counts."""
        self.on_segment(segment_id + _EXPLAINED)

    @property
    def pending(self) -> int:
        """Segments that are stored and not counted."""
        return len(self._pending)

    @property
    def lost_since_ns(self) -> int:
        """Requests that were lost before are counted, or are not for these counters to count."""
        self._born_ns = min(self._born_ns, self._clock())  # somebody may have set the clock back
        return max(self._born_ns, min(self.heard_until_ns or 0, self._clock()) - IDLE_NS)

    def count_segments(self) -> None:
        """Count the rows of all segments that were stored. When the store raises, the next call continues."""
        while self._pending:
            with self._lock:
                segments = [self._pending[i] for i in range(min(MOST_AT_ONCE, len(self._pending)))]
            self._agree(segments=segments)
            to_count = self._own(segments)
            read = self._read(to_count) if to_count else None
            with self._lock:
                for _ in segments:
                    self._counted.append(self._pending.popleft())
                self._unsaved = True
                if read:
                    self._add_requests(read["requests"])
                    self._of_causes.add_phases(read["requests"])
                    self._of_slos.add_ended(read["requests"], read["early"])
                    self._add_kv_events(read["kv_events"])
                    self._add_cold_starts(read["cold_starts"])
                    self._of_causes.add_causes(read["causes"])
                    self._of_slos.add_causes(read["causes"])

    def _own(self, segments: Sequence[str]) -> list[str]:
        """Leave out the segments that another collector counts: several may join the same requests."""
        if not self._claims:
            return list(segments)
        first = self._claims.first_to_enter(segments)
        return [segment for segment in segments if first.get(segment, self._collector) == self._collector]

    def _read(self, segments: Sequence[str]) -> dict[str, Any]:
        filled = self._filled.look()
        explained = [segment.removesuffix(_EXPLAINED) for segment in segments if segment.endswith(_EXPLAINED)]
        stored = [segment for segment in segments if not segment.endswith(_EXPLAINED)]
        since_ns = min(map(self._oldest_row_ns, segments))
        bounds = {"segments": stored, "since_ns": since_ns}
        edges = {f"{name}_edges": [0, *edges] for name, edges in self._edges.items()}
        early: dict[str, list[Any]] = defaultdict(list)
        for keys in self._early.keys_in_parts(_KEYS_AT_ONCE) if stored else ():
            for name, values in self._queries.columns(
                "segment_early", self._of_slos.cells.fragments, **bounds, counted=keys
            ).items():
                early[name] += values
        cells = self._of_slos.cells.fragments
        asked: dict[str, tuple[Mapping[str, Fragment], dict[str, Any]]] = {
            "requests": ({**cells, "phases": SUMS["phases"]}, {**bounds, **edges}),
            "kv_events": ({}, bounds),
            "cold_starts": ({}, bounds),
            "causes": (
                {"cell": cells["cell"], **{name: SUMS[name] for name in ("before", "after", "held")}},
                {**bounds, "segments": explained},
            ),
        }
        return {"early": early} | {
            table: self._queries.rows(f"segment_{table}", fragments, **parameters)
            if table in filled and parameters["segments"]
            else []
            for table, (fragments, parameters) in asked.items()
        }

    def _oldest_row_ns(self, segment: str) -> int:
        """A segment's id begins with the time at which it was opened, which may be long ago after an outage."""
        opened, now = segment.partition("-")[0], self._clock()
        return min(int(opened), now) - SEGMENT_AGE_NS if opened.isdecimal() else now - SEGMENT_AGE_NS

    def _admit(self, row: Mapping[str, Any]) -> Labels:
        """The labels of a request, with all of their counters at 0 at least."""
        asked = tuple(row[column] for column in metrics.REQUEST_LABELS.values())
        labels = self._label_sets.admit(asked, self._clock())
        at_s = self._clock() / SECOND_NS
        for status in ("ok", "error", "cancelled"):
            self._series.add(metrics.REQUESTS, (*labels, status), at_s=at_s)
        return labels

    def _add_requests(self, rows: Sequence[dict[str, Any]]) -> None:
        at_s = self._clock() / SECOND_NS
        for row in rows:
            labels = self._admit(row)
            if is_other(labels):
                self._series.add(metrics.OVERFLOW, ("requests",), row["n"])
                self._warn_of_overflow()
            self._series.add(metrics.REQUESTS, (*labels, row["status"]), row["n"])
            self._series.add(metrics.LABELS_CUT, (), row["labels_cut"])
            service, tenant = row["service"], row["process_tenant"]
            self.clocks.note_end((service, tenant), row["at_ns"], self._clock())
            for instance, after_arrival_ns in row["after_arrival"].items():
                self.clocks.note_lag(Process(service, instance, tenant), -after_arrival_ns, self._clock())
            for metric, key, tokens in (
                (metrics.TOKENS, (*labels, "input"), row["tokens_in"]),
                (metrics.TOKENS, (*labels, "output"), row["tokens_out"]),
                (metrics.CACHED_TOKENS, labels, row["tokens_cached"]),
            ):
                if tokens is not None:
                    self._series.add(metric, key, tokens, at_s=at_s)
            add_latencies(self._series, self._edges, row, self._of_latencies(labels), self._clock())

    def _of_latencies(self, labels: Labels) -> Labels:
        """The labels of a request's histograms: those of its counters, and no tenant unless somebody asked for it."""
        if is_other(labels):
            return labels
        at = metrics.REQUEST.index("tenant")
        tenant = labels[at] if self._tenant_histograms else ""
        return self._latencies.admit((*labels[:at], tenant, *labels[at + 1 :]), self._clock())

    def _warn_of_overflow(self) -> None:
        if not self._overflow_is_told:
            logger.warning(
                "/metrics counts requests as `other`: it has room for %d combinations of model, tenant and so on,"
                " and not for long names (docs/metrics.md). The API and the metrics of SLOs have all requests",
                MOST_LABEL_SETS,
            )
        self._overflow_is_told = True

    def _add_kv_events(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            process = self.admit_process(Process.of(row))
            evicted = *process, self._reason(process, row["reason"])
            self._series.add(metrics.KV_EVICTED, evicted, row["evicted"], at_s=self._clock() / SECOND_NS)
            if row["reason"] == "preemption":
                self._series.add(metrics.PREEMPTIONS, process, row["n"])
                self._series.raise_to(metrics.LAST_PREEMPTION, process, row["last_ns"] / SECOND_NS)

    def _reason(self, process: Labels, reason: str) -> str:
        """The label of a reason. The processes of each tenant have reasons of their own."""
        known = {labels[-1] for labels in self._series.counters[metrics.KV_EVICTED] if labels[-2] == process[-1]}
        return admitted(reason, known, most=_MOST_REASONS, other=OTHER)

    def _add_cold_starts(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            process = self.admit_process(Process.of(row))
            self._series.add(metrics.COLD_STARTS, process, row["n"])
            self._series.add(metrics.COLD_STARTS_FAILED, process, row["failed"])
            if self._series.raise_to(metrics.COLD_START_END, process, row["ended_ns"] / SECOND_NS):
                self._series.set(metrics.COLD_START_DURATION, process, row["duration_ns"] / SECOND_NS)

    def count_in_flight(self, in_flight: InFlight, heard_until_ns: int) -> None:
        """Count the requests that have become bad, or were lost, since the last call."""
        now = self._clock()
        with self._lock:
            label_columns = list(metrics.REQUEST_LABELS.values())
            for labels in set(zip(*(in_flight.columns[column] for column in label_columns), strict=True)):
                self._admit(dict(zip(label_columns, labels, strict=True)))
            new = self._of_slos.new_in_flight(in_flight)
            for i in np.flatnonzero(in_flight.is_lost).tolist():
                count = EarlyCount(in_flight.key(i), "", "", False, in_flight.processes[i], now)
                early = self._early.get(count.key)
                if early is None or not (early.is_lost or early.is_over):
                    new.append(count)
                else:
                    early.seen_ns = now
        if new or self._may_have_claimed:
            self._agree(counts=new)
        with self._lock:
            self.heard_until_ns = heard_until_ns
            self._forget(now)

    def _agree(self, *, segments: Sequence[str] = (), counts: Sequence[EarlyCount] = ()) -> None:
        """Enter this collector's next counts, and take over all entries of all collectors before and with them."""
        claims_read, entered = self._claims_read, [(self._collector, count) for count in counts]
        if self._claims:
            if segments or counts:
                number = self._claims.enter(self._collector, segments, counts)
                if number <= self._claims_read:  # the server came back with an older disk, or an empty one
                    self._claims_read = 0
            since_ns = self._clock() - SEGMENT_AGE_NS
            claims_read, entered = self._claims.read(self._claims_read, since_ns=since_ns)
        with self._lock:
            for collector, count in entered:
                self._add_early(count, is_own=collector == self._collector)
            self._claims_read, self._may_have_claimed = claims_read, False
            self._unsaved = True

    def _add_early(self, count: EarlyCount, *, is_own: bool) -> None:
        early = self._early.seen(count.key, self._clock())
        if count.slo:
            self._of_slos.add_early(count, early, is_own=is_own)
        elif not early.is_lost and not early.is_over:
            early.is_lost, early.given_up_ns = True, count.at_ns
            if is_own:
                labels = self.admit_process(count.process)
                self._series.add(metrics.LOST, labels, 1)
                self._series.raise_to(metrics.LAST_LOST, labels, count.at_ns / SECOND_NS)

    def given_up_ns(self, key: str) -> int:
        """When this request was counted as lost, for which the alert fires; 0 for no such request of the last day."""
        with self._lock:
            early = self._early.get(key)
            return early.given_up_ns if early else 0

    def _forget(self, now: int) -> None:
        for sets, keep_ns in (
            (self._label_sets, self._longest_ns),
            (self._served, self._longest_ns),
            (self._processes, IDLE_NS),
        ):
            for labels in sets.forget(idle_since_ns=now - IDLE_NS, unused_since_ns=now - keep_ns):
                self._series.drop(sets.names, labels)
        for labels in self._latencies.forget(idle_since_ns=now - IDLE_NS, unused_since_ns=now - self._longest_ns):
            self._series.drop_histograms(labels)
        self._series.add(metrics.EARLY_FORGOTTEN, (), self._early.forget(now))

    def processes(self) -> list[Labels]:
        """Labels of the engine processes that were seen in the last hour."""
        with self._lock:
            return list(self._processes.used_ns)

    def admit_process(self, process: Process) -> Labels:
        """The labels of an engine process. Its counters start at 0, so that its first event is an increase."""
        with self._lock:
            labels = self._processes.admit(process, self._clock())
            at_s = self._clock() / SECOND_NS
            for metric in (metrics.LOST, metrics.PREEMPTIONS, metrics.COLD_STARTS, metrics.COLD_STARTS_FAILED):
                self._series.add(metric, labels, at_s=at_s)
            self._series.add(metrics.KV_EVICTED, (*labels, "preemption"), at_s=at_s)
            return labels

    def save(self) -> None:
        """Write the counters down, so that a process after this one goes on from here. A disk that fails is logged."""
        with self._lock:
            if not self._unsaved and (self.heard_until_ns or 0) - self._saved_until_ns < _SAVE_EVERY_NS:
                return
            state = {
                "born_ns": self._born_ns,
                "heard_until_ns": self.heard_until_ns,
                "counted": list(self._counted),
                "label_sets": [[labels, used] for labels, used in self._label_sets.used_ns.items()],
                "latencies": [[labels, used] for labels, used in self._latencies.used_ns.items()],
                "processes": [[labels, used] for labels, used in self._processes.used_ns.items()],
                "served": [[labels, used] for labels, used in self._served.used_ns.items()],
                "early": self._early.dump(),
                "collector": self._collector,
                "claims_read": self._claims_read,
                **dump_series(self._series, self._scraped),
            }
            try:
                self._checkpoint.save(state, self._pending)
            except OSError as error:
                if self._line_due.allows("save"):
                    logger.warning("the counters of /metrics are not kept for the next process: %s", error)
                return
            self._unsaved, self._saved_until_ns = False, self.heard_until_ns or 0

    def families(self) -> tuple[list[Family], Keys]:
        """The counters as they are now, and their keys. A young series that no scrape has seen is written as 0.

        So Prometheus sees its first increase, which is the difference to the value before. The past of an old one would
        be an increase of the present:

            a series of a minute,     12 requests    0 in its first scrape, then 12
            a series of 43 minutes, 174 requests    174 in its first scrape
        """
        with self._lock:
            keys, now_s = self._series.growing, self._clock() / SECOND_NS
            newborn = [key for key in keys - self._scraped if abs(now_s - self._series.created.get(key, 0)) < YOUNG_S]
            return list(self._series.families({*newborn})), keys

    def scraped(self, keys: Keys) -> bool:
        """A scrape has seen the series of these keys. True when one of them was written as 0 until now."""
        with self._lock:
            seen = keys & self._series.growing
            is_new = not seen <= self._scraped
            self._scraped = seen | (self._scraped & self._series.growing)
            self._unsaved |= is_new
            return is_new
