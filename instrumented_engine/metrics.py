"""`/metrics`: the engine's state at the moment of the scrape, under vLLM's names where vLLM has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from instrumented_engine import nvml
from instrumented_engine.core.latencies import Histogram
from instrumented_engine.server.service import Service

PREFIX = "tokentrail_engine_"
DEVICE_GAUGES: tuple[tuple[str, str, Callable[[nvml.NvidiaDevice], float | None]], ...] = (
    ("memory_used_bytes", "Device memory in use.", nvml.NvidiaDevice.memory_used_bytes),
    ("utilization_ratio", "Share of time with work, 0 to 1.", nvml.NvidiaDevice.utilization),
    ("power_watts", "Power of the board.", nvml.NvidiaDevice.power_watts),
    ("sm_clock_hertz", "Clock of the multiprocessors.", nvml.NvidiaDevice.sm_clock_hertz),
    ("memory_clock_hertz", "Clock of the memory.", nvml.NvidiaDevice.memory_clock_hertz),
)


def exposition(service: Service) -> tuple[bytes, str]:
    """The metrics in Prometheus' text format, as vLLM has them, and its media type."""
    registry = CollectorRegistry()
    registry.register(_EngineState(service))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _EngineState:
    """A prometheus_client collector: reads, never counts."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._labels = {"model_name": service.settings.model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield self._gauge("ready", "1 when requests can be served.", service.ready)
        yield self._vllm_gauge("num_requests_waiting", "Requests of which nothing runs.", service.waiting)
        yield self._sleep_state(service)
        if service.loaded is not None:
            facts = {name: str(value) for name, value in service.loaded.facts.items()}
            yield InfoMetricFamily(PREFIX + "start", "What was chosen at the start.", value=facts)
            engine = service.loaded.engine
            manager = engine.scheduler.block_manager
            yield self._vllm_gauge("num_requests_running", "Sequences in the batch.", len(engine.scheduler.running))
            if manager.num_blocks:
                used = manager.num_used_blocks / manager.num_blocks
                yield self._vllm_gauge("kv_cache_usage_perc", "Used share of the KV-cache blocks, 0 to 1.", used)
                yield self._gauge("kv_cache_blocks", "KV-cache blocks.", manager.num_blocks)
            yield self._counter("steps", "Engine steps.", engine.steps)
        if service.loaded is not None or service.asleep:
            yield from self._latencies()
        yield self._error_answers()
        yield from self._hand_overs()
        yield from self._spans()
        yield from self._devices()

    def _latencies(self) -> Iterator[Metric]:
        latencies = self._service.observer.latencies
        yield self._vllm_counter("prompt_tokens", "Prompt tokens of requests with a token.", latencies.prompt_tokens)
        yield self._vllm_counter("generation_tokens", "Output tokens.", latencies.output_tokens)
        preemptions = "Sequences that lost their KV-cache blocks."
        yield self._vllm_counter("num_preemptions", preemptions, latencies.preemptions)
        hits = "Prompt tokens that the prefix cache had."
        yield self._vllm_counter("prefix_cache_hits", hits, latencies.cached_tokens)
        drafted, accepted = latencies.drafted_tokens, latencies.accepted_tokens
        yield self._vllm_counter("spec_decode_num_draft_tokens", "Tokens drafted for ended requests.", drafted)
        yield self._vllm_counter("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", accepted)
        success = self._vllm_counter("request_success", "Answers by their end.", None, "finished_reason")
        for reason, count in latencies.finished.items():
            success.add_metric([*self._labels.values(), reason], count)
        yield success
        histograms: dict[str, tuple[str, Histogram]] = {
            "time_to_first_token_seconds": ("Arrival to first token.", latencies.first_token),
            "inter_token_latency_seconds": ("Gap before a token.", latencies.between_tokens),
            "request_time_per_output_token_seconds": ("TPOT of a request.", latencies.per_output_token),
            "e2e_request_latency_seconds": ("Arrival to last token.", latencies.end_to_end),
            "request_queue_time_seconds": ("Arrival to first step.", latencies.queued),
            "request_prefill_time_seconds": ("First step to first token.", latencies.prefill),
            "request_decode_time_seconds": ("First to last token.", latencies.decode),
        }
        for name, (help_text, histogram) in histograms.items():
            family = HistogramMetricFamily("vllm:" + name, help_text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets, histogram.sum)
            yield family

    def _sleep_state(self, service: Service) -> Metric:
        family = self._vllm_gauge("engine_sleep_state", "1 for the state of the model.", None, "sleep_state")
        unloaded = service.asleep
        for state, value in (("awake", not unloaded), ("weights_offloaded", False), ("discard_all", unloaded)):
            family.add_metric([*self._labels.values(), state], value)
        return family

    def _error_answers(self) -> Metric:
        family = CounterMetricFamily(PREFIX + "error_answers", "Answers with an HTTP error, by code.", labels=["code"])
        for code, count in sorted(self._service.error_answers.items()):
            family.add_metric([code], count)
        return family

    def _hand_overs(self) -> Iterator[Metric]:
        observer = self._service.observer
        if self._service.settings.kv_role == "none":
            return
        family = CounterMetricFamily(
            PREFIX + "kv_hand_overs", "Prompts computed for or by another engine.", labels=["outcome"]
        )
        for outcome, count in sorted(observer.hand_overs.items()):
            family.add_metric([outcome], count)
        yield family
        yield self._counter("kv_hand_over_bytes", "Bytes of their keys and values.", observer.hand_over_bytes)

    def _spans(self) -> Iterator[Metric]:
        stats = self._service.observer.stats
        for name in ("accepted", "exported", "dropped"):
            yield self._counter(f"spans_{name}", f"Spans that the trail {name}.", getattr(stats, name))
        yield self._gauge("spans_queued", "Spans that the trail has not sent yet.", stats.queued)

    def _devices(self) -> Iterator[Metric]:
        if not (devices := nvml.devices()):
            return
        for name, help_text, read in DEVICE_GAUGES:
            family = GaugeMetricFamily(f"{PREFIX}device_{name}", help_text, labels=["device"])
            for index, device in enumerate(devices):
                if (value := read(device)) is not None:
                    family.add_metric([str(index)], value)
            yield family
        throttled = GaugeMetricFamily(
            PREFIX + "device_throttled", "1 while the clocks are lowered.", labels=["device", "reason"]
        )
        xids = CounterMetricFamily(PREFIX + "device_xid_errors", "Critical XID errors.", labels=["device", "xid"])
        for index, device in enumerate(devices):
            for reason, lowered in (device.throttled() or {}).items():
                throttled.add_metric([str(index), reason], lowered)
            for xid, count in sorted((device.xid_errors() or {}).items()):
                xids.add_metric([str(index), str(xid)], count)
        yield from (throttled, xids)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        return GaugeMetricFamily(PREFIX + name, help_text, value=value)

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        return CounterMetricFamily(PREFIX + name, help_text, value=value)

    def _vllm_gauge(self, name: str, help_text: str, value: float | None, *more: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily("vllm:" + name, help_text, labels=[*self._labels, *more])
        if value is not None:
            family.add_metric(list(self._labels.values()), value)
        return family

    def _vllm_counter(self, name: str, help_text: str, value: float | None, *more: str) -> CounterMetricFamily:
        family = CounterMetricFamily("vllm:" + name, help_text, labels=[*self._labels, *more])
        if value is not None:
            family.add_metric(list(self._labels.values()), value)
        return family
