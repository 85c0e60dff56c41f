"""The page `/metrics`: counters from the store, the present state of engine processes, and the collector itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from collector.exposition import metrics
from collector.exposition.series import Series
from collector.exposition.store_counters import SECOND_NS, StoreCounters
from collector.in_flight import InFlight
from collector.samples.present import processes
from collector.sql.fragment import TRUE
from collector.sql.queries import Queries
from collector.status import IngestStatus
from collector.store.store import StoreUnavailableError
from collector.store.usage import Usage

logger = logging.getLogger(__name__)

RECENT_NS: Final = 300 * SECOND_NS
"""The present state of an engine process is its newest step, if that is not older than this."""


_MOST_SAMPLED: Final = 1000
"""Most processes with samples on one page."""
_ENGINE_METRICS: Final = {
    "running": metrics.ENGINE_RUNNING,
    "waiting": metrics.ENGINE_WAITING,
    "generation_tokens": metrics.ENGINE_GENERATION_TOKENS,
    "preemptions": metrics.ENGINE_PREEMPTIONS,
    "kv_usage": metrics.ENGINE_KV_USAGE,
}
"""By common name."""


class MetricsPage(Collector):
    """Every metric family of `/metrics`, for prometheus_client to write."""

    def __init__(
        self,
        counters: StoreCounters,
        queries: Queries,
        status: IngestStatus,
        usage: Usage,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._counters = counters
        self._queries = queries
        self._status = status
        self._usage = usage
        self._clock = clock

    def collect(self) -> Iterator[Family]:
        """The families. While the store's server is away, those that come from it are missing as a whole.

        Any other error passes through, so that the scrape fails.
        """
        try:
            from_store = self._from_store()
        except StoreUnavailableError as error:
            logger.warning("a scrape gets no metrics of requests and engines: %s", error)
            from_store = []
        yield from from_store
        yield from self._collector(store_up=bool(from_store)).families()

    def _from_store(self) -> list[Family]:
        present = Series()
        self._newest_steps(present)
        self._samples(present)
        self._tables(present)
        self._in_flight(present, self._counters.update())
        return [*self._counters.families(), *present.families()]

    def _newest_steps(self, present: Series) -> None:
        now = self._clock()
        bounds = {"start_ns": now - RECENT_NS, "end_ns": now}
        for row in self._queries.rows("newest_steps", {"process_filter": TRUE}, **bounds):
            process = self._counters.admit_process((row["service"], row["instance"]))
            for metric, n in ((metrics.RUNNING, row["running_now"]), (metrics.WAITING, row["waiting_now"])):
                if n is not None:
                    present.set(metric, process, n)
            if row["blocks_total"] and row["blocks_used"] is not None:
                present.set(metrics.KV_USAGE, process, row["blocks_used"] / row["blocks_total"])

    def _samples(self, present: Series) -> None:
        now = self._clock()
        for process in processes(self._queries, start_ns=now - RECENT_NS, end_ns=now)[:_MOST_SAMPLED]:
            labels = (process.engine, process.service, process.instance)
            if process.up is not None:
                present.set(metrics.ENGINE_UP, labels, int(process.up))
            for name, metric in _ENGINE_METRICS.items():
                if name in process.values:
                    (present.add if metric.kind == "counter" else present.set)(metric, labels, process.values[name])

    def _in_flight(self, present: Series, in_flight: InFlight) -> None:
        for process in self._counters.processes():
            present.set(metrics.IN_FLIGHT, process, 0)
            present.set(metrics.STUCK, process, 0)
        for metric, requests in (
            (metrics.IN_FLIGHT, ~in_flight.is_lost),
            (metrics.STUCK, ~in_flight.is_lost & in_flight.no_progress),
        ):
            for process, n in in_flight.count_by_process(requests).items():
                present.set(metric, self._counters.admit_process(process), n)

    def _tables(self, present: Series) -> None:
        for table, row in self._usage.tables().items():
            present.set(metrics.STORE_ROWS, (table,), row["total_rows"])
            present.set(metrics.STORE_BYTES, (table,), row["disk_bytes"])
        for disk in self._usage.disks():
            present.set(metrics.STORE_FREE, (disk["name"], disk["path"]), disk["free_bytes"])

    def _collector(self, *, store_up: bool) -> Series:
        now, series = self._status.snapshot(), Series()
        for metric, n in (
            (metrics.PAYLOADS, now.payloads_received),
            (metrics.DUPLICATES, now.payloads_duplicate),
            (metrics.REPEATED, now.payloads_repeated),
            (metrics.DEAD_LETTERED, now.payloads_dead_lettered),
            (metrics.NOT_JOINED, now.segments_not_joined),
            (metrics.SPANS, now.spans_received),
            (metrics.DATA_POINTS, now.items_received["data_points"]),
            (metrics.SCRAPE_SERIES_DROPPED, now.scrape_series_dropped),
            (metrics.BYTES, now.bytes_received),
            (metrics.SEGMENTS, now.segments_inserted),
        ):
            series.add(metric, (), n)
        for metric, by_reason in (
            (metrics.REJECTED, now.payloads_rejected),
            (metrics.SPANS_REJECTED, now.spans_rejected),
            (metrics.DATA_POINTS_DROPPED, now.items_rejected.get("data_points", {})),
            (metrics.SCRAPES, now.scrapes),
        ):
            for reason, n in by_reason.items():
                series.add(metric, (reason,), n)
        for labels, n in now.payloads_limited.items():
            series.add(metrics.LIMITED, labels, n)
        for reason, n in now.api_refused.items():
            series.add(metrics.API_REFUSED, (reason,), n)
        series.set(metrics.SCRAPE_TARGETS, (), now.scrape_targets)
        series.set(metrics.SCRAPE_TARGETS_DROPPED, (), now.scrape_targets_dropped)
        series.set(metrics.WAL_SEGMENTS, (), now.wal_segments_pending)
        series.set(metrics.WAL_BYTES, (), now.wal_bytes_pending)
        series.set(metrics.LAST_INSERT, (), now.last_insert_unix_s)
        for table, n in now.rows_expired.items():
            series.add(metrics.RETENTION_ROWS, (table,), n)
        series.add(metrics.RETENTION_FAILURES, (), now.retention_failures)
        series.set(metrics.RETENTION_LAST, (), now.last_retention_unix_s)
        dead_letters, free_bytes = self._usage.dead_letters(), self._usage.data_dir_free()
        if dead_letters is not None and free_bytes is not None:
            series.set(metrics.DEAD_LETTER_BYTES, (), dead_letters.size)
            series.set(metrics.DATA_DIR_FREE, (), free_bytes)
        series.set(metrics.READY, (), int(now.ready))
        series.set(metrics.STORE_UP, (), int(store_up))
        return series


def router(page: MetricsPage) -> APIRouter:
    """`GET /metrics`: OpenMetrics with exemplars to a scraper that accepts it, the classic text format to others."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(page)
    routes = APIRouter(tags=["process"])

    @routes.get("/metrics", response_class=Response)
    def get_metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return routes
