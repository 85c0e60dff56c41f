"""Kernels that Numba compiles for this CPU: each does the work of several operations of torch in one pass.

Behind each product of a decode step, the CPU's caches are full of weights. Each of torch's operations waits for its own
code then, and for a few thousand numbers that takes longer than to compute them.

A kernel gets the addresses of its tensors, since NumPy's views of them take longer to make than it runs. Numbers are
float32 or bfloat16. Numba has no bfloat16, so those are integers of 16 bits here. All sums are float32.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import carray, prange, types
from numba.extending import intrinsic, overload

from instrumented_engine.model.download import cache_folder

KINDS = {torch.float32: types.float32, torch.bfloat16: types.uint16}
"""The dtypes of a model that there are kernels for, as Numba's types."""
MATHS = {"reassoc", "contract", "nsz"}
"""LLVM may change sums in these ways, to use vectors. It may not assume that no number is infinite or NaN."""

numba.config.CACHE_DIR = str(cache_folder() / "kernels")


Kernel = Callable[..., None]
"""A function of addresses, then sizes. `stride` is the distance of two rows in numbers."""


class RowKernels(NamedTuple):
    """The kernels that compute each row of a batch by itself."""

    add_norm: Kernel
    gate: Kernel
    rotate: Kernel
    store: Kernel


@intrinsic
def pointer(_context, address, kind):
    """The pointer to numbers of a kind that lie at an address."""
    pointed = types.CPointer(kind.dtype)

    def code(context, builder, _signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(pointed))

    return pointed(address, kind), code


@intrinsic
def as_float(_context, _bits):
    """The float32 with these bits."""
    return types.float32(types.uint32), lambda _c, builder, _s, arguments: builder.bitcast(arguments[0], ir.FloatType())


@intrinsic
def as_bits(_context, _number):
    """The bits of a float32."""
    return types.uint32(types.float32), lambda _c, builder, _s, arguments: builder.bitcast(arguments[0], ir.IntType(32))


def widen(number):
    """A number of a tensor as float32: the bits of a bfloat16 are the upper half of those of a float32."""


@overload(widen, inline="always")
def _widen(number):
    if number == types.float32:
        return lambda number: number
    return lambda number: as_float(types.uint32(number) << types.uint32(16))


def narrow(number, kind):
    """A float32 as a number of a tensor, rounded to nearest, ties to even."""


@overload(narrow, inline="always")
def _narrow(number, kind):
    if kind.dtype == types.float32:
        return lambda number, kind: number

    def rounded(number, kind):
        bits = as_bits(number)
        if bits & types.uint32(0x7FFFFFFF) > types.uint32(0x7F800000):
            return types.uint16(0x7FC0)  # rounding could turn a NaN into an infinite number
        return types.uint16((bits + types.uint32(0x7FFF) + ((bits >> types.uint32(16)) & types.uint32(1))) >> 16)

    return rounded


ONE, HALF = np.float32(1), np.float32(0.5)
LOWEST, HIGHEST = np.float32(-87), np.float32(88)
LOG2_E = np.float32(math.log2(math.e))
LN2_UPPER, LN2_LOWER = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)
E5, E4, E3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E2, E1, E0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


# Numba calls the C library for each exponential, one number at a time. LLVM turns these lines into vectors.
# The polynomial is the one of the Cephes library (https://www.netlib.org/cephes/, expf). A NaN stays one.
@numba.njit(fastmath=MATHS, error_model="numpy", inline="always")
def exp(x):
    """e^x for -87 ≤ x ≤ 88, with an error of 2 units in the last place; beyond that, as at the nearer end."""
    x = max(x, LOWEST)
    x = min(x, HIGHEST)
    shift = types.int32(x * LOG2_E + (HALF if x >= 0 else -HALF))
    r = x - types.float32(shift) * LN2_UPPER
    r -= types.float32(shift) * LN2_LOWER
    series = ((((E5 * r + E4) * r + E3) * r + E2) * r + E1) * r + E0
    return (series * r * r + r + ONE) * as_float(types.uint32(shift + types.int32(127)) << types.uint32(23))


def compiled(*, parallel: bool) -> Callable[[Callable[..., None]], Kernel]:
    """A decorator for kernels. They are compiled when they are first called, and kept for the next process.

    `numba.set_num_threads` says how many threads compute a parallel one.
    """

    def decorate(function):
        function.__qualname__ += "_parallel" if parallel else "_alone"  # what is kept has this name
        kernel = numba.njit(fastmath=MATHS, error_model="numpy", nogil=True, parallel=parallel)(function)
        with contextlib.suppress(RuntimeError):  # the folder cannot be written: each process compiles for itself
            kernel.enable_caching()
        return kernel

    return decorate


@cache
def row_kernels(dtype: torch.dtype, *, parallel: bool) -> RowKernels:
    """The kernels for rows of a dtype."""
    kind = KINDS[dtype]

    @compiled(parallel=parallel)
    def add_norm(x_at, delta_at, weight_at, out_at, rows, size, eps):
        """Add delta to x; out = RMSNorm(x) · weight. x, delta and out (rows, size), weight (size,)."""
        shape = (rows, size)
        x, delta = carray(pointer(x_at, kind), shape), carray(pointer(delta_at, kind), shape)
        weight, out = carray(pointer(weight_at, kind), size), carray(pointer(out_at, kind), shape)
        for row in prange(rows):
            squares = np.float32(0)
            for i in range(size):
                x[row, i] = narrow(widen(x[row, i]) + widen(delta[row, i]), kind)
                squares += widen(x[row, i]) * widen(x[row, i])
            norm = ONE / np.float32(math.sqrt(squares / np.float32(size) + np.float32(eps)))
            for i in range(size):
                out[row, i] = narrow(widen(x[row, i]) * norm * widen(weight[i]), kind)

    @compiled(parallel=parallel)
    def gate(gate_up_at, out_at, rows, size):
        """Write SiLU(gate) · up to out (rows, size). They lie beside each other in gate_up (rows, 2 · size)."""
        gate_up, out = carray(pointer(gate_up_at, kind), (rows, 2 * size)), carray(pointer(out_at, kind), (rows, size))
        for row in prange(rows):
            for i in range(size):
                x = widen(gate_up[row, i])
                out[row, i] = narrow(x / (ONE + exp(-x)) * widen(gate_up[row, size + i]), kind)

    @compiled(parallel=parallel)
    def rotate(x_at, stride, rotation_at, rows, heads, head_dim):
        """Multiply the pairs of the first `heads` heads of each row by rotation (rows, head_dim / 2), complex."""
        half = head_dim // 2
        x = carray(pointer(x_at, kind), (rows, stride))
        rotation = carray(pointer(rotation_at, types.float32), (rows, half, 2))
        for row in prange(rows):
            for head in range(heads):
                for i in range(half):
                    at = head * head_dim + 2 * i
                    cos, sin = rotation[row, i, 0], rotation[row, i, 1]
                    a, b = widen(x[row, at]), widen(x[row, at + 1])
                    x[row, at], x[row, at + 1] = narrow(a * cos - b * sin, kind), narrow(a * sin + b * cos, kind)

    @compiled(parallel=parallel)
    def store(kv_at, stride, cache_at, slots_at, rows, size):
        """Copy `size` numbers of each row of kv to its slot in the cache (slots, size)."""
        kv, slots = carray(pointer(kv_at, kind), (rows, stride)), carray(pointer(slots_at, types.int64), rows)
        for row in prange(rows):
            slot = carray(pointer(cache_at + slots[row] * size * kv.itemsize, kind), size)
            for i in range(size):
                slot[i] = kv[row, i]

    return RowKernels(add_norm, gate, rotate, store)


@cache
def attention_kernel(dtype: torch.dtype, group: int, head_dim: int, *, parallel: bool) -> Kernel:
    """Attention of one query a sequence, for `group` query heads of `head_dim` numbers to each key head.

    Both are constants of the compiled code, so that the loops over them become a few vectors.
    """
    kind = KINDS[dtype]
    scale = np.float32(head_dim**-0.5)

    @compiled(parallel=parallel)
    def attend(q_at, stride, cache_at, table_at, lengths_at, out_at, rows, kv_heads, table_width, blocks, block_size):
        """Attention of one query a row over the first `lengths` positions of its blocks.

        q (rows, kv_heads · group, head_dim); cache (blocks, block_size, 2 · kv_heads, head_dim), keys first; table
        (rows, table_width); out (rows, kv_heads · group, head_dim).
        """
        q, lengths = carray(pointer(q_at, kind), (rows, stride)), carray(pointer(lengths_at, types.int64), rows)
        table = carray(pointer(table_at, types.int64), (rows, table_width))
        out = carray(pointer(out_at, kind), (rows, kv_heads, group, head_dim))
        cache = carray(pointer(cache_at, kind), (blocks, block_size, 2 * kv_heads, head_dim))
        for task in prange(rows * kv_heads):
            row, head = task // kv_heads, task % kv_heads
            length = lengths[row]
            queries = np.empty((group, head_dim), np.float32)
            values = np.zeros((group, head_dim), np.float32)
            scores = np.empty((group, length), np.float32)
            totals = np.zeros(group, np.float32)
            for member in range(group):
                for i in range(head_dim):
                    queries[member, i] = widen(q[row, (head * group + member) * head_dim + i]) * scale
            for first in range(0, length, block_size):
                block = cache[table[row, first // block_size]]
                for position in range(min(block_size, length - first)):
                    for member in range(group):
                        score = np.float32(0)
                        for i in range(head_dim):
                            score += queries[member, i] * widen(block[position, head, i])
                        scores[member, first + position] = score
            for member in range(group):
                largest = scores[member, 0]
                for position in range(length):
                    largest = max(largest, scores[member, position])
                for position in range(length):
                    scores[member, position] = exp(scores[member, position] - largest)
                    totals[member] += scores[member, position]
            for first in range(0, length, block_size):
                block = cache[table[row, first // block_size]]
                for position in range(min(block_size, length - first)):
                    for member in range(group):
                        weight = scores[member, first + position]
                        for i in range(head_dim):
                            values[member, i] += weight * widen(block[position, kv_heads + head, i])
            for member in range(group):
                for i in range(head_dim):
                    out[row, head, member, i] = narrow(values[member, i] / totals[member], kind)

    return attend
