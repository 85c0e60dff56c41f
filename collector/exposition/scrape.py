"""One scrape: bring the counters up to date, look at the present, and expose both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from collector.exposition import names
from collector.exposition.ledger import SECOND_NS, Ledger
from collector.exposition.series import Series
from collector.slo.judge import TRUE
from collector.sql.queries import Queries
from collector.status import IngestStatus

RECENT_NS: Final = 300 * SECOND_NS
"""An engine process that made no step for this long has no present state to expose."""


class Scrape(Collector):
    """Everything that /metrics says, for prometheus_client to write."""

    def __init__(
        self, ledger: Ledger, queries: Queries, status: IngestStatus, *, lost_after_ns: int, clock: Callable[[], int]
    ) -> None:
        self._ledger = ledger
        self._queries = queries
        self._status = status
        self._lost_after_ns = lost_after_ns
        self._clock = clock

    def collect(self) -> Iterator[Family]:
        """The families; raises what the store raises, so that a scrape fails rather than tell half."""
        present = Series()
        self._engines(present)
        self._ledger.advance()
        yield from self._ledger.families()
        yield from present.families()
        yield from self._ingest().families()

    def _engines(self, present: Series) -> None:
        now = self._clock()
        bounds = {"start_ns": now - RECENT_NS, "end_ns": now}
        for row in self._queries.ask("kv", {"of_engines": TRUE}, **bounds):
            process = self._ledger.see((row["service"], row["instance"]))
            present.set(names.RUNNING, process, row["running_now"])
            present.set(names.WAITING, process, row["waiting_now"])
            if row["blocks_total"]:
                present.set(names.KV_USAGE, process, row["blocks_used"] / row["blocks_total"])
        for process in self._ledger.processes():
            present.set(names.IN_FLIGHT, process, 0)
            present.set(names.STUCK, process, 0)
        for row in self._queries.ask(
            "in_flight_by_process", {"filter": TRUE}, start_ns=now, end_ns=now, lost_after_ns=self._lost_after_ns
        ):
            process = self._ledger.see((row["service"], row["instance"]))
            present.set(names.IN_FLIGHT, process, row["in_flight"])
            present.set(names.STUCK, process, row["stuck"])

    def _ingest(self) -> Series:
        now, series = self._status.snapshot(), Series()
        for metric, n in (
            (names.PAYLOADS, now.payloads_received),
            (names.DUPLICATES, now.payloads_duplicate),
            (names.DEAD_LETTERED, now.payloads_dead_lettered),
            (names.SPANS, now.spans_received),
            (names.BYTES, now.bytes_received),
            (names.SEGMENTS, now.segments_inserted),
        ):
            series.add(metric, (), n)
        for metric, by_reason in ((names.REJECTED, now.payloads_rejected), (names.SPANS_REJECTED, now.spans_rejected)):
            for reason, n in by_reason.items():
                series.add(metric, (reason,), n)
        series.set(names.WAL_SEGMENTS, (), now.wal_segments_pending)
        series.set(names.WAL_BYTES, (), now.wal_bytes_pending)
        series.set(names.LAST_INSERT, (), now.last_insert_unix_s)
        series.set(names.READY, (), int(now.ready))
        return series


def router(scrape: Scrape) -> APIRouter:
    """`GET /metrics`: OpenMetrics with exemplars to whoever accepts it, the classic text format to others."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(scrape)
    routes = APIRouter(tags=["process"])

    @routes.get("/metrics", response_class=Response)
    def get_metrics(request: Request) -> Response:
        """What Prometheus scrapes."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return routes
