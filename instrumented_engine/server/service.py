"""Between HTTP and the engine's thread: admits requests, waits for the model, hands each its own outputs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from instrumented_engine.core.loop import EngineLoop
from instrumented_engine.core.sequence import Output, SamplingParams, Sequence
from instrumented_engine.core.text import TextStream
from instrumented_engine.server import errors
from instrumented_engine.server.forms import Form
from instrumented_engine.server.schemas import GenerationRequest
from instrumented_engine.settings import Settings
from instrumented_engine.startup import Loaded
from tokentrail import Phase, RequestTrail, Status, Trail, now_ns

log = logging.getLogger(__name__)


class Generation:
    """One admitted request: iterate `outputs` to its end, and `close` it in any case."""

    def __init__(self, request_id: str, trail: RequestTrail, close: Callable[[Sequence], None]) -> None:
        self.request_id = request_id
        self.trail = trail
        self.sequence: Sequence | None = None
        self._queue: asyncio.Queue[Output] = asyncio.Queue()
        self._close = close
        self._ended = False

    @property
    def headers(self) -> dict[str, str]:
        """Response headers that let a caller find the trace."""
        found = {"traceparent": self.trail.traceparent, "x-request-id": self.request_id}
        return {name: value for name, value in found.items() if value}

    def put(self, output: Output) -> None:
        """Called by the service for every output of this request."""
        self._ended = self._ended or output.final
        self._queue.put_nowait(output)

    async def outputs(self) -> AsyncIterator[Output]:
        """Each step's output. Raises ApiError when the engine failed."""
        final = False
        while not final:
            output = await self._queue.get()
            final = output.final
            if output.error is not None:
                raise errors.step_failed(output.error)
            yield output

    def close(self) -> None:
        """Cancel what has not ended."""
        if not self._ended and self.sequence is not None:
            self._ended = True
            self._close(self.sequence)


class Service:
    """The engine as the server's handlers see it. All methods belong to the event loop's thread."""

    def __init__(self, settings: Settings, trail: Trail, load: Callable[[Settings, Trail], Loaded]) -> None:
        self.settings = settings
        self.trail = trail
        self.failure: Exception | None = None
        self.loaded: Loaded | None = None
        self._load = load
        self._started = asyncio.Event()  # loaded, or failed to
        self._admitting = 0
        self._loop = EngineLoop(self._load_engine, deliver=self._deliver, on_ready=self._on_ready)

    def start(self) -> None:
        """Begin loading; returns at once."""
        self._asyncio = asyncio.get_running_loop()
        self._loop.start()

    def close(self) -> None:
        """Cancel what runs, end the engine's thread, then send what the trail still holds."""
        if not self._loop.close():
            log.warning("the engine's thread did not end in time; its last spans may be missing")
        if not self.trail.shutdown():
            log.warning("the trail could not be sent completely: %s", self.trail.stats)

    @property
    def ready(self) -> bool:
        """Whether requests can be served now."""
        return self.loaded is not None and self.failure is None

    @property
    def waiting(self) -> int:
        """Requests that have not been scheduled yet, wherever they wait."""
        return self._admitting + self._loop.waiting

    async def admit(
        self, form: Form, body: GenerationRequest, *, headers: Mapping[str, str], arrival_ns: int, request_id: str
    ) -> Generation:
        """Open a trail, wait for the model, check the prompt against it, and queue the request.

        Raises ApiError; the trail has then ended as an error. Cancelling this ends it as cancelled.
        """
        trail = self.trail.start_request(
            operation=form.operation,
            model=body.model,
            request_id=request_id,
            carrier=headers,
            arrival_ns=arrival_ns,
            tenant=headers.get("x-tokentrail-tenant", ""),
            slo_class=headers.get("x-tokentrail-slo-class", ""),
            attributes=form.attributes(body),
        )
        self._admitting += 1
        try:
            return await self._admit(form, body, Generation(request_id, trail, self._loop.cancel), arrival_ns)
        except errors.ApiError as error:
            trail.end(now_ns(), status=Status.ERROR, error_type=error.code)
            raise
        except asyncio.CancelledError:
            trail.end(now_ns(), status=Status.CANCELLED)
            raise
        except Exception as error:
            trail.end(now_ns(), status=Status.ERROR, error_type=type(error).__name__)
            raise
        finally:
            self._admitting -= 1

    async def _admit(self, form: Form, body: GenerationRequest, generation: Generation, arrival_ns: int) -> Generation:
        if self.failure is not None:
            raise errors.unavailable(self.failure)
        if self.waiting > self.settings.max_waiting:
            raise errors.overloaded(self.settings.max_waiting)
        if self.loaded is None:
            generation.trail.phase(Phase.COLD_START, arrival_ns)
            await self._started.wait()
            generation.trail.phase(Phase.QUEUED, now_ns())
        if self.loaded is None:
            raise errors.unavailable(self.failure or "it did not start")
        loaded = self.loaded
        try:
            prompt = await asyncio.to_thread(form.encode, body, loaded.tokenizer)
        except ValueError as error:
            raise errors.invalid(form.prompt_field, str(error)) from error
        params = _checked(form, body, prompt, loaded)
        sequence = Sequence(
            prompt_tokens=len(prompt),
            tokens=prompt,
            params=params,
            trail=generation.trail,
            text=TextStream(loaded.tokenizer.decode, params.stop),
            sink=generation.put,
            rng=random.Random(params.seed),  # noqa: S311  # sampling, not secrets
        )
        generation.sequence = sequence
        self._loop.submit(sequence)
        return generation

    def _load_engine(self) -> Any:
        self._loading = self._load(self.settings, self.trail)
        return self._loading.engine

    def _on_ready(self, failure: Exception | None) -> None:
        self._post(self._set_ready, failure)

    def _set_ready(self, failure: Exception | None) -> None:
        self.failure = failure
        if failure is None:
            self.loaded = self._loading
        self._started.set()

    def _deliver(self, outputs: list[Output]) -> None:
        self._post(_dispatch, outputs)

    def _post(self, call: Callable[..., None], argument: Any) -> None:
        try:
            self._asyncio.call_soon_threadsafe(call, argument)
        except RuntimeError:  # the event loop is closed: nobody is listening any more
            log.debug("dropped an engine output after shutdown")


def _dispatch(outputs: list[Output]) -> None:
    for output in outputs:
        output.sequence.sink(output)


def _checked(form: Form, body: GenerationRequest, prompt: list[int], loaded: Loaded) -> SamplingParams:
    if not prompt:
        raise errors.invalid(form.prompt_field, "the prompt is empty")
    if not all(0 <= token < loaded.vocab_size for token in prompt):
        raise errors.invalid(form.prompt_field, f"token ids must be between 0 and {loaded.vocab_size - 1}")
    wanted = body.wanted_tokens
    if len(prompt) + (wanted or 1) > loaded.max_tokens:
        raise errors.too_long(len(prompt), wanted or 1, loaded.max_tokens, form.prompt_field)
    return body.sampling(wanted or loaded.max_tokens - len(prompt))
