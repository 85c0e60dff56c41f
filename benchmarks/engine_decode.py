"""Compares the engine's decode speed with transformers' `generate`: same model, dtype, threads, prompts, token counts.

The floor is memory bandwidth: a decode step reads every weight once, so it takes at least the weights' bytes divided by
the bandwidth of a large copy (bytes read and written), which is measured first. Engine and transformers take turns in
many short rounds, so that other load on the machine slows both alike, and the best round of each counts.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import typer
from transformers import AutoModelForCausalLM

from benchmarks.report import JsonPath, Quick, publish
from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.request import Request, SamplingParams
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.core.text import TextStream
from instrumented_engine.device import Device, open_device
from instrumented_engine.model.download import DEFAULT_MODEL, download, local_path
from instrumented_engine.model.gguf import GgufFile
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.runner import ModelRunner
from instrumented_engine.settings import Settings
from tokentrail.trail import DisabledTrail

PROMPT_TOKENS = 32
BATCHES = (1, 8)
COPY_BYTES = 512 << 20


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure and print; `ratio` is the engine's decode tokens/s over transformers'."""
    tokens, rounds = (12, 3) if quick else (16, 10)
    device = open_device(Settings())
    path = local_path(DEFAULT_MODEL) or download(DEFAULT_MODEL)
    file = GgufFile(path)
    model = Llama(file.config(), file.weights(device.dtype, device.target), 1024)
    reference: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=device.dtype)
    reference = reference.eval().to(device.target)

    bandwidth = copy_bandwidth(device)
    floor_s = model.weights.nbytes / bandwidth
    numbers: dict[str, Any] = {
        "device": str(device.target),
        "dtype": str(device.dtype),
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "rounds": rounds,
        "weight_bytes": model.weights.nbytes,
        "copy_bandwidth_gb_per_s": bandwidth / 1e9,
        "floor_ms_per_step": floor_s * 1e3,
    }
    for batch in BATCHES:
        prompts = torch.randint(100, 40_000, (batch, PROMPT_TOKENS), generator=torch.Generator().manual_seed(batch))
        pairs = []
        for _ in range(rounds):
            ours = engine_step_s(model, prompts, tokens)
            theirs = transformers_step_s(reference, prompts.to(device.target), tokens)
            pairs.append((ours, theirs))
        ours, theirs = (min(column) for column in zip(*pairs, strict=True))
        numbers |= {
            f"batch_{batch}_engine_ms_per_step": ours * 1e3,
            f"batch_{batch}_engine_tokens_per_s": batch / ours,
            f"batch_{batch}_transformers_tokens_per_s": batch / theirs,
            f"batch_{batch}_ratio": theirs / ours,
            f"batch_{batch}_ratio_of_medians": _median(pairs, 1) / _median(pairs, 0),
            f"batch_{batch}_times_the_floor": ours / floor_s,
        }
    publish("engine_decode", numbers, packages=("torch", "transformers", "gguf"), quick=quick, path=json)


def _median(pairs: list[tuple[float, float]], column: int) -> float:
    return statistics.median(pair[column] for pair in pairs)


def copy_bandwidth(device: Device) -> float:
    """Bytes read and written per second by a copy larger than any cache; the best of five."""
    source = torch.ones(COPY_BYTES // 4, device=device.target)
    target = torch.zeros_like(source)
    return 2 * COPY_BYTES / min(timed(lambda: target.copy_(source)) for _ in range(5))


def engine_step_s(model: Llama, prompts: torch.Tensor, tokens: int) -> float:
    """Seconds per decode step, without the prefill step."""
    blocks = len(prompts) * (PROMPT_TOKENS + tokens) // 16 + len(prompts)
    scheduler = Scheduler(BlockManager(blocks, 16), max_seqs=len(prompts), max_batched_tokens=4096)
    runner = ModelRunner(model, kv_blocks=blocks, block_size=16, eos_ids=[])
    trail = DisabledTrail()
    engine = Engine(scheduler, runner, Observer(trail), eos_ids=[])
    params = SamplingParams(max_tokens=tokens + 1, temperature=0.0)
    for prompt in prompts.tolist():
        request = trail.start_request(operation="text_completion", model="m")
        engine.add(
            Request.of([prompt], params, trail=request, sink=lambda _: None, text=lambda _: TextStream(lambda ids: ""))
        )
    engine.step()

    def decode() -> None:
        while engine.busy:
            engine.step()

    return timed(decode) / tokens


def transformers_step_s(model: Any, prompts: torch.Tensor, tokens: int) -> float:
    """Seconds per decode step: a generation of `tokens` + 1 tokens minus one of the first token only."""

    def generate(count: int) -> None:
        mask = torch.ones_like(prompts)
        model.generate(prompts, attention_mask=mask, min_new_tokens=count, max_new_tokens=count, do_sample=False)

    with torch.inference_mode():
        first = timed(lambda: generate(1))
        return (timed(lambda: generate(tokens + 1)) - first) / tokens


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, until the device is done."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    typer.run(main)
