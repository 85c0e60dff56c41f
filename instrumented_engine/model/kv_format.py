"""Formats of the keys and values in the KV cache: floats, or 8 or 4 bits with scales beside them."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from instrumented_engine.model.errors import ModelError

KvCacheDtype = Literal["auto", "bfloat16", "int8", "int4"]
GROUP = 32
"""Numbers of a head that share a scale and a minimum in 4 bits. A head that is no multiple of it is one group."""


class KvFormat(Protocol):
    """Turns vectors (…, head_dim) into stored ones (…, `width`) of `dtype`, and back.

    Queries, keys and values are multiplied by `rotation` (head_dim, head_dim) before, and the result of attention by
    its inverse. Products of rotated vectors are those of the vectors themselves.
    """

    dtype: torch.dtype
    width: int
    rotation: Tensor | None

    def encode(self, vectors: Tensor) -> Tensor:
        """The stored form."""
        ...

    def decode(self, stored: Tensor) -> Tensor:
        """The vectors, nearly."""
        ...


class FloatFormat:
    """Floats of `dtype`; vectors are of `compute`."""

    rotation: Tensor | None = None

    def __init__(self, head_dim: int, dtype: torch.dtype, compute: torch.dtype) -> None:
        self.dtype = dtype
        self.width = head_dim
        self._compute = compute

    def encode(self, vectors: Tensor) -> Tensor:
        """Round."""
        return vectors.to(self.dtype)

    def decode(self, stored: Tensor) -> Tensor:
        """Widen."""
        return stored.to(self._compute)


# A vector 0.5 -1.27 has the scale 1.27/127 = 0.01 and is stored as 50 -127, and the two bytes of 0.01 in bfloat16.
class Int8Format:
    """8 bits, symmetric, with one bfloat16 scale for each vector. The error is half a scale at most."""

    dtype = torch.int8
    rotation: Tensor | None = None

    def __init__(self, head_dim: int, compute: torch.dtype) -> None:
        self.width = head_dim + 2
        self._compute = compute

    def encode(self, vectors: Tensor) -> Tensor:
        """Round to nearest."""
        scale = (vectors.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127).bfloat16()
        numbers = (vectors / scale.float()).round_().clamp_(-127, 127).to(torch.int8)
        return torch.cat([numbers, scale.view(torch.int8)], dim=-1)

    def decode(self, stored: Tensor) -> Tensor:
        """Multiply by the scale."""
        return stored[..., :-2].to(self._compute) * stored[..., -2:].view(torch.bfloat16).to(self._compute)


# A group 0 0.1 0.7 1.5 has the minimum 0 and the scale 1.5/15 = 0.1 and is stored as 0 1 7 15: two numbers to a byte,
# those of the head's first half below those of its second. Behind them are all scales and then all minima in bfloat16.
class Int4Format:
    """4 bits, with a bfloat16 scale and minimum for each group. The error is half a scale at most, and their rounding.

    Heads have a few channels that are much larger than the others and would take the range of their group. A random
    rotation mixes the channels, as in TurboQuant (arXiv:2504.19874).
    """

    dtype = torch.uint8

    def __init__(self, head_dim: int, compute: torch.dtype, device: torch.device) -> None:
        if head_dim % 4:
            raise ModelError(f"--kv-cache-dtype int4: heads of {head_dim} numbers are no multiple of 4")
        self._groups = head_dim // GROUP if head_dim % GROUP == 0 else 1
        self._bytes = head_dim // 2
        self._compute = compute
        self.width = self._bytes + 4 * self._groups
        normal = torch.randn((head_dim, head_dim), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.rotation: Tensor | None = torch.linalg.qr(normal)[0].to(device, compute)

    def encode(self, vectors: Tensor) -> Tensor:
        """Round to nearest."""
        groups = vectors.float().reshape(*vectors.shape[:-1], self._groups, -1)
        minimum = groups.amin(dim=-1).bfloat16()
        scale = ((groups.amax(dim=-1) - minimum.float()).clamp(min=1e-30) / 15).bfloat16()
        numbers = (groups - minimum.float().unsqueeze(-1)) / scale.float().unsqueeze(-1)
        low, high = numbers.round_().clamp_(0, 15).to(torch.uint8).flatten(-2).chunk(2, dim=-1)
        return torch.cat([low | high << 4, scale.view(torch.uint8), minimum.view(torch.uint8)], dim=-1)

    def decode(self, stored: Tensor) -> Tensor:
        """Multiply by the scale, and add the minimum."""
        pairs, parameters = stored[..., : self._bytes], stored[..., self._bytes :].view(torch.bfloat16)
        numbers = torch.cat([pairs & 15, pairs >> 4], dim=-1).to(self._compute)
        numbers = numbers.view(*numbers.shape[:-1], self._groups, -1)
        scale, minimum = parameters.to(self._compute).unsqueeze(-1).chunk(2, dim=-2)
        return torch.addcmul(minimum, numbers, scale).flatten(-2)


def kv_format(name: KvCacheDtype, head_dim: int, compute: torch.dtype, device: torch.device) -> KvFormat:
    """The format with that name. Attention computes with `compute`, which is also the cache's dtype for `auto`."""
    if name == "int8":
        return Int8Format(head_dim, compute)
    if name == "int4":
        return Int4Format(head_dim, compute, device)
    return FloatFormat(head_dim, compute if name == "auto" else torch.bfloat16, compute)
