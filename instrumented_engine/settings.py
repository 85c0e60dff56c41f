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
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    model: str = Field(default="smollm2-135m-instruct", min_length=1)
    """A known model's name, a GGUF file, or a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3, BERT)."""
    keep_layers: str = Field(default="", pattern=LAYERS, max_length=256)
    """Layers of the model that are kept (docs/engine.md#fewer-layers), such as `0-9,20-29`, or their number; default:
    all."""
    served_model_name: str = ""
    """What clients call the model; default: the model's name or file name."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Requests under a host name that is neither a loopback name, an address, this one nor in
    TOKENTRAIL_ALLOWED_HOSTS are refused with 421."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port; 0 takes a free one."""
    variant: str = Field(default="", max_length=64)
    """Label of this experiment in every trace; default: the quantisation, if there is one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; `auto`: CUDA if there is a device."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the weights; `auto`: `float32` on the CPU, `bfloat16` on CUDA and with `--quantization`."""
    quantization: Literal["none", "int8", "int4"] = "none"
    """Format of the weights (docs/engine.md#weights-in-fewer-bits): `int8`, or `int4` in groups of 32, on the CPU.
    All else is then `bfloat16`."""
    kv_cache_dtype: Literal["auto", "bfloat16", "int8", "int4"] = "auto"
    """Format of the KV cache (docs/engine.md#keys-and-values-in-fewer-bits): `int8` with a scale for each head of a
    token, `int4` in groups of 32; `auto`: as the weights' activations."""
    attention_backend: Literal["auto", "triton", "numba", "sdpa"] = "auto"
    """How a decode step computes attention: `triton` (docs/engine.md#cuda) and `numba`
    (docs/engine.md#kernels-for-a-cpu) are kernels that read the paged KV cache in place; `sdpa` is torch's attention
    over a copy; `auto`: the device's kernels, if their results equal torch's."""
    enforce_eager: bool = False
    """Launch the kernels of a step one by one, without CUDA graphs (docs/engine.md#cuda)."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads; default: measured at the start."""
    max_seqs: int = Field(default=16, ge=1, le=1024)
    """Sequences that run at once."""
    max_batched_tokens: int = Field(default=2048, ge=1, le=1 << 20)
    """Tokens computed in one step, at least `--max-seqs`."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """Order of the waiting requests: `fcfs`, the first to come; `priority`, the lowest `priority` first, and the
    highest is preempted first."""
    batching: Literal["continuous", "static"] = "continuous"
    """`static`: no request joins a batch that decodes, for comparison."""
    chunked_prefill: bool = True
    """Split prompts over steps; without it, each is computed in one step."""
    watermark_blocks: int = Field(default=2, ge=0, le=1024)
    """KV-cache blocks that stay free for each running sequence when another is admitted."""
    prefix_caching: bool = True
    """Share the KV-cache blocks of equal beginnings, also of requests that have ended."""
    speculative_tokens: int = Field(default=0, ge=0, le=64)
    """Longest draft in one step; 0: no speculation."""
    speculative_model: str = ""
    """A model with the same tokens that makes the drafts (docs/engine.md#drafts), given as --model is; default: prompt
    lookup."""
    speculative_keep_layers: str = Field(default="", pattern=LAYERS, max_length=256)
    """Layers of `--speculative-model` that are kept; default: all."""
    speculative_ngram: int = Field(default=2, ge=1, le=16)
    """Prompt lookup finds this many last tokens earlier in the sequence, and drafts the tokens that followed them
    there."""
    block_size: int = Field(default=16, ge=1, le=1024)
    """Tokens in one KV-cache block."""
    kv_blocks: int | None = Field(default=None, ge=1)
    """KV-cache blocks; default: 1 GiB on the CPU; on CUDA 95 percent of the memory that weights and the largest step
    leave."""
    swap_space: float = Field(default=0.0, ge=0, le=4096)
    """GiB of host memory for the KV-cache blocks of preempted requests; 0: they are computed again."""
    kv_role: Literal["none", "kv_producer", "kv_consumer"] = "none"
    """Two engines (docs/engine.md#prefill-and-decode-on-two-engines): `kv_producer` computes prompts for the other, and
    `kv_consumer` lets the other compute them."""
    kv_ip: str = Field(default="127.0.0.1", min_length=1)
    """Address on which the producer listens, and to which consumers connect."""
    kv_port: int = Field(default=14579, ge=0, le=65535)
    """The producer's port for consumers."""
    kv_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """Seconds that a consumer waits for a prompt's keys and values before it computes them itself."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Longest prompt and output together, in tokens; default: the model's limit."""
    reasoning_start_str: str = Field(default="", max_length=64)
    """The marker before hidden reasoning, such as `<think>`; default: none."""
    reasoning_end_str: str = Field(default="", max_length=64)
    """The marker after it, such as `</think>`; default: none."""
    max_waiting: int = Field(default=256, ge=1)
    """Requests that may wait, each with one or many texts; more get 503."""
    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """Largest request body; larger ones get 413."""
    idle_unload_s: float = Field(default=0.0, ge=0, le=30 * 86400)
    """Seconds without a request after which the model is unloaded (docs/engine.md#scale-to-zero) until the next one; 0:
    never."""
    shutdown_grace_s: float = Field(default=10.0, ge=0, le=3600)
    """Seconds that running requests get after SIGTERM."""

    @model_validator(mode="after")
    def _step_holds_every_sequence(self) -> Self:
        if self.max_batched_tokens < self.max_seqs:
            raise ValueError(
                f"--max-batched-tokens ({self.max_batched_tokens}) must be at least --max-seqs ({self.max_seqs})"
            )
        return self

    @model_validator(mode="after")
    def _quantised_products_take_bfloat16(self) -> Self:
        if self.quantization != "none" and (self.device == "cuda" or self.dtype not in ("auto", "bfloat16")):
            raise ValueError(f"--quantization {self.quantization} needs the CPU and --dtype bfloat16")
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
