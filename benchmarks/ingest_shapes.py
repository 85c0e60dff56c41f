"""Bodies of the shapes that collectors receive, for `benchmarks.collector_ingest`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from tokentrail import Phase, Trail, now_ns, semconv
from tokentrail._send.http import Endpoint
from tokentrail._send.transport import SendResult, SendStatus
from tokentrail.config import Settings

BATCH: Final = 64
TOKENS_PER_REQUEST: Final = 256
STEPS_PER_EXPORT: Final = 40
"""One second of steps, the SDK's schedule delay: about 2,600 spans a body."""
SPANS_PER_BODY: Final = 512
"""OpenTelemetry's batch size."""
VLLM: Final = Path(__file__).resolve().parents[1] / "tests" / "data" / "vllm-0.32" / "traces"

_Value = str | int | float


class _Capture:
    """A transport that keeps the bodies that the SDK would have sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, body: bytes) -> SendResult:
        self.bodies.append(bytes(body))
        return SendResult(SendStatus.DELIVERED)


def of_our_sdk(waves: int) -> tuple[list[bytes], int, int]:
    """Build the bodies of an engine at batch 64, and count their tokens and spans.

    Each wave is 64 requests of 256 tokens, about 25 ms a step with jitter.
    """
    chance = random.Random(1)
    capture = _Capture()
    settings = Settings(Endpoint("http://null.invalid", {}), strict=True)
    resource = Resource({semconv.SERVICE_NAME: "benchmark", semconv.SERVICE_INSTANCE_ID: "engine-0"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    trail = Trail(settings, provider, transport=capture, background=False)
    at = now_ns() - waves * TOKENS_PER_REQUEST * 25_000_000
    step = 0
    for _ in range(waves):
        requests = [
            trail.start_request(operation="chat", model="m", arrival_ns=at + n * 1000, input_tokens=40)
            for n in range(BATCH)
        ]
        at += 1_000_000
        for request in requests:
            request.phase(Phase.PREFILL, at)
        for position in range(TOKENS_PER_REQUEST):
            end = at + chance.randrange(24_000, 26_000) * 1000
            trail.step(step, at, end, requests, decode_tokens=BATCH, running=BATCH, kv_used=step % 1000, kv_total=1000)
            at, step = end, step + 1
            if position == 0:
                for request in requests:
                    request.phase(Phase.DECODE, at)
            if step % STEPS_PER_EXPORT == 0:
                trail.flush(60.0)
        for request in requests:
            request.end(at, finish_reason="length")
        trail.flush(60.0)
    spans = trail.stats.exported
    trail.shutdown()
    return capture.bodies, waves * BATCH * TOKENS_PER_REQUEST, spans


def plain_tokens(spans: int) -> list[bytes]:
    """Token spans as any Protobuf library writes them: each integer takes as few bytes as it can.

    The requests of a batch are at different tokens, so the spans of a body differ in length.
    """
    chance = random.Random(spans)
    ids = [(chance.randbytes(16), chance.randbytes(8), chance.randrange(TOKENS_PER_REQUEST)) for _ in range(BATCH)]

    def tokens() -> Iterator[Span]:
        at = now_ns() - spans * 1_000_000
        for n in range(spans):
            trace, request, first = ids[n % BATCH]
            step = n // BATCH
            attributes = {semconv.TOKEN_INDEX: first + step, semconv.STEP: step}
            start = at + step * 25_000_000
            yield _span(chance, semconv.TOKEN_SPAN, start, 25_000_000, attributes, trace=trace, parent=request)

    return _bodies(tokens(), semconv.SCOPE_NAME)


def genai_clients(spans: int) -> list[bytes]:
    """Spans of a client that follows OpenTelemetry's GenAI conventions."""
    chance = random.Random(spans)

    def requests() -> Iterator[Span]:
        at = now_ns() - spans * 1_000_000
        for n in range(spans):
            attributes: dict[str, _Value] = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": "gpt-4o",
                "gen_ai.request.temperature": 0.7,
                "gen_ai.request.max_tokens": 512,
                "gen_ai.response.model": "gpt-4o-2024-08-06",
                "gen_ai.response.id": f"chatcmpl-{chance.randbytes(14).hex()}",
                "gen_ai.usage.input_tokens": chance.randrange(4000),
                "gen_ai.usage.output_tokens": chance.randrange(500),
                "server.address": "api.openai.com",
                "server.port": 443,
            }
            span = _span(chance, "chat gpt-4o", at + n * 100_000, chance.randrange(10**9), attributes, kind=3)
            span.attributes.add(key="gen_ai.response.finish_reasons").value.array_value.values.add(string_value="stop")
            yield span

    return _bodies(requests(), "opentelemetry.instrumentation.openai_v2")


def vllm_requests(spans: int) -> list[bytes]:
    """Copies of the request spans that a real vLLM sent, with ids of their own."""
    chance = random.Random(spans)
    recorded = [
        (resource_spans, span)
        for file in sorted(VLLM.glob("*.bin"))
        for resource_spans in ExportTraceServiceRequest.FromString(file.read_bytes()).resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
        if span.name == "llm_request"
    ]

    def requests() -> Iterator[Span]:
        for n in range(spans):
            span = Span()
            span.CopyFrom(recorded[n % len(recorded)][1])
            span.trace_id, span.span_id = chance.randbytes(16), chance.randbytes(8)
            yield span

    first: ResourceSpans = recorded[0][0]
    return _bodies(requests(), first.scope_spans[0].scope.name, first)


def small_bodies(count: int) -> list[bytes]:
    """Bodies of one client span each."""
    return [_bodies(iter([span]), "opentelemetry.instrumentation.openai_v2")[0] for span in _spans_of(count)]


def _spans_of(count: int) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(b"".join(genai_clients(count)))
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def _span(
    chance: random.Random,
    name: str,
    start: int,
    ns: int,
    attributes: Mapping[str, _Value],
    *,
    trace: bytes = b"",
    parent: bytes = b"",
    kind: int = 1,
) -> Span:
    span = Span(
        trace_id=trace or chance.randbytes(16),
        span_id=chance.randbytes(8),
        parent_span_id=parent,
        name=name,
        kind=kind,  # type: ignore[arg-type]  # the number of the kind
        start_time_unix_nano=start,
        end_time_unix_nano=start + ns,
    )
    for key, value in attributes.items():
        item = span.attributes.add(key=key).value
        field = {str: "string_value", int: "int_value", float: "double_value"}[type(value)]
        setattr(item, field, value)
    return span


def _bodies(spans: Iterator[Span], scope: str, like: ResourceSpans | None = None) -> list[bytes]:
    bodies = []
    waiting = list(spans)
    for begin in range(0, len(waiting), SPANS_PER_BODY):
        request = ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add()
        if like:
            resource_spans.resource.CopyFrom(like.resource)
        else:
            resource_spans.resource.attributes.add(key="service.name").value.string_value = "benchmark"
        scope_spans = resource_spans.scope_spans.add()
        scope_spans.scope.name = scope
        scope_spans.spans.extend(waiting[begin : begin + SPANS_PER_BODY])
        bodies.append(request.SerializeToString())
    return bodies
