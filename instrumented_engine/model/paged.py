"""Attention of sequences that compute one token, on CUDA: a Triton kernel reads the KV cache where it lies.

Where there are few sequences, the context of each is divided into parts that are computed at the same time, as in
Flash-Decoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html): one sequence alone keeps the device busy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from instrumented_engine.model.attention import Batch
from instrumented_engine.model.batch import decode_mask
from instrumented_engine.model.kv_format import FloatFormat, KvFormat
from instrumented_engine.model.operations import Operations, agree, gathered_attention

TILE = 32
"""The keys of so many positions are in registers at a time."""
MOST_PARTS = 16
"""Parts of a context. A part of a short one is a tile, or nothing."""
PROGRAMS = 256
"""Programs that keep a device busy: about two for each multiprocessor of an H100."""
LEAST_ROWS = 16
"""Rows of the smallest product that the device's matrix units compute."""


class TritonOperations(Operations):
    """torch's, but for the attention of single tokens."""

    name = "triton"
    paged = True

    def attend(self, q: Tensor, batch: Batch, cache: Tensor, kv_format: KvFormat) -> Tensor:
        """Attention by the kernel."""
        return paged_attention(q, cache, batch.block_table, batch.lengths)


# The query heads that share a key head are the rows of one product, and `part` is one of PARTS shares of the context:
#
#   position   0 … 31 | 32 … 63 | 64 … 69       a context of 70 in tiles of 32; two parts have 2 tiles each
#   part       0        0         1
#
# A part keeps what a softmax over several parts needs: the largest score, the sum of the exponentials below it, and
# the values weighted by them. `_join` brings the parts to one scale and adds them.
#
# What changes from step to step must not be a reason to compile another kernel: a request would wait for it.
@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["block_table", "lengths"])
def _attend_part(
    q, cache, block_table, lengths, values_out, largest_out, sums_out,
    scale, q_stride, cache_block_stride, cache_slot_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    sequence, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, channels = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    real_row, real_channel = rows < GROUP, channels < HEAD_DIM
    q_mask = real_row[:, None] & real_channel[None, :]
    q_at = q + sequence * q_stride + (head * GROUP + rows[:, None]) * HEAD_DIM + channels[None, :]
    queries = tl.load(q_at, mask=q_mask, other=0.0)

    length = tl.load(lengths + sequence)
    span = tl.cdiv(tl.cdiv(length, PARTS), TILE) * TILE
    stop = tl.minimum((part + 1) * span, length)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(part * span, stop, TILE):
        positions = first + tl.arange(0, TILE)
        seen = positions < stop
        block = tl.load(block_table + sequence * table_stride + positions // BLOCK_SIZE, mask=seen, other=0)
        slot = block * cache_block_stride + (positions % BLOCK_SIZE) * cache_slot_stride + head * HEAD_DIM
        kv_mask = seen[:, None] & real_channel[None, :]
        keys_at = cache + slot[:, None] + channels[None, :]
        keys = tl.load(keys_at, mask=kv_mask, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp(largest - larger)
        weights = tl.exp(scores - larger[:, None])
        values = tl.load(keys_at + KV_HEADS * HEAD_DIM, mask=kv_mask, other=0.0)
        weighted = weighted * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        sums = sums * shrink + tl.sum(weights, 1)
        largest = larger

    out = ((sequence * KV_HEADS + head) * PARTS + part) * GROUP + rows
    tl.store(largest_out + out, largest, mask=real_row)
    tl.store(sums_out + out, sums, mask=real_row)
    tl.store(values_out + out[:, None] * HEAD_DIM + channels[None, :], weighted, mask=q_mask)


@triton.jit
def _join(
    values, largest, sums, out,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row, member = tl.program_id(0), tl.program_id(1)
    channels = tl.arange(0, WIDTH)
    real_channel = channels < HEAD_DIM
    at = (row * PARTS + tl.arange(0, PARTS)) * GROUP + member
    part_largest = tl.load(largest + at)
    shares = tl.exp(part_largest - tl.max(part_largest, 0))
    weighted = tl.load(values + at[:, None] * HEAD_DIM + channels[None, :], mask=real_channel[None, :], other=0.0)
    total = tl.sum(weighted * shares[:, None], 0) / tl.sum(tl.load(sums + at) * shares, 0)
    tl.store(out + (row * GROUP + member) * HEAD_DIM + channels, total, mask=real_channel)


def num_parts(heads: int) -> int:
    """The parts of each context, a power of two, when so many key heads are computed, of all sequences together."""
    return int(max(1, min(MOST_PARTS, PROGRAMS // triton.next_power_of_2(heads))))


def paged_attention(q: Tensor, cache: Tensor, block_table: Tensor, lengths: Tensor) -> Tensor:
    """Attention of one query a sequence over the first `lengths` (sequences,) positions of its context, 1 or more.

    q (sequences, heads, head_dim), contiguous but for its first dimension; cache (blocks, block size, 2 · kv_heads,
    head_dim) of floats, keys first; block_table (sequences, blocks). Returns (sequences, heads, head_dim) like q.
    Scores and sums are float32.
    """
    sequences, heads, head_dim = q.shape
    kv_heads = cache.shape[2] // 2
    group, parts = heads // kv_heads, num_parts(sequences * kv_heads)
    values = torch.empty((sequences, kv_heads, parts, group, head_dim), dtype=torch.float32, device=q.device)
    largest = torch.empty(values.shape[:-1], dtype=torch.float32, device=q.device)
    sums = torch.empty_like(largest)
    out = torch.empty((sequences, heads, head_dim), dtype=q.dtype, device=q.device)
    width = triton.next_power_of_2(head_dim)
    _attend_part[(sequences, kv_heads, parts)](
        q, cache, block_table, lengths, values, largest, sums,
        head_dim**-0.5, q.stride(0), cache.stride(0), cache.stride(1), block_table.stride(0),
        KV_HEADS=kv_heads, GROUP=group, ROWS=max(LEAST_ROWS, triton.next_power_of_2(group)), HEAD_DIM=head_dim,
        WIDTH=max(LEAST_ROWS, width), BLOCK_SIZE=cache.shape[1], TILE=TILE, PARTS=parts,
    )  # fmt: skip
    _join[(sequences * kv_heads, group)](
        values, largest, sums, out, GROUP=group, HEAD_DIM=head_dim, WIDTH=width, PARTS=parts
    )
    return out


def prove(heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, device: torch.device) -> None:
    """Compare the kernel with torch's attention on this device, in these shapes. Raises RuntimeError if they differ.

    Triton raises errors of its own where it cannot compile, for instance without a C compiler.
    """
    lengths = torch.tensor([1, block_size, block_size + 1, 2 * TILE + 1, 5 * TILE], device=device)
    width = -(-int(lengths.max()) // block_size)
    table = torch.randperm(len(lengths) * width, device=device).view(len(lengths), width)
    q = torch.randn((len(lengths), heads, head_dim), device=device).to(dtype)
    cache = torch.randn((table.numel(), block_size, 2 * kv_heads, head_dim), device=device).to(dtype)
    mask = decode_mask(lengths, width * block_size)
    expected = gathered_attention(q, table, mask, cache, FloatFormat(head_dim, dtype, dtype))
    if not agree(paged_attention(q, cache, table, lengths), expected):
        raise RuntimeError("the kernel's results are not those of torch's attention")
