"""CPU per token: tokentrail against opentelemetry-sdk, both up to the serialised bytes and a null transport.

`realistic`: requests of 128 tokens and three phases; in each step 0.8 % of the batch end and others arrive; a third of
the steps give `counts` of one or two tokens; the engine's making of the list of requests is included. `best_case`: one
batch that never changes, so that a request's own cost vanishes.

`floor` is the same work without the SDK: the engine's list and a call that does nothing; `floor_packed`: the list and a
call that packs the numbers of the step and keeps them; and the bytes of token spans written from columns that lie ready
in the CPU's cache.

The figures are process time of all threads, so that work on a background thread counts too. opentelemetry-sdk writes
the same request, phase and token spans; tokentrail also writes its step spans and announcements, which count too.
All take turns and the best round of each counts, so that other load on the machine weighs on all alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import typer
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, set_span_in_context

from benchmarks.report import JsonPath, Quick, publish
from benchmarks.sdk_floors import fill_ns, no_step, packed_step
from tokentrail import Phase, RequestTrail, Trail, now_ns, semconv
from tokentrail._send.http import Endpoint
from tokentrail._send.transport import SendResult, SendStatus
from tokentrail.config import Settings

BATCHES: Final = (1, 8, 64)
BURST_TOKENS: Final = 16_384
"""Tokens between two builds: about as many as a busy engine emits in one schedule delay."""
REQUEST_TOKENS: Final = 128
REQUEST_STEPS: Final = 110
"""Steps of a request: two thirds of them bring one token, a third one or two."""
SHORTEST_SHARE: Final = 8
"""A run has at least this part of the tokens of the longest: buffers are then as large as they stay."""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure both and print the ratio."""
    tokens, peer_tokens, rounds = (200_000, 5_000, 3) if quick else (1_000_000, 30_000, 7)
    measures: dict[str, Callable[[], float]] = {
        "opentelemetry_realistic": lambda: _opentelemetry_ns(peer_tokens, REQUEST_TOKENS),
        "opentelemetry_best_case": lambda: _opentelemetry_ns(peer_tokens, peer_tokens),
    }
    for batch in BATCHES:
        share = max(tokens * batch // BATCHES[-1], tokens // SHORTEST_SHARE)
        measures[f"realistic_batch_{batch}"] = partial(_realistic_ns, batch, share)
        measures[f"best_case_batch_{batch}"] = partial(_best_case_ns, batch, share)
        measures[f"engine_thread_batch_{batch}"] = partial(_engine_thread_ns, batch, share)
        measures[f"floor_engine_thread_batch_{batch}"] = partial(_engine_thread_ns, batch, share, no_step)
        measures[f"floor_packed_engine_thread_batch_{batch}"] = partial(_engine_thread_ns, batch, share, packed_step)
    measures["floor_build"] = fill_ns
    taken = [{name: measure() for name, measure in measures.items()} for _ in range(rounds)]
    best = {name: min(one[name] for one in taken) for name in measures}
    numbers: dict[str, float] = {}
    for case in ("realistic", "best_case"):
        for batch in BATCHES:
            numbers[f"{case}_ratio_batch_{batch}"] = best[f"opentelemetry_{case}"] / best[f"{case}_batch_{batch}"]
    numbers |= {f"{name}_ns_per_token": value for name, value in best.items()}
    for name in ("engine_thread", "floor_engine_thread", "floor_packed_engine_thread"):
        numbers |= {f"{name}_batch_{batch}_ns_per_step": best[f"{name}_batch_{batch}"] * batch for batch in BATCHES}
    numbers["bytes_per_token_span"] = _bytes_per_token_span()
    numbers["load_average"] = os.getloadavg()[0]
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


def _trail(*, background: bool, sink: _NullSink | None = None) -> Trail:
    settings = Settings(Endpoint("http://null.invalid", {}), schedule_delay_s=0.1, strict=True)
    provider = TracerProvider(resource=Resource({semconv.SERVICE_NAME: "benchmark"}), shutdown_on_exit=False)
    return Trail(settings, provider, transport=sink or _NullSink(), background=background)


@dataclass(slots=True)
class _Sequence:
    """A request as the engine's scheduler knows it."""

    request: RequestTrail


def _arrival(trail: Trail, number: int, stamp: int) -> _Sequence:
    request = trail.start_request(
        operation="chat", model="meta-llama/Llama-3.1-8B-Instruct", request_id=f"cmpl-{number:032x}", arrival_ns=stamp,
        input_tokens=512, tenant="acme", slo_class="chat",
    )  # fmt: skip
    request.phase(Phase.PREFILL, stamp + 1_000_000)
    request.phase(Phase.DECODE, stamp + 20_000_000)
    return _Sequence(request)


class _Step(NamedTuple):
    """A step of the engine: the counts, if it speculates, and the places of the requests that end with it."""

    stamp: int
    counts: list[int] | None
    ending: list[int]
    burst_is_over: bool


def _schedule(batch: int, tokens: int, begun: int) -> list[_Step]:
    """Steps that emit that many tokens. In each, 0.8 % of the batch end; two thirds of the steps give no counts."""
    alternating = [[1 + (i + j) % 2 for i in range(batch)] for j in range(2)]
    ending: list[list[int]] = [[] for _ in range(REQUEST_STEPS)]
    for i in range(batch):
        ending[i * REQUEST_STEPS // batch].append(i)
    steps: list[_Step] = []
    made = since_burst = 0
    while made < tokens:
        step = len(steps)
        counts = alternating[step % 2] if step // 50 % 3 == 2 else None
        emitted = sum(counts) if counts else batch
        made, since_burst = made + emitted, since_burst + emitted
        burst_is_over = since_burst >= BURST_TOKENS
        since_burst = 0 if burst_is_over else since_burst
        steps.append(_Step(begun + step * 10_000, counts, ending[step % REQUEST_STEPS], burst_is_over))
    return steps


def _realistic_ns(batch: int, tokens: int) -> float:
    trail = _trail(background=True)
    begun = now_ns()
    steps = _schedule(batch, tokens, begun)
    made = sum(sum(step.counts) if step.counts else batch for step in steps)

    def work() -> None:
        running = [_arrival(trail, i, begun) for i in range(batch)]
        for number, (stamp, counts, ending, burst_is_over) in enumerate(steps):
            trail.step(
                number, stamp, stamp + 9_000, [sequence.request for sequence in running],
                counts=None if counts is None else list(counts),
                decode_tokens=batch, running=batch, kv_used=number, kv_total=100_000,
            )  # fmt: skip
            for i in ending:
                running[i].request.end(stamp + 9_000, finish_reason="stop")
                running[i] = _arrival(trail, number, stamp + 9_000)
            if burst_is_over:
                trail.flush(60.0)
        for sequence in running:
            sequence.request.end(stamp + 9_000)
        trail.flush(60.0)

    spent = _process_ns(work)
    stats = trail.stats
    trail.shutdown()
    if stats.exported < made or stats.dropped:
        raise RuntimeError(f"{made} tokens were made and not all exported: {stats}")
    return spent / made


def _best_case_ns(batch: int, tokens: int) -> float:
    trail = _trail(background=True)
    steps = tokens // batch

    def work() -> None:
        begun = now_ns()
        requests = [_arrival(trail, i, begun).request for i in range(batch)]
        for step in range(steps):
            stamp = begun + step * 10_000
            trail.step(
                step, stamp, stamp + 9_000, requests,
                decode_tokens=batch, running=batch, kv_used=step, kv_total=100_000,
            )  # fmt: skip
            if step % (BURST_TOKENS // batch) == 0:
                trail.flush(60.0)
        for request in requests:
            request.end(stamp + 9_000)
        trail.flush(60.0)

    spent = _process_ns(work)
    stats = trail.stats
    trail.shutdown()
    if stats.exported < steps * (batch + 1) or stats.dropped:
        raise RuntimeError(f"{steps * (batch + 1)} spans were made and not all exported: {stats}")
    return spent / (steps * batch)


def _engine_thread_ns(batch: int, tokens: int, record: Callable[..., None] | None = None) -> float:
    """The engine thread's share: the list of requests and `Trail.step` (or `record`), nothing drained meanwhile."""
    trail = _trail(background=False)
    record = record or trail.step
    begun = now_ns()
    running = [_arrival(trail, i, begun) for i in range(batch)]
    trail.flush()
    steps = min(tokens // batch, 50_000)
    before = time.thread_time_ns()
    for step in range(steps):
        record(
            step, begun, begun + 9_000, [sequence.request for sequence in running],
            decode_tokens=batch, running=batch, kv_used=step, kv_total=100_000,
        )  # fmt: skip
    return (time.thread_time_ns() - before) / (steps * batch)


def _bytes_per_token_span() -> float:
    sent = []
    for tokens in (1_000, 3_000):
        sink = _NullSink()
        trail = _trail(background=False, sink=sink)
        request = _arrival(trail, 0, now_ns()).request
        trail.step(0, now_ns(), now_ns(), [request], counts=[tokens])
        trail.flush()
        sent.append(sink.bytes)
    return (sent[1] - sent[0]) / 2_000


_ATTRIBUTES: Final[dict[str, str | int | float | list[str]]] = {
    semconv.OPERATION_NAME: "chat",
    semconv.PROVIDER_NAME: "tokentrail",
    semconv.REQUEST_MODEL: "meta-llama/Llama-3.1-8B-Instruct",
    semconv.RESPONSE_MODEL: "meta-llama/Llama-3.1-8B-Instruct",
    semconv.TENANT: "acme",
    semconv.SLO_CLASS: "chat",
    semconv.STATUS: "ok",
    semconv.FINISH_REASONS: ["stop"],
    semconv.FINISH_REASON: "stop",
    semconv.INPUT_TOKENS: 512,
    semconv.OUTPUT_TOKENS: REQUEST_TOKENS,
    semconv.TIME_TO_FIRST_CHUNK: 0.02,
    semconv.TIME_TO_LAST_TOKEN: 2.0,
    **{semconv.PHASE_TIME_PREFIX + phase: 1_000_000 for phase in ("queued", "prefill", "decode")},
}


class _EncodingSink(SpanExporter):
    def __init__(self) -> None:
        self.spans = self.bytes = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.bytes += len(encode_spans(spans).SerializeToString())
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


def _opentelemetry_ns(tokens: int, each: int) -> float:
    """`tokens` token spans, in requests of `each` tokens with three phases."""
    sink = _EncodingSink()
    provider = TracerProvider(resource=Resource({semconv.SERVICE_NAME: "benchmark"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(sink, max_queue_size=2 * tokens + 1_000))
    tracer = provider.get_tracer(semconv.SCOPE_NAME)
    requests = -(-tokens // each)

    def work() -> None:
        stamp = now_ns()
        for number in range(requests):
            request = tracer.start_span("chat m", kind=SpanKind.SERVER, start_time=stamp)
            context = set_span_in_context(request)
            request.set_attributes(_ATTRIBUTES | {semconv.RESPONSE_ID: f"cmpl-{number:032x}"})
            for phase in ("queued", "prefill", "decode"):
                tracer.start_span(
                    semconv.PHASE_SPAN, context, attributes={semconv.PHASE_NAME: phase}, start_time=stamp
                ).end(stamp)
            for index in range(min(each, tokens - number * each)):
                step = {semconv.STEP: index}
                span = tracer.start_span(semconv.TOKEN_SPAN, context, attributes=step, start_time=stamp)
                stamp += 9_000
                span.end(stamp)
            request.end(stamp)
        provider.force_flush(60_000)

    spent = _process_ns(work)
    provider.shutdown()
    if sink.spans != tokens + 4 * requests:
        raise RuntimeError(f"opentelemetry-sdk exported {sink.spans} of {tokens + 4 * requests} spans: no comparison")
    return spent / tokens


def _process_ns(work: Callable[[], None]) -> int:
    before = time.process_time_ns()
    work()
    return time.process_time_ns() - before


if __name__ == "__main__":
    typer.run(main)
