"""Compares quantised weights, KV caches and pruned layers with float32, on a text that no model was trained on.

Each variant reads the same windows of `data/quality.txt`. Perplexity is the exponential of the mean negative
log-probability of the next token. KL is the divergence from float32's distribution to the variant's, in nats for each
token. The peer is transformers in float32: its perplexity must be that of the engine's float32.
"""

from __future__ import annotations

import gc
import json as codec
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer

from benchmarks.engine_decode import transformers_model
from benchmarks.report import JsonPath, Quick, publish
from instrumented_engine.model.batch import Rows
from instrumented_engine.model.download import DEFAULT_MODEL, cache_folder, download, local_path
from instrumented_engine.model.gguf import GgufFile
from instrumented_engine.model.kv_format import KvCacheDtype, kv_format
from instrumented_engine.model.linear import Quantization
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.tokenizer import load_tokenizer

WINDOW = 256
PEER = "transformers_float32"
TEXT = Path(__file__).parent / "data" / "quality.txt"
CPU = torch.device("cpu")


class Variant(NamedTuple):
    """A dtype of weights, their quantisation, the format of the KV cache, and the layers that are kept.

    int4 may leave out its rotation.
    """

    dtype: torch.dtype = torch.float32
    quantization: Quantization = "none"
    kv_cache: KvCacheDtype = "auto"
    rotated: bool = True
    keep_layers: str = ""


VARIANTS = {
    "float32": Variant(),
    "bfloat16": Variant(torch.bfloat16),
    "int8": Variant(torch.bfloat16, "int8"),
    "int4": Variant(torch.bfloat16, "int4"),
    "kv_bfloat16": Variant(kv_cache="bfloat16"),
    "kv_int8": Variant(kv_cache="int8"),
    "kv_int4": Variant(kv_cache="int4"),
    "kv_int4_unrotated": Variant(kv_cache="int4", rotated=False),
    "layers_28": Variant(keep_layers="28"),
    "layers_25": Variant(keep_layers="25"),
    "layers_20": Variant(keep_layers="20"),
}


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure and print perplexity, KL, agreement of the likeliest token, and the weights' size.

    The numbers of each variant are kept in PATH.partial, so a run that was interrupted goes on where it stopped.
    """
    path = local_path(DEFAULT_MODEL) or download(DEFAULT_MODEL)
    ids = load_tokenizer(path, cache_folder(), GgufFile(path).eos_ids).encode(TEXT.read_text())
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW, WINDOW)][: 2 if quick else 12]
    partial = json and json.with_name(json.name + ".partial")
    numbers: dict[str, Any] = {"tokens": len(windows) * (WINDOW - 1)}
    if partial and partial.exists() and (earlier := codec.loads(partial.read_text()))["tokens"] == numbers["tokens"]:
        numbers = earlier
    exact = measured(path, Variant(), windows)[0]
    for name in [*VARIANTS, PEER]:
        if f"{name}_perplexity" not in numbers:
            print(f"-- {name}", flush=True)
            if name == PEER:
                numbers[f"{name}_perplexity"] = compared(exact, peer(windows), windows)["perplexity"]
            else:
                logs, sizes = measured(path, VARIANTS[name], windows)
                numbers |= {f"{name}_{key}": value for key, value in (compared(exact, logs, windows) | sizes).items()}
                del logs
            gc.collect()
            if partial:
                partial.write_text(codec.dumps(numbers))
    publish("engine_quality", numbers, packages=("torch", "transformers", "gguf"), quick=quick, path=json)
    if partial:
        partial.unlink(missing_ok=True)


def measured(path: Path, variant: Variant, windows: list[list[int]]) -> tuple[list[torch.Tensor], dict[str, float]]:
    """The log-probabilities of a variant, and the bytes of its weights and of one token's keys and values."""
    file = GgufFile(path, variant.keep_layers)
    config = file.config()
    cache_format = kv_format(variant.kv_cache, config.head_dim, variant.dtype, CPU)
    if not variant.rotated:
        cache_format.rotation = None
    weights = file.weights(variant.dtype, CPU, variant.quantization)
    model = Llama(config, weights, WINDOW, cache_format)
    logs = [log_probabilities(model, window) for window in windows]
    return logs, {"weight_bytes": weights.nbytes, "kv_token_bytes": model.new_cache(1, 1).nbytes}


@torch.inference_mode()
def peer(windows: list[list[int]]) -> list[torch.Tensor]:
    """The log-probabilities of transformers' float32 model."""
    model = transformers_model()
    return [model(torch.tensor([window])).logits[0].float().log_softmax(-1) for window in windows]


@torch.inference_mode()
def log_probabilities(model: Llama, ids: list[int]) -> torch.Tensor:
    """The log-probabilities (tokens, vocabulary) behind each token of a prompt."""
    batch = model.packer(len(ids)).pack([Rows(ids, 0, [0], range(len(ids)))])
    return model.logits(model.forward(batch, model.new_cache(1, len(ids)))).float().log_softmax(-1)


def compared(exact: list[torch.Tensor], of_variant: list[torch.Tensor], windows: list[list[int]]) -> dict[str, float]:
    """Perplexity of a variant, and its mean KL and agreement with float32."""
    surprise, kl, agreed, tokens = 0.0, 0.0, 0, 0
    for right, log_p, window in zip(exact, of_variant, windows, strict=True):
        targets = torch.tensor(window[1:]).unsqueeze(1)
        surprise -= float(log_p[:-1].gather(1, targets).double().sum())
        kl += float((right.exp() * (right - log_p)).sum(-1)[:-1].double().sum())
        agreed += int((right.argmax(-1) == log_p.argmax(-1))[:-1].sum())
        tokens += len(targets)
    return {"perplexity": math.exp(surprise / tokens), "kl_nats": kl / tokens, "same_first": agreed / tokens}


if __name__ == "__main__":
    typer.run(main)
