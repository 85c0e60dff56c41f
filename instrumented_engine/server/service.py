"""Connects the HTTP handlers with the engine's thread: admits requests and hands each its outputs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from instrumented_engine.core.engine import Engine
from instrumented_engine.core.handover import Prefilled
from instrumented_engine.core.loop import EngineLoop
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.reasoning import Markers, Reasoning
from instrumented_engine.core.request import Request, SamplingParams
from instrumented_engine.core.sequence import Output
from instrumented_engine.core.text import TextStream
from instrumented_engine.server import errors
from instrumented_engine.server.checks import AnyBody, AnyEndpoint, check_prompts, checked
from instrumented_engine.server.consumer import Consumer
from instrumented_engine.server.embeddings import check_kind
from instrumented_engine.server.generation import Generation
from instrumented_engine.settings import Settings
from instrumented_engine.startup import Loaded, release_memory, trim_heap
from tokentrail import RequestTrail, Status, now_ns

logger = logging.getLogger(__name__)

CONTEXT_TOKENS = 5
"""Prompt tokens that are decoded before the output, so that its first token is not at the start of a text."""


MARKER_TOKENS = 32
"""Prompt tokens that are searched for the marker of reasoning. It has at most 64 characters."""


class Service:
    """The engine's interface for HTTP handlers. Call its methods in the event loop's thread only."""

    def __init__(self, settings: Settings, observer: Observer, load: Callable[[Settings, Observer], Loaded]) -> None:
        self.settings = settings
        self.observer = observer
        self.failure: Exception | None = None
        self.loaded: Loaded | None = None
        self.asleep = False
        """The model was unloaded: the next request loads it again."""
        self.error_answers: Counter[str] = Counter()
        """Answers that told an error of HTTP, by its code; also to requests that got no trail."""
        self._load = load
        self._loading: Loaded | None = None
        self._waking = False  # told to, and not loaded yet
        self._threads: str | int | None = None  # once measured
        self._started = asyncio.Event()  # loaded, or failed to
        self._admitting = 0
        self._active = 0  # requests that have not ended
        self._idle_timer: asyncio.TimerHandle | None = None
        self._consumer = Consumer(settings, observer) if settings.kv_role == "kv_consumer" else None
        self._loop = EngineLoop(
            self._load_engine, deliver=self._deliver, on_ready=self._on_ready, on_unload=self._unload
        )

    def start(self) -> None:
        """Start loading and return at once."""
        self._asyncio = asyncio.get_running_loop()
        self._loop.start()

    def sleep(self) -> bool:
        """Unload the model and its KV cache; False when requests are under way or it is not loaded."""
        if self._active or self.loaded is None:
            return False
        self.loaded, self.asleep = None, True
        self._started.clear()
        self._loop.sleep()
        return True

    async def wake_up(self) -> None:
        """Load the model if it was unloaded, and wait until it is loaded or has failed."""
        if self.asleep and not self._waking:
            self._waking = True
            self._loop.wake()
        await self._started.wait()

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
        """Whether requests can be served: at once, or after the model is loaded again."""
        return (self.loaded is not None or self.asleep) and self.failure is None

    @property
    def waiting(self) -> int:
        """Requests that wait: those being admitted, and those in the engine's queues of which no sequence runs."""
        return self._admitting + self._loop.waiting

    async def admit(
        self,
        endpoint: AnyEndpoint,
        body: AnyBody,
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
        generation = Generation(request_id, trail, self._closed)
        self._begin()
        try:
            return await self._admit(endpoint, body, generation, arrival_ns)
        except BaseException as error:
            generation.close()
            cancelled = isinstance(error, asyncio.CancelledError)
            self.observer.rejected(
                trail,
                now_ns(),
                Status.CANCELLED if cancelled else Status.ERROR,
                error_type="" if cancelled else getattr(error, "code", type(error).__name__),
            )
            raise
        finally:
            self._admitting -= 1

    async def prefill(self, prompt: list[int], fingerprint: str, handle: str) -> Prefilled:
        """Compute a prompt for another engine, and return its keys and values. Raises ApiError."""
        self._begin()
        try:
            try:
                request, answer = await self._queue_prefill(prompt, fingerprint, self.observer.borrow(handle))
            finally:
                self._admitting -= 1
            try:
                output = await answer
            except asyncio.CancelledError:
                self._loop.cancel(request)
                raise
            if request.prefilled is None:
                raise errors.step_failed(output.error or RuntimeError("nothing was computed"))
            return request.prefilled
        finally:
            self._end()

    async def _queue_prefill(
        self, prompt: list[int], fingerprint: str, trail: RequestTrail
    ) -> tuple[Request, asyncio.Future[Output]]:
        arrival_ns = now_ns()
        loaded = await self._when_loaded(trail, arrival_ns)
        if loaded.kv_layout is None or fingerprint != loaded.kv_layout.fingerprint:
            raise errors.invalid("fingerprint", "this engine has another model or other KV-cache blocks")
        check_prompts("prompt", [prompt], 1, loaded.max_tokens, loaded)
        answer: asyncio.Future[Output] = self._asyncio.create_future()
        request = Request.of(
            [prompt],
            SamplingParams(max_tokens=1),
            trail=trail,
            sink=lambda output: None if answer.done() else answer.set_result(output),
            text=lambda _: TextStream(lambda _: "", ()),
            arrival_ns=arrival_ns,
        )
        request.hands_over = True
        self._loop.submit(request)
        return request, answer

    async def _admit(
        self,
        endpoint: AnyEndpoint,
        body: AnyBody,
        generation: Generation,
        arrival_ns: int,
    ) -> Generation:
        if body.priority and self.settings.scheduling_policy == "fcfs":
            raise errors.invalid("priority", "a priority needs --scheduling-policy priority")
        loaded = await self._when_loaded(generation.trail, arrival_ns)
        check_kind(body, loaded.embedding_size, loaded.labels)
        try:
            prompts = await asyncio.to_thread(endpoint.encode, body, loaded.tokenizer)
        except ValueError as error:
            raise errors.invalid(endpoint.prompt_field, str(error)) from error
        params = checked(endpoint, body, prompts, loaded)
        generation.tokenizer = loaded.tokenizer
        request = Request.of(
            prompts,
            params,
            arrival_ns=arrival_ns,
            trail=generation.trail,
            sink=generation.put,
            text=lambda prompt: TextStream(loaded.tokenizer.decode, params.stop, prompt[-CONTEXT_TOKENS:]),
            reasoning=lambda prompt: self._reasoning(endpoint, loaded.tokenizer.decode(prompt[-MARKER_TOKENS:])),
        )
        if self._consumer is not None and loaded.kv_layout is not None:
            request.prefilled = await self._consumer.prefill(request, loaded.kv_layout, step=loaded.engine.steps)
        generation.request = request
        self._loop.submit(request)
        return generation

    async def _when_loaded(self, trail: RequestTrail, arrival_ns: int) -> Loaded:
        """The loaded model, which a request waits for. Raises ApiError when it cannot be had."""
        if self.failure is not None:
            raise errors.unavailable(self.failure)
        if self.waiting > self.settings.max_waiting:
            raise errors.overloaded(self.settings.max_waiting)
        if self.loaded is None:
            self.observer.waits_for_model(trail, arrival_ns)
            await self.wake_up()
            self.observer.model_loaded(trail, now_ns())
        if self.loaded is None:
            raise errors.unavailable(self.failure or "it did not start")
        return self.loaded

    def _begin(self) -> None:
        """A request begins, and is being admitted."""
        self._active += 1
        self._admitting += 1
        self._stop_idle_timer()

    def _end(self) -> None:
        """A request has ended."""
        self._active -= 1
        self._await_idleness()

    def _closed(self, generation: Generation, error_type: str) -> None:
        if generation.request is not None and not generation.ended:
            self._loop.cancel(generation.request, error_type)
        self._end()

    def _await_idleness(self) -> None:
        """Sleep after `--idle-unload-s` without a request, counted from now."""
        self._stop_idle_timer()
        if self.settings.idle_unload_s and not self._active:
            self._idle_timer = self._asyncio.call_later(self.settings.idle_unload_s, self.sleep)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _reasoning(self, endpoint: AnyEndpoint, prompt: str) -> Reasoning | None:
        """The divider of a chat's answer to a prompt that ends so; None without reasoning markers."""
        markers = Markers(self.settings.reasoning_start_str, self.settings.reasoning_end_str)
        return Reasoning(markers, prompt) if endpoint.divides_reasoning and markers.start else None

    def _load_engine(self) -> Engine:
        settings = self.settings
        if self._threads:
            settings = settings.model_copy(update={"threads": self._threads})
        self._loading = self._load(settings, self.observer)
        trim_heap()  # loading turned weights into other formats, and freed up to twice their size
        self._threads = self._loading.facts.get("threads")
        return self._loading.engine

    def _unload(self) -> None:
        self._loading = None
        release_memory()

    def _on_ready(self, failure: Exception | None) -> None:
        self._post(self._set_ready, failure)

    def _set_ready(self, failure: Exception | None) -> None:
        self.failure = failure
        self.asleep = self._waking = False
        if failure is None:
            self.loaded = self._loading
            self._await_idleness()
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
