"""Reads llama-architecture weights from a GGUF file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.linear import Quantization
from instrumented_engine.model.llama import LlamaConfig, LlamaWeights, build_weights, check_shape


class _Reader(gguf.GGUFReader):
    """Steps over the words of arrays: a tokenizer's 150,000 take 3 s to unpack, and transformers reads them itself."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = gguf.GGUFValueType(self._get(orig_offs, np.uint32)[0])
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        end, data = orig_offs + 12, self.data.data
        if kind in self.gguf_scalar_to_np:
            end += count * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        elif kind == gguf.GGUFValueType.STRING and self.byte_order == "I":
            while count and end <= len(data):
                end += 8 + int(struct.unpack_from("<Q", data, end)[0])
                count -= 1
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]


class GgufFile:
    """An opened GGUF file. Raises ModelError for one that is broken or holds another architecture."""

    def __init__(self, path: Path, keep_layers: str = "", flag: str = "--keep-layers") -> None:
        self.path = path
        self._layers = keep_layers, flag
        try:
            self._reader = _Reader(path)
        except (OSError, ValueError, IndexError, struct.error) as error:
            raise ModelError(f"{path} is not a readable GGUF file: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if (architecture := self._value("general.architecture")) != "llama":
            raise ModelError(f"{path} holds a {architecture!r} model; only the llama architecture is supported")

    def config(self) -> LlamaConfig:
        """The model's dimensions, from the file's metadata."""
        hidden, heads = self._value("llama.embedding_length"), self._value("llama.attention.head_count")
        if (scaling := self._value("llama.rope.scaling.type", "none")) != "none":
            raise ModelError(f"{self.path}: rope scaling {scaling!r} is not supported")
        if "token_embd.weight" not in self._tensors:
            raise ModelError(f"{self.path}: tensor token_embd.weight is missing")
        return LlamaConfig(
            vocab_size=int(self._tensors["token_embd.weight"].shape[1]),
            hidden_size=hidden,
            intermediate_size=self._value("llama.feed_forward_length"),
            layers=self._value("llama.block_count"),
            heads=heads,
            kv_heads=self._value("llama.attention.head_count_kv", heads),
            head_dim=self._value("llama.rope.dimension_count", hidden // heads),
            max_position=self._value("llama.context_length"),
            rms_norm_eps=self._value("llama.attention.layer_norm_rms_epsilon"),
            rope_theta=self._value("llama.rope.freq_base", 10000.0),
        ).pruned(*self._layers)

    def weights(self, dtype: torch.dtype, device: torch.device, quantization: Quantization = "none") -> LlamaWeights:
        """Load all tensors: matrices as quantised, others as `dtype`, on `device`."""
        config = self.config()

        def get(name: str) -> Tensor:
            if name not in self._tensors:
                raise ModelError(f"{self.path}: tensor {name} is missing")
            tensor = self._tensors[name]
            value = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
            check_shape(config, name, value.shape, self.path)
            return value.to(device)

        return build_weights(config, get, self._tensors.__contains__, dtype, quantization)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The end-of-turn token, which the tokenizer does not list as an end of sequence."""
        end_of_turn = self._value("tokenizer.ggml.eot_token_id", -1)
        return () if end_of_turn < 0 else (end_of_turn,)

    def _value(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        if field is None and default is None:
            raise ModelError(f"{self.path}: metadata {key} is missing")
        return default if field is None else field.contents()
