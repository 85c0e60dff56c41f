"""`/metrics`: the engine's state at the moment of the scrape. Metric names follow vLLM's."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from instrumented_engine import nvml
from instrumented_engine.server.service import Service

PREFIX = "tokentrail_engine_"


def exposition(service: Service) -> tuple[bytes, str]:
    """OpenMetrics text and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_EngineState(service))
    return generate_latest(registry), CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]  # untyped upstream


class _EngineState:
    """A prometheus_client collector: reads, never counts."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield self._gauge("ready", "1 when requests can be served.", service.ready)
        yield self._gauge("num_requests_waiting", "Requests not scheduled yet.", service.waiting)
        if service.loaded is not None:
            engine = service.loaded.engine
            block_manager = engine.scheduler.block_manager
            yield self._gauge("num_requests_running", "Requests in the batch.", len(engine.scheduler.running))
            yield self._gauge(
                "kv_cache_usage_ratio",
                "Used share of the KV-cache blocks, 0 to 1.",
                block_manager.num_used_blocks / block_manager.num_blocks,
            )
            yield self._gauge("kv_cache_blocks", "KV-cache blocks.", block_manager.num_blocks)
            yield self._counter(
                "preemptions", "Sequences that lost their KV-cache blocks.", engine.scheduler.preemptions
            )
            yield self._counter("steps", "Engine steps.", engine.steps)
        yield from self._spans()
        yield from self._devices()

    def _spans(self) -> Iterator[Metric]:
        stats = self._service.observer.stats
        for name in ("accepted", "exported", "dropped"):
            yield self._counter(f"spans_{name}", f"Spans that the trail {name}.", getattr(stats, name))
        yield self._gauge("spans_queued", "Spans that the trail has not sent yet.", stats.queued)

    def _devices(self) -> Iterator[Metric]:
        if not (devices := nvml.devices()):
            return
        used = GaugeMetricFamily(PREFIX + "device_memory_used_bytes", "Device memory in use.", labels=["device"])
        busy = GaugeMetricFamily(
            PREFIX + "device_utilization_ratio", "Share of time with work, 0 to 1.", labels=["device"]
        )
        for index, device in enumerate(devices):
            for family, value in ((used, device.memory_used_bytes()), (busy, device.utilization())):
                if value is not None:
                    family.add_metric([str(index)], value)
        yield from (used, busy)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        return GaugeMetricFamily(PREFIX + name, help_text, value=value)

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        return CounterMetricFamily(PREFIX + name, help_text, value=value)
