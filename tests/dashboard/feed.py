"""Sends eight minutes of an engine process to a real collector, through the SDK, with stamps that the test chooses."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from tokentrail import KvEvent, Phase, Status, Trail, now_ns
from tokentrail.config import Settings

MS = 1_000_000
SECOND = 1000 * MS
MODEL = "smollm2-135m-instruct"
HOSTILE_TENANT = '"><img src=x onerror=alert(1)> **bold** [a](http://example.invalid/) `code` $x$ {{x}}'
KV_TOTAL = 64
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Engine:
    """A fake engine process: it stamps requests as an engine that runs one request after the other."""

    def __init__(self, otlp_http: str) -> None:
        resource = Resource.create(
            {"service.name": "engine", "service.instance.id": "host-1", "tokentrail.variant": "baseline"}
        )
        settings = Settings.from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": otlp_http, "TOKENTRAIL_STRICT": "true"})
        self.at = now_ns()
        self.trail = Trail(settings, TracerProvider(resource=resource, shutdown_on_exit=False))
        self.steps = 0

    def cold_start(self, at: int) -> None:
        """Two seconds of loading weights and one of warming up."""
        stamps = iter([at, at, at + 2 * SECOND, at + 2 * SECOND, at + 3 * SECOND, at + 3 * SECOND])
        self.trail._clock = lambda: next(stamps)
        with self.trail.cold_start(MODEL) as cold:
            for phase in ("load_weights", "warm_up"):
                with cold.phase(phase):
                    pass
        self.trail._clock = now_ns

    def step(self, duration: int, emitted, *, prefill: int = 0, kv_used: int = 20, **more: Any) -> int:
        start, self.at = self.at, self.at + duration
        running = more.pop("running", len(emitted))
        self.trail.step(
            self.steps, start, self.at, emitted, prefill_tokens=prefill, decode_tokens=len(emitted), running=running,
            kv_used=kv_used, kv_total=KV_TOTAL, **more,
        )  # fmt: skip
        self.steps += 1
        return self.at

    def arrive(self, request_id: str, **more):
        given: dict[str, Any] = {
            "operation": "chat",
            "model": MODEL,
            "tenant": "acme",
            "slo_class": "chat",
            "input_tokens": 40,
        } | more
        return self.trail.start_request(request_id=request_id, arrival_ns=self.at, **given)

    def answer(self, request_id: str, *, tokens: int, queued: int = 10 * MS, prefill: int = 150 * MS, **more):
        """One request alone in the batch."""
        request = self.arrive(request_id, **more)
        self.at += queued
        request.phase(Phase.PREFILL, self.at)
        self.step(prefill, [request], prefill=40)
        request.phase(Phase.DECODE, self.at)
        for _ in range(tokens - 1):
            self.step(20 * MS, [request])
        request.end(self.at, finish_reason="stop")
        return request

    def disturbed(self, request_id: str):
        """A request that waits twice for the prefill of another and then loses its KV-cache blocks."""
        request = self.arrive(request_id, slo_class="")
        self.at += 30 * MS
        request.phase(Phase.PREFILL, self.at)
        self.step(200 * MS, [request], prefill=40)
        request.phase(Phase.DECODE, self.at)
        for index in range(1, 40):
            stalled = index in (10, 20)
            self.step(130 * MS if stalled else 20 * MS, [request], prefill=384 if stalled else 0, kv_used=24 + index)
        request.phase(Phase.PREEMPTED, self.at)
        self.trail.kv_event(
            KvEvent.EVICT, blocks=6, reason="preemption", step=self.steps, start_ns=self.at, request=request
        )
        self.step(300 * MS, [], preempted=1, kv_used=KV_TOTAL, kv_evicted=6, running=3, waiting=1)
        request.phase(Phase.PREFILL, self.at)
        self.step(100 * MS, [request], prefill=80)
        request.phase(Phase.DECODE, self.at)
        for _ in range(7):
            self.step(20 * MS, [request])
        request.end(self.at, finish_reason="stop")
        return request

    def live(self, minutes: int = 8):
        """Send every kind of event that the pages show. Returns the disturbed request and one that stays open."""
        self.at = now_ns() - minutes * 60 * SECOND
        self.cold_start(self.at - 5 * SECOND)
        for number in range(40):
            queued = (10 + 40 * (number % 5)) * MS
            tenant = HOSTILE_TENANT if number == 7 else "acme" if number % 2 else "umbrella"
            self.answer(f"req-{number}", tokens=1 if number == 3 else 4 + number % 9, queued=queued, tenant=tenant)
            self.at += 10 * SECOND
        disturbed = self.disturbed("req-disturbed")
        for twin in ("req-twin-a", "req-twin-b"):
            self.answer(twin, tokens=2 if twin.endswith("a") else 3, carrier={"traceparent": TRACEPARENT})
        failed = self.arrive("req-failed")
        failed.end(self.at + SECOND, status=Status.ERROR, error_type="out_of_memory")
        gone = self.arrive("req-gone")
        gone.end(self.at + SECOND, status=Status.CANCELLED, finish_reason="cancelled")
        still_open = self.arrive("req-open", slo_class="")
        assert self.trail.flush(120.0)
        return disturbed, still_open
