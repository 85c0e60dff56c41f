"""The proxy's own metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tokentrail import Trail

_BOUNDS: Final = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1, 1.0, 10.0)
"""Upper bounds of the buckets of a chunk's time, in seconds."""


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
        self.held = ChunkTimes()
        self.registry.register(self.held)
        self.registry.register(_TrailStats(trail))

    def page(self) -> bytes:
        """The text of `/metrics`."""
        return generate_latest(self.registry)


class ChunkTimes(Collector):
    """A histogram that only the event loop touches, for every chunk: prometheus_client's takes a lock."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """A chunk took so long."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        """One histogram."""
        upper = list(accumulate(self._counts))
        yield HistogramMetricFamily(
            "tokentrail_proxy_chunk_seconds",
            "Time from reading a chunk to handing it to the client's connection.",
            buckets=[*zip(map(floatToGoString, _BOUNDS), upper, strict=False), ("+Inf", upper[-1])],
            sum_value=self._sum,
        )


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
