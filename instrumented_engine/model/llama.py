"""A llama-architecture decoder (Llama, Mistral, Qwen2, Qwen3) in plain torch, over a paged KV cache.

Query and key heads keep rotary pairs next to each other (GGUF's order), so a rotation is one complex product. Weights
in Hugging Face's order are reordered when they are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own spelling
from torch import Tensor

from instrumented_engine.model.attention import Batch, attend
from instrumented_engine.model.batch import Packer
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.kv_format import KvFormat, kv_format
from instrumented_engine.model.linear import (
    Linear,
    Quantization,
    linear,
    multiplies_bfloat16,
    pad_few_rows,
    product_rows,
)
from instrumented_engine.model.operations import Operations


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of rotary frequencies (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The dimensions of a model. A pruned one has only the layers `kept` of its file; None: all.

    Qwen2 has a `qkv_bias`. Qwen3 has a `qk_norm`: queries and keys are normalised head by head before their rotation.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    kept: tuple[int, ...] | None = None
    qkv_bias: bool = False
    qk_norm: bool = False

    def pruned(self, keep_layers: str, flag: str) -> LlamaConfig:
        """The configuration with some of its layers alone; an empty text keeps all.

        Of eight layers "0-2,7" keeps the first three and the last, and the count "4" the first two and the last two.
        Raises ModelError, which names the `flag`, for layers that the model does not have.
        """
        kept: list[int] = []
        if keep_layers.isdecimal():
            count = int(keep_layers)
            kept = [*range(-(-count // 2)), *range(self.layers - count // 2, self.layers)]
        elif keep_layers:
            for part in keep_layers.split(","):
                first, _, last = part.partition("-")
                kept += range(int(first), int(last or first) + 1)
        else:
            return self
        if not kept or sorted({*kept}) != kept or kept[-1] >= self.layers:
            raise ModelError(
                f"{flag} {keep_layers}: the model has the layers 0 to {self.layers - 1}. Name each once at most, in "
                f"order, or give their number, 1 to {self.layers}"
            )
        return replace(self, layers=len(kept), kept=tuple(kept))


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. `qkv` stacks query, key and value, `gate_up` gate and up."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    qkv_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All parameters. `rope_factors` divide the rotary frequencies."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    lm_head: Linear
    rope_factors: Tensor | None = None

    @property
    def matrices(self) -> list[Linear]:
        """All matrices, in the order of a step."""
        layers = [m for layer in self.layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return [*layers, self.lm_head]

    @property
    def nbytes(self) -> int:
        """Bytes that one decode step reads."""
        return sum(matrix.nbytes for matrix in self.matrices)


def build_weights(
    config: LlamaConfig,
    get: Callable[[str], Tensor],
    has: Callable[[str], bool],
    dtype: torch.dtype,
    quantization: Quantization,
) -> LlamaWeights:
    """Assemble the model. `get` and `has` take GGUF's tensor names; matrices with the same input are fused.

    The last matrix, from states to logits, is never rounded to 4 bits. Where the device multiplies bfloat16, it is
    not rounded at all: products of several rows are quicker so.
    """

    def layer(index: int) -> LayerWeights:
        def vector(name: str) -> Tensor:
            return get(f"blk.{index}.{name}").to(dtype)

        def matrix(*names: str) -> Linear:
            parts = [get(f"blk.{index}.{name}.weight") for name in names]
            return linear(torch.cat(parts), dtype, quantization)

        return LayerWeights(
            attention_norm=vector("attn_norm.weight"),
            qkv=matrix("attn_q", "attn_k", "attn_v"),
            output=matrix("attn_output"),
            mlp_norm=vector("ffn_norm.weight"),
            gate_up=matrix("ffn_gate", "ffn_up"),
            down=matrix("ffn_down"),
            qkv_bias=torch.cat([vector(f"attn_{name}.bias") for name in "qkv"]) if config.qkv_bias else None,
            q_norm=vector("attn_q_norm.weight") if config.qk_norm else None,
            k_norm=vector("attn_k_norm.weight") if config.qk_norm else None,
        )

    embedding = get("token_embd.weight")
    lm_head = get("output.weight") if has("output.weight") else embedding
    eight_bits = quantization in ("int8", "int4") and not multiplies_bfloat16(lm_head.device)
    weights = LlamaWeights(
        embedding=embedding.to(dtype),
        layers=[layer(index) for index in config.kept or range(config.layers)],
        norm=get("output_norm.weight").to(dtype),
        lm_head=linear(lm_head, dtype, "int8" if eight_bits else "none"),
        rope_factors=get("rope_freqs.weight").float() if has("rope_freqs.weight") else None,
    )
    pad_few_rows(weights.matrices)
    return weights


def tensor_shape(config: LlamaConfig, name: str) -> tuple[int, ...]:
    """The shape of a tensor (by its GGUF name) that the configuration implies."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "token_embd.weight": (config.vocab_size, hidden),
        "output.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
        "rope_freqs.weight": (config.head_dim // 2,),
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (query, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_q.bias": (query,),
        "attn_k.bias": (kv,),
        "attn_v.bias": (kv,),
        "attn_q_norm.weight": (config.head_dim,),
        "attn_k_norm.weight": (config.head_dim,),
        "attn_output.weight": (hidden, query),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (mlp, hidden),
        "ffn_up.weight": (mlp, hidden),
        "ffn_down.weight": (hidden, mlp),
    }[".".join(name.split(".")[-2:])]


def check_shape(config: LlamaConfig, name: str, shape: Seq[int], path: Path) -> None:
    """Raise ModelError when a tensor (by its GGUF name) has another shape than the configuration implies."""
    expected = tensor_shape(config, name)
    if tuple(shape) != expected:
        raise ModelError(f"{path}: tensor {name} has shape {tuple(shape)}, the configuration says {expected}")


class Llama:
    """The forward pass over caches in one format, by default floats as the weights'.

    It keeps no state besides its weights and the table of rotations. `operations` do the work between products.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: LlamaWeights,
        max_position: int,
        cache_format: KvFormat | None = None,
        operations: Operations | None = None,
    ) -> None:
        embedding = weights.embedding
        self.config = config
        self.weights = weights
        self.operations = operations or Operations()
        self.cache_format = cache_format or kv_format("auto", config.head_dim, embedding.dtype, embedding.device)
        self._rotations = _rotations(config, weights.rope_factors, max_position).to(weights.embedding.device)

    def new_cache(self, blocks: int, block_size: int) -> Tensor:
        """An empty cache on the device: (layers, blocks, block size, 2 · kv_heads, width of the format)."""
        # Zeros, not empty: padding is gathered too, and a masked NaN is still a NaN.
        return torch.zeros(
            (self.config.layers, blocks, block_size, 2 * self.config.kv_heads, self.cache_format.width),
            dtype=self.cache_format.dtype,
            device=self.weights.embedding.device,
        )

    def packer(self, block_size: int) -> Packer:
        """The packer of this model's batches, for a cache with blocks of so many tokens."""
        embedding = self.weights.embedding
        return Packer(block_size, embedding.device, embedding.dtype, paged=self.operations.paged)

    def forward(self, batch: Batch, cache: Tensor) -> Tensor:
        """Compute a ragged batch; store its keys and values in `cache`. Returns states (sampled rows, hidden size)."""
        layers, operations, eps = self.weights.layers, self.operations, self.config.rms_norm_eps
        for block in batch.fresh:
            cache[:, block].zero_()
        rows = len(batch.tokens)
        more = product_rows(rows) - rows if self.weights.embedding.device.type == "cpu" else 0
        x = _with_rows(self.weights.embedding[batch.tokens], more)
        rotation = self._rotations[batch.positions].unsqueeze(1)
        h = F.rms_norm(x, (self.config.hidden_size,), layers[0].attention_norm, eps)
        norms = [layer.attention_norm for layer in layers[1:]] + [self.weights.norm]
        for layer, layer_cache, norm in zip(layers, cache, norms, strict=True):
            attended = self._attention(layer, h, rotation, batch, layer_cache)
            h = operations.add_norm(x, layer.output(_with_rows(attended, more)), layer.mlp_norm, eps)
            h = operations.add_norm(x, layer.down(operations.gate(layer.gate_up(h))), norm, eps)
        return h[batch.sampled]

    def logits(self, states: Tensor) -> Tensor:
        """Logits (rows, vocabulary) of the states that `forward` returned."""
        return self.weights.lm_head(states)

    def _attention(self, layer: LayerWeights, h: Tensor, rotation: Tensor, batch: Batch, cache: Tensor) -> Tensor:
        config = self.config
        qkv = layer.qkv(h) if layer.qkv_bias is None else layer.qkv(h) + layer.qkv_bias
        rows = len(batch.tokens)  # the others of h are zeros
        qkv = qkv[:rows].view(rows, config.heads + 2 * config.kv_heads, config.head_dim)
        rotated = qkv[:, : config.heads + config.kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            size, eps = (config.head_dim,), config.rms_norm_eps
            rotated[:, : config.heads] = F.rms_norm(rotated[:, : config.heads], size, layer.q_norm, eps)
            rotated[:, config.heads :] = F.rms_norm(rotated[:, config.heads :], size, layer.k_norm, eps)
        self.operations.rotate(rotated, rotation)
        q, kv = qkv[:, : config.heads], qkv[:, config.heads :]
        return attend(q, kv, batch, cache, self.cache_format, self.operations)


def _with_rows(x: Tensor, more: int) -> Tensor:
    """Rows of zeros are put behind those of x."""
    return F.pad(x, (0, 0, 0, more)) if more else x


def _rotations(config: LlamaConfig, factors: Tensor | None, max_position: int) -> Tensor:
    """e^{i·position·frequency}, (max_position, head_dim / 2) complex64."""
    frequency = config.rope_theta ** -(torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
    if config.rope_scaling:
        frequency = _llama3_scaled(frequency, config.rope_scaling)
    if factors is not None:
        frequency = frequency / factors.cpu()
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequency)
    return torch.polar(torch.ones_like(angles), angles)


def _llama3_scaled(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1's rule)."""
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return frequency * (blend + (1 - blend) / scaling.factor)
