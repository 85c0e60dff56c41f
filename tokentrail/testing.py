"""Helpers to test an instrumented engine without a collector.

`MemoryTrail` runs the SDK's own code up to the bytes that a collector would receive, keeps those bytes, and parses
them back into spans. The test controls its clock and its ids, and so can assert exact durations and ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Sampler

from tokentrail import semconv
from tokentrail._record.recipient import Recipient
from tokentrail._record.request import Choice, RequestTrail
from tokentrail._send.http import Endpoint
from tokentrail._send.transport import SendResult, SendStatus
from tokentrail.config import Settings
from tokentrail.trail import Trail

__all__ = [
    "START_NS",
    "ManualClock",
    "MemoryTrail",
    "MemoryTransport",
    "SendResult",
    "SendStatus",
    "SequentialIds",
    "Span",
    "parse_spans",
]

START_NS: Final = 1_800_000_000_000_000_000
"""The time at which a `ManualClock` starts, unix ns."""


class ManualClock:
    """A clock that stands still until the test moves it. `now` is in unix ns."""

    def __init__(self, now: int = START_NS) -> None:
        self.now = now

    def __call__(self) -> int:
        """The time that the test has set."""
        return self.now

    def advance(self, ns: int) -> None:
        """Moves the clock forward by `ns` nanoseconds."""
        self.now += ns


class SequentialIds(IdGenerator):
    """Trace ids and span ids that count up from a fixed start, in place of random ones."""

    def __init__(self) -> None:
        self._trace_ids = count(0xA000_0000_0000_0000_0000_0000_0000_0001)
        self._span_ids = count(0xB000_0000_0000_0001)

    def generate_trace_id(self) -> int:
        """The next trace id."""
        return next(self._trace_ids)

    def generate_span_id(self) -> int:
        """The next span id."""
        return next(self._span_ids)


@dataclass(frozen=True, slots=True)
class Span:
    """One exported span. Times are in unix ns; `parent_id` is 0 for a root; `resource` describes its process.

    `message` is the OTLP message, with the fields that are not repeated here (kind, status, flags, trace state).
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any] = field(repr=False)
    message: SpanMessage = field(repr=False, compare=False)

    @property
    def duration_ns(self) -> int:
        """End minus start."""
        return self.end_ns - self.start_ns

    @property
    def token_index(self) -> int:
        """The place of a token in its answer, counted from 0. It follows from the ids, as the collector reads it."""
        strides = (self.span_id - self.parent_id) * semconv.TOKEN_ID_INVERSE
        return strides % (1 << 32) - 1


def parse_spans(body: bytes) -> list[Span]:
    """The spans of one uncompressed OTLP request body, in the order in which they were written."""
    return _spans(body, None)


class MemoryTransport:
    """A transport that keeps the bodies it is sent. It gives `answers` one by one, then accepts everything.

    An answer that is an exception is raised. `attempts` holds every body, once per attempt; `bodies` those it accepted.
    """

    def __init__(self, *answers: SendResult | Exception) -> None:
        self.answers = list(answers)
        self.attempts: list[bytes] = []
        self.bodies: list[bytes] = []

    def __call__(self, body: bytes) -> SendResult:
        """Answers one attempt to send."""
        self.attempts.append(body)
        answer = self.answers.pop(0) if self.answers else SendResult(SendStatus.DELIVERED)
        if isinstance(answer, Exception):
            raise answer
        if answer.status is SendStatus.DELIVERED:
            self.bodies.append(body)
        return answer

    def spans(self, name: str | None = None, *, parent: Span | Recipient | None = None) -> list[Span]:
        """The accepted spans in the order of their arrival; only those called `name`, only the children of `parent`
        (a choice has its tokens).
        """
        return [
            span for body in self.bodies for span in _spans(body, name) if parent is None or _is_child(span, parent)
        ]


class MemoryTrail(Trail):
    """A trail for tests: it exports to memory, raises its own errors (`strict`) and has no background threads.

    `spans`, `flush` and `shutdown` turn the recorded calls into spans. `answers` script the `MemoryTransport`. The
    default clock is a `ManualClock`; `clock=tokentrail.now_ns` is real time. `settings` are fields of
    `tokentrail.config.Settings`.
    """

    def __init__(
        self,
        *answers: SendResult | Exception,
        clock: Callable[[], int] | None = None,
        sampler: Sampler | None = None,
        resource: Mapping[str, str | int] | None = None,
        strict: bool = True,
        **settings: Any,
    ) -> None:
        self.transport = MemoryTransport(*answers)
        provider = TracerProvider(
            sampler=sampler,
            resource=Resource(resource or {"service.name": "test"}),
            id_generator=SequentialIds(),
            shutdown_on_exit=False,
        )
        super().__init__(
            Settings(Endpoint("http://collector.invalid/v1/traces", {}), strict=strict, **settings),
            provider,
            transport=self.transport,
            clock=clock or ManualClock(),
            ids=np.random.default_rng(7),
            background=False,
        )

    def spans(self, name: str | None = None, *, parent: Span | Recipient | None = None) -> list[Span]:
        """`MemoryTransport.spans` after a flush, which does not wait for retries."""
        self.flush(0)
        return self.transport.spans(name, parent=parent)


def _spans(body: bytes, name: str | None) -> list[Span]:
    return [
        _span(message, _values(resource.resource.attributes))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for message in scope.spans
        if name is None or message.name == name
    ]


def _span(message: SpanMessage, resource: dict[str, Any]) -> Span:
    return Span(
        message.name,
        int.from_bytes(message.trace_id, "big"),
        int.from_bytes(message.span_id, "big"),
        int.from_bytes(message.parent_span_id, "big"),
        message.start_time_unix_nano,
        message.end_time_unix_nano,
        _values(message.attributes),
        resource,
        message,
    )


def _is_child(span: Span, parent: Span | Recipient) -> bool:
    if isinstance(parent, Choice):
        return span.attributes.get(semconv.CHOICE_INDEX) == parent.index and _is_child(span, parent.request)
    assert isinstance(parent, Span | RequestTrail)
    return (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)


def _values(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _values(value.kvlist_value.values)
        case kind:
            return getattr(value, kind)
