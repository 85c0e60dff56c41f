"""The calls of an engine. `Trail.step`, the hot path, is in `_record/recorder.py`; other threads build and send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.trace import SpanKind

from tokentrail._build.events import KvSpan
from tokentrail._encode.encode import text
from tokentrail._host import exits
from tokentrail._host.books import TrailStats
from tokentrail._host.clock import bounded, floored, now_ns
from tokentrail._host.guard import Guard
from tokentrail._pipeline import Pipeline
from tokentrail._record import arguments
from tokentrail._record.arguments import AttributeValue, Carrier, Labels, RequestStart
from tokentrail._record.coldstart import ColdStart
from tokentrail._record.context import sample
from tokentrail._record.handle import dumps, loads
from tokentrail._record.recipient import Chunk, Host
from tokentrail._record.recorder import Recorder
from tokentrail._record.records import CHOICE, CHUNK, END, LEAVE, START, Kind
from tokentrail._record.request import Choice, RequestTrail, UnrecordedRequest
from tokentrail._send.compression import body_compression
from tokentrail._send.export import Exporter
from tokentrail._send.http import Endpoint, transport_to
from tokentrail._send.split import halves
from tokentrail._send.transport import Transport
from tokentrail.config import Settings, resource_of, with_instance
from tokentrail.semconv import KvEvent
from tokentrail.version import __version__

FORKED: Final = (
    "tokentrail records nothing in this process, which was forked without Python's fork hooks. Start uWSGI with "
    "--enable-threads, and with --lazy-apps or --py-call-osafterfork"
)

_LIMITS: Final = (
    "max_attributes", "max_events", "max_links", "max_span_attributes", "max_event_attributes", "max_link_attributes",
    "max_attribute_length", "max_span_attribute_length",
)  # fmt: skip
"""Limits that OpenTelemetry reads from OTEL_…_LIMIT variables, and raises for bad values. A trail's spans have none."""


class Trail(Recorder):
    """Records requests and steps, and exports them as OTLP spans. One per process; thread-safe; never raises."""

    def __init__(
        self,
        settings: Settings | None = None,
        provider: TracerProvider | None = None,
        *,
        endpoint: str = "",
        headers: Mapping[str, str] | None = None,
        service_name: str | None = None,
        variant: str = "",
        resource: Mapping[str, str | int] | None = None,
        meter_provider: MeterProvider | None = None,
        transport: Transport | None = None,
        clock: Callable[[], int] = now_ns,
        ids: np.random.Generator | None = None,
        background: bool = True,
    ) -> None:
        """`Trail(endpoint="https://collector:4318", headers={…})` needs no environment variables; `Settings` and
        `Endpoint.to` take everything else. `provider` holds the sampler, the id generator and the resource; by default
        it is made of OTEL_* variables, `service_name`, `variant` and `resource`, as in `from_env`. The metrics of
        the SDK go to `meter_provider`, by default OpenTelemetry's global one.
        """
        if not isinstance(settings, Settings | None):
            raise TypeError(f"Trail({settings!r}): the first argument is Settings; write Trail(endpoint=…)")
        settings = settings or Settings(Endpoint.to(endpoint, headers=headers), meter_provider=meter_provider)
        provider = provider or TracerProvider(
            resource=resource_of(service_name, variant, resource),
            shutdown_on_exit=False,
            span_limits=SpanLimits(**dict.fromkeys(_LIMITS, SpanLimits.UNSET)),
        )
        guard = Guard(strict=settings.strict)
        compression = body_compression(settings.endpoint)
        self._exporter = Exporter(
            transport or transport_to(settings.endpoint),
            guard,
            max_spans=settings.max_queue_spans,
            max_bytes=settings.max_queue_bytes,
            halves=partial(halves, compression),
            joined_spans=settings.max_payload_spans if compression is Compression.NoCompression else 0,
        )
        super().__init__(guard, self._exporter.drop)
        self._provider = provider
        self._clock = clock
        self._host = Host(
            clock, self._request_ended, self._request_left, self._chunk_arrived, self._choice_began, guard.misuse
        )
        self._pipeline = Pipeline(
            self._records,
            self._exporter,
            settings,
            lambda: with_instance(provider.resource),
            guard,
            version=__version__,
            ids=ids,
            clock=clock,
            background=background,
        )
        if background:
            exits.register(self)

    @classmethod
    def from_env(
        cls,
        *,
        service_name: str | None = None,
        variant: str = "",
        resource: Mapping[str, str | int] | None = None,
    ) -> Trail:
        """A trail configured by OTEL_* variables (docs/sdk.md); with OTEL_SDK_DISABLED=true its calls do nothing.
        `service_name` is the default of OTEL_SERVICE_NAME. `variant` (the experiment's label) and `resource` override
        OTEL_RESOURCE_ATTRIBUTES.
        """
        settings = Settings.from_env()
        if not settings.enabled:
            return DisabledTrail()
        return cls(settings, service_name=service_name, variant=variant, resource=resource)

    def start_request(
        self,
        *,
        operation: str,
        model: str,
        request_id: str = "",
        carrier: Carrier | None = None,
        arrival_ns: int | None = None,
        input_tokens: int | None = None,
        provider: str = "tokentrail",
        tenant: str = "",
        slo_class: str = "",
        labels: Labels | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        kind: SpanKind = SpanKind.SERVER,
    ) -> RequestTrail:
        """Records the arrival of a request (`arrival_ns` in unix ns; by default now). It continues the trace of
        `carrier` (HTTP headers with a W3C `traceparent`), or else of the current OpenTelemetry span. Sampling is
        decided here, once; the sampler sees the attributes. `kind` is CLIENT for client wrappers. `labels` are up to 16
        names and values by which requests are told apart later (docs/sdk.md#labels).

        An argument that cannot be used is left out, logged and counted in `stats.errors`. A request without a usable
        arrival is not recorded, since all its latencies would be wrong.
        """
        if self._pipeline.stands_still:
            self._guard.warn("fork", FORKED)
            return UnrecordedRequest()
        try:
            misuse = self._guard.misuse
            arrival = self._clock() if arrival_ns is None else floored(arrival_ns)
            started = RequestStart(
                arrival, operation, model, provider, request_id, tenant, slo_class,
                arguments.count(input_tokens, "input_tokens", misuse), arguments.kind(kind, misuse), None, None,
                arguments.with_labels(arguments.mapping(attributes, misuse), labels, misuse),
            )  # fmt: skip
            trace_id, span_id, sampled = sample(self._provider, arguments.headers(carrier, misuse), started)
            if self._closed or not sampled:
                return UnrecordedRequest(trace_id, span_id)
            request = RequestTrail(trace_id, span_id, started, self._host)
            self._append((START, request))
            return request
        except Exception as error:
            self._guard.failed("starting a request", error)
            return UnrecordedRequest()

    request = start_request
    """`start_request` by the name that reads well in `with trail.request(…) as request:`."""

    def hand_over(self, request: RequestTrail) -> str:
        """Text for another process, which goes on with the request: an API server's engine core, for example.

        Pass it to `take_over` of that process's trail, before the first token. From now on the calls of the request
        do nothing in this process; its context (`traceparent`, `inject`) stays usable.
        """
        try:
            if request.sampled and not request._is_of(self._host):
                self._guard.misuse("a hand-over of a request that is a copy or of another trail", request.traceparent)
                return dumps(UnrecordedRequest(request.trace_id, request.span_id))
            handle = dumps(request)
            request._hand_over()
            return handle
        except Exception as error:
            self._guard.failed("handing a request over", error)
            return ""

    def lend(self, request: RequestTrail) -> str:
        """Text for another process, which works for the request while the request goes on in this one.

        `take_over` of that process's trail makes a request of it that records nothing. It can be passed as the
        `beneficiary` of that process's KV events.
        """
        return dumps(UnrecordedRequest(request.trace_id, request.span_id))

    def take_over(self, handle: str) -> RequestTrail:
        """The request that another process handed over. This process announces and ends it."""
        try:
            trace_id, span_id, started, marks = loads(handle)
        except (ValueError, KeyError, TypeError):
            self._guard.misuse("a handle that is none", handle)
            return UnrecordedRequest()
        if self._closed or started is None:
            return UnrecordedRequest(trace_id, span_id)
        request = RequestTrail(trace_id, span_id, started, self._host)
        request.marks.extend(marks)
        self._append((START, request))
        return request

    def kv_event(
        self,
        kind: KvEvent,
        *,
        blocks: int,
        reason: str,
        step: int,
        start_ns: int | None = None,
        end_ns: int | None = None,
        request: RequestTrail | None = None,
        beneficiary: RequestTrail | None = None,
        moved_bytes: int | None = None,
    ) -> None:
        """Blocks left or re-entered the KV cache, from `start_ns` (unix ns; by default now) to `end_ns` (by default the
        same). `request` is the request that they belong to, if there is one, and `beneficiary` the one for which they
        moved. `moved_bytes` were copied between the device and the host.
        """
        try:
            start = self._clock() if start_ns is None else floored(start_ns)
            end = start if end_ns is None else max(floored(end_ns), start)
            victim = request if request is not None and request.sampled else None
            if victim is not None and not victim._is_of(self._host):
                self._guard.misuse("a KV event of a request that is a copy or of another trail", victim.traceparent)
                victim = None
            event = KvSpan(
                KvEvent(kind), bounded(blocks), text(reason), bounded(step), start, end, victim,
                None if moved_bytes is None else bounded(moved_bytes),
                "" if beneficiary is None else f"{beneficiary.trace_id:032x}",
            )  # fmt: skip
            self._record((Kind.KV, event))
        except Exception as error:
            self._guard.failed("recording a KV event", error)

    def cold_start(self, model: str, *, start_ns: int | None = None) -> ColdStart:
        """`with trail.cold_start(model) as cold: with cold.phase("load_weights"): …` around an engine's start, which
        began at `start_ns` (unix ns; by default when the block is entered).
        """
        ids = self._provider.id_generator
        return ColdStart(model, self._record, ids.generate_trace_id(), ids.generate_span_id, self._clock, start_ns)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Sends everything recorded so far; False when the time is up before all of it is delivered or dropped."""
        flushed = self._pipeline.flush(timeout_s)
        self._guard.reraise()
        return flushed

    def shutdown(self, timeout_s: float = 5.0) -> bool:
        """Flushes and ends the background threads. Spans that are still queued when the time is up are dropped, and the
        answer is False. Later records are dropped too. The process calls it at exit by itself.
        """
        exits.unregister(self)
        self._closed = True
        ended = self._pipeline.shutdown(timeout_s)
        self._guard.reraise()
        return ended

    @property
    def stats(self) -> TrailStats:
        """Counts of spans: `accepted = exported + dropped + queued + pending + sampled_out`, always."""
        return self._pipeline.stats

    def _request_ended(self, request: RequestTrail) -> None:
        self._append((END, request))  # also when the buffer is full or closed: a request that began must end

    def _request_left(self, request: RequestTrail) -> None:
        self._append((LEAVE, request))

    def _choice_began(self, choice: Choice) -> None:
        self._append((CHOICE, choice))

    def _chunk_arrived(self, chunk: Chunk) -> None:
        self._record((CHUNK, chunk))


class DisabledTrail(Trail):
    """A trail that records nothing. Its calls cost next to nothing."""

    def __init__(self) -> None:
        self._request = UnrecordedRequest()

    def start_request(self, **_: Any) -> RequestTrail:
        """A request that records nothing."""
        return self._request

    request = start_request

    def hand_over(self, request: RequestTrail) -> str:
        """The text of a request that is not sampled."""
        return dumps(request)

    def take_over(self, handle: str) -> RequestTrail:
        """A request that records nothing."""
        return self._request

    def step(self, *_: Any, **__: Any) -> None:
        """Does nothing."""

    def kv_event(self, *_: Any, **__: Any) -> None:
        """Does nothing."""

    def cold_start(self, model: str, *, start_ns: int | None = None) -> ColdStart:
        """A cold start that records nothing."""
        return ColdStart(model, lambda _: None, 0, lambda: 0, now_ns)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """True: there is nothing to send."""
        return True

    def shutdown(self, timeout_s: float = 5.0) -> bool:
        """True: there is nothing to end."""
        return True

    @property
    def stats(self) -> TrailStats:
        """All counts are 0."""
        return TrailStats()
