"""Loads the engine; each part of the start is a phase of the cold-start span."""

from __future__ import annotations

import gc
import logging
import os
import sys
from dataclasses import dataclass, field

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.handover import KvLayout
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.model.download import cache_folder, download, local_path
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.fingerprint import fingerprint
from instrumented_engine.model.tokenizer import Tokenizer, load_tokenizer
from instrumented_engine.settings import Settings

logger = logging.getLogger(__name__)


SPIN_COUNT = 10_000
"""Turns for which one of torch's threads spins before it sleeps, about 30 µs: longer than most gaps between two
products of a step, and short beside the time slice that it loses when another process has displaced that thread.
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded engine and the properties of its model. `max_tokens` is the longest prompt and output together.

    `facts` say what was chosen at the start: dtype, quantisation, threads and how they wait. `kv_layout` is known
    to an engine with a `--kv-role`.
    """

    engine: Engine
    tokenizer: Tokenizer
    vocab_size: int
    max_tokens: int
    facts: dict[str, str | int] = field(default_factory=dict)
    kv_layout: KvLayout | None = None


def set_waiting() -> str:
    """Say how torch's threads wait for each other, which OpenMP reads when torch is first imported; return it."""
    if "OMP_WAIT_POLICY" in os.environ:
        return os.environ["OMP_WAIT_POLICY"].lower()
    return f"spin {os.environ.setdefault('GOMP_SPINCOUNT', str(SPIN_COUNT))}"


def release_memory() -> None:
    """Return the memory of objects that nobody refers to any more."""
    gc.collect()
    torch = sys.modules.get("torch")  # never imported here: `set_waiting` comes first
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def load(settings: Settings, observer: Observer) -> Loaded:
    """Import torch and load the model. Takes seconds. Raises ModelError, or the error that torch raises."""
    waiting = set_waiting()
    with observer.cold_start(settings.model_name) as cold:
        with cold.phase("device_init"):
            from instrumented_engine.device import open_device

            device = open_device(settings)
        path = local_path(settings.model)
        if path is None:
            with cold.phase("download"):
                path = download(settings.model)
        with cold.phase("load_weights"):
            from instrumented_engine.model.llama import Llama
            from instrumented_engine.model.weights import open_model

            model_file = open_model(path)
            config = model_file.config()
            length = settings.max_model_len or config.max_position
            if length > config.max_position:
                raise ModelError(f"--max-model-len {length}: the model's own limit is {config.max_position}")
            weights = model_file.weights(device.dtype, device.target, settings.quantization)
            model = Llama(config, weights, length)
        with cold.phase("tokenizer"):
            tokenizer = load_tokenizer(path, cache_folder(), model_file.eos_ids)
        with cold.phase("kv_cache"):
            from instrumented_engine.model.runner import ModelRunner

            blocks = device.kv_blocks(config, settings)
            host_blocks = device.host_blocks(config, settings)
            runner = ModelRunner(
                model,
                kv_blocks=blocks,
                block_size=settings.block_size,
                eos_ids=tokenizer.eos_ids,
                host_blocks=host_blocks,
            )
            block_manager = BlockManager(blocks, settings.block_size)
            layout = None
            if settings.kv_role != "none":
                traits = (sys.byteorder, device.dtype, settings.quantization, settings.block_size, runner.block_bytes)
                layout = KvLayout(fingerprint(path, repr(traits)), settings.block_size, runner.block_bytes)
        with cold.phase("warmup"):
            runner.warm_up()
            threads = device.choose_threads(settings, runner.warm_up)
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
        speculative_ngram=settings.speculative_ngram,
    )
    engine = Engine(scheduler, runner, observer, eos_ids=tokenizer.eos_ids)
    facts: dict[str, str | int] = {
        "device": str(device.target),
        "dtype": str(device.dtype).removeprefix("torch."),
        "quantization": settings.quantization,
        "weight_bytes": weights.nbytes,
        "threads": threads,
        "waiting": waiting,
    }
    logger.info("serving with %s", ", ".join(f"{name} {value}" for name, value in facts.items()))
    return Loaded(engine, tokenizer, config.vocab_size, min(length, block_manager.capacity), facts, layout)
