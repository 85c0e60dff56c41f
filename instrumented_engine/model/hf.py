"""Reads the weights of a Llama, Mistral, Qwen2 or Qwen3 from a Hugging Face folder (config.json and safetensors)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.linear import Quantization
from instrumented_engine.model.llama import LlamaConfig, LlamaWeights, RopeScaling, build_weights, check_shape

TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's name of each tensor (without layer and `.weight`) → Hugging Face's."""


ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


class HfFolder:
    """An opened model folder. Raises ModelError for one that is broken or that this engine does not support."""

    def __init__(self, path: Path, keep_layers: str = "", flag: str = "--keep-layers") -> None:
        self.path = path
        self._layers = keep_layers, flag
        self._config = _read_json(path / "config.json")
        self._kind = self._config.get("model_type", "llama")
        self._files = _tensor_files(path)
        self._refuse_unsupported()

    def config(self) -> LlamaConfig:
        """The model's dimensions, from config.json (transformers 4 and 5)."""
        get = self._config.get
        hidden, heads = self._required("hidden_size"), self._required("num_attention_heads")
        rope = get("rope_parameters") or {}
        return LlamaConfig(
            vocab_size=self._required("vocab_size"),
            hidden_size=hidden,
            intermediate_size=self._required("intermediate_size"),
            layers=self._required("num_hidden_layers"),
            heads=heads,
            kv_heads=get("num_key_value_heads") or heads,
            head_dim=get("head_dim") or hidden // heads,
            max_position=min(get("max_position_embeddings") or 2048, self._window()),
            rms_norm_eps=get("rms_norm_eps") or 1e-6,
            rope_theta=rope.get("rope_theta") or get("rope_theta") or 10000.0,
            rope_scaling=self._rope_scaling(),
            qkv_bias=self._kind == "qwen2",
            qk_norm=self._kind == "qwen3",
        ).pruned(*self._layers)

    def weights(self, dtype: torch.dtype, device: torch.device, quantization: Quantization = "none") -> LlamaWeights:
        """Load all tensors: matrices as quantised, others as `dtype`, on `device`. Heads get adjacent rotary pairs."""
        config = self.config()
        tied = bool(self._config.get("tie_word_embeddings"))

        def has(name: str) -> bool:
            return not (tied and name == "output.weight") and _hf_name(name) in self._files

        def get(name: str) -> Tensor:
            value = self._read(_hf_name(name))
            check_shape(config, name, value.shape, self.path)
            if "attn_q" in name or "attn_k" in name:
                value = adjacent_pairs(value, config.head_dim)
            return value.to(device)

        return build_weights(config, get, has, dtype, quantization)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """End-of-sequence tokens of generation_config.json, else of config.json."""
        generation = self.path / "generation_config.json"
        ids = (_read_json(generation) if generation.exists() else {}).get("eos_token_id")
        ids = self._config.get("eos_token_id") if ids is None else ids
        return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)

    def _read(self, name: str) -> Tensor:
        if name not in self._files:
            raise ModelError(f"{self.path}: tensor {name} is missing")
        with safe_open(self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def _required(self, key: str) -> int:
        value = self._config.get(key)
        if not isinstance(value, int) or value <= 0:
            raise ModelError(f"{self.path}/config.json: {key} must be a positive integer, not {value!r}")
        return value

    def _window(self) -> int:
        """The longest text in which each token sees all tokens before it. Mistral's attention slides beyond that."""
        slides = self._kind == "mistral" or self._config.get("use_sliding_window")
        return (self._config.get("sliding_window") if slides else None) or sys.maxsize

    def _rope_scaling(self) -> RopeScaling | None:
        scaling = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "default":
            return None
        if kind != "llama3":
            raise ModelError(f"{self.path}/config.json: rope scaling {kind!r} is not supported (default, llama3)")
        return RopeScaling(**{key: scaling[key] for key in RopeScaling.__dataclass_fields__})

    def _refuse_unsupported(self) -> None:
        if self._kind not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ModelError(f"{self.path}/config.json: model_type = {self._kind!r} is not supported ({known})")
        wanted: dict[str, Any] = {
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "quantization_config": None,
        }
        for key, value in wanted.items():
            if (given := self._config.get(key, value)) != value:
                raise ModelError(f"{self.path}/config.json: {key} = {given!r} is not supported (only {value!r})")


def adjacent_pairs(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the outputs of a projection, its bias or its norm: pairs (i, i + half) of a head become (2i, 2i + 1)."""
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _hf_name(name: str) -> str:
    """GGUF's tensor name → Hugging Face's."""
    *prefix, part, suffix = name.split(".")
    layer = f"model.layers.{prefix[1]}." if prefix else ""
    return f"{layer}{TENSOR_NAMES.get(part, part)}.{suffix}"


def _tensor_files(path: Path) -> dict[str, Path]:
    """Tensor name → the safetensors file that holds it."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        files = {name: path / file for name, file in _read_json(index).get("weight_map", {}).items()}
        if missing := sorted({str(file) for file in files.values() if not file.exists()}):
            raise ModelError(f"{index} names files that are not there: {', '.join(missing)}")
        return files
    single = path / "model.safetensors"
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} has no usable model.safetensors: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value
