"""One request's trail as its server holds it: a few stamps, kept until the exporter thread reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from opentelemetry.trace import SpanContext, SpanKind, TraceState

from tokentrail.semconv import Phase, Status

NO_SLOT: Final = 0
"""Slot of a request whose tokens are not recorded."""
ENDED_SLOT: Final = 1
"""Slot of a request that has ended: a token that comes later is dropped and counted."""
FIRST_SLOT: Final = 2

AttributeValue = str | int | float | bool


class Kind(Enum):
    """Kinds of records; a record is a tuple that starts with one."""

    STEP = auto()
    START = auto()
    END = auto()
    KV = auto()
    COLD = auto()


Record = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known of a request on arrival."""

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
class Ending:
    """What the server says of a request when it ends."""

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

    __slots__ = ("_record", "ending", "marks", "opening", "slot", "span_id", "trace_id")

    sampled = True

    def __init__(self, trace_id: int, span_id: int, opening: Opening, record: Callable[[Record], object]) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.opening = opening
        self.ending: Ending | None = None
        self.marks: list[tuple[Phase, int]] = []
        self.slot = NO_SLOT  # the exporter thread's, from START to END
        self._record = record

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` header that makes a downstream span a child of this request."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    def phase(self, phase: Phase, at_ns: int) -> None:
        """Enters `phase`, which ends the one before. A request starts in `QUEUED` at arrival; stamps that run backwards
        or past the end are moved to the nearest one that keeps phases a partition of [arrival, end].
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
        if self.ending is None:
            self.ending = Ending(
                at_ns, status, finish_reason, error_type, input_tokens, cached_tokens, reasoning_tokens
            )
            self._record((Kind.END, self))


class UnrecordedRequest(RequestTrail):
    """A request that is not sampled, or whose trail is disabled: it carries ids to hand on and records nothing."""

    __slots__ = ()

    sampled = False

    def __init__(self, trace_id: int = 0, span_id: int = 0) -> None:
        super().__init__(trace_id, span_id, _NOTHING, _ignore)

    @property
    def traceparent(self) -> str:
        """As of a recorded request, with the sampled flag off; empty when tracing is disabled and nothing came in."""
        return RequestTrail.traceparent.__get__(self) if self.trace_id else ""

    def phase(self, phase: Phase, at_ns: int) -> None:
        """Nothing."""

    def end(self, at_ns: int, **_: Any) -> None:
        """Nothing."""


def _ignore(_record: Record) -> None:
    """Where records of a request that is not recorded would go."""


_NOTHING: Final = Opening(0, "", "", "", "", "", "", 0, SpanKind.SERVER, None, None, {})
