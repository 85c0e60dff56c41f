"""Keeps the calls that vLLM makes of the plugin's hooks, one JSON line each, without any token or text.

vLLM loads it as a middleware (`vllm_inside.py` with the option `tape`). The tests replay such a tape on fakes of vLLM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Tape:
    """An ASGI middleware that only wants to be imported by the server."""

    def __init__(self, app: Any) -> None:
        self._app = app
        _keep()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hands on."""
        await self._app(scope, receive, send)


def _keep() -> None:
    from vllm.v1.engine.output_processor import OutputProcessor

    from tokentrail.integrations.vllm import StatLogger

    path = Path(f"{os.environ['VLLM_TAPE']}.{os.getpid()}.jsonl")  # several API servers have a tape each
    tape = path.open("w", encoding="utf-8")

    def after(owner: Any, name: str, told: Callable[..., Any]) -> None:
        method = getattr(owner, name)

        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            called = time.time()
            result = method(self, *args, **kwargs)
            line = told(result, *args, **kwargs)
            tape.write(
                json.dumps([name, round(called, 6), round(time.monotonic(), 6), *line], separators=(",", ":")) + "\n"
            )
            tape.flush()
            return result

        setattr(owner, name, wrapper)

    after(OutputProcessor, "add_request", _added)
    after(OutputProcessor, "process_outputs", _processed)
    after(OutputProcessor, "abort_requests", lambda ids, *_, **__: [ids, type(sys.exc_info()[1]).__name__])
    after(OutputProcessor, "propagate_error", lambda _, e: [type(e).__name__])
    after(StatLogger, "record", _recorded)


def _added(_: Any, request: Any, *__: Any, **___: Any) -> list[Any]:
    params = request.sampling_params
    asked = [params.max_tokens, params.temperature, params.top_p, params.top_k, params.output_kind.name]
    return [request.request_id, request.external_req_id, request.arrival_time, len(request.prompt_token_ids), asked]


def _processed(result: Any, outputs: Any, stamp: Any = None, iteration: Any = None, **_: Any) -> list[Any]:
    """For each output: id, tokens, finish reason, events, cached tokens. Zeros and None at the end are left out."""
    told = []
    for output in outputs:
        one = [
            output.request_id,
            len(output.new_token_ids),
            None if output.finish_reason is None else output.finish_reason.name,
            [[event.type.name, round(event.timestamp, 6)] for event in output.events or ()],
            None if output.prefill_stats is None else output.prefill_stats.num_cached_tokens,
        ]
        while not one[-1] and len(one) > 2:
            one.pop()
        told.append(one)
    return [round(stamp, 6), iteration.iteration_timestamp, result.reqs_to_abort, told]


def _recorded(_: Any, scheduler: Any = None, iteration: Any = None, **given: Any) -> list[Any]:
    load = None
    if scheduler is not None:
        waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
        load = [scheduler.num_running_reqs, waiting, round(scheduler.kv_cache_usage, 6)]
    firsts = None if iteration is None else len(iteration.time_to_first_tokens_iter)
    return [load, iteration is not None, firsts, given.get("engine_idx", 0)]
