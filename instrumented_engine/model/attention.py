"""Attention over a paged KV cache, for batches that mix prefill and decode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own spelling
from torch import Tensor

from instrumented_engine.model.kv_format import KvFormat
from instrumented_engine.model.linear import multiply
from instrumented_engine.model.operations import Operations


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence's new tokens: rows `start:stop` of the batch. `block_table` (blocks,) holds its context.

    `mask` (new tokens, context) is 0 where a new token may see a position, else -∞. Both are None without earlier
    context.
    """

    start: int
    stop: int
    block_table: Tensor | None = None
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A ragged batch, flat: first the sequences that compute one token each, then those that compute several.

    Each row's key and value are stored at its index in `slots`; the last states are returned of the rows in `sampled`.
    The first sequences see `lengths` (decodes,) positions each. Their `block_table` (decodes, blocks) is padded with
    its first block; `mask` (decodes, 1, 1, blocks · block size) hides that by -∞, and is None for operations that are
    `paged`. The blocks in `fresh` get their first token and have room for more. Their sequence's mask hides the rest,
    but -∞ hides no NaN that another sequence left there, so they are emptied first.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    sampled: Tensor
    decodes: int
    lengths: Tensor
    block_table: Tensor
    mask: Tensor | None
    prefills: tuple[Prefill, ...]
    fresh: tuple[int, ...] = ()


def attend(q: Tensor, kv: Tensor, batch: Batch, cache: Tensor, kv_format: KvFormat, operations: Operations) -> Tensor:
    """Causal attention of each row over its own sequence.

    q (rows, heads, head_dim); kv (rows, 2 · kv_heads, head_dim), keys first; cache (blocks, block size, 2 · kv_heads,
    width of the format). Stores kv in the cache; returns (rows, heads · head_dim). A row sees keys and values as they
    are stored, its own too, so that the result does not depend on how a prompt is divided into steps.
    """
    rotation = kv_format.rotation
    if rotation is not None:
        q, kv = multiply(q, rotation.T), multiply(kv, rotation.T)
    stored = kv_format.encode(kv)
    operations.store(stored, cache, batch.slots)
    parts = [operations.attend(q[: batch.decodes], batch, cache, kv_format)] if batch.decodes else []
    for prefill in batch.prefills:
        rows = slice(prefill.start, prefill.stop)
        parts.append(_prefill(q[rows], stored[rows], prefill, cache, kv_format))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return (out if rotation is None else multiply(out, rotation)).flatten(1)


def _prefill(q: Tensor, stored: Tensor, prefill: Prefill, cache: Tensor, kv_format: KvFormat) -> Tensor:
    kv_heads = stored.shape[1] // 2
    if prefill.block_table is not None and prefill.mask is not None:
        stored = cache.index_select(0, prefill.block_table).flatten(0, 1)[: prefill.mask.shape[1]]
    q, kv = q.transpose(0, 1), kv_format.decode(stored).transpose(0, 1)
    group = q.shape[0] // kv_heads
    keys, values = (part.repeat_interleave(group, dim=0) for part in (kv[:kv_heads], kv[kv_heads:]))
    out = F.scaled_dot_product_attention(
        q.unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=prefill.mask,
        is_causal=prefill.mask is None,
    )
    return out.squeeze(0).transpose(0, 1)
