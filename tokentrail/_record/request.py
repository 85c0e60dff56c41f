"""A request's trail in its server: a few stamps, kept until the exporter thread reads them."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from contextvars import Token
from copy import copy
from types import TracebackType
from typing import Any, Final

from opentelemetry.context import Context, attach
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from tokentrail._host.clock import floored
from tokentrail._host.guard import Guard
from tokentrail._record import arguments, propagation
from tokentrail._record.arguments import AttributeValue, Misuse, RequestEnd, RequestStart
from tokentrail._record.recipient import FIRST_SLOT, FOREIGN_SLOT, NO_SLOT, Host, Recipient
from tokentrail.semconv import OTHER_ERROR, Phase, Status

MAX_CHOICE: Final = (1 << 16) - 1
"""The largest index of a choice."""

_OK, _ERROR = Status.OK, Status.ERROR  # a member takes long to look up
_Counts = tuple[int | None, int | None, int | None, int | None, int | None]
_NO_COUNTS: Final[_Counts] = (None, None, None, None, None)
_CANCELLATIONS: Final = (CancelledError, GeneratorExit)
"""Exceptions that mean that the caller went away."""


class RequestTrail(Recipient):
    """A request under way. Made by `Trail.start_request`, given to `Trail.step` with each token it gets.

    Methods may be called from any thread, never raise, and cost one append each. Stamps are unix ns, by default now.

    In a `with` or `async with` block the request is OpenTelemetry's current span. Leaving the block ends the request,
    unless `end` was called in it: an exception makes it an error, a cancelled task or a closed generator cancelled.

    A request is known by its object. A copy, also one that was pickled, is not the request: its tokens are refused.
    """

    __slots__ = (
        "__weakref__", "_choices", "_token", "computed", "ended", "lost", "marks", "span_id", "started", "trace_id",
    )  # fmt: skip
    computed: dict[int, int]
    """Tokens that prefill phases compute, by the start of the phase; not there without any."""

    def __init__(self, trace_id: int, span_id: int, started: RequestStart, host: Host) -> None:
        self.slot, self._host = FOREIGN_SLOT, host  # as `Recipient`, without a call
        self.trace_id = trace_id
        self.span_id = span_id
        self.started = started
        self.ended: RequestEnd | None = None
        self.marks: list[tuple[Phase, int]] = []
        self.lost = 0  # tokens that the full buffer of records did not take
        self._choices: dict[int, Choice] = {}
        self._token: Token[Context] | None = None

    def __del__(self) -> None:
        """Nobody can end this request any more: the exporter thread ends it as abandoned."""
        if FIRST_SLOT <= self.slot < FOREIGN_SLOT and self.ended is None:
            self._host.on_end(self)

    @property
    def request(self) -> RequestTrail:
        """The request itself."""
        return self

    @property
    def span_context(self) -> SpanContext:
        """OpenTelemetry's context of the request's span; not valid when there are no ids."""
        flags = TraceFlags(TraceFlags.SAMPLED if self.sampled else TraceFlags.DEFAULT)
        return SpanContext(self.trace_id, self.span_id, False, flags, self.started.trace_state)

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` header that makes a downstream span a child of this request; its sampled flag is off
        when the request is not sampled. Empty when tracing is disabled, since there are no ids to hand on.
        """
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}" if self.trace_id else ""

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Adds the headers of this request's context (`traceparent`, `tracestate`; OTEL_PROPAGATORS chooses) for a call
        to another service.
        """
        if self.trace_id:
            propagation.inject(headers, set_span_in_context(NonRecordingSpan(self.span_context)))

    def phase(self, phase: Phase, at_ns: int | None = None, *, tokens: int | None = None) -> None:
        """Enters `phase` and leaves the one before; a request arrives in `QUEUED`. A stamp before the last one is moved
        to it, a stamp after the end to the end, so that the phases partition [arrival, end].

        Phases need not be named: without any, PREFILL lasts from the arrival to the first token, then comes DECODE.

        `tokens`: what a PREFILL computes, if that is not the prompt without its cached tokens: after a preemption.
        """
        at = self._host.clock() if at_ns is None else at_ns
        self.marks.append((phase, at))
        if tokens is not None:
            self._computes(at, tokens)

    def _computes(self, at_ns: int, tokens: int) -> None:
        known = arguments.count(tokens, "tokens of a phase", self._host.misuse)
        if known is not None and isinstance(at_ns, int):
            self.computed = getattr(self, "computed", {}) | {floored(at_ns): known}

    def choice(self, index: int) -> Recipient:
        """One of several answers that the request gets (`n` > 1), counted from 0. It takes the place of the request in
        `Trail.step`, or gets `token` and `tokens`. Give all tokens of the request to its choices, or none.

        Tokens are numbered and timed for each choice. The request has the first token of any choice as its first.
        """
        known = arguments.count(index, "a choice", self._host.misuse, most=MAX_CHOICE)
        if known is None:
            return self
        choice = self._choices.get(known)
        if choice is None:
            made = Choice(self, known, self._host)
            choice = self._choices.setdefault(known, made)
            if choice is made:
                self._host.on_choice(choice)
        return choice

    def end(
        self,
        at_ns: int | None = None,
        *,
        status: Status = Status.OK,
        finish_reason: str = "",
        finish_reasons: Sequence[str] = (),
        error_type: str = "",
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        cache_creation_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        response_model: str = "",
        response_id: str = "",
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        """Ends the request; only the first call counts. After success `at_ns` is the end of the step that emitted the
        last token, so that E2E, the sum of the phases and the sum of the token spans are one number.

        An `error_type` makes the status an error. `finish_reasons` holds one reason for each choice of a request with
        several, `finish_reason` the only one. `output_tokens` overrides the number of recorded tokens. Tokens that are
        cached or written to the cache are parts of the input tokens, and reasoning tokens of the output tokens: where a
        part is more than its whole, both are left out. An argument that cannot be used is left out, logged and counted
        in `Trail.stats.errors`; an unknown status is an error.
        """
        if self.ended is not None:
            return
        host = self._host
        misuse = host.misuse
        known = arguments.status(status, misuse)
        counts: _Counts = _NO_COUNTS
        if not (input_tokens is output_tokens is cached_tokens is cache_creation_tokens is reasoning_tokens is None):
            counts = arguments.usage(
                (input_tokens, output_tokens, cached_tokens, cache_creation_tokens, reasoning_tokens),
                self.started.input_tokens,
                misuse,
            )
        error_type = arguments.word(error_type)
        failed = known is _ERROR or (bool(error_type) and known is _OK)
        self.ended = RequestEnd(
            arguments.stamp(at_ns, host.clock, misuse),
            _ERROR if failed else known,
            error_type or (OTHER_ERROR if failed else ""),
            arguments.words(finish_reasons, misuse)
            or arguments.words(finish_reason, misuse)
            or (("error",) if failed else ()),
            *counts,
            arguments.word(response_model),
            arguments.word(response_id),
            arguments.mapping(attributes, misuse),
        )
        host.on_end(self)

    def _is_of(self, host: Host) -> bool:
        return self._host is host

    def _hand_over(self) -> None:
        if self.ended is None:
            self.ended = _ELSEWHERE
            self._host.on_leave(self)

    def __enter__(self) -> RequestTrail:
        if self.trace_id:
            self._token = attach(set_span_in_context(NonRecordingSpan(self.span_context)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            _leave(self._token)
            self._token = None
        if error is None:
            self.end()
        elif isinstance(error, _CANCELLATIONS):
            self.end(status=Status.CANCELLED)
        else:
            self.end(error_type=type(error).__qualname__)

    async def __aenter__(self) -> RequestTrail:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __copy__(self) -> RequestTrail:
        return CopiedRequest(self.trace_id, self.span_id, self._host.misuse)

    def __deepcopy__(self, memo: object) -> RequestTrail:
        return self.__copy__()

    def __reduce__(self) -> tuple[type[RequestTrail], tuple[int, int]]:
        return CopiedRequest, (self.trace_id, self.span_id)


class Choice(Recipient):
    """One of several answers of a request. Made by `RequestTrail.choice`."""

    __slots__ = ("_request", "index")

    def __init__(self, request: RequestTrail, index: int, host: Host) -> None:
        super().__init__(host)
        self._request = request
        self.index = index

    @property
    def request(self) -> RequestTrail:
        """The request of which this is an answer."""
        return self._request

    def __copy__(self) -> Recipient:
        return copy(self.request)

    def __deepcopy__(self, memo: object) -> Recipient:
        return self.__copy__()

    def __reduce__(self) -> tuple[type[RequestTrail], tuple[int, int]]:
        return self.request.__reduce__()


class UnrecordedRequest(RequestTrail):
    """A request that is not sampled, or of a disabled trail: it has ids to hand on and records nothing."""

    __slots__ = ()

    sampled = False

    def __init__(self, trace_id: int = 0, span_id: int = 0) -> None:
        super().__init__(trace_id, span_id, _NO_START, _NO_HOST)
        self.slot = NO_SLOT

    def phase(self, phase: Phase, at_ns: int | None = None, *, tokens: int | None = None) -> None:
        """Does nothing."""

    def token(self, count: int = 1, at_ns: int | None = None) -> None:
        """Does nothing."""

    def tokens(self, stamps_ns: Sequence[int]) -> None:
        """Does nothing."""

    def choice(self, index: int) -> Recipient:
        """The request itself, which gets no tokens."""
        return self

    def end(self, at_ns: int | None = None, **_: Any) -> None:
        """Does nothing."""

    def __copy__(self) -> RequestTrail:
        return self

    def __reduce__(self) -> tuple[type[RequestTrail], tuple[int, int]]:
        return UnrecordedRequest, (self.trace_id, self.span_id)


class CopiedRequest(RequestTrail):
    """A copy of a request. Its calls are ignored, logged and counted, since the request itself goes on elsewhere."""

    __slots__ = ()

    def __init__(self, trace_id: int, span_id: int, misuse: Misuse | None = None) -> None:
        super().__init__(trace_id, span_id, _NO_START, _NO_HOST._replace(misuse=misuse or _OF_NO_TRAIL.misuse))

    def phase(self, phase: Phase, at_ns: int | None = None, *, tokens: int | None = None) -> None:
        """Is ignored and counted."""
        self._refuse("a phase")

    def token(self, count: int = 1, at_ns: int | None = None) -> None:
        """Is ignored and counted."""
        self._refuse("tokens")

    def tokens(self, stamps_ns: Sequence[int]) -> None:
        """Is ignored and counted."""
        self._refuse("tokens")

    def choice(self, index: int) -> Recipient:
        """The copy itself. Its tokens are refused."""
        return self

    def end(self, at_ns: int | None = None, **_: Any) -> None:
        """Is ignored and counted."""
        self._refuse("the end")

    def _refuse(self, call: str) -> None:
        self._host.misuse(f"{call} of a copied request", self.traceparent)


def _leave(token: Token[Context]) -> None:
    """The current span is the one before. A generator may end in another context than it began in, since web frameworks
    run each step of it with a copy: there is nothing to leave then, and OpenTelemetry's `detach` would log an error.
    """
    with suppress(ValueError):
        token.var.reset(token)


_OF_NO_TRAIL: Final = Guard()
"""Logs the calls of requests that were unpickled, since no trail of this process made them."""
_NO_HOST: Final = Host(lambda: 0, lambda _: None, lambda _: None, lambda _: None, lambda _: None, lambda *_: None)
_ELSEWHERE: Final = RequestEnd(0, Status.OK, "", (), None, None, None, None, None, "", "", {})
"""The end of a request that another process goes on with."""
_NO_START: Final = RequestStart(0, "", "", "", "", "", "", None, SpanKind.SERVER, None, None, {})
