"""Opens the device and chooses its dtype and the size of its KV cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.gguf import GgufFile
from instrumented_engine.model.hf import HfFolder
from instrumented_engine.model.kv_format import kv_format
from instrumented_engine.model.linear import BFLOAT16_ROWS, multiplies_bfloat16
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.operations import Operations
from instrumented_engine.settings import Settings

logger = logging.getLogger(__name__)

CPU_CACHE_BYTES = 1 << 30
TRIAL_S = 1.0
"""Seconds for which numbers of threads are compared; each is tried once at least."""
NEARLY = 1.1
"""A thread must make steps this many times as fast to be worth a core, which something else could use."""
CUDA_CACHE_SHARE = 0.95
"""Share of the memory that weights and the largest step leave; fragments and other processes need the rest."""


@dataclass(frozen=True, slots=True)
class Device:
    """A torch device and the dtype used on it."""

    target: torch.device
    dtype: torch.dtype

    @property
    def captures_graphs(self) -> bool:
        """Whether the launches of a pass can be recorded and repeated."""
        return self.target.type == "cuda"

    def load(self, file: GgufFile | HfFolder, settings: Settings, length: int) -> Llama:
        """Load a model for texts of at most `length` tokens."""
        config = file.config()
        weights = file.weights(self.dtype, self.target, settings.quantization)
        cache_format = kv_format(settings.kv_cache_dtype, config.head_dim, self.dtype, self.target)
        return Llama(config, weights, length, cache_format)

    def operations(self, settings: Settings, model: Llama) -> Operations:
        """The operations between a model's products: torch's, or kernels of Triton or Numba with the same results here.

        Raises ModelError where they are asked for and cannot.
        """
        wanted = settings.attention_backend
        backend = self._own_backend if wanted == "auto" else wanted
        if backend == "sdpa":
            return Operations()
        try:
            return self._proved(backend, settings, model)
        except Exception as error:  # a driver, a compiler and a kernel can fail in many ways
            if wanted != "auto":
                raise ModelError(f"--attention-backend {wanted}: {error}") from error
            logger.warning("attention is computed by sdpa: %s", error)
            return Operations()

    @property
    def _own_backend(self) -> str:
        if self.target.type == "cuda":
            return "triton"
        return "sdpa" if self.dtype == torch.float16 else "numba"

    def _proved(self, backend: str, settings: Settings, model: Llama) -> Operations:
        config = model.config
        reads_cache = model.cache_format.dtype == self.dtype
        if not reads_cache and backend in ("triton", settings.attention_backend):
            raise ValueError(f"a KV cache in {settings.kv_cache_dtype} is read by sdpa alone")
        if backend == "triton":
            from instrumented_engine.model.paged import TritonOperations, prove

            prove(config.heads, config.kv_heads, config.head_dim, settings.block_size, self.dtype, self.target)
            return TritonOperations()
        if self.target.type != "cpu":
            raise ValueError("Numba's kernels are for a CPU")
        from instrumented_engine.model.numba_operations import proved_operations

        return proved_operations(config, settings.block_size, self.dtype, paged=reads_cache)

    def kv_blocks(self, settings: Settings, block_bytes: int, largest_step: Callable[[], None]) -> int:
        """The number of KV-cache blocks: as set, else as many as fit the default memory, and at least one.

        On CUDA, `largest_step` is run, and its peak of memory is left free.
        """
        if settings.kv_blocks is not None:
            return settings.kv_blocks
        room = CPU_CACHE_BYTES
        if self.target.type == "cuda":
            peak = _peak_bytes(self.target, largest_step)
            free: int = torch.cuda.mem_get_info(self.target)[0]
            room = int((free - peak) * CUDA_CACHE_SHARE)
        return max(1, room // block_bytes)

    def choose_threads(self, settings: Settings, step: Callable[[], None]) -> int:
        """The number of threads that torch computes with: as set, else measured with `step` on the CPU."""
        if settings.threads is None and self.target.type == "cpu":
            return choose_threads(step, torch.get_num_threads())
        return torch.get_num_threads()


def open_device(settings: Settings) -> Device:
    """Initialise the device. Raises ModelError when CUDA is set and torch has none."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    cuda = torch.cuda.is_available()
    if settings.device == "cuda" and not cuda:
        raise ModelError("--device cuda: torch sees no CUDA device")
    quantized = settings.quantization != "none"
    kind = "cuda" if cuda and not quantized else "cpu"
    kind = kind if settings.device == "auto" else settings.device
    default = torch.bfloat16 if kind == "cuda" or quantized else torch.float32
    dtype = default if settings.dtype == "auto" else getattr(torch, settings.dtype)
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.zeros(1, device=device)  # creates the CUDA context within this phase of the cold start
        # cuDNN plans its attention anew for each length of a prompt: 60 ms on an H100, of a step that takes 10.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if settings.dtype == "bfloat16" and not quantized and not multiplies_bfloat16(device):
        logger.warning(
            "--dtype bfloat16: this CPU has no instructions for it; steps of more than %d rows take longer than with "
            "--dtype float32",
            BFLOAT16_ROWS,
        )
    return Device(device, dtype)


def _peak_bytes(device: torch.device, step: Callable[[], None]) -> int:
    """Memory that a step takes for a while. The part that torch's allocator keeps afterwards is given back."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    peak: int = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak


def choose_threads(
    step: Callable[[], None],
    most: int,
    *,
    use: Callable[[int], None] = torch.set_num_threads,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Let torch compute with the fewest threads that are nearly as fast as the best number; return it.

    Tries `most` threads, half of them, and so on down to one, in turns until `TRIAL_S` is over. Their quickest steps
    are compared, since other load on the machine slows a step of many threads more than a step of one.
    """
    times: dict[int, list[float]] = {most >> shift: [] for shift in range(most.bit_length())}
    end = clock() + TRIAL_S
    while not times[1] or (most > 1 and clock() < end):
        for count, found in times.items():
            use(count)
            before = clock()
            step()
            found.append(clock() - before)
    quickest = {count: min(found) for count, found in times.items()}
    chosen = min(count for count, found in quickest.items() if found <= NEARLY * min(quickest.values()))
    use(chosen)
    return chosen
