"""The work of a step, and the peaks of the device that it is compared with (MFU and MBU)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from instrumented_engine.core.plan import Scheduled
from instrumented_engine.model.linear import product_dtype
from instrumented_engine.model.llama import LlamaConfig, LlamaWeights

TRIALS = 3


class Trial(NamedTuple):
    """Rows of the square matrices of a product, bytes that are summed up, and how often either happens in a trial."""

    rows: int
    read_bytes: int
    repeats: int


CPU = Trial(1024, 128 << 20, 1)
"""More bytes than most caches hold."""
CUDA = Trial(4096, 256 << 20, 16)
"""A GPU takes longer to be asked and to answer than for a small product. A single one of 1,024 rows showed 6 % of the
operations of an H100, and one sum of 128 MiB half of its bandwidth."""


class Peaks(NamedTuple):
    """The highest rates that were measured on a device: those of one large product, and of reading memory."""

    flops_per_s: float
    bytes_per_s: float


class Work(NamedTuple):
    """Floating-point operations of a step, and the bytes of weights, keys and values that it reads."""

    flops: int
    read_bytes: int

    def compute_ns(self, peaks: Peaks) -> int:
        """Nanoseconds that the operations take at the peak."""
        return round(self.flops / peaks.flops_per_s * 1e9)

    def memory_ns(self, peaks: Peaks) -> int:
        """Nanoseconds that reading takes at the peak."""
        return round(self.read_bytes / peaks.bytes_per_s * 1e9)


# A model with one layer of 100 weights and a last matrix of 50, whose 10 query heads have 4 numbers each. A step that
# computes the tokens at the positions 6 and 7 of a sequence and samples behind the second of them:
#   matrices 2 · 100 · 2 rows + 2 · 50 · 1 row = 500, attention 4 · 40 · (7 + 8 keys) = 2400 operations
def work_of(batch: Iterable[Scheduled], config: LlamaConfig, weights: LlamaWeights, token_bytes: int) -> Work:
    """The work of a batch. `token_bytes` are those of one token's keys and values in the cache.

    A product of a row with a matrix has two operations for each weight. Weights are read once, and the keys and values
    of a sequence once.
    """
    heads = config.heads * config.head_dim
    layer = (
        config.hidden_size * (2 * heads + 2 * config.kv_heads * config.head_dim)
        + 3 * config.hidden_size * config.intermediate_size
    )
    rows = sampled = seen = context = 0
    for item in batch:
        first, count = item.sequence.num_computed_tokens, item.num_rows
        rows += count
        sampled += 1 + len(item.draft) if item.samples else 0
        seen += count * first + count * (count + 1) // 2
        context += first + count
    return Work(
        flops=config.layers * (2 * layer * rows + 4 * heads * seen)
        + 2 * config.hidden_size * config.vocab_size * sampled,
        read_bytes=weights.nbytes - (0 if sampled else weights.lm_head.nbytes) + context * token_bytes,
    )


def measure_peaks(device: torch.device, dtype: torch.dtype, clock: Callable[[], float] = time.perf_counter) -> Peaks:
    """The best of some products, computed as those of many rows, and of some sums over memory.

    Takes about 0.1 s on a CPU. On CUDA it needs 0.4 GiB for a while.
    """
    trial = CUDA if device.type == "cuda" else CPU
    matrix = torch.ones((trial.rows, trial.rows), dtype=product_dtype(dtype, device), device=device)
    memory = torch.ones(trial.read_bytes // 4, dtype=torch.float32, device=device)

    def seconds(work: Callable[[], torch.Tensor]) -> float:
        times = []
        for _ in range(TRIALS + 1):  # the first one pays for lazy starts
            begin = clock()
            for _ in range(trial.repeats - 1):
                work()
            work().flatten()[0].item()  # waits for the device
            times.append(clock() - begin)
        return max(min(times[1:]), 1e-9) / trial.repeats

    return Peaks(2 * trial.rows**3 / seconds(lambda: matrix @ matrix), trial.read_bytes / seconds(memory.sum))
