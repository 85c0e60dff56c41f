"""Counters and readiness of the way from the receivers to the store, and of the retention; `/metrics` reads them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final

_MOST_LIMITED: Final = 1000
"""Most pairs of tenant and limit that are counted apart."""
_YOUNG_S: Final = 60.0
"""A pair is shown as 0 for so long: each Prometheus shall see that before its first count."""
_LONGEST_WAIT_S: Final = 120.0
"""A store that has not done its part for so long may never do it. Slow inserts of a busy server take less."""


class ApiRefusal(StrEnum):
    """The reasons for which a request to the API is refused or given up."""

    AMBIGUOUS = "ambiguous"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    WRONG_HOST = "wrong_host"
    BUSY = "busy"
    TOO_LONG = "too_long"
    TOO_LARGE = "too_large"
    CLIENT_LEFT = "client_left"


class ScrapeResult(StrEnum):
    """The results of a scrape that are known before. The others are `http_` and a status code."""

    OK = "ok"
    TIMEOUT = "timeout"
    CONNECT = "connect"
    BROKEN = "broken"
    INTERNAL = "internal"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    BEARER_FILE = "bearer_file"
    ENCODING = "encoding"
    PARSE = "parse"
    NO_METRICS = "no_metrics"
    LOG = "log"


@dataclass(frozen=True)
class IngestSnapshot:
    """One consistent reading of `IngestStatus`. Counts are since the process started, over all signals."""

    payloads_received: int
    payloads_duplicate: int
    payloads_rejected: dict[str, int]
    """By reason, the names in `collector.receive.refusals`."""
    payloads_limited: dict[tuple[str, str], int]
    """By tenant and limit."""
    limited_lately: frozenset[tuple[str, str]]
    """Pairs of tenant and limit that were first counted less than a minute ago."""
    api_refused: dict[str, int]
    """Requests to the API that were refused or given up, by `ApiRefusal`."""
    payloads_dead_lettered: int
    payloads_repeated: int
    """Left out of inserts, because another segment has claimed them."""
    items_received: Counter[str]
    """By kind: `spans`."""
    items_rejected: dict[str, Counter[str]]
    """By kind, then by reason: for `spans` the names in `collector.otlp.validate.Reason`."""
    names_cut: int
    """Names of received payloads that were too long."""
    bytes_received: int
    """After decompression."""
    segments_not_joined: int
    """Segments with requests that the store refused when they were joined with their parts."""
    requests_explained: Counter[str]
    """By level (collector.causes.split.requests.LEVELS). A request that is explained again counts again."""
    explain_failures: int
    """Rounds of the explainer that ended with an error, and processes and segments that it left unexplained."""
    explain_lag_s: float | None
    """How long the oldest request that is not explained has been in the store; 0 without one. None: not known yet."""
    segments_inserted: int
    wal_segments_pending: int
    """Sealed and open segments. Their rows are not in the store yet."""
    wal_bytes_pending: int
    last_insert_unix_s: float
    """0.0 until the first insert."""
    rows_expired: Counter[str]
    """By table: rows that the retention removed."""
    retention_failures: int
    last_retention_unix_s: float
    """The end of the last complete round; 0.0 until the first."""
    scrapes: Counter[str]
    """By result: `ScrapeResult`, or the status of an answer."""
    scrape_series_dropped: int
    scrape_targets: int
    scrape_targets_dropped: int
    discovery_problems: dict[str, str]
    """By file or name that should tell targets: why it tells none, or only those of before."""
    ready: bool
    reason: str
    """Why the collector is not ready; empty when it is."""
    behind: str
    """Which data has waited for the store for longer than it should; empty when none has."""

    @property
    def spans_received(self) -> int:
        """Spans in acknowledged payloads."""
        return self.items_received["spans"]

    @property
    def spans_rejected(self) -> Mapping[str, int]:
        """Spans left out of acknowledged payloads, by reason."""
        return self.items_rejected.get("spans", {})


@dataclass
class IngestStatus:
    """Counters and readiness, written by the receivers, the logs and the writers; safe to use from any thread."""

    monotonic_s: Callable[[], float] = time.monotonic
    unix_ns: Callable[[], int] = time.time_ns
    behind_after_s: float = 60.0
    """Data that has waited in a log for so long makes the collector degraded."""
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Name and address of everything that listens, with the real ports; set once, before the stages start."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: Counter[str] = field(default_factory=Counter)
    _payloads_rejected: Counter[str] = field(default_factory=Counter)
    _payloads_limited: Counter[tuple[str, str]] = field(default_factory=Counter)
    _limited_since_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _api_refused: Counter[str] = field(default_factory=Counter)
    _items: Counter[str] = field(default_factory=Counter)
    _items_rejected: dict[str, Counter[str]] = field(default_factory=dict)
    _not_ready: dict[str, str] = field(default_factory=lambda: {"start": "the collector is starting"})
    _waiting_since_s: dict[str, float] = field(default_factory=dict)
    _wal_pending: dict[str, tuple[int, int]] = field(default_factory=dict)
    _wal_since_ns: dict[str, int] = field(default_factory=dict)
    _last_insert_unix_s: float = 0.0
    _expired: Counter[str] = field(default_factory=Counter)
    _explained: Counter[str] = field(default_factory=Counter)
    _unexplained_since_s: float | None = None
    _last_retention_unix_s: float = 0.0
    _scrapes: Counter[str] = field(default_factory=Counter)
    _discovery_problems: dict[str, str] = field(default_factory=dict)

    def received(self, items: str, *, count: int, size: int, duplicate: bool, rejected: Mapping[str, int]) -> None:
        """Count one acknowledged payload of `count` items, spans for example; the `rejected` ones are among them."""
        with self._lock:
            self._counts["payloads"] += 1
            self._counts["duplicates"] += duplicate
            self._counts["bytes"] += size
            self._items[items] += count
            self._items_rejected.setdefault(items, Counter()).update(rejected)

    def names_cut(self, count: int) -> None:
        """Count names that were too long and are stored in part."""
        with self._lock:
            self._counts["names_cut"] += count

    def refused(self, reason: str) -> None:
        """Count one payload that was answered with an error."""
        with self._lock:
            self._payloads_rejected[reason] += 1

    def limited(self, tenant: str, limit: str) -> None:
        """Count one payload that was refused because its tenant is over a limit. Many tenants count as `other`."""
        with self._lock:
            known = (tenant, limit) in self._payloads_limited or len(self._payloads_limited) < _MOST_LIMITED
            labels = (tenant if known else "other", limit)
            self._payloads_limited[labels] += 1
            self._limited_since_s.setdefault(labels, self.monotonic_s())

    def api_refused(self, reason: ApiRefusal) -> None:
        """Count one request to the API that was refused or given up."""
        with self._lock:
            self._api_refused[reason] += 1

    def inserted(self, at_unix_s: float) -> None:
        """Count one segment: its rows are in the store."""
        with self._lock:
            self._counts["segments"] += 1
            self._last_insert_unix_s = at_unix_s

    def dead_lettered(self) -> None:
        """Count one dead letter."""
        with self._lock:
            self._counts["dead_lettered"] += 1

    def not_joined(self) -> None:
        """Count one segment: the store refused its requests when they were joined with their parts."""
        with self._lock:
            self._counts["not_joined"] += 1

    def explained(self, levels: Mapping[str, int]) -> None:
        """Count requests whose causes are stored, by level."""
        with self._lock:
            self._explained.update(levels)

    def explain_failed(self) -> None:
        """Count something that the explainer could not do."""
        with self._lock:
            self._counts["explain_failures"] += 1

    def explain_waiting(self, age_s: float | None) -> None:
        """Set how long the oldest request that is not explained has been in the store; None: all are."""
        with self._lock:
            self._unexplained_since_s = inf if age_s is None else self.monotonic_s() - age_s

    def repeated(self, payloads: int) -> None:
        """Count payloads that another collector, or an earlier segment, stores."""
        with self._lock:
            self._counts["repeated"] += payloads

    def wal_pending(self, signal: str, segments: int, size: int, since_ns: int | None = None) -> None:
        """Set how many segments and bytes a signal's log holds that the store does not have yet.

        `since_ns` is the unix time of the oldest, None without one.
        """
        with self._lock:
            self._wal_pending[signal] = (segments, size)
            self._wal_since_ns[signal] = since_ns or 0

    def expired(self, table: str, rows: int) -> None:
        """Count rows that the retention removed from a table."""
        with self._lock:
            self._expired[table] += rows

    def retention_done(self, at_unix_s: float) -> None:
        """Record the end of a complete round of the retention."""
        with self._lock:
            self._last_retention_unix_s = at_unix_s

    def retention_failed(self) -> None:
        """Count one round of the retention that ended with an error."""
        with self._lock:
            self._counts["retention_failures"] += 1

    def scraped(self, result: str, *, series_dropped: int) -> None:
        """Count one scrape, and the series that it left out."""
        with self._lock:
            self._scrapes[result] += 1
            self._counts["scrape_series_dropped"] += series_dropped

    def scrape_targets(self, targets: int, *, dropped: int) -> None:
        """Set how many targets are scraped now, and how many are too many."""
        with self._lock:
            self._counts["scrape_targets"], self._counts["scrape_targets_dropped"] = targets, dropped

    def discovered(self, source: str, problem: str) -> None:
        """Set why a file or a name does not tell its targets; empty when it does."""
        with self._lock:
            if problem:
                self._discovery_problems[source] = problem
            else:
                self._discovery_problems.pop(source, None)

    def set_ready(self, part: str) -> None:
        """Record that `part` works. The collector is ready when every part is."""
        with self._lock:
            self._not_ready.pop(part, None)

    def set_not_ready(self, part: str, reason: str) -> None:
        """Record why `part` does not work."""
        with self._lock:
            self._not_ready[part] = reason

    @contextmanager
    def waiting(self, part: str) -> Iterator[None]:
        """Something waits for `part`. The collector is not ready when that takes two minutes."""
        with self._lock:
            self._waiting_since_s[part] = self.monotonic_s()
        try:
            yield
        finally:
            with self._lock:
                del self._waiting_since_s[part]

    def _behind(self) -> Iterator[str]:
        for signal, since_ns in self._wal_since_ns.items():
            waited_s = (self.unix_ns() - since_ns) / 1e9
            if since_ns and waited_s > self.behind_after_s:
                size = self._wal_pending[signal][1] / 1e6
                yield f"{size:.1f} MB of {signal} wait for the store, the oldest for {waited_s:.0f} s"

    def snapshot(self) -> IngestSnapshot:
        """Read everything at once."""
        with self._lock:
            now_s = self.monotonic_s()
            late = {
                part: f"the {part} has not answered for {now_s - since_s:.0f} s"
                for part, since_s in self._waiting_since_s.items()
                if now_s - since_s >= _LONGEST_WAIT_S
            }
            not_ready = late | self._not_ready
            return IngestSnapshot(
                payloads_received=self._counts["payloads"],
                payloads_duplicate=self._counts["duplicates"],
                payloads_rejected=dict(self._payloads_rejected),
                payloads_limited=dict(self._payloads_limited),
                limited_lately=frozenset(
                    labels for labels, since_s in self._limited_since_s.items() if now_s - since_s < _YOUNG_S
                ),
                api_refused=dict(self._api_refused),
                payloads_dead_lettered=self._counts["dead_lettered"],
                payloads_repeated=self._counts["repeated"],
                items_received=self._items.copy(),
                items_rejected={kind: reasons.copy() for kind, reasons in self._items_rejected.items()},
                names_cut=self._counts["names_cut"],
                bytes_received=self._counts["bytes"],
                segments_not_joined=self._counts["not_joined"],
                requests_explained=self._explained.copy(),
                explain_failures=self._counts["explain_failures"],
                explain_lag_s=None
                if self._unexplained_since_s is None
                else max(0.0, now_s - self._unexplained_since_s),
                segments_inserted=self._counts["segments"],
                wal_segments_pending=sum(segments for segments, _ in self._wal_pending.values()),
                wal_bytes_pending=sum(size for _, size in self._wal_pending.values()),
                last_insert_unix_s=self._last_insert_unix_s,
                rows_expired=self._expired.copy(),
                retention_failures=self._counts["retention_failures"],
                last_retention_unix_s=self._last_retention_unix_s,
                scrapes=self._scrapes.copy(),
                scrape_series_dropped=self._counts["scrape_series_dropped"],
                scrape_targets=self._counts["scrape_targets"],
                scrape_targets_dropped=self._counts["scrape_targets_dropped"],
                discovery_problems=self._discovery_problems.copy(),
                ready=not not_ready,
                reason="; ".join(not_ready.values()),
                behind="; ".join(self._behind()),
            )
