"""CPU of the GenAI server histograms for each request that ends, on the thread that builds spans.

`without_provider` is the cost in a process without a `MeterProvider`, where OpenTelemetry's API does nothing.
`with_provider` records into opentelemetry-sdk; its peer is that SDK alone: three `Histogram.record` with attributes
that are ready. `building` is the cost of everything else of an ended request there, for comparison. All take turns,
and the best round of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import typer
from opentelemetry.metrics import MeterProvider as Provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from benchmarks.report import JsonPath, Quick, publish
from tokentrail import RequestTrail, now_ns
from tokentrail._build.metrics import Metrics
from tokentrail._build.spans import Emitted
from tokentrail.testing import MemoryTrail

_TTFT_NS, _GAP_NS, _TOKENS = 120_000_000, 20_000_000, 128
_EMITTED_NS: Final = _TTFT_NS + (_TOKENS - 1) * _GAP_NS


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure the histograms with and without a provider."""
    requests, rounds = (2_000, 3) if quick else (20_000, 7)
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    measures: dict[str, Callable[[], float]] = {
        "without_provider_us": lambda: _record_us(None, requests),
        "with_provider_us": lambda: _record_us(provider, requests),
        "opentelemetry_alone_us": lambda: _alone_us(provider, requests),
        "building_us": lambda: _build_us(requests),
    }
    taken = [{name: measure() for name, measure in measures.items()} for _ in range(rounds)]
    numbers = {name: min(one[name] for one in taken) for name in measures} | {"requests": requests, "rounds": rounds}
    publish("sdk_metrics", numbers, packages=("tokentrail", "opentelemetry-sdk"), quick=quick, path=json)


def _record_us(provider: Provider | None, requests: int) -> float:
    metrics, (request, *_), emitted, end = Metrics(provider), *_ended(1)
    assert request.ended is not None
    before = time.process_time_ns()
    for _ in range(requests):
        metrics.record(request, request.ended, end, emitted)
    return (time.process_time_ns() - before) / 1_000 / requests


def _alone_us(provider: MeterProvider, requests: int) -> float:
    meter = provider.get_meter("benchmark")
    histograms = [meter.create_histogram(f"alone_{number}", "s") for number in range(3)]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tokentrail",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
    }
    before = time.process_time_ns()
    for _ in range(requests):
        for histogram in histograms:
            histogram.record(0.12, attributes)
    return (time.process_time_ns() - before) / 1_000 / requests


def _build_us(requests: int) -> float:
    """From the records of ended requests to their bytes, without tokens."""
    trail = MemoryTrail(clock=now_ns)
    ended = _started(trail, requests)
    trail.flush(0)
    for request in ended:
        request.end()
    before = time.process_time_ns()
    trail.flush(0)
    return (time.process_time_ns() - before) / 1_000 / requests


def _started(trail: MemoryTrail, requests: int) -> list[RequestTrail]:
    return [trail.start_request(operation="chat", model="m", request_id=str(number)) for number in range(requests)]


def _ended(requests: int) -> tuple[list[RequestTrail], Emitted, int]:
    ended = _started(MemoryTrail(), requests)
    arrival = ended[0].started.arrival_ns
    for request in ended:
        request.end(arrival + _EMITTED_NS)
    return ended, Emitted(_TOKENS, arrival + _TTFT_NS, arrival + _EMITTED_NS), arrival + _EMITTED_NS


if __name__ == "__main__":
    typer.run(main)
