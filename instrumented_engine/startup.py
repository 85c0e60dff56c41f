"""Loads the engine; each part of the start is a phase of the cold-start span."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from instrumented_engine.core.block_manager import BlockManager, NoBlocks
from instrumented_engine.core.drafter import Drafter, PromptLookup
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.handover import KvLayout
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.model.download import cache_folder, download, local_path
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.fingerprint import fingerprint
from instrumented_engine.model.tokenizer import Tokenizer, load_tokenizer
from instrumented_engine.settings import Settings
from tokentrail.semconv import Limit

if TYPE_CHECKING:
    from instrumented_engine.device import Device
    from instrumented_engine.model.llama import Llama
    from instrumented_engine.model.runner import ModelRunner

logger = logging.getLogger(__name__)

Phases = Callable[[str], AbstractContextManager[object]]
"""Begins a phase of the cold start by its name."""


SPIN_COUNT = 10_000
"""Turns for which one of torch's threads spins before it sleeps, about 30 µs: longer than most gaps between two
products of a step, and short beside the time slice that it loses when another process has displaced that thread.
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded engine and the properties of its model. `max_tokens` is the longest prompt and output together.

    `facts` say what was chosen at the start: dtype, quantisation, threads and how they wait. `kv_layout` is known
    to an engine with a `--kv-role`. `embedding_size` is the number of dimensions of an encoder's vectors.
    An encoder that classifies tokens has `labels`.
    """

    engine: Engine
    tokenizer: Tokenizer
    vocab_size: int
    max_tokens: int
    facts: dict[str, str | int] = field(default_factory=dict)
    kv_layout: KvLayout | None = None
    embedding_size: int | None = None
    labels: tuple[str, ...] = ()


def set_waiting() -> str:
    """Say how torch's threads wait for each other, which OpenMP reads when torch is first imported; return it."""
    if "OMP_WAIT_POLICY" in os.environ:
        return os.environ["OMP_WAIT_POLICY"].lower()
    return f"spin {os.environ.setdefault('GOMP_SPINCOUNT', str(SPIN_COUNT))}"


def release_memory() -> None:
    """Return the memory of objects that nobody refers to any more to the system."""
    gc.collect()
    trim_heap()
    torch = sys.modules.get("torch")  # never imported here: `set_waiting` comes first
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def trim_heap() -> None:
    """Return freed memory to the system. glibc keeps it, and other C libraries have no such function."""
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)


def load(settings: Settings, observer: Observer) -> Loaded:
    """Import torch and load the model. Takes seconds. Raises ModelError, or the error that torch raises."""
    waiting = set_waiting()
    with observer.cold_start(settings.model_name) as cold:
        with cold.phase("device_init"):
            from instrumented_engine.device import open_device

            device = open_device(settings)
        path = _fetched(settings.model, cold.phase)
        from instrumented_engine.model.bert import is_encoder

        if is_encoder(path):
            return _load_encoder(settings, observer, cold.phase, device, path, waiting)
        draft_path = _fetched(settings.speculative_model, cold.phase) if settings.speculative_model else None
        with cold.phase("load_weights"):
            from instrumented_engine.model.weights import open_model

            model_file = open_model(path, settings.keep_layers)
            config = model_file.config()
            length = settings.max_model_len or config.max_position
            if length > config.max_position:
                raise ModelError(f"--max-model-len {length}: the model's own limit is {config.max_position}")
            model = device.load(model_file, settings, length)
            draft = _draft(settings, draft_path, device, model, length) if draft_path else None
        with cold.phase("compile_kernels"):
            for one in (model, draft):
                if one:
                    one.operations = device.operations(settings, one)
        with cold.phase("tokenizer"):
            tokenizer = load_tokenizer(path, cache_folder(), model_file.eos_ids)
        with cold.phase("kv_cache"):
            from instrumented_engine.model.runner import ModelRunner
            from instrumented_engine.model.work import measure_peaks

            block_bytes = model.new_cache(1, settings.block_size).nbytes
            draft_block_bytes = draft.new_cache(1, settings.block_size).nbytes if draft else 0
            blocks = device.kv_blocks(
                settings, block_bytes + draft_block_bytes, lambda: _largest_step(settings, model, length)
            )
            host_blocks = int(settings.swap_space * 2**30) // block_bytes
            runner, drafter = _caches(settings, model, draft, blocks, host_blocks, tokenizer.eos_ids)
            block_manager = BlockManager(blocks, settings.block_size)
            layout = None
            if settings.kv_role != "none":
                layout = KvLayout(fingerprint(path, _traits(settings, device)), settings.block_size, runner.block_bytes)
        with cold.phase("warmup"):
            runner.warm_up()
            threads = device.choose_threads(settings, runner.warm_up)
            runner.peaks = measure_peaks(device.target, device.dtype)
            for one in (model, draft):
                if one and one.operations.name == "triton":
                    ModelRunner(one, kv_blocks=1, block_size=settings.block_size, eos_ids=()).compile_kernels(
                        settings.max_seqs
                    )
        graphs: list[int] = []
        if model.operations.paged and device.captures_graphs and not settings.enforce_eager:
            with cold.phase("capture_graphs"):
                graphs = runner.capture_graphs(max_seqs=settings.max_seqs, max_tokens=length)
        cold.limits(
            {
                Limit.MAX_SEQS: settings.max_seqs,
                Limit.MAX_BATCHED_TOKENS: settings.max_batched_tokens,
                Limit.BLOCK_SIZE: settings.block_size,
                Limit.KV_BLOCKS: blocks,
                Limit.WATERMARK_BLOCKS: settings.watermark_blocks,
                Limit.CHUNKED_PREFILL: settings.chunked_prefill,
                Limit.PREFIX_CACHING: settings.prefix_caching,
                Limit.POLICY: "static" if settings.batching == "static" else "priority",
            }
        )
    scheduler = Scheduler(
        block_manager,
        max_seqs=settings.max_seqs,
        max_batched_tokens=settings.max_batched_tokens,
        static_batching=settings.batching == "static",
        chunked_prefill=settings.chunked_prefill,
        watermark_blocks=settings.watermark_blocks,
        prefix_caching=settings.prefix_caching,
        host_blocks=host_blocks,
        speculative_tokens=settings.speculative_tokens,
        drafter=drafter,
    )
    engine = Engine(scheduler, runner, observer, eos_ids=tokenizer.eos_ids)
    facts: dict[str, str | int] = {
        "device": str(device.target),
        "dtype": str(device.dtype).removeprefix("torch."),
        "quantization": settings.quantization,
        "layers": config.layers,
        "weight_bytes": model.weights.nbytes,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "kv_cache_bytes": blocks * (block_bytes + draft_block_bytes),
        "attention": model.operations.name,
        "cuda_graphs": " ".join(map(str, graphs)) or "none",
        "threads": threads,
        "waiting": waiting,
        "peak_gflops_per_s": round(runner.peaks.flops_per_s / 1e9),
        "peak_gbytes_per_s": round(runner.peaks.bytes_per_s / 1e9),
    }
    logger.info("serving with %s", ", ".join(f"{name} {value}" for name, value in facts.items()))
    return Loaded(engine, tokenizer, config.vocab_size, min(length, block_manager.capacity), facts, layout)


def _caches(
    settings: Settings, model: Llama, draft: Llama | None, blocks: int, host_blocks: int, eos_ids: Seq[int]
) -> tuple[ModelRunner, Drafter]:
    """The runner and the drafter, each with its KV cache. Raises ModelError where there is no memory for them."""
    from instrumented_engine.model.draft import DraftModel
    from instrumented_engine.model.runner import ModelRunner, lacks_memory

    size, rows = settings.block_size, settings.max_batched_tokens
    drafter: Drafter = PromptLookup(settings.speculative_ngram)
    try:
        runner = ModelRunner(model, kv_blocks=blocks, block_size=size, eos_ids=eos_ids, host_blocks=host_blocks)
        if draft:
            drafter = DraftModel(draft, kv_blocks=blocks, block_size=size, eos_ids=eos_ids, max_rows=rows)
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        raise ModelError(
            f"there is no memory for {blocks} KV-cache blocks{' of model and draft model' if draft else ''}, and "
            f"{host_blocks} on the host: ask for fewer of them with --kv-blocks and --swap-space"
        ) from error
    return runner, drafter


def _largest_step(settings: Settings, model: Llama, length: int) -> None:
    """Compute the step that takes the most memory besides weights and cache, with a cache for one text."""
    from instrumented_engine.model.runner import ModelRunner

    rows = settings.max_batched_tokens
    blocks = -(-min(length, rows) // settings.block_size)
    runner = ModelRunner(model, kv_blocks=blocks, block_size=settings.block_size, eos_ids=())
    runner.largest_step(rows, settings.max_seqs)


def _fetched(name: str, phase: Phases) -> Path:
    """The path of a model, which is downloaded if it is not on this machine."""
    path = local_path(name)
    if path is None:
        with phase("download"):
            path = download(name)
    return path


def _traits(settings: Settings, device: Device) -> str:
    """Two engines can use each other's KV blocks if these agree, and their models."""
    names = ("quantization", "kv_cache_dtype", "keep_layers", "block_size")
    return repr((sys.byteorder, device.dtype, *(getattr(settings, name) for name in names)))


def _draft(settings: Settings, path: Path, device: Device, model: Llama, length: int) -> Llama:
    """The model that drafts; layers of the served model itself are shared. Raises ModelError for other tokens."""
    from instrumented_engine.model.llama import Llama
    from instrumented_engine.model.weights import open_model

    draft_file = open_model(path, settings.speculative_keep_layers, "--speculative-keep-layers")
    config = draft_file.config()
    if config.vocab_size != model.config.vocab_size:
        raise ModelError(
            f"--speculative-model has {config.vocab_size} tokens, and the model {model.config.vocab_size}: "
            "they must be the same"
        )
    if settings.speculative_model == settings.model and not settings.keep_layers:
        layers = [model.weights.layers[index] for index in config.kept or range(config.layers)]
        return Llama(config, replace(model.weights, layers=layers), length, model.cache_format)
    return device.load(draft_file, settings, length)


def _load_encoder(
    settings: Settings, observer: Observer, phase: Phases, device: Device, path: Path, waiting: str
) -> Loaded:
    """The scheduler makes batches of whole texts; there is no KV cache."""
    for flag in ("quantization", "kv_cache_dtype", "kv_role", "keep_layers", "speculative_tokens"):
        if getattr(settings, flag) != Settings.model_fields[flag].default:
            raise ModelError(f"an encoder has no --{flag.replace('_', '-')}")
    with phase("load_weights"):
        from instrumented_engine.model.bert import EncoderRunner, load_bert

        model = load_bert(path, device.dtype, device.target)
        length = settings.max_model_len or model.config.max_position
        if length > model.config.max_position:
            raise ModelError(f"--max-model-len {length}: the model's own limit is {model.config.max_position}")
        runner = EncoderRunner(model)
    with phase("tokenizer"):
        tokenizer = load_tokenizer(path, cache_folder())
    with phase("warmup"):
        runner.warm_up()
        threads = device.choose_threads(settings, runner.warm_up)
    scheduler = Scheduler(
        NoBlocks(),
        max_seqs=settings.max_seqs,
        max_batched_tokens=settings.max_batched_tokens,
        chunked_prefill=False,
    )
    facts: dict[str, str | int] = {
        "device": str(device.target),
        "dtype": str(device.dtype).removeprefix("torch."),
        "weight_bytes": model.nbytes,
        "threads": threads,
        "waiting": waiting,
    }
    logger.info("serving an encoder with %s", ", ".join(f"{name} {value}" for name, value in facts.items()))
    engine = Engine(scheduler, runner, observer, eos_ids=())
    return Loaded(
        engine,
        tokenizer,
        model.config.vocab_size,
        length,
        facts,
        embedding_size=model.config.hidden_size,
        labels=model.config.labels,
    )
