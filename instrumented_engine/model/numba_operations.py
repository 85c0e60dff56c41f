"""Operations by the kernels that Numba compiles, for a CPU."""

from __future__ import annotations

import sys
import threading

import numba
import torch
from torch import Tensor

from instrumented_engine.model.attention import Batch
from instrumented_engine.model.batch import Packer, Rows
from instrumented_engine.model.kv_format import FloatFormat, KvFormat
from instrumented_engine.model.llama import LlamaConfig
from instrumented_engine.model.numba_kernels import KINDS, Kernel, attention_kernel, row_kernels
from instrumented_engine.model.operations import Operations, agree

SHARED_WORK = 1 << 14
"""Numbers, or groups of 16 products of attention, that take one thread about 15 µs. OpenMP's threads are 2 µs away."""
LARGE_WORK = 1 << 20
"""From here on, threads share the work where the system has no OpenMP, and Numba's own take 80 µs to begin."""
LAUNCH = threading.Lock()
"""Held by the thread that shares its work. Numba's own threads end the process when two do so at a time."""


class NumbaOperations(Operations):
    """Kernels for float32 or bfloat16; `paged` ones attend to a cache of that dtype.

    Threads share `shared_work` or more. Raises ValueError for another dtype.
    """

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, *, paged: bool, shared_work: int
    ) -> None:
        if dtype not in KINDS:
            raise ValueError(f"Numba's kernels compute float32 and bfloat16, not {dtype}")
        self.paged = paged
        self.name = "numba" if paged else Operations.name
        self._shared_work = shared_work
        self._kernels: dict[bool, dict[str, Kernel]] = {}
        for shared in (False, True):
            attend = attention_kernel(dtype, heads // kv_heads, head_dim, parallel=shared)
            self._kernels[shared] = {**row_kernels(dtype, parallel=shared)._asdict(), "attend": attend}

    def add_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add and normalise in one pass."""
        out = torch.empty_like(x)
        rows, size = x.shape
        self._run("add_norm", x.numel(), _at(x), _at(delta), _at(weight), _at(out), rows, size, eps)
        return out

    def gate(self, gate_up: Tensor) -> Tensor:
        """Both factors in one pass."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, size))
        self._run("gate", out.numel(), _at(gate_up), _at(out), rows, size)
        return out

    def rotate(self, x: Tensor, rotation: Tensor) -> None:
        """Without complex numbers."""
        self._run("rotate", x.numel(), x.data_ptr(), x.stride(0), _at(rotation), *x.shape)

    def store(self, stored: Tensor, cache: Tensor, slots: Tensor) -> None:
        """Copy, if the cache has the dtype of the kernels."""
        if not self.paged:
            super().store(stored, cache, slots)
            return
        rows, size = len(stored), cache.shape[2] * cache.shape[3]
        self._run("store", rows * size, stored.data_ptr(), stored.stride(0), _at(cache), _at(slots), rows, size)

    def attend(self, q: Tensor, batch: Batch, cache: Tensor, kv_format: KvFormat) -> Tensor:
        """Read the blocks where they lie."""
        if not self.paged:
            return super().attend(q, batch, cache, kv_format)
        out = q.new_empty(q.shape)
        table, block_size = batch.block_table, cache.shape[1]
        work = table.numel() * block_size * q.shape[1] * q.shape[2] // 16
        self._run(
            "attend", work, q.data_ptr(), q.stride(0), _at(cache), _at(table), _at(batch.lengths), _at(out),
            len(q), cache.shape[2] // 2, table.shape[1], len(cache), block_size,
        )  # fmt: skip
        return out

    def _run(self, name: str, work: int, *arguments: float) -> None:
        shared = work >= self._shared_work
        kernel = self._kernels[shared][name]
        if not shared:
            kernel(*arguments)
            return
        with LAUNCH:
            numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
            kernel(*arguments)


def _at(tensor: Tensor) -> int:
    """The address of a tensor. Its numbers lie one behind the other."""
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def proved_operations(config: LlamaConfig, block_size: int, dtype: torch.dtype, *, paged: bool) -> NumbaOperations:
    """The operations for a model, compiled, and compared with torch's results on this CPU.

    Raises ValueError for a dtype without kernels, and RuntimeError where a result differs.
    """
    _start_threads()
    shape = (config.heads, config.kv_heads, config.head_dim)
    expected = _results(Operations(), config, block_size, dtype)
    for shared_work in (0, sys.maxsize):
        kernels = NumbaOperations(*shape, dtype, paged=True, shared_work=shared_work)
        for name, result in _results(kernels, config, block_size, dtype).items():
            if not agree(result, expected[name]):
                raise RuntimeError(f"the kernels compute another {name} than torch")
    shared_work = SHARED_WORK if numba.threading_layer() == "omp" else LARGE_WORK
    return NumbaOperations(*shape, dtype, paged=paged, shared_work=shared_work)


def _start_threads() -> None:
    """Start Numba's threads. Those of OpenMP would set the number of torch's too: `--threads 1` was all cores."""
    threads = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(threads)


def _results(operations: Operations, config: LlamaConfig, block_size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """The results for three sequences. Their contexts end before, at and behind the end of a block."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    lengths = [max(1, block_size - 1), block_size, block_size + 1]
    rows = [Rows([0], length - 1, [5 - i, i], [0]) for i, length in enumerate(lengths)]
    batch = Packer(block_size, torch.device("cpu"), dtype, paged=operations.paged).pack(rows)
    heads, kv_heads = config.heads, config.kv_heads
    x, qkv = some(3, config.hidden_size), some(3, heads + 2 * kv_heads, config.head_dim)
    cache = some(6, block_size, 2 * kv_heads, config.head_dim)
    normed = operations.add_norm(x, some(*x.shape), some(config.hidden_size), config.rms_norm_eps)
    gated = operations.gate(some(3, 2 * config.intermediate_size))
    angles = torch.randn((3, 1, config.head_dim // 2), generator=generator)
    operations.rotate(qkv[:, : heads + kv_heads], torch.polar(torch.ones_like(angles), angles))
    operations.store(qkv[:, heads:], cache, batch.slots)
    attended = operations.attend(qkv[:, :heads], batch, cache, FloatFormat(config.head_dim, dtype, dtype))
    return {"sum": x, "norm": normed, "gate": gated, "rotation": qkv, "cache": cache, "attention": attended}
