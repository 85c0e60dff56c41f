"""CPU per token span: tokentrail against opentelemetry-sdk, both up to the serialised bytes and a null transport.

The figures are process time of all threads, so that work on a background thread counts too. Both write the same spans
(name, ids, parent, times, two integer attributes); tokentrail also writes its step spans, and its figure includes them.
The two take turns and the best round of each counts, so that other load on the machine weighs on both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import typer
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, set_span_in_context

from benchmarks.report import JsonPath, Quick, publish
from tokentrail import RequestTrail, Trail, now_ns, semconv
from tokentrail.config import Settings
from tokentrail.export import SendResult, SendStatus
from tokentrail.http import Endpoint

BATCHES: Final = (1, 8, 64)
BURST_TOKENS: Final = 16_384
"""Tokens between two builds: about as many as a busy engine emits in one schedule delay."""
FLOOR_NS: Final = {"hot_path": 16.0, "build_and_serialise": 55.0}
"""Estimates from before optimising: one append per step of 64 tokens, and NumPy filling ~140 bytes per span."""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure both and print the ratio."""
    tokens, peer_tokens, rounds = (200_000, 5_000, 3) if quick else (1_000_000, 30_000, 7)
    measures: dict[str, Callable[[], float]] = {"opentelemetry_cpu": lambda: _opentelemetry_ns(peer_tokens)}
    for batch in BATCHES:
        share = tokens * batch // BATCHES[-1]
        measures[f"hot_path_batch_{batch}"] = partial(_hot_path_ns, batch, share)
        measures[f"tokentrail_cpu_batch_{batch}"] = partial(_tokentrail_ns, batch, share)
    taken = [{name: measure() for name, measure in measures.items()} for _ in range(rounds)]
    best = {name: min(one[name] for one in taken) for name in measures}
    numbers: dict[str, float] = {f"floor_{name}_ns_per_token": value for name, value in FLOOR_NS.items()}
    numbers |= {f"{name}_ns_per_token": value for name, value in best.items()}
    for batch in BATCHES:
        per_token = best["opentelemetry_cpu"] / best[f"tokentrail_cpu_batch_{batch}"]
        numbers[f"ratio_per_token_batch_{batch}"] = per_token
        numbers[f"ratio_per_span_batch_{batch}"] = per_token * (batch + 1) / batch  # with the step spans
    numbers["rounds"] = rounds
    packages = ("tokentrail", "numpy", "protobuf", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-common")
    publish("sdk_span_cost", numbers, packages=packages, quick=quick, path=json)


class _NullSink:
    """A transport that takes everything and counts the bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, body: bytes) -> SendResult:
        self.bytes += len(body)
        return SendResult(SendStatus.DELIVERED)


def _trail(*, background: bool) -> Trail:
    settings = Settings(Endpoint("http://null.invalid", {}), schedule_delay_s=0.1, strict=True)
    provider = TracerProvider(resource=Resource({semconv.SERVICE_NAME: "benchmark"}), shutdown_on_exit=False)
    return Trail(settings, provider, transport=_NullSink(), background=background)


def _requests(trail: Trail, batch: int) -> list[RequestTrail]:
    return [trail.start_request(operation="chat", model="m", arrival_ns=now_ns()) for _ in range(batch)]


def _run_steps(trail: Trail, requests: Sequence[RequestTrail], steps: int, each: int) -> None:
    """`each` steps a burst, one burst after the other, with the stamps a real engine would take."""
    begun = now_ns()
    for first in range(0, steps, each):
        for step in range(first, min(first + each, steps)):
            trail.step(
                step, begun + step * 10_000, begun + step * 10_000 + 9_000, requests,
                decode_tokens=len(requests), running=len(requests), kv_used=step, kv_total=100_000,
            )  # fmt: skip
        trail.flush(60.0)


def _hot_path_ns(batch: int, tokens: int) -> float:
    """The engine thread's share: `Trail.step` alone, nothing drained meanwhile."""
    trail = _trail(background=False)
    requests = _requests(trail, batch)
    trail.flush()
    steps = min(tokens // batch, 50_000)
    begun = now_ns()
    before = time.thread_time_ns()
    for step in range(steps):
        trail.step(
            step, begun, begun + 9_000, requests,
            decode_tokens=batch, running=batch, kv_used=step, kv_total=100_000,
        )  # fmt: skip
    return (time.thread_time_ns() - before) / (steps * batch)


def _tokentrail_ns(batch: int, tokens: int) -> float:
    trail = _trail(background=True)
    steps = tokens // batch

    def work() -> None:
        requests = _requests(trail, batch)
        _run_steps(trail, requests, steps, each=BURST_TOKENS // batch)
        for request in requests:
            request.end(now_ns())
        trail.flush(60.0)

    spent = _process_ns(work)
    stats = trail.stats
    trail.shutdown()
    expected = steps * batch + steps + 2 * batch
    if stats.exported < expected or stats.dropped:
        raise RuntimeError(f"{expected} spans were made and not all exported: {stats}")
    return spent / (steps * batch)


class _EncodingSink(SpanExporter):
    def __init__(self) -> None:
        self.spans = self.bytes = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.bytes += len(encode_spans(spans).SerializeToString())
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


def _opentelemetry_ns(tokens: int) -> float:
    sink = _EncodingSink()
    provider = TracerProvider(resource=Resource({semconv.SERVICE_NAME: "benchmark"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(sink, max_queue_size=tokens + 1_000))
    tracer = provider.get_tracer(semconv.SCOPE_NAME)

    def work() -> None:
        request = tracer.start_span("chat m", kind=SpanKind.SERVER)
        context = set_span_in_context(request)
        stamp = now_ns()
        for index in range(tokens):
            attributes = {semconv.TOKEN_INDEX: index, semconv.STEP: index}
            span = tracer.start_span(semconv.TOKEN_SPAN, context, attributes=attributes, start_time=stamp)
            stamp += 9_000
            span.end(stamp)
        request.end()
        provider.force_flush(60_000)

    spent = _process_ns(work)
    provider.shutdown()
    if sink.spans != tokens + 1:
        raise RuntimeError(f"opentelemetry-sdk exported {sink.spans} of {tokens + 1} spans: no comparison")
    return spent / tokens


def _process_ns(work: Callable[[], None]) -> int:
    before = time.process_time_ns()
    work()
    return time.process_time_ns() - before


if __name__ == "__main__":
    typer.run(main)
