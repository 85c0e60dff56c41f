"""The work of a pass between its products, by torch's operations. Triton and Numba have kernels for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own spelling
from torch import Tensor

from instrumented_engine.model.kv_format import KvFormat

if TYPE_CHECKING:
    from instrumented_engine.model.attention import Batch

CLOSE = 0.05
"""Relative distance of two results that differ by rounding alone. Of an unrelated result it is about 1.4."""


class Operations:
    """torch's, on any device. `paged` ones read a context where it lies, so that batches need no mask."""

    name = "sdpa"
    paged = False

    def add_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add delta to x (rows, size) in place, and return RMSNorm(x) · weight (rows, size)."""
        x += delta
        return F.rms_norm(x, (x.shape[1],), weight, eps)

    def gate(self, gate_up: Tensor) -> Tensor:
        """SiLU(gate) · up (rows, size) of both beside each other (rows, 2 · size)."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def rotate(self, x: Tensor, rotation: Tensor) -> None:
        """Multiply the pairs of x (rows, heads, head_dim) by the complex rotation (rows, 1, head_dim / 2), in place."""
        pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
        x.copy_(torch.view_as_real(pairs * rotation).flatten(-2))

    def store(self, stored: Tensor, cache: Tensor, slots: Tensor) -> None:
        """Write stored (rows, 2 · kv_heads, width) to the slots (rows,) of a cache (blocks, block size, …)."""
        cache.view(-1, *stored.shape[1:]).index_copy_(0, slots, stored)

    def attend(self, q: Tensor, batch: Batch, cache: Tensor, kv_format: KvFormat) -> Tensor:
        """Attention of the batch's sequences that compute one token: q (decodes, heads, head_dim), and the result."""
        assert batch.mask is not None
        return gathered_attention(q, batch.block_table, batch.mask, cache, kv_format)


def gathered_attention(q: Tensor, block_table: Tensor, mask: Tensor, cache: Tensor, kv_format: KvFormat) -> Tensor:
    """One query row per sequence. The query heads that share a key head become the rows of one product."""
    decodes, heads, head_dim = q.shape
    kv_heads = cache.shape[2] // 2
    context = kv_format.decode(cache.index_select(0, block_table.flatten()))
    context = context.view(decodes, -1, 2 * kv_heads, head_dim).transpose(1, 2)
    grouped = q.view(decodes, kv_heads, heads // kv_heads, head_dim)
    out = F.scaled_dot_product_attention(grouped, context[:, :kv_heads], context[:, kv_heads:], attn_mask=mask)
    return out.reshape(decodes, heads, head_dim)


def agree(result: Tensor, expected: Tensor) -> bool:
    """Whether two results of one computation differ by rounding alone."""
    result, expected = result.float(), expected.float()
    return bool((result - expected).norm() <= CLOSE * expected.norm())
