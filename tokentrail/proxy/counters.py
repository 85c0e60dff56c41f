"""The proxy's own metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tokentrail import Trail


class Counters:
    """Counts requests by their outcome, and everything that was refused or could not be read."""

    def __init__(self, trail: Trail) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tokentrail_proxy_requests_total", "Requests by API and outcome; `passed`: not recorded.",
            ["operation", "outcome"], registry=self.registry,
        )  # fmt: skip
        self.in_flight = Gauge("tokentrail_proxy_requests_in_flight", "Requests under way.", registry=self.registry)
        self.refused = Counter(
            "tokentrail_proxy_refused_total", "Requests that the proxy answered itself, by reason.", ["reason"],
            registry=self.registry,
        )  # fmt: skip
        self.unread = Counter(
            "tokentrail_proxy_unread_total", "Parts that passed and could not be read, by reason.",
            ["reason"], registry=self.registry,
        )  # fmt: skip
        self.held = Histogram(
            "tokentrail_proxy_chunk_seconds", "Time from reading a chunk to handing it to the client's connection.",
            buckets=(1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1, 1, 10), registry=self.registry,
        )  # fmt: skip
        self.registry.register(_TrailStats(trail))

    def page(self) -> bytes:
        """The text of `/metrics`."""
        return generate_latest(self.registry)


class _TrailStats(Collector):
    """The counts of the SDK that sends the recorded requests."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    def collect(self) -> Iterator[Metric]:
        """Reads them once for each scrape."""
        stats = self._trail.stats
        yield CounterMetricFamily("tokentrail_proxy_spans_exported_total", "Spans sent.", value=stats.exported)
        yield GaugeMetricFamily("tokentrail_proxy_spans_queued", "Spans that wait to be sent.", value=stats.queued)
        dropped = CounterMetricFamily("tokentrail_proxy_spans_dropped_total", "Spans lost.", labels=["reason"])
        for reason, spans in stats.drops.items():
            dropped.add_metric([reason], spans)
        yield dropped
