"""Records an unmodified vLLM (0.12 to 0.33) from inside its API server.

vLLM loads `StatLogger` by the entry point group `vllm.stat_logger_plugins`, in API servers only. When it makes the
first one, the hooks are set: methods of `OutputProcessor` and `AsyncLLM` are wrapped. Each wrapper calls vLLM first and
then tells the recorder. Where a signature is not the one known here, nothing is wrapped and one warning is logged.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from vllm.v1.metrics.loggers import StatLoggerBase

from tokentrail import Status, Trail, now_ns, semconv
from tokentrail.integrations.process import engine_trail, process_start_ns, siblings_name, wanted
from tokentrail.integrations.recorder import EngineRecorder, activate, response_format
from tokentrail.integrations.vllm_signatures import EVENTS, missing_in
from tokentrail.semconv import Limit
from tokentrail.shared.finish_reasons import End, end_of

logger = logging.getLogger(__name__)

_LOADED_NS: Final = now_ns()
_MONOTONIC_NS: Final = now_ns() - time.monotonic_ns()
_SAME_HOST_NS: Final = 5_000_000_000
"""Clocks that are closer are one clock: an engine core on another host has another uptime."""
_OPERATIONS: Final = {"chatcmpl": "chat", "cmpl": "text_completion", "resp": "chat", "msg": "chat"}

_trace_headers: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("trace_headers", default=None)


class StatLogger(StatLoggerBase):  # type: ignore[misc]
    """The class that vLLM loads. vLLM makes one for each engine of this process and calls `record` for each step."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._hooks = _hooks_for(vllm_config, engine_index)

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
        **_: Any,
    ) -> None:
        """A step of an engine is over; `process_outputs` was called with its outputs before."""
        if self._hooks is not None and self._hooks.recorder.on:
            self._hooks.stepped(scheduler_stats, iteration_stats, engine_idx)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


_installed: list[Hooks | None] = []
"""The hooks of this process, once they were asked for; None when they are not wanted or do not fit."""


def _hooks_for(vllm_config: Any, engine_index: int) -> Hooks | None:
    if not _installed:
        _installed.append(_install(vllm_config) if wanted("TOKENTRAIL_VLLM") else None)
    hooks = _installed[0]
    if hooks is not None:
        hooks.add_engine(vllm_config, engine_index)
    return hooks


def _install(vllm_config: Any) -> Hooks | None:
    try:
        from vllm.v1 import engine as core
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.output_processor import OutputProcessor

        classes = {"OutputProcessor": OutputProcessor, "AsyncLLM": AsyncLLM, "StatLoggerBase": StatLoggerBase}
        if missing := missing_in(classes, core):
            logger.warning("tokentrail does not know this vLLM and records nothing: no %s", ", ".join(missing))
            return None
        hooks = Hooks(vllm_config, core.EngineCoreEventType)
        if Resource.create().attributes.get(semconv.DISAGGREGATION):
            hooks.wrap_steps(OutputProcessor)
        else:
            hooks.wrap(OutputProcessor, AsyncLLM)
            activate(hooks.recorder)
        hooks.record_cold_start()
    except Exception:
        logger.exception("tokentrail could not set its hooks and records nothing; vLLM is not affected")
        return None
    return hooks


class _CoreClock:
    """Unix ns of an engine core's monotonic seconds.

    On this host it is this process's own clock. On another host its zero is another one: the least difference between
    an arrival here and its stamp there is that zero plus the fastest way, which is less than a millisecond too late.
    """

    def __init__(self) -> None:
        self._least = 0

    def seen(self, stamp_s: float, now: int) -> None:
        """A message with this stamp arrived now."""
        age = now - int(stamp_s * 1e9)
        self._least = min(self._least or age, age)

    def __call__(self, stamp_s: float) -> int:
        same = abs(self._least - _MONOTONIC_NS) < _SAME_HOST_NS
        return int(stamp_s * 1e9) + (_MONOTONIC_NS if same else self._least)


class Hooks:
    """The work of the wrapped methods: it tells the recorder."""

    def __init__(self, vllm_config: Any, events: Any) -> None:
        self.recorder = EngineRecorder("vllm", _served_name(vllm_config), self._open_trail)
        self.recorder.on_fault = self._trace_again
        parallel = vllm_config.parallel_config
        self.recorder.sharing = max(getattr(parallel, "_api_process_count", 1), 1)
        self.recorder.rank = max(getattr(parallel, "_api_process_rank", 0), 0)
        self.recorder.knows_all = self.recorder.sharing == 1
        self._instance = siblings_name() if self.recorder.sharing > 1 else ""
        self._config = vllm_config
        self._engines: dict[int, int] = {}  # data parallelism: vLLM's index of an engine -> the recorder's
        self._phases = {getattr(events, name): phase for name, phase in EVENTS.items()}
        self._clocks: dict[int, _CoreClock] = {}
        self._events: list[tuple[str, Sequence[Any]]] = []  # of the step under way
        self._core_stamp_s: float | None = None  # of the step under way
        self._untraced: list[Any] = []  # processors whose request spans are switched off

    def _open_trail(self, index: int) -> Trail:
        return engine_trail("vllm", index, self._instance)

    def wrap(self, processor: Any, llm: Any) -> None:
        """Sets all hooks."""
        after = self.recorder.after
        wrapped: list[tuple[Any, str, Callable[..., Any]]] = [
            (processor, "add_request", after(processor.add_request, self.added)),
            (processor, "process_outputs", after(processor.process_outputs, self.processed)),
            (processor, "abort_requests", after(processor.abort_requests, self.aborted)),
            (processor, "propagate_error", after(processor.propagate_error, self.died)),
            (llm, "add_request", _with_trace_headers(llm.add_request)),
        ]
        if hasattr(llm, "is_tracing_enabled"):  # up to 0.31 it decides whether trace headers are read at all
            wrapped.append((llm, "is_tracing_enabled", self._tracing_is_enabled(llm.is_tracing_enabled)))
        for owner, name, method in wrapped:
            setattr(owner, name, method)

    def wrap_steps(self, processor: Any) -> None:
        """Sets the hook of steps alone, for a prefill or a decode engine of a divided vLLM. Both have a part of each
        request, and the collector makes one row of the parts that vLLM's own spans tell (docs/engines/vllm.md).
        """
        self.recorder.knows_all = False
        processor.process_outputs = self.recorder.after(processor.process_outputs, self.processed)
        if not self._config.observability_config.otlp_traces_endpoint:
            logger.warning("tokentrail records no requests of a divided vLLM without --otlp-traces-endpoint")

    def _tracing_is_enabled(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        async def is_tracing_enabled(llm: Any) -> bool:
            return self.recorder.on or bool(await method(llm))

        return is_tracing_enabled

    def _trace_again(self) -> None:
        for processor in self._untraced:
            processor.tracing_enabled = True
        self._untraced.clear()

    def add_engine(self, vllm_config: Any, index: int) -> None:
        """Another `StatLogger` was made, for an engine, at the start or when it scales."""
        self._config = vllm_config
        self._engines.setdefault(index, len(self._engines))
        self.recorder.several = len(self._engines) > 1

    def record_cold_start(self) -> None:
        """The start of this process up to now. vLLM's own start-up spans go before it, where vLLM sends them."""
        began = process_start_ns()
        if began is None or self._config.observability_config.otlp_traces_endpoint or self.recorder.rank:
            return
        with self.recorder.trail().cold_start(self.recorder.model, start_ns=began) as cold:
            cold.passed("api_server", began, _LOADED_NS)
            cold.passed("engine_core", _LOADED_NS, now_ns())
            cold.limits(_limits(self._config))

    def added(
        self,
        processor: Any,
        _: Any,
        request: Any,
        prompt: Any = None,
        parent_req: Any = None,
        request_index: int = 0,
        *__: Any,
        **___: Any,
    ) -> None:
        """After `OutputProcessor.add_request`. A known id is more input for a request of a streaming session."""
        key = request.request_id
        if getattr(processor, "tracing_enabled", False):
            processor.tracing_enabled = False
            self._untraced.append(processor)
        if self.recorder.is_open(key):
            if key not in processor.request_states:
                self.recorder.aborted(key, finish_reason="stop")
            return
        family = key if parent_req is None else parent_req.request_id
        external = getattr(request, "external_req_id", None) or family
        prefix = re.split("[-_]", external, maxsplit=1)[0]
        operation = _OPERATIONS.get(prefix, "generate_content")
        params = request.sampling_params
        ids = request.prompt_token_ids
        lora = request.lora_request
        self.recorder.arrived(
            key,
            operation=operation if params is not None else "embeddings",
            model="" if lora is None else lora.lora_name,
            request_id=re.sub(r"^(cmpl-.+)-\d+$", r"\1", external),  # without the number of the prompt
            arrival_ns=_unix_ns(request.arrival_time),
            input_tokens=None if ids is None else len(ids),
            carrier=_trace_headers.get(),
            attributes=_asked(params),
            labels={
                "adapter": None if lora is None else lora.lora_name,
                "priority": getattr(request, "priority", 0) or None,
                **_labels(params),
            },
            choices=1 if parent_req is None else parent_req.n,
            index=request_index,
            parent=family,
        )

    def processed(
        self,
        processor: Any,
        result: Any,
        engine_core_outputs: Sequence[Any],
        engine_core_timestamp: float | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        """After `OutputProcessor.process_outputs`, which has cut tokens behind a stop string. The hot path."""
        recorder = self.recorder
        self._core_stamp_s = engine_core_timestamp
        recorder.emitted(
            [output.request_id for output in engine_core_outputs],
            [len(output.new_token_ids) for output in engine_core_outputs],
        )
        for output in [one for one in engine_core_outputs if one.events or one.finish_reason is not None]:
            key = output.request_id
            if output.events:
                self._events.append((key, output.events))
                recorder.cached(key, _cached_tokens(output))
            if output.finish_reason is not None and key not in processor.request_states:  # else a session goes on
                recorder.finished(key, **_outcome(str(output.finish_reason)))
        for key in result.reqs_to_abort:
            recorder.finished(key, **_outcome("stop"))

    def aborted(self, _: Any, ids: Sequence[str], *__: Any, **___: Any) -> None:
        """After `OutputProcessor.abort_requests`, which returns the ids that it aborted."""
        error = sys.exc_info()[1]
        gone = error is None or isinstance(error, (CancelledError, GeneratorExit))
        for key in ids:
            if gone:
                self.recorder.aborted(key, status=Status.CANCELLED, finish_reason="abort")
            else:
                self.recorder.aborted(key, status=Status.ERROR, error_type=type(error).__qualname__)

    def died(self, _: Any, __: Any, e: BaseException, *___: Any) -> None:
        """After `OutputProcessor.propagate_error`: the engine is dead."""
        self.recorder.end_all(status=Status.ERROR, error_type=type(e).__qualname__)

    def stepped(self, scheduler: Any, iteration: Any, engine: int) -> None:
        """In `StatLogger.record`. A message without statistics is no step."""
        if scheduler is None and iteration is None:
            return
        try:
            self._stepped(scheduler, iteration, engine)
        except Exception:
            self.recorder.fault()

    def _stepped(self, scheduler: Any, iteration: Any, engine: int) -> None:
        now = now_ns()
        clock = self._clocks.get(engine) or self._clocks.setdefault(engine, _CoreClock())
        stamp_s, self._core_stamp_s = self._core_stamp_s, None
        if stamp_s:
            clock.seen(stamp_s, now)
        for key, events in self._events:
            for event in events:
                self.recorder.entered(key, self._phases[event.type], clock(event.timestamp))
        self._events.clear()
        emitted_ns = now if iteration is None else _unix_ns(iteration.iteration_timestamp)
        details = getattr(scheduler, "iteration_details", None)
        self.recorder.stepped(
            self._engines.get(engine, 0),
            emitted_ns=emitted_ns,
            end_ns=min(clock(stamp_s), emitted_ns) if stamp_s else emitted_ns,
            duration_ns=int(details.elapsed_ms * 1e6) if details else None,
            prefill_tokens=details.num_ctx_tokens if details else None,
            decode_tokens=details.num_generation_tokens if details else self._decoded(iteration),
            **({} if scheduler is None else self._load(scheduler)),
        )

    def _decoded(self, iteration: Any) -> int | None:
        """Tokens of the step that no prefill made. Where API servers share the engines, none of them knows."""
        if self.recorder.sharing > 1:
            return None
        if iteration is None:
            return 0
        return iteration.num_generation_tokens - len(iteration.time_to_first_tokens_iter)  # type: ignore[no-any-return]

    def _load(self, scheduler: Any) -> dict[str, int | None]:
        blocks = self._config.cache_config.num_gpu_blocks  # of all engines
        usable = blocks // len(self._engines) - 1 if blocks else None  # one block is the null block
        return {
            "running": scheduler.num_running_reqs,
            "waiting": scheduler.num_waiting_reqs + getattr(scheduler, "num_skipped_waiting_reqs", 0),
            "kv_used": round(scheduler.kv_cache_usage * usable) if usable else None,
            "kv_total": usable,
        }


def _with_trace_headers(method: Callable[..., Any]) -> Callable[..., Any]:
    """`AsyncLLM.add_request` drops the trace headers when vLLM itself does not trace."""

    @wraps(method)
    async def add_request(llm: Any, *args: Any, **kwargs: Any) -> Any:
        token = _trace_headers.set(kwargs.get("trace_headers"))
        try:
            return await method(llm, *args, **kwargs)
        finally:
            _trace_headers.reset(token)

    return add_request


def _unix_ns(wall_s: float) -> int:
    """A stamp of `time.time()` on the clock of all other stamps. The system's clock may have been set meanwhile."""
    return now_ns() - max(0, time.time_ns() - int(wall_s * 1e9))


def _outcome(reason: str) -> dict[str, Any]:
    """An abort that the engine tells is its own (sleep, shutdown): a client's has taken the request out before."""
    if end_of(reason) is End.ERROR:
        return {"error_type": "engine_error" if reason == "error" else reason, "finish_reason": reason}
    return {"finish_reason": reason}


def _cached_tokens(output: Any) -> int | None:
    stats = getattr(output, "prefill_stats", None)  # from 0.20; before, the number itself
    return getattr(output if stats is None else stats, "num_cached_tokens", None)


def _asked(params: Any) -> dict[str, Any]:
    """The sampling parameters as attributes of the GenAI conventions."""
    if params is None:
        return {}
    asked = {
        semconv.REQUEST_MAX_TOKENS: params.max_tokens,
        semconv.REQUEST_TEMPERATURE: params.temperature,
        semconv.REQUEST_TOP_P: params.top_p,
        semconv.REQUEST_TOP_K: params.top_k if (params.top_k or 0) > 0 else None,
        semconv.REQUEST_STREAM: getattr(params.output_kind, "name", "") != "FINAL_ONLY",
    }
    return {key: value for key, value in asked.items() if value is not None}


def _labels(params: Any) -> dict[str, Any]:
    """What is special about the sampling. A release before 0.11 has `guided_decoding`."""
    structured = getattr(params, "structured_outputs", None) or getattr(params, "guided_decoding", None)
    return {"logprobs": getattr(params, "logprobs", None), "response_format": response_format(structured)}


def _limits(vllm_config: Any) -> dict[Limit, Any]:
    """What the engine may do at once; not known where a release has no such setting. Its steps tell the KV blocks."""
    scheduler, cache = (getattr(vllm_config, name, None) for name in ("scheduler_config", "cache_config"))
    return {
        Limit.MAX_SEQS: getattr(scheduler, "max_num_seqs", None),
        Limit.MAX_BATCHED_TOKENS: getattr(scheduler, "max_num_batched_tokens", None),
        Limit.BLOCK_SIZE: getattr(cache, "block_size", None),
        Limit.CHUNKED_PREFILL: getattr(scheduler, "enable_chunked_prefill", None),
        Limit.PREFIX_CACHING: getattr(cache, "enable_prefix_caching", None),
        Limit.POLICY: getattr(scheduler, "policy", None),
    }


def _served_name(vllm_config: Any) -> str:
    model = vllm_config.model_config
    name = getattr(model, "served_model_name", None) or model.model
    return str(name if isinstance(name, str) else name[0])
