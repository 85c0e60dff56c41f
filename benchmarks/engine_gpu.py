"""Measures the engine on a GPU with random weights in the shape of Llama 3.1 8B.

A decode step of one sequence is compared with the time in which the device's measured bandwidth reads the weights, keys
and values, in three ways: with CUDA graphs, with the attention kernel alone, and with torch's attention. The peer of 64
sequences is transformers' continuous batching: the same prompts, as many new tokens, in the same run.

`--quick` takes a tiny shape and also runs on a CPU, where no figure means anything.
"""

from __future__ import annotations

import math
import statistics
import sys
from typing import Any, NamedTuple

import torch
import typer

from benchmarks.engine_decode import engine_steps, interval, prompts, timed
from benchmarks.report import JsonPath, Quick, publish
from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.device import Device, open_device
from instrumented_engine.model.llama import Llama, LlamaConfig, LlamaWeights, build_weights, tensor_shape
from instrumented_engine.model.operations import Operations
from instrumented_engine.model.runner import ModelRunner
from instrumented_engine.model.work import measure_peaks
from instrumented_engine.settings import Settings
from tokentrail.trail import DisabledTrail, Trail


class Load(NamedTuple):
    """A model's shape; the sequences of the largest batch, their prompts and new tokens; timed steps of one alone."""

    config: LlamaConfig
    batch: int
    context: int
    new_tokens: int
    steps: int


LLAMA = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
)
TINY = LlamaConfig(
    vocab_size=40_000,
    hidden_size=64,
    intermediate_size=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_position=512,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
WAYS = {"graphs": (True, True), "kernel": (True, False), "sdpa": (False, False)}
"""Whether the attention kernel and CUDA graphs are used."""
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
PREFILLS = 15
"""Prompts of different lengths. Some kernels are prepared anew for each length."""
PACKAGES = ("torch", "triton", "transformers")
FULL, QUICK = Load(LLAMA, 64, 512, 128, 100), Load(TINY, 8, 64, 16, 4)


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure, print and write."""
    if not quick and not torch.cuda.is_available():
        sys.exit("no CUDA device: only --quick runs without one")
    device = open_device(Settings())
    size = QUICK if quick else FULL
    on_gpu = device.target.type == "cuda"
    numbers: dict[str, Any] = {"device": torch.cuda.get_device_name() if on_gpu else "cpu"}
    for name, (paged, graphs) in WAYS.items():
        if on_gpu or not paged:
            model = Llama(size.config, random_weights(size.config, device), 1024, operations=operations(paged=paged))
            numbers |= measured(name, engine_of(model, size, graphs=graphs), size, device)
            del model
            if on_gpu:
                torch.cuda.empty_cache()
            publish("engine_gpu", numbers, packages=PACKAGES, quick=quick, path=json)  # a later part may fail
    numbers["transformers_tokens_per_s"] = size.batch * size.new_tokens / peer_seconds(size, device)
    for name in WAYS:
        if ours := numbers.get(f"{name}_tokens_per_s"):
            numbers[f"{name}_ratio"] = ours / numbers["transformers_tokens_per_s"]
    publish("engine_gpu", numbers, packages=PACKAGES, quick=quick, path=json)


def operations(*, paged: bool) -> Operations:
    """torch's, with Triton's kernel for attention if they are `paged`."""
    if not paged:
        return Operations()
    from instrumented_engine.model.paged import TritonOperations  # torch brings Triton for CUDA alone

    return TritonOperations()


def random_weights(config: LlamaConfig, device: Device) -> LlamaWeights:
    """Weights of the size that a trained model's have."""

    def tensor(name: str) -> torch.Tensor:
        return torch.randn(tensor_shape(config, name), dtype=device.dtype, device=device.target) * 0.02

    return build_weights(config, tensor, lambda name: name == "output.weight", device.dtype, "none")


def engine_of(model: Llama, size: Load, *, graphs: bool, trail: Trail | None = None) -> Engine:
    """An engine with room for the largest batch, started as the server starts it."""
    blocks = size.batch * -(-(size.context + size.new_tokens + size.steps) // 16)
    runner = ModelRunner(model, kv_blocks=blocks, block_size=16, eos_ids=())
    runner.warm_up()
    if model.operations.paged:
        runner.compile_kernels(size.batch)
    if graphs and not runner.capture_graphs(max_seqs=size.batch, max_tokens=1024):
        sys.exit("the graphs could not be captured; the reason is above")
    scheduler = Scheduler(BlockManager(blocks, 16), max_seqs=size.batch, max_batched_tokens=8192, prefix_caching=False)
    return Engine(scheduler, runner, Observer(trail or DisabledTrail()), eos_ids=())


def engine_on_gpu(trail: Trail) -> tuple[Engine, dict[str, str | int]]:
    """An engine with Triton's kernel and CUDA graphs, and the device's name."""
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    model = Llama(LLAMA, random_weights(LLAMA, open_device(Settings())), 1024, operations=operations(paged=True))
    return engine_of(model, FULL, graphs=True, trail=trail), {"device": torch.cuda.get_device_name()}


def measured(name: str, engine: Engine, size: Load, device: Device) -> dict[str, float]:
    """The time of a step of one sequence and its share of the bandwidth, and the rate of the largest batch."""
    runner: Any = engine._runner
    peaks = measure_peaks(device.target, device.dtype)
    step = engine_steps(engine, 1, size.context)
    times = [timed(step) for _ in range(size.steps + 3)][3:]
    read = runner._model.weights.nbytes + (size.context + 3 + size.steps / 2) * runner.block_bytes / 16
    numbers = interval(f"{name}_step_ms", [seconds * 1e3 for seconds in times])
    numbers[f"{name}_mbu"] = read / statistics.median(times) / peaks.bytes_per_s
    numbers["bandwidth_gb_per_s"] = peaks.bytes_per_s / 1e9
    for when in ("new", "known"):
        prefills = [timed(engine_steps(engine, 1, size.context - length)) for length in range(1, PREFILLS + 1)]
        numbers |= interval(f"{name}_prefill_of_{when}_length_ms", [seconds * 1e3 for seconds in prefills])
    matrices = 2 * sum(math.prod(tensor_shape(size.config, f"blk.0.{part}.weight")) for part in MATRICES)
    numbers[f"{name}_prefill_mfu"] = (
        matrices * size.config.layers * (size.context - PREFILLS) / min(prefills) / peaks.flops_per_s
    )
    for _ in range(2):  # the first run pays for lazy starts, as the peer's does
        step = engine_steps(engine, size.batch, size.context)
        seconds = 0.0
        length = size.context + size.new_tokens
        while any(len(request.sequences[0].token_ids) < length for request in engine.requests):
            seconds += timed(step)
        numbers[f"{name}_tokens_per_s"] = size.batch * size.new_tokens / seconds
    return numbers


def peer_seconds(size: Load, device: Device) -> float:
    """Seconds that transformers' continuous batching takes for the largest batch; the second of two runs."""
    import transformers

    peer: Any = transformers
    config = size.config
    peer_config = peer.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.max_position,
        dtype=device.dtype,
        attn_implementation="sdpa",
    )
    with torch.device(device.target):
        model = peer.LlamaForCausalLM(peer_config).to(device.dtype).eval()
    options = peer.GenerationConfig(max_new_tokens=size.new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    seconds = 0.0
    for _ in range(2):
        seconds = timed(lambda: model.generate_batch(prompts(size.batch, size.context), generation_config=options))
    return seconds


if __name__ == "__main__":
    typer.run(main)
