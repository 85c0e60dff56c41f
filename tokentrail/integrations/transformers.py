"""Records Hugging Face transformers: one `generate` by a streamer, continuous batching by hooks.

    with RequestStreamer(trail, model="my-model") as streamer:
        model.generate(**inputs, streamer=streamer)

    record_continuous_batching("my-model")      before model.generate_batch(…) or a continuous batching manager

Tokens of continuous batching have the stamp at which the batch is updated, which is the end of their step.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Final

from tokentrail import Phase, RequestTrail, Status, Trail, now_ns
from tokentrail._record.arguments import AttributeValue, Carrier, Labels
from tokentrail.integrations.process import engine_trail
from tokentrail.integrations.recorder import EngineRecorder

logger = logging.getLogger(__name__)

_REQUIRED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("ContinuousBatchProcessor", "update_batch"): ("self",),
    ("ContinuousBatchProcessor", "_handle_request_error"): ("error", "state"),
    ("Scheduler", "add_waiting_request"): ("state",),
    ("Scheduler", "clear_cancelled_requests"): ("self",),
}


class RequestStreamer:
    """A streamer for one `generate` of one prompt. It is a context manager: an exception in the block makes the request
    an error. `inner` is another streamer that gets everything too, e.g. a `TextIteratorStreamer`.
    """

    def __init__(
        self,
        trail: Trail,
        *,
        model: str,
        operation: str = "text_completion",
        request_id: str = "",
        carrier: Carrier | None = None,
        tenant: str = "",
        slo_class: str = "",
        labels: Labels | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        inner: Any = None,
    ) -> None:
        self._inner = inner
        self._input_tokens: int | None = None
        self.request: RequestTrail = trail.start_request(
            operation=operation,
            model=model,
            request_id=request_id,
            carrier=carrier,
            provider="transformers",
            tenant=tenant,
            slo_class=slo_class,
            labels=labels,
            attributes=attributes,
        )

    def put(self, value: Any) -> None:
        """`generate` calls it with the prompt, then with the new tokens of each step."""
        if self._input_tokens is None:
            self._input_tokens = int(value.numel())
            if value.ndim > 1 and value.shape[0] > 1:
                logger.warning(
                    "tokentrail's streamer records one prompt; the tokens of this batch count for one request"
                )
        else:
            self.request.token(int(value.numel()))
        if self._inner is not None:
            self._inner.put(value)

    def end(self) -> None:
        """`generate` is over."""
        self.request.end(input_tokens=self._input_tokens)
        if self._inner is not None:
            self._inner.end()

    def __enter__(self) -> RequestStreamer:
        self.request.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.request.__exit__(kind, error, traceback)


def record_continuous_batching(model: str, trail: Trail | None = None) -> EngineRecorder | None:
    """Hooks into transformers' continuous batching, once per process; None where its methods are not the known ones,
    after one warning. The trail is made of OTEL_* variables by default.
    """
    from transformers.generation.continuous_batching import continuous_api, scheduler

    classes: dict[str, Any] = {
        "ContinuousBatchProcessor": continuous_api.ContinuousBatchProcessor,
        "Scheduler": scheduler.Scheduler,
    }
    missing = [
        f"{owner}.{method}({name})"
        for (owner, method), names in _REQUIRED.items()
        for name in names
        if name not in _parameters(getattr(classes[owner], method, None))
    ]
    if missing:
        logger.warning("tokentrail does not know this transformers and records nothing: no %s", ", ".join(missing))
        return None
    recorder = EngineRecorder("transformers", model, lambda _: trail or engine_trail("transformers"))
    hooks = _Hooks(recorder)
    batches, queue = classes["ContinuousBatchProcessor"], classes["Scheduler"]
    batches.update_batch = hooks.around_update(batches.update_batch)
    batches._handle_request_error = recorder.after(batches._handle_request_error, hooks.failed)
    queue.add_waiting_request = recorder.after(queue.add_waiting_request, hooks.waits)
    queue.clear_cancelled_requests = recorder.after(queue.clear_cancelled_requests, hooks.cancelled)
    return recorder


class _Hooks:
    """The work of the wrapped methods, all in the thread that generates."""

    def __init__(self, recorder: EngineRecorder) -> None:
        self._recorder = recorder

    def waits(self, _: Any, __: Any, state: Any) -> None:
        """A request is in the queue: for the first time, or again after its cache was given to others."""
        key = state.request_id
        if self._recorder.is_open(key):
            self._recorder.entered(key, Phase.PREEMPTED, now_ns())
            return
        self._recorder.arrived(
            key,
            operation="text_completion",
            request_id=key,
            arrival_ns=_unix_ns(state.created_time),
            input_tokens=len(state.initial_tokens),
        )

    def around_update(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The step is over: who has more tokens than before got them in it."""

        @wraps(method)
        def update_batch(processor: Any) -> Any:
            before: list[tuple[Any, int]] = []
            self._recorder.guarded(lambda: before.extend(_progress(processor)))
            result = method(processor)
            self._recorder.guarded(lambda: self._updated(processor, before))
            return result

        return update_batch

    def _updated(self, processor: Any, before: list[tuple[Any, int]]) -> None:
        recorder, now = self._recorder, now_ns()
        grown = [(one, len(one.generated_tokens) - count, count) for one, count in before]
        for one, new, count in grown:
            if new and not count:
                recorder.entered(one.request_id, Phase.PREFILL, _unix_ns(one.lifespan[0]))
            if one.status.name == "FINISHED":
                full = one.max_new_tokens is not None and len(one.generated_tokens) >= one.max_new_tokens
                recorder.finished(one.request_id, finish_reason="length" if full else "stop")
        recorder.emitted([one.request_id for one, _, _ in grown], [new for _, new, _ in grown])
        queue = processor.scheduler
        recorder.stepped(
            0,
            emitted_ns=now,
            end_ns=now,
            running=len(queue.active_requests),
            waiting=len(queue.waiting_requests),
            decode_tokens=sum(new for _, new, count in grown if count),
        )

    def failed(self, _: Any, __: Any, error: Exception, state: Any) -> None:
        """A request failed."""
        self._recorder.aborted(state.request_id, status=Status.ERROR, error_type=type(error).__qualname__)

    def cancelled(self, _: Any, states: Any) -> None:
        """The requests that their callers cancelled."""
        for state in states:
            self._recorder.aborted(state.request_id, status=Status.CANCELLED)


def _progress(processor: Any) -> list[tuple[Any, int]]:
    """The requests of the next step, and the tokens that each one has."""
    return [(one, len(one.generated_tokens)) for one in processor.scheduler.active_requests.values()]


def _parameters(method: Any) -> Mapping[str, Any]:
    return inspect.signature(method).parameters if callable(method) else {}


def _unix_ns(counter_s: float) -> int:
    """A stamp of `time.perf_counter()` on the clock of all other stamps."""
    return now_ns() - max(0, time.perf_counter_ns() - int(counter_s * 1e9))
