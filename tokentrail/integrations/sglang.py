"""Records an unmodified SGLang (0.5.23) from inside, by SGLang's own plugin hooks.

SGLang calls `register` by the entry point group `sglang.srt.plugins` in each of its processes. The hooks are of the
scheduler, which knows every token, step and retraction. One more, in the API server, hands the time of arrival on.
Where a signature is not the one known here, nothing is hooked and one warning is logged. SGLang does not catch the
exceptions of hooks, so these catch their own.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tokentrail import Phase, Status, now_ns, semconv
from tokentrail.integrations.process import engine_trail, wanted
from tokentrail.integrations.recorder import EngineRecorder, activate, response_format

logger = logging.getLogger(__name__)

_SCHEDULER: Final = "sglang.srt.managers.scheduler.Scheduler"
_API_SERVER: Final = "sglang.srt.observability.req_time_stats.APIServerReqTimeStats"
_HEALTH_CHECK: Final = "HEALTH_CHECK"
"""SGLang's own requests, by which it sees whether the engine lives, have ids that begin so."""
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_SCHEDULER}._add_request_to_queue": ("req", "is_retracted"),
    f"{_SCHEDULER}.process_batch_result": ("batch", "result"),
    f"{_SCHEDULER}.send_abort_output": ("abort_req", "req"),
    f"{_API_SERVER}.__getstate__": ("self",),
}


def register() -> None:
    """The entry point: registers the hooks, which SGLang then applies."""
    if not wanted("TOKENTRAIL_SGLANG"):
        return
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        if missing := _missing():
            logger.warning("tokentrail does not know this SGLang and records nothing: no %s", ", ".join(missing))
            return
        hooks = Hooks()
        HookRegistry.register(f"{_SCHEDULER}._add_request_to_queue", hooks.arriving, HookType.BEFORE)
        HookRegistry.register(f"{_SCHEDULER}.process_batch_result", hooks.around_result, HookType.AROUND)
        HookRegistry.register(f"{_SCHEDULER}.send_abort_output", hooks.aborted, HookType.AFTER)
        HookRegistry.register(f"{_API_SERVER}.__getstate__", hand_on_arrival, HookType.AFTER)
    except Exception:
        logger.exception("tokentrail could not register its hooks and records nothing; SGLang is not affected")


def _missing() -> list[str]:
    """Parameters that this module relies on and that this SGLang does not have."""
    from pkgutil import resolve_name

    missing = []
    for target, names in _REQUIRED.items():
        owner, _, method = target.rpartition(".")
        known = inspect.signature(getattr(resolve_name(owner), method)).parameters
        missing += [f"{method}({name})" for name in names if name not in known]
    return missing


def hand_on_arrival(state: dict[str, Any], stats: Any, *_: Any, **__: Any) -> dict[str, Any]:
    """Adds the time of arrival to the times of a request that the API server has packed for the scheduler, where SGLang
    puts them all on the scheduler's clock.
    """
    state["created_time"] = getattr(stats, "created_time", 0.0)
    return state


class Hooks:
    """The work of the hooks in a scheduler: it tells the recorder.

    The first call decides whether this scheduler records: of several ranks the first one does. None does when SGLang
    itself sends spans, which would make a second row of each request, or when prefill and decode are divided.
    """

    def __init__(self) -> None:
        self.recorder: EngineRecorder | None = None
        self._asked = False
        self._queued: set[str] = set()  # requests that wait for their first prefill, or for one after a retraction

    def _recorder(self, scheduler: Any) -> EngineRecorder | None:
        if not self._asked:
            self._asked = True
            self.recorder = _recorder_for(scheduler)
        recorder = self.recorder
        return recorder if recorder is not None and recorder.on else None

    def arriving(self, scheduler: Any, req: Any, is_retracted: bool = False, *_: Any, **__: Any) -> None:
        """Before `_add_request_to_queue`: a request comes, or comes back because its KV blocks were taken away."""
        self._guarded(scheduler, lambda recorder: self._arriving(recorder, req, is_retracted))

    def around_result(self, method: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `process_batch_result`, which gives each request of a step its tokens."""
        before: list[tuple[Any, int]] = []
        self._guarded(
            scheduler, lambda _: before.extend((req, len(req.output_ids)) for req in getattr(batch, "reqs", None) or ())
        )
        result = method(scheduler, batch, *args, **kwargs)
        self._guarded(scheduler, lambda recorder: self._stepped(recorder, scheduler, batch, before))
        return result

    def aborted(self, _: Any, scheduler: Any, abort_req: Any, req: Any, *__: Any, **___: Any) -> None:
        """After `send_abort_output`: a request ends outside of a step."""
        self._guarded(scheduler, lambda recorder: self._aborted(recorder, abort_req, req))

    def _guarded(self, scheduler: Any, work: Callable[[EngineRecorder], None]) -> None:
        try:
            recorder = self._recorder(scheduler)
        except Exception:
            logger.exception("tokentrail cannot record this SGLang; answers are not affected")
            return
        if recorder is not None:
            recorder.guarded(lambda: work(recorder))

    def _arriving(self, recorder: EngineRecorder, req: Any, is_retracted: bool) -> None:
        key, params = req.rid, req.sampling_params
        if key.startswith(_HEALTH_CHECK) or params.max_new_tokens == 0:  # several answers: the prompt that they share
            return
        self._queued.add(key)
        if is_retracted or recorder.is_open(key):  # a pause and a preemption by priority do not say that it comes back
            recorder.entered(key, Phase.PREEMPTED, now_ns())
            return
        recorder.arrived(
            key,
            operation="generate_content",  # the scheduler does not know the path
            request_id=key,
            arrival_ns=_unix_ns(getattr(req.time_stats, "created_time", 0.0)),
            input_tokens=len(req.origin_input_ids),
            attributes={
                semconv.REQUEST_MAX_TOKENS: params.max_new_tokens,
                semconv.REQUEST_TEMPERATURE: params.temperature,
                semconv.REQUEST_TOP_P: params.top_p,
                semconv.REQUEST_STREAM: bool(req.stream),
            },
            labels={
                "adapter": getattr(req, "lora_id", None) or getattr(req, "lora_path", None),
                "n": n if (n := getattr(params, "n", 1) or 1) > 1 else None,
                "priority": getattr(req, "priority", None) or None,
                "logprobs": bool(getattr(req, "return_logprob", False)) or None,
                "response_format": response_format(params),
            },
        )

    def _stepped(self, recorder: EngineRecorder, scheduler: Any, batch: Any, before: Sequence[tuple[Any, int]]) -> None:
        if batch.forward_mode.is_idle():
            return
        now = now_ns()
        prefills = batch.forward_mode.is_extend()
        new = [(req, _tokens(req) - count, count) for req, count in before]
        for req, _, _ in new:
            if req.rid in self._queued:
                self._queued.discard(req.rid)
                stats = req.time_stats
                recorder.entered(req.rid, Phase.PREFILL, _unix_ns(stats.last_forward_entry_time))
                recorder.cached(req.rid, req.cached_tokens)
            if req.finished():
                recorder.finished(req.rid, **_outcome(req.finished_reason.to_json()))
        recorder.emitted([req.rid for req, _, _ in new], [count for _, count, _ in new])
        recorder.stepped(
            0,
            emitted_ns=now,
            end_ns=now,
            prefill_tokens=batch.extend_num_tokens if prefills else 0,
            decode_tokens=sum(count for _, count, had in new if had),
            running=len(scheduler.running_batch.reqs),
            waiting=len(scheduler.waiting_queue),
            **_blocks(scheduler),
        )

    def _aborted(self, recorder: EngineRecorder, abort_req: Any, req: Any) -> None:
        self._queued.discard(req.rid)
        recorder.aborted(req.rid, **_outcome({"type": "abort", **(abort_req.finished_reason or {})}))


def _recorder_for(scheduler: Any) -> EngineRecorder | None:
    from sglang.srt.runtime_context import get_observability, get_parallel, get_serving

    ranks = get_parallel()
    if ranks.attn_tp_rank or ranks.attn_cp_rank or ranks.pp_rank:
        return None  # another rank has the same requests
    if get_observability().enable_trace:
        reason = "it sends spans itself (--enable-trace), and one of both is enough"
    elif scheduler.disaggregation_mode.value != "null":
        reason = "prefill and decode are divided; its own spans tell of both (--enable-trace)"
    else:
        recorder = EngineRecorder(
            "sglang", str(get_serving().served_model_name), lambda index: engine_trail("sglang", index)
        )
        activate(recorder)
        return recorder
    logger.warning("tokentrail does not record this SGLang from inside: %s", reason)
    return None


def _tokens(req: Any) -> int:
    """Tokens of the answer so far, without those behind its end that speculation made."""
    made = len(req.output_ids)
    return made if req.finished_len is None else min(made, req.finished_len)


def _blocks(scheduler: Any) -> dict[str, int | None]:
    """Pages of the KV cache that requests hold. Those that only the prefix cache holds are free for others."""
    stats, size = scheduler.pool_stats_observer.get_pool_stats(), scheduler.page_size
    total = None if stats.full_capacity is None else int(stats.full_capacity) // size
    return {"kv_used": -(-int(stats.full_num_used) // size), "kv_total": total}


def _outcome(reason: Mapping[str, Any]) -> dict[str, Any]:
    """An abort with a status is the server's; one without is the client's."""
    kind = str(reason.get("type") or "")
    if kind != "abort":
        return {"finish_reason": kind}
    status = reason.get("status_code")
    if status is None:
        return {"status": Status.CANCELLED, "finish_reason": kind}
    return {"status": Status.ERROR, "error_type": str(int(status)), "finish_reason": kind}


def _unix_ns(counter_s: float) -> int:
    """A stamp of `time.perf_counter()` on the clock of all other stamps; now, when there is none."""
    if not counter_s:
        return now_ns()
    return now_ns() - max(0, time.perf_counter_ns() - int(counter_s * 1e9))
