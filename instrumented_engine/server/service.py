"""Connects the HTTP handlers with the engine's thread: admits requests and hands each its outputs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from instrumented_engine.core.loop import EngineLoop
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.reasoning import Markers, Reasoning
from instrumented_engine.core.request import Request, SamplingParams
from instrumented_engine.core.sequence import Output
from instrumented_engine.core.text import TextStream
from instrumented_engine.model.tokenizer import Tokenizer
from instrumented_engine.server import errors
from instrumented_engine.server.endpoints import Endpoint
from instrumented_engine.server.schemas import GenerationRequest
from instrumented_engine.settings import Settings
from instrumented_engine.startup import Loaded
from tokentrail import RequestTrail, Status, now_ns

logger = logging.getLogger(__name__)

CONTEXT_TOKENS = 5
"""Prompt tokens that are decoded before the output, so that its first token is not at the start of a text."""


MARKER_TOKENS = 32
"""Prompt tokens that are searched for the marker of reasoning. It has at most 64 characters."""


class Generation:
    """One admitted request. Its handler iterates `outputs` and always calls `close`."""

    def __init__(self, request_id: str, trail: RequestTrail, close: Callable[[Request], None]) -> None:
        self.request_id = request_id
        self.trail = trail
        self.request: Request | None = None
        self.tokenizer: Tokenizer  # set with the request
        self._queue: asyncio.Queue[Output] = asyncio.Queue()
        self._close = close
        self._ended = False

    @property
    def headers(self) -> dict[str, str]:
        """Response headers with the ids that find the trace."""
        found = {"traceparent": self.trail.traceparent, "x-request-id": self.request_id}
        return {name: value for name, value in found.items() if value}

    def put(self, output: Output) -> None:
        """Receive an output; the service calls this for each one of the request."""
        self._queue.put_nowait(output)

    async def outputs(self) -> AsyncIterator[Output]:
        """Iterate the outputs, one per step and sequence. Raises ApiError when the engine fails."""
        assert self.request is not None
        running = len(self.request.sequences)
        while running:
            output = await self._queue.get()
            running -= output.final
            self._ended = not running or output.error is not None
            if output.error is not None:
                raise errors.step_failed(output.error)
            yield output

    def close(self) -> None:
        """Cancel the request unless it has ended."""
        if not self._ended and self.request is not None:
            self._ended = True
            self._close(self.request)


class Service:
    """The engine's interface for HTTP handlers. Call its methods in the event loop's thread only."""

    def __init__(self, settings: Settings, observer: Observer, load: Callable[[Settings, Observer], Loaded]) -> None:
        self.settings = settings
        self.observer = observer
        self.failure: Exception | None = None
        self.loaded: Loaded | None = None
        self._load = load
        self._started = asyncio.Event()  # loaded, or failed to
        self._admitting = 0
        self._loop = EngineLoop(self._load_engine, deliver=self._deliver, on_ready=self._on_ready)

    def start(self) -> None:
        """Start loading and return at once."""
        self._asyncio = asyncio.get_running_loop()
        self._loop.start()

    def give_up_loading(self) -> None:
        """Refuse the requests that wait for the model: the process stops before it is loaded."""
        self._started.set()

    def close(self) -> bool:
        """Cancel the requests that are left, end the engine's thread, then send the spans that are left.

        False when the thread could not be ended: it is still loading, or inside a step.
        """
        ended = self._loop.close()
        if not ended:
            logger.warning("the engine's thread is still loading or inside a step; its last spans may be missing")
        if not self.observer.close():
            logger.warning("not all spans could be sent: %s", self.observer.stats)
        return ended

    @property
    def ready(self) -> bool:
        """Whether requests can be served now."""
        return self.loaded is not None and self.failure is None

    @property
    def waiting(self) -> int:
        """Requests that have not been scheduled yet: those being admitted and those in the engine's queues."""
        return self._admitting + self._loop.waiting

    async def admit(
        self,
        endpoint: Endpoint,
        body: GenerationRequest,
        *,
        headers: Mapping[str, str],
        arrival_ns: int,
        request_id: str,
    ) -> Generation:
        """Open a trail, wait for the model, check the prompt against it, and queue the request.

        After an exception, ApiError among them, the trail has ended as an error; after cancellation as cancelled.
        """
        trail = self.observer.arrived(
            arrival_ns,
            operation=endpoint.operation,
            model=body.model,
            request_id=request_id,
            headers=headers,
            attributes=endpoint.attributes(body),
        )
        self._admitting += 1
        try:
            return await self._admit(endpoint, body, Generation(request_id, trail, self._loop.cancel), arrival_ns)
        except errors.ApiError as error:
            self.observer.rejected(trail, now_ns(), Status.ERROR, error_type=error.code)
            raise
        except asyncio.CancelledError:
            self.observer.rejected(trail, now_ns(), Status.CANCELLED)
            raise
        except Exception as error:
            self.observer.rejected(trail, now_ns(), Status.ERROR, error_type=type(error).__name__)
            raise
        finally:
            self._admitting -= 1

    async def _admit(
        self, endpoint: Endpoint, body: GenerationRequest, generation: Generation, arrival_ns: int
    ) -> Generation:
        if self.failure is not None:
            raise errors.unavailable(self.failure)
        if body.priority and self.settings.scheduling_policy == "fcfs":
            raise errors.invalid("priority", "a priority needs --scheduling-policy priority")
        if self.waiting > self.settings.max_waiting:
            raise errors.overloaded(self.settings.max_waiting)
        if self.loaded is None:
            self.observer.waits_for_model(generation.trail, arrival_ns)
            await self._started.wait()
            self.observer.model_loaded(generation.trail, now_ns())
        if self.loaded is None:
            raise errors.unavailable(self.failure or "it did not start")
        loaded = self.loaded
        try:
            prompts = await asyncio.to_thread(endpoint.encode, body, loaded.tokenizer)
        except ValueError as error:
            raise errors.invalid(endpoint.prompt_field, str(error)) from error
        params = _checked(endpoint, body, prompts, loaded)
        generation.tokenizer = loaded.tokenizer
        generation.request = Request.of(
            prompts,
            params,
            arrival_ns=arrival_ns,
            trail=generation.trail,
            sink=generation.put,
            text=lambda prompt: TextStream(loaded.tokenizer.decode, params.stop, prompt[-CONTEXT_TOKENS:]),
            reasoning=lambda prompt: self._reasoning(endpoint, loaded.tokenizer.decode(prompt[-MARKER_TOKENS:])),
        )
        self._loop.submit(generation.request)
        return generation

    def _reasoning(self, endpoint: Endpoint, prompt: str) -> Reasoning | None:
        """What divides a chat's answer to a prompt that ends so, if the model reasons between markers."""
        markers = Markers(self.settings.reasoning_start_str, self.settings.reasoning_end_str)
        return Reasoning(markers, prompt) if endpoint.divides_reasoning and markers.start else None

    def _load_engine(self) -> Any:
        self._loading = self._load(self.settings, self.observer)
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
        except RuntimeError:  # the event loop is closed; no handler is left
            logger.debug("dropped an engine output after shutdown")


def _dispatch(outputs: list[Output]) -> None:
    for output in outputs:
        output.sequence.request.sink(output)


def _checked(endpoint: Endpoint, body: GenerationRequest, prompts: list[list[int]], loaded: Loaded) -> SamplingParams:
    """The sampling parameters, once the prompts and the ids of tokens are known to fit the model."""
    in_vocabulary = range(loaded.vocab_size).__contains__
    told = f"token ids must be between 0 and {loaded.vocab_size - 1}"
    for prompt in prompts:
        if not prompt:
            raise errors.invalid(endpoint.prompt_field, "the prompt is empty")
        if not all(map(in_vocabulary, prompt)):
            raise errors.invalid(endpoint.prompt_field, told)
    longest = max(map(len, prompts))
    wanted = body.wanted_tokens
    if longest + (wanted or 1) > loaded.max_tokens:
        raise errors.too_long(longest, wanted or 1, loaded.max_tokens, endpoint.prompt_field)
    params = body.sampling(wanted or loaded.max_tokens - longest)
    if not all(in_vocabulary(token) for token, _ in params.logit_bias):
        raise errors.invalid("logit_bias", told)
    if not all(map(in_vocabulary, params.stop_token_ids)):
        raise errors.invalid("stop_token_ids", told)
    return params
