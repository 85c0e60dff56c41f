"""`tokentrail.observe` records the requests that a program sends to a model, at the client."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import nullcontext
from inspect import isawaitable
from threading import Lock
from types import TracebackType
from typing import Any, Final, cast

from opentelemetry.trace import NonRecordingSpan, SpanKind, use_span

from tokentrail._host.guard import Throttle, logger
from tokentrail._record.arguments import AttributeValue, Carrier, Labels
from tokentrail.clients.answer import type_of_error
from tokentrail.clients.fields import of
from tokentrail.clients.recording import Recording
from tokentrail.semconv import CHOICE_COUNT, Status
from tokentrail.trail import DisabledTrail, Trail

_FINAL: Final = ("until_done", "get_final_message", "get_final_text", "get_final_completion", "get_final_response")
"""Methods of the clients' streams that read the stream to its end."""
_ASYNCHRONOUS: Final = ("__anext__", "__aiter__", "__aenter__")
_PARTS: Final = ("iter_lines", "iter_text", "iter_bytes", "aiter_lines", "aiter_text", "aiter_bytes")
_BODY: Final = ("parse", "json", "text", "read", "aread", *_PARTS)
"""Methods of raw responses, and of those of `httpx.stream`, that read the body; `_PARTS` read it bit by bit."""
_REDIRECTION: Final = 300
"""HTTP statuses from here on have no answer of a model."""
_STREAMING: Final = ("__next__", "__iter__", "__enter__", *_ASYNCHRONOUS)
_GONE: Final = (CancelledError, GeneratorExit, KeyboardInterrupt)
NO_ANSWER: Final = "no_answer"
"""The type of the error of a success in which nothing was answered."""
_THROTTLE: Final = Throttle()
_MAKING: Final = Lock()
_default: list[Trail] = []


def observe(
    source: Any,
    *,
    model: str = "",
    operation: str = "chat",
    provider: str = "",
    tenant: str = "",
    slo_class: str = "",
    labels: Labels | None = None,
    choices: int = 1,
    carrier: Carrier | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    arrival_ns: int | None = None,
    trail: Trail | None = None,
) -> Any:
    """Records one request of a client and returns the same answer: a stream yields the same chunks, and has the same
    methods.

    `source` is a function that sends the request (`lambda: client.chat.completions.create(…)`), the coroutine of an
    asynchronous client, or a stream that is there already. Its request began at `arrival_ns` (unix ns; by default now).
    The request ends with the stream: by its end, an exception, `close`, a `break`, or when the last reference
    to the stream is gone. An answer that is not streamed ends it at once. `choices` is the number of
    answers that were asked for: `n`, times the prompts of a request for completions.

    The spans go to `trail`, by default to one that OTEL_* variables configure.
    """
    if choices > 1:
        attributes = {**(attributes or {}), CHOICE_COUNT: choices}
    request = (trail or _default_trail()).start_request(
        operation=operation,
        model=model,
        provider=provider or _provider(source),
        tenant=tenant,
        slo_class=slo_class,
        labels=labels,
        carrier=carrier,
        attributes=attributes,
        arrival_ns=arrival_ns,
        kind=SpanKind.CLIENT,
    )
    call = _Call(Recording(request, several=choices > 1))
    if not callable(source) or _is_stream(source) or isawaitable(source):
        return call.wrap(source)
    current = use_span(NonRecordingSpan(request.span_context)) if request.trace_id else nullcontext()
    with call, current:
        answer = source()
    return call.wrap(answer)


class _Call:
    """One request and its recording. No method raises.

    An exception that leaves a `with` block of it passes on and ends the request; `StopIteration` and
    `StopAsyncIteration` say that the stream is over.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._is_read = True  # what arrives are chunks of an answer, and no lines or bytes of a body

    def __del__(self) -> None:
        """Ends the request of a stream that nobody has any more, or of a coroutine that never ran."""
        self.left()

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, StopIteration | StopAsyncIteration):
            self.done()
        elif error is not None:
            self.failed(error)

    def wrap(self, answer: Any) -> Any:
        """The answer, so that its chunks are recorded. One that is not streamed has arrived."""
        if isawaitable(answer):
            return self._awaited(answer)
        self.refused(answer)
        if _is_raw(answer):
            return self._raw(answer)
        if not _is_stream(answer):
            self.event(answer, streamed=False)
            self.done()
            return answer
        if not any(hasattr(answer, name) for name in _ASYNCHRONOUS):
            return _Stream(answer, self)
        return (_EitherStream if hasattr(answer, "__iter__") else _AsyncStream)(answer, self)

    def refused(self, response: Any) -> None:
        """Ends the request if this is an HTTP response with another status than success. `httpx` raises none."""
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and status >= _REDIRECTION:
            self._recording.end(error_type=str(status))

    def _raw(self, response: Any) -> Any:
        """A raw response. Without streaming its body is there already."""
        if not response.is_closed:
            return _Response(response, self)
        self.event(_body(response), streamed=False)
        self.done()
        return response

    def reading(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that reads the body of a response: its result is the answer."""

        def read(*args: Any, **kwargs: Any) -> Any:
            self._is_read = name not in _PARTS
            with self:
                result = method(*args, **kwargs)
            return self.wrap(result)

        return read

    async def _awaited(self, answer: Awaitable[Any]) -> Any:
        with self:
            result = await answer
        return self.wrap(result)

    def event(self, chunk: Any, *, streamed: bool = True) -> None:
        """A chunk arrived now, or a whole answer."""
        if not self._is_read:
            return
        self._recording.streamed = streamed
        try:
            self._recording.event(chunk)
        except Exception as error:
            if _THROTTLE.allows(type(error).__name__):
                logger.warning("tokentrail cannot read a chunk: %s", type(error).__name__)

    def done(self) -> None:
        """The answer has ended. One of an API that is read here, without an end and without output, is none."""
        recording = self._recording
        is_none = recording.answer.known and not (recording.is_whole or recording.answer.accepted)
        recording.end(error_type=NO_ANSWER if is_none and not recording.answer.error_type else "")

    def failed(self, error: BaseException) -> None:
        """The stream or the request raised. An HTTP status is the type of its error, unless it is that of a success.

        Then the error came within the answer, and the clients keep what it told in `body`.
        """
        if isinstance(error, _GONE):
            self.left()
            return
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and status >= _REDIRECTION:
            self._recording.end(error_type=str(status))
            return
        try:
            told = type_of_error(getattr(error, "body", None))
        except Exception:  # somebody's property
            told = ""
        self._recording.end(error_type=told or type(error).__qualname__)

    def left(self) -> None:
        """Nobody reads on. Unless the answer has said that it is over, the request is cancelled."""
        self._recording.end(status=Status.OK if self._recording.answer.complete else Status.CANCELLED)


class _Observed:
    """A stream or a raw response with the attributes of the one inside. The request ends with its last reader."""

    def __init__(self, source: Any, call: _Call) -> None:
        self._source = source
        self._call = call

    def _inner(self, name: str) -> Any:
        if name.startswith("_"):  # also while a copy of this object has no stream yet
            raise AttributeError(name)
        attribute = getattr(self._source, name)
        return self._call.reading(name, attribute) if name in _BODY and callable(attribute) else attribute

    def _exited(self, error: BaseException | None) -> None:
        if error is None:
            self._call.left()
        else:
            self._call.failed(error)


class _Response(_Observed):
    """A raw response, of which the body is not read yet."""

    def __getattr__(self, name: str) -> Any:
        return self._inner(name)


class _Stream(_Observed):
    """A synchronous stream, or the context manager of one."""

    _iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._call:
            if self._iterator is None:
                self._iterator = iter(self._source)
            chunk = next(self._iterator)
        self._call.event(chunk)
        return chunk

    def close(self) -> None:
        """Closes the stream and ends the request."""
        try:
            if hasattr(self._source, "close"):
                self._source.close()
        finally:
            self._call.left()

    @property
    def text_stream(self) -> Iterator[str]:
        """The texts of an Anthropic stream."""
        return (event.text for event in self if of(event, "type") == "text")

    def __enter__(self) -> Any:
        self._manager = self._source
        if hasattr(self._source, "__enter__"):
            with self._call:
                self._source = self._source.__enter__()
            self._call.refused(self._source)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        try:
            if hasattr(self._manager, "__exit__"):
                return self._manager.__exit__(kind, error, traceback)
            return None
        finally:
            self._exited(error)

    def __getattr__(self, name: str) -> Any:
        attribute = self._inner(name)
        if name not in _FINAL:
            return attribute

        def read_first(*args: Any, **kwargs: Any) -> Any:
            for _ in self:
                pass
            return attribute(*args, **kwargs)

        return read_first


class _AsyncStream(_Observed):
    """An asynchronous stream, or the context manager of one."""

    _iterator: AsyncIterator[Any] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        with self._call:
            if self._iterator is None:
                self._iterator = aiter(self._source)
            chunk = await anext(self._iterator)
        self._call.event(chunk)
        return chunk

    async def close(self) -> None:
        """Closes the stream and ends the request."""
        try:
            closing = getattr(self._source, "close", None) or getattr(self._source, "aclose", None)
            if closing is not None:
                await closing()
        finally:
            self._call.left()

    aclose = close

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """The texts of an Anthropic stream."""
        return (event.text async for event in self if of(event, "type") == "text")

    async def __aenter__(self) -> Any:
        self._manager = self._source
        if hasattr(self._source, "__aenter__"):
            with self._call:
                self._source = await self._source.__aenter__()
            self._call.refused(self._source)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        try:
            if hasattr(self._manager, "__aexit__"):
                return await self._manager.__aexit__(kind, error, traceback)
            return None
        finally:
            self._exited(error)

    def __getattr__(self, name: str) -> Any:
        attribute = self._inner(name)
        if name not in _FINAL:
            return attribute

        async def read_first(*args: Any, **kwargs: Any) -> Any:
            async for _ in self:
                pass
            return await cast("Coroutine[Any, Any, Any]", attribute(*args, **kwargs))

        return read_first


class _EitherStream(_Stream, _AsyncStream):  # type: ignore[misc]  # `close` and the like are those of the first
    """A stream that can be read in both ways, as LiteLLM's. Its other methods are synchronous."""


def _is_stream(source: Any) -> bool:
    """An iterator, an iterable, or a context manager of one. Models of pydantic are whole answers, and so is everything
    with a length: a mapping, a text, a list of answers.
    """
    if hasattr(source, "__len__") or hasattr(source, "model_dump"):
        return False
    return any(hasattr(source, name) for name in _STREAMING)


def _is_raw(answer: Any) -> bool:
    """A raw response of the clients of openai, anthropic and others that the same generator wrote: `with_raw_response`,
    or `with_streaming_response` once it is entered.
    """
    return all(hasattr(answer, name) for name in ("http_response", "parse", "is_closed"))


def _body(response: Any) -> Any:
    """The body of a raw response, parsed. Of one that cannot be, nothing but its arrival is known."""
    try:
        return response.http_response.json()
    except Exception:  # it is no JSON, is nested too deep, or was closed before it was read
        return response.http_response


def _provider(source: Any) -> str:
    """`openai` or `anthropic` for their clients' objects; "" is not known."""
    module = type(source).__module__.partition(".")[0]
    return module if module in ("openai", "anthropic") else ""


def _default_trail() -> Trail:
    with _MAKING:
        if not _default:
            _default.append(_trail_of_environment())
        return _default[0]


def _trail_of_environment() -> Trail:
    try:
        return Trail.from_env(service_name="tokentrail-client")
    except Exception as error:  # of an OTEL_* variable that OpenTelemetry refuses, or when no thread can be started
        logger.error("tokentrail records nothing: %s", error, exc_info=error)
        return DisabledTrail()
