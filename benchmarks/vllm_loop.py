"""The time that vLLM's event loop spends on one token, with and without the recording. Runs in vLLM's environment.

A step of the event loop is `OutputProcessor.process_outputs` and `StatLogger.record`, here of the installed vLLM, with
outputs made up: each of `batch` requests gets one token, without a tokenizer (which would cost both sides more). Both
take turns in one process, and the best round of each counts. The figures are CPU time of the event loop's own thread.
The spans are built by another thread and go nowhere; the two threads share the interpreter's lock, as in a server.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, Final

BATCHES: Final = (1, 8, 64, 256)
TOKENS: Final = 8_000
ROUNDS: Final = 5
REQUEST_TOKENS: Final = 128


def main() -> None:
    """Prints a line for each number."""
    os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor

    from tokentrail import Trail
    from tokentrail._send.transport import SendResult, SendStatus
    from tokentrail.integrations import vllm as plugin

    trail = Trail(transport=lambda _: SendResult(SendStatus.DELIVERED))
    vars(plugin)["engine_trail"] = lambda *_: trail
    config = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="m", model="m"),
        cache_config=SimpleNamespace(num_gpu_blocks=1_000),
        parallel_config=SimpleNamespace(),
        observability_config=SimpleNamespace(otlp_traces_endpoint="none: no cold start"),
    )
    plain = dict(vars(OutputProcessor)), dict(vars(AsyncLLM))
    logger = plugin.StatLogger(config)
    hooked = dict(vars(OutputProcessor)), dict(vars(AsyncLLM))

    def use(methods: tuple[dict[str, Any], dict[str, Any]]) -> None:
        for owner, of in zip((OutputProcessor, AsyncLLM), methods, strict=True):
            for name in ("add_request", "process_outputs", "abort_requests", "propagate_error"):
                if name in of:
                    setattr(owner, name, of[name])

    for batch in BATCHES:
        best = {"without": float("inf"), "with": float("inf")}
        for _ in range(ROUNDS):
            for name, methods in (("without", plain), ("with", hooked)):
                use(methods)
                best[name] = min(best[name], _ns_per_token(OutputProcessor, batch, logger if name == "with" else None))
        for name, ns in best.items():
            print(f"cost_batch_{batch}_{name}_us_per_token {ns / 1e3:.3f}")
        print(f"cost_batch_{batch}_added_us_per_token {(best['with'] - best['without']) / 1e3:.3f}")


def _ns_per_token(kind: Any, batch: int, logger: Any) -> float:
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

    class Nowhere:
        def put(self, _: Any) -> None:
            """A client that reads at once."""

    processor = kind(None, log_stats=True)
    params = SamplingParams(max_tokens=REQUEST_TOKENS, output_kind=RequestOutputKind.DELTA, detokenize=False)
    steps = max(TOKENS // batch, REQUEST_TOKENS)
    names = [f"chatcmpl-{number}" for number in range(batch)]
    left = [1 + number * REQUEST_TOKENS // batch for number in range(batch)]  # so that a few end in each step
    missing = list(range(batch))
    spent = tokens = 0
    for step in range(steps):
        for place in missing:
            names[place] = f"chatcmpl-{step}-{place}"
            request = EngineCoreRequest(
                request_id=names[place], prompt_token_ids=[1] * 16, mm_features=None, sampling_params=params,
                pooling_params=None, arrival_time=time.time(), lora_request=None, cache_salt=None,
                data_parallel_rank=None, external_req_id=names[place],
            )  # fmt: skip
            before = time.thread_time_ns()
            processor.add_request(request, None, None, 0, Nowhere())
            spent += time.thread_time_ns() - before
        missing = [place for place in range(batch) if left[place] == 1]
        outputs = [
            EngineCoreOutput(
                request_id=names[place], new_token_ids=[7],
                finish_reason=FinishReason.LENGTH if left[place] == 1 else None,
            )
            for place in range(batch)
        ]  # fmt: skip
        left = [REQUEST_TOKENS if one == 1 else one - 1 for one in left]
        scheduler = SchedulerStats(num_running_reqs=batch, kv_cache_usage=0.5)
        now = time.monotonic()
        before = time.thread_time_ns()
        iteration = IterationStats()
        processor.process_outputs(outputs, now, iteration)
        if logger is not None:
            logger.record(scheduler, iteration, engine_idx=0)
        spent += time.thread_time_ns() - before
        tokens += batch
    return spent / tokens


if __name__ == "__main__":
    main()
