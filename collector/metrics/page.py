"""The page `/metrics`: the state of the latest refresh, and the collector itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder

from collector.access.tls import Tls
from collector.base.status import ApiRefusal, IngestStatus, ScrapeResult
from collector.causes.split.requests import LEVELS
from collector.keep.usage import Usage
from collector.metrics import metrics
from collector.metrics.live import Live
from collector.metrics.room import with_room
from collector.metrics.series import SECOND_NS, Series
from collector.otlp import logs, validate
from collector.otlp import metrics as check
from collector.receive.refusals import REFUSALS
from collector.slo.file import SloFile
from collector.store.schema import HELD_TABLES, TIME_COLUMNS

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of the counters and histograms, which have a hundred lines for each label set of requests."""
_END = b"# EOF\n"
"""The last line of a page of OpenMetrics."""
_KNOWN: Final[Mapping[metrics.Metric, Iterable[str]]] = {
    metrics.REJECTED: {refusal.reason for refusal in REFUSALS.values()},
    metrics.SPANS_REJECTED: validate.Reason,
    metrics.DATA_POINTS_DROPPED: check.Reason,
    metrics.LOG_RECORDS_DROPPED: (logs.UNCLAIMED, *logs.Reason),
    metrics.API_REFUSED: ApiRefusal,
    metrics.SCRAPES: ScrapeResult,
    metrics.RETENTION_ROWS: (*TIME_COLUMNS, *HELD_TABLES),
    metrics.EXPLAINED: LEVELS,
}
"""These series are 0 from the start. Prometheus's `increase()` does not see the first event of a series that begins
with it. The counters of `Live` see to theirs themselves.
"""


class _Families:
    """Families of metrics, as prometheus_client's encoders read them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


class MetricsPage:
    """Writes `/metrics`. The text of counters is kept until they change."""

    def __init__(
        self,
        live: Live,
        status: IngestStatus,
        usage: Usage,
        *,
        heard_until: Callable[[], int],
        slo_file: SloFile | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`tls` is None where the ports speak plain text."""
        self._live = live
        self._status = status
        self._usage = usage
        self._heard_until = heard_until
        self._slo_file = slo_file
        self._tls = tls
        self._texts: dict[str, tuple[list[Family], bytes]] = {}
        self._left_out_bytes = 0
        self._writes = threading.Lock()
        """A scrape that comes while another one writes waits for its text: many at once would make each slower."""

    def text(self, encode: Callable[[Any], bytes], content_type: str) -> bytes:
        """The page in the format of an encoder."""
        counted, gauges = self._live.families
        with self._writes:
            kept = self._texts.get(content_type)
            if kept is None or kept[0] is not counted:
                kept = self._texts[content_type] = counted, self._counted(counted, encode)
        self._live.scraped(counted)
        return kept[1] + encode(_Families([*gauges, *self._collector().families()]))

    def _counted(self, families: list[Family], encode: Callable[[Any], bytes]) -> bytes:
        """The text of counters, and of the histograms that there is room for."""

        def text_of(some: Iterable[Family]) -> bytes:
            return encode(_Families(some)).removesuffix(_END)

        counters = text_of([family for family in families if family.type != "histogram"])
        of_histograms = [family for family in families if family.type == "histogram"]
        histograms, left_out = with_room(of_histograms, text_of, max(0, MOST_BYTES - len(counters)))
        if left_out and not self._left_out_bytes:
            whole = len(counters) + len(histograms) + left_out
            logger.warning("/metrics leaves out histograms: its counters and histograms have %d bytes", whole)
        self._left_out_bytes = left_out
        return counters + histograms

    def _collector(self) -> Series:
        now, series = self._status.snapshot(), Series()
        for metric, n in (
            (metrics.PAYLOADS, now.payloads_received),
            (metrics.DUPLICATES, now.payloads_duplicate),
            (metrics.REPEATED, now.payloads_repeated),
            (metrics.DEAD_LETTERED, now.payloads_dead_lettered),
            (metrics.NOT_JOINED, now.segments_not_joined),
            (metrics.EXPLAIN_FAILURES, now.explain_failures),
            (metrics.SPANS, now.spans_received),
            (metrics.DATA_POINTS, now.items_received["data_points"]),
            (metrics.NAMES_CUT, now.names_cut),
            (metrics.SCRAPE_SERIES_DROPPED, now.scrape_series_dropped),
            (metrics.BYTES, now.bytes_received),
            (metrics.SEGMENTS, now.segments_inserted),
        ):
            series.add(metric, (), n)
        for metric, by_label in (
            (metrics.REJECTED, now.payloads_rejected),
            (metrics.SPANS_REJECTED, now.spans_rejected),
            (metrics.DATA_POINTS_DROPPED, now.items_rejected.get("data_points", {})),
            (metrics.LOG_RECORDS_DROPPED, now.items_rejected.get("log_records", {})),
            (metrics.SCRAPES, now.scrapes),
            (metrics.API_REFUSED, now.api_refused),
            (metrics.RETENTION_ROWS, now.rows_expired),
            (metrics.EXPLAINED, now.requests_explained),
        ):
            for label in _KNOWN[metric]:
                series.add(metric, (label,))
            for label, n in by_label.items():
                series.add(metric, (label,), n)
        for labels, n in now.payloads_limited.items():
            series.add(metrics.LIMITED, labels, 0 if labels in now.limited_lately else n)
        series.set(metrics.SCRAPE_TARGETS, (), now.scrape_targets)
        series.set(metrics.SCRAPE_TARGETS_DROPPED, (), now.scrape_targets_dropped)
        if now.explain_lag_s is not None:
            series.set(metrics.EXPLAIN_LAG, (), now.explain_lag_s)
        series.set(metrics.WAL_SEGMENTS, (), now.wal_segments_pending)
        series.set(metrics.WAL_BYTES, (), now.wal_bytes_pending)
        series.set(metrics.LAST_INSERT, (), now.last_insert_unix_s)
        series.add(metrics.RETENTION_FAILURES, (), now.retention_failures)
        series.set(metrics.RETENTION_LAST, (), now.last_retention_unix_s)
        if dead_letters := self._usage.dead_letters():
            series.set(metrics.DEAD_LETTER_BYTES, (), dead_letters.size)
        if disk := self._usage.data_disk():
            series.set(metrics.DATA_DIR_FREE, (), disk.free)
            series.set(metrics.DATA_DIR_TOTAL, (), disk.total)
        series.add(metrics.SLO_FILE_REFUSED, (), self._slo_file.refused if self._slo_file else 0)
        if self._tls:
            series.set(metrics.CERTIFICATE_USABLE, (), int(self._tls.is_usable))
        if self._tls and (valid := self._tls.validity):
            series.set(metrics.CERTIFICATE_FROM, (), valid.not_before_s)
            series.set(metrics.CERTIFICATE_UNTIL, (), valid.not_after_s)
        series.set(metrics.LEFT_OUT_BYTES, (), self._left_out_bytes)
        series.set(metrics.READY, (), int(now.ready))
        series.set(metrics.STORE_UP, (), int(self._live.store_up))
        series.set(metrics.STATE_AT, (), self._live.state_at_s)
        series.set(metrics.HEARD_UNTIL, (), self._heard_until() / SECOND_NS)
        return series


def _known(accept: str) -> str:
    """OpenMetrics 1.0.0 if the scraper accepts a version 1, else nothing, which is the classic text format.

    The encoders would answer with any version that is asked for, and fail with one that is no number.
    """
    for kind, *parameters in (one.lower().replace(" ", "").split(";") for one in accept.split(",")):
        version = next((given[8:] for given in parameters if given.startswith("version=")), "1.0.0")
        if kind == "application/openmetrics-text" and version.startswith("1."):
            return "application/openmetrics-text; version=1.0.0"
    return ""


def router(page: MetricsPage) -> APIRouter:
    """`GET /metrics`: OpenMetrics with exemplars to a scraper that accepts it, the classic text format to others."""
    routes = APIRouter(tags=["process"])

    text: Any = {"schema": {"type": "string"}}
    content = {"application/openmetrics-text": text, "text/plain": text}

    @routes.get("/metrics", response_class=Response, responses={200: {"content": content}})
    def get_metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        encode, content_type = choose_encoder(_known(request.headers.get("accept", "")))
        return Response(page.text(encode, content_type), headers={"content-type": content_type})

    return routes
