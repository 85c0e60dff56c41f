"""The engine's settings, from flags and from `TOKENTRAIL_ENGINE_*` variables."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

LAYERS = r"^([0-9]{1,4}|RANGE(,RANGE)*)?$".replace("RANGE", "[0-9]{1,4}(-[0-9]{1,4})?")
"""A number of layers, or ranges of layers."""


class Settings(BaseSettings):
    """An OpenAI-compatible LLM server that traces every token."""

    model_config = SettingsConfigDict(
        env_prefix="TOKENTRAIL_ENGINE_",
        cli_prog_name="tokentrail engine",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        extra="forbid",
        protected_namespaces=(),
    )

    model: str = Field(
        default="smollm2-135m-instruct",
        min_length=1,
        description="a known model's name, a GGUF file, or a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3, BERT)",
    )
    keep_layers: str = Field(
        default="",
        pattern=LAYERS,
        max_length=256,
        description="layers of the model that are kept, such as 0-9,20-29, or their number; default: all",
    )
    served_model_name: str = Field(
        default="", description="the model's name in requests; default: its name or file name"
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    variant: str = Field(default="", max_length=64, description="label of this experiment in every trace")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="where to compute; auto: cuda if there is one"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="data type of the weights; auto: bfloat16 on CUDA and with --quantization, else float32",
    )
    quantization: Literal["none", "int8", "int4", "fp8"] = Field(
        default="none",
        description="format of the weights: int8, or int4 in groups of 32, on the CPU; fp8 on CUDA. All else is then "
        "bfloat16",
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "int8", "int4"] = Field(
        default="auto",
        description="format of the KV cache: int8 with a scale for each head of a token, int4 in groups of 32; auto: "
        "as --dtype",
    )
    attention_backend: Literal["auto", "triton", "numba", "sdpa"] = Field(
        default="auto",
        description="how a decode step computes attention: triton (CUDA) and numba (CPU) are kernels that read the "
        "paged KV cache in place, and numba's also compute normalisation, rotation and activations; sdpa is torch's "
        "attention over a copy; auto: the device's kernels, if their results equal torch's",
    )
    enforce_eager: bool = Field(
        default=False, description="launch the kernels of a step one by one, without CUDA graphs"
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="CPU threads for torch; default: measured at the start"
    )
    max_seqs: int = Field(default=16, ge=1, le=1024, description="most sequences in one batch")
    max_batched_tokens: int = Field(
        default=2048,
        ge=1,
        le=1 << 20,
        description="most tokens computed in one step; at least max-seqs. The rest of a prompt follows in the next",
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        default="fcfs", description="order of the waiting requests: the first to come, or the lowest `priority`"
    )
    batching: Literal["continuous", "static"] = Field(
        default="continuous", description="static: no request joins a batch that decodes; for comparison"
    )
    chunked_prefill: bool = Field(
        default=True, description="split prompts over steps; without it a prompt is computed in one step"
    )
    watermark_blocks: int = Field(
        default=2,
        ge=0,
        le=1024,
        description="KV-cache blocks that must stay free for each running sequence when another is admitted",
    )
    prefix_caching: bool = Field(
        default=True, description="share the KV-cache blocks of equal beginnings, also of requests that have ended"
    )
    speculative_tokens: int = Field(default=0, ge=0, le=64, description="longest draft in one step; 0: no speculation")
    speculative_model: str = Field(
        default="",
        description="a model with the same tokens, which makes the drafts; as --model; default: prompt lookup",
    )
    speculative_keep_layers: str = Field(
        default="", pattern=LAYERS, max_length=256, description="layers of --speculative-model that are kept"
    )
    speculative_ngram: int = Field(
        default=2,
        ge=1,
        le=16,
        description="prompt lookup finds this many last tokens earlier in the sequence, and drafts what followed them",
    )
    block_size: int = Field(default=16, ge=1, le=1024, description="tokens in one KV-cache block")
    kv_blocks: int | None = Field(
        default=None,
        ge=1,
        description="KV-cache blocks; default: 1 GiB on the CPU, on CUDA the memory that the largest step leaves",
    )
    swap_space: float = Field(
        default=0.0,
        ge=0,
        le=4096,
        description="GiB of host memory for the KV-cache blocks of preempted requests; 0: they are computed again",
    )
    kv_role: Literal["none", "kv_producer", "kv_consumer"] = Field(
        default="none",
        description="kv_producer: compute prompts for another engine; kv_consumer: let another engine compute prompts",
    )
    kv_ip: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address on which the producer listens, and to which consumers connect",
    )
    kv_port: int = Field(default=14579, ge=0, le=65535, description="the producer's port for consumers")
    kv_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="seconds that a consumer waits for a prompt's keys and values before it computes them itself",
    )
    max_model_len: int | None = Field(
        default=None, ge=2, description="longest prompt and output together, in tokens; default: the model's own limit"
    )
    reasoning_start_str: str = Field(
        default="", max_length=64, description="the marker before hidden reasoning, such as <think>"
    )
    reasoning_end_str: str = Field(
        default="", max_length=64, description="the marker after hidden reasoning, such as </think>"
    )
    max_waiting: int = Field(default=256, ge=1, description="requests that may wait; more are refused with 503")
    max_body_bytes: int = Field(
        default=8 << 20, ge=1024, description="largest request body; larger ones are refused with 413"
    )
    idle_unload_s: float = Field(
        default=0.0,
        ge=0,
        le=30 * 86400,
        description="seconds without a request after which the model is unloaded until the next one; 0: never",
    )
    shutdown_grace_s: float = Field(
        default=10.0, ge=0, le=3600, description="seconds that running requests get to finish after SIGTERM"
    )

    @model_validator(mode="after")
    def _step_holds_every_sequence(self) -> Self:
        if self.max_batched_tokens < self.max_seqs:
            raise ValueError(
                f"--max-batched-tokens ({self.max_batched_tokens}) must be at least --max-seqs ({self.max_seqs})"
            )
        return self

    @model_validator(mode="after")
    def _quantised_products_take_bfloat16(self) -> Self:
        other, needed = ("cpu", "CUDA") if self.quantization == "fp8" else ("cuda", "the CPU")
        if self.quantization != "none" and (self.device == other or self.dtype not in ("auto", "bfloat16")):
            raise ValueError(f"--quantization {self.quantization} needs {needed} and --dtype bfloat16")
        return self

    @model_validator(mode="after")
    def _a_draft_model_needs_drafts(self) -> Self:
        if self.speculative_model and not self.speculative_tokens:
            raise ValueError("--speculative-model needs --speculative-tokens")
        if self.speculative_keep_layers and not self.speculative_model:
            raise ValueError("--speculative-keep-layers needs --speculative-model")
        return self

    @model_validator(mode="after")
    def _a_consumer_has_room_on_the_host(self) -> Self:
        if self.kv_role == "kv_consumer" and not self.swap_space:
            raise ValueError("--kv-role kv_consumer needs --swap-space: received blocks lie there until they are used")
        return self

    @property
    def label(self) -> str:
        """The label of this experiment: as set, else the settings that change the model's answers."""
        weights = "" if self.quantization == "none" else self.quantization
        cache = "" if self.kv_cache_dtype == "auto" else f"kv-{self.kv_cache_dtype}"
        layers = f"layers-{self.keep_layers}" if self.keep_layers else ""
        return self.variant or "-".join(filter(None, (layers, weights, cache)))[:64]

    @model_validator(mode="after")
    def _both_markers_or_none(self) -> Self:
        if bool(self.reasoning_start_str) != bool(self.reasoning_end_str):
            raise ValueError("--reasoning-start-str and --reasoning-end-str need each other")
        return self

    @property
    def model_name(self) -> str:
        """The model's name in requests."""
        path = Path(self.model).expanduser()
        return self.served_model_name or (path.resolve().name.removesuffix(".gguf") if path.exists() else self.model)
