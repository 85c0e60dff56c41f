"""A request's trail in its server: a few stamps, kept until the exporter thread reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.trace import SpanContext, SpanKind, TraceState

from tokentrail.semconv import Phase, Status

NO_SLOT: Final = 0
"""Slot of a request that has none yet, or whose tokens are not recorded."""
ENDED_SLOT: Final = 1
"""Slot of a request that has ended: a token that comes later is dropped and counted."""
FIRST_SLOT: Final = 2

AttributeValue = str | int | float | bool


@dataclass(frozen=True, slots=True)
class RequestStart:
    """The arguments of `Trail.start_request`, and the parent span that its carrier names."""

    arrival_ns: int
    operation: str
    model: str
    provider: str
    request_id: str
    tenant: str
    slo_class: str
    input_tokens: int
    kind: SpanKind
    parent: SpanContext | None
    trace_state: TraceState | None
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """The arguments of `RequestTrail.end`."""

    at_ns: int
    status: Status
    finish_reason: str
    error_type: str
    input_tokens: int | None
    cached_tokens: int
    reasoning_tokens: int


class RequestTrail:
    """A request under way. Made by `Trail.start_request`, given to `Trail.step` with each token it gets.

    Methods may be called from any thread, never raise, and cost one append each.
    """

    __slots__ = ("__weakref__", "_on_end", "ended", "lost", "marks", "slot", "span_id", "started", "trace_id")

    sampled = True

    def __init__(
        self, trace_id: int, span_id: int, started: RequestStart, on_end: Callable[[RequestTrail], object]
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.started = started
        self.ended: RequestEnd | None = None
        self.marks: list[tuple[Phase, int]] = []
        self.slot = NO_SLOT  # only the exporter thread changes it
        self.lost = 0  # tokens that the full buffer of records did not take
        self._on_end = on_end

    def __del__(self) -> None:
        """Nobody can end this request any more: the exporter thread ends it as abandoned."""
        if self.slot >= FIRST_SLOT and self.ended is None:
            self._on_end(self)

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` header that makes a downstream span a child of this request."""
        return _traceparent(self)

    def phase(self, phase: Phase, at_ns: int) -> None:
        """Enters `phase` and leaves the one before; a request arrives in `QUEUED`. A stamp before the last one is moved
        to it, a stamp after the end to the end, so that the phases partition [arrival, end].
        """
        self.marks.append((phase, at_ns))

    def end(
        self,
        at_ns: int,
        *,
        status: Status = Status.OK,
        finish_reason: str = "",
        error_type: str = "",
        input_tokens: int | None = None,
        cached_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> None:
        """Ends the request; only the first call counts. After success `at_ns` is the end of the step that emitted the
        last token, so that E2E, the sum of the phases and the sum of the token spans are one number.
        """
        if self.ended is None:
            self.ended = RequestEnd(
                at_ns, status, finish_reason, error_type, input_tokens, cached_tokens, reasoning_tokens
            )
            self._on_end(self)


class UnrecordedRequest(RequestTrail):
    """A request that is not sampled, or of a disabled trail: it has ids to hand on and records nothing."""

    __slots__ = ()

    sampled = False

    def __init__(self, trace_id: int = 0, span_id: int = 0) -> None:
        super().__init__(trace_id, span_id, _NO_START, lambda _: None)

    @property
    def traceparent(self) -> str:
        """The header with the sampled flag off; empty when tracing is disabled, since there are no ids to hand on."""
        return _traceparent(self) if self.trace_id else ""

    def phase(self, phase: Phase, at_ns: int) -> None:
        """Does nothing."""

    def end(self, at_ns: int, **_: Any) -> None:
        """Does nothing."""


def _traceparent(request: RequestTrail) -> str:
    return f"00-{request.trace_id:032x}-{request.span_id:016x}-{int(request.sampled):02x}"


_NO_START: Final = RequestStart(0, "", "", "", "", "", "", 0, SpanKind.SERVER, None, None, {})
