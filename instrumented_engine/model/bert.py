"""A BERT-type encoder in plain torch: one pass over whole texts, and a vector for each, or labels of its tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own spelling
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from instrumented_engine.core.plan import Plan, StepResult
from instrumented_engine.model.errors import ModelError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The dimensions of a model. Its vectors are the mean of a text's states, or with `pools_first` the first state.

    A token classifier has `labels`, such as B-PER, and no vectors.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    max_position: int
    layer_norm_eps: float
    activation: str
    pools_first: bool = False
    labels: tuple[str, ...] = ()


class Bert:
    """The forward pass over texts that lie behind each other, without padding: no text changes another's vector."""

    def __init__(self, config: BertConfig, tensors: dict[str, Tensor]) -> None:
        """`tensors` have the names of Hugging Face's BertModel."""
        self.config = config
        self.device = tensors["embeddings.word_embeddings.weight"].device
        self._tensors = tensors
        self._activation = ACTIVATIONS[config.activation]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    @torch.inference_mode()
    def embed(self, texts: Seq[Seq[int]]) -> Tensor:
        """The vectors of texts of token ids: (texts, hidden size), float32, each of length 1."""
        states = self._states(texts)
        pooled = torch.stack([state[0] if self.config.pools_first else state.mean(0) for state in states])
        return F.normalize(pooled, dim=-1)

    @torch.inference_mode()
    def classify(self, texts: Seq[Seq[int]]) -> list[Tensor]:
        """The probabilities of the labels of each token of texts: (tokens, labels) for each text, float32."""
        dtype = self._tensors["classifier.weight"].dtype
        return [self._linear(state.to(dtype), "classifier").float().softmax(-1) for state in self._states(texts)]

    def answers(self, texts: Seq[Seq[int]]) -> list[list[float]]:
        """For each text its vector, or of a token classifier the probabilities of all tokens in a row."""
        if self.config.labels:
            return [vectors.flatten().tolist() for vectors in self.classify(texts)]
        vectors: list[list[float]] = self.embed(texts).tolist()
        return vectors

    def _states(self, texts: Seq[Seq[int]]) -> tuple[Tensor, ...]:
        """The last states of each text: (tokens, hidden size), float32."""
        lengths = [len(text) for text in texts]
        tokens = torch.tensor([token for text in texts for token in text], device=self.device)
        positions = torch.cat([torch.arange(length, device=self.device) for length in lengths])
        get = self._tensors.__getitem__
        x = get("embeddings.word_embeddings.weight")[tokens]
        x = x + get("embeddings.position_embeddings.weight")[positions]
        x = self._norm(x + get("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for index in range(self.config.layers):
            layer = f"encoder.layer.{index}"
            x = self._norm(x + self._attention(x, f"{layer}.attention", lengths), f"{layer}.attention.output.LayerNorm")
            h = self._activation(self._linear(x, f"{layer}.intermediate.dense"))
            x = self._norm(x + self._linear(h, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        return torch.split(x.float(), lengths)

    def _attention(self, x: Tensor, name: str, lengths: Seq[int]) -> Tensor:
        """Each row sees all rows of its own text."""
        q, k, v = (
            self._linear(x, f"{name}.self.{part}").view(len(x), self.config.heads, -1).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        stop, parts = 0, []
        for length in lengths:
            text, stop = slice(stop, stop + length), stop + length
            parts.append(F.scaled_dot_product_attention(q[None, :, text], k[None, :, text], v[None, :, text]))
        seen = torch.cat(parts, dim=2)[0].transpose(0, 1).flatten(1)
        return self._linear(seen, f"{name}.output.dense")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        return F.layer_norm(x, (self.config.hidden_size,), weight, bias, self.config.layer_norm_eps)


class EncoderRunner:
    """Computes plans of whole texts."""

    def __init__(self, model: Bert) -> None:
        self._model = model

    def run(self, plan: Plan) -> StepResult:
        """The vector or the labels of each text of the batch.

        Raises MemoryError for a part of a text: an encoder sees all of it. Raises ArithmeticError when an answer has a
        number that is infinite or none.
        """
        if not all(item.samples for item in plan.batch):
            raise MemoryError("a text cannot be encoded in parts")
        try:
            vectors = self._model.answers([item.sequence.token_ids for item in plan.batch])
        except torch.OutOfMemoryError as error:
            message = str(error)
        else:
            if not all(map(isfinite, chain.from_iterable(vectors))):
                raise ArithmeticError("the model's answer has numbers that are infinite or none (NaN)")
            embeddings = {item.sequence: vector for item, vector in zip(plan.batch, vectors, strict=True)}
            return StepResult([[] for _ in plan.batch], embeddings=embeddings)
        torch.cuda.empty_cache()
        raise MemoryError(message)  # outside of the handler: torch's error would keep the tensors of the failed pass

    def warm_up(self) -> None:
        """Encode a text, so that torch's lazy initialisation does not delay a request."""
        self._model.answers([[0] * min(32, self._model.config.max_position)])


def is_encoder(path: Path) -> bool:
    """Whether a path is the folder of a BERT-type model."""
    return path.is_dir() and _json(path / "config.json").get("model_type") == "bert"


def load_bert(path: Path, dtype: torch.dtype, device: torch.device) -> Bert:
    """Read a Hugging Face folder: config.json and model.safetensors, and the pooling that sentence-transformers wrote.

    Raises ModelError for one that is broken or not supported.
    """
    config = _config(path)
    try:
        tensors = load_file(path / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} has no usable model.safetensors: {error}") from error
    tensors = {name.removeprefix("bert."): tensor.to(device, dtype) for name, tensor in tensors.items()}
    model = Bert(config, tensors) if "embeddings.word_embeddings.weight" in tensors else None
    try:
        if model is None:
            raise KeyError("embeddings.word_embeddings.weight")
        with torch.inference_mode():
            [answer] = model.answers([[config.vocab_size - 1] * config.max_position])
        if config.labels and len(answer) != config.max_position * len(config.labels):
            raise IndexError(f"the classifier has no row for each of {len(config.labels)} labels")
    except KeyError as error:
        raise ModelError(f"{path}: tensor {error} is missing") from error
    except (RuntimeError, IndexError) as error:
        raise ModelError(f"{path}: a tensor has another shape than the configuration says: {error}") from error
    return model


def _config(path: Path) -> BertConfig:
    config = _json(path / "config.json")

    def number(key: str) -> int:
        if not isinstance(value := config.get(key), int) or value <= 0:
            raise ModelError(f"{path}/config.json: {key} must be a positive integer, not {value!r}")
        return value

    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise ModelError(f"{path}/config.json: hidden_act = {activation!r} is not supported ({', '.join(ACTIVATIONS)})")
    if (kind := config.get("position_embedding_type", "absolute")) != "absolute":
        raise ModelError(f"{path}/config.json: position_embedding_type = {kind!r} is not supported (only 'absolute')")
    pooling = _json(path / "1_Pooling" / "config.json", missing={"pooling_mode_mean_tokens": True})
    first = bool(pooling.get("pooling_mode_cls_token"))
    if not first and not pooling.get("pooling_mode_mean_tokens"):
        raise ModelError(f"{path}/1_Pooling/config.json: only the mean and the first token are supported")
    length = _json(path / "sentence_bert_config.json", missing={}).get("max_seq_length")
    most = number("max_position_embeddings")
    return BertConfig(
        vocab_size=number("vocab_size"),
        hidden_size=number("hidden_size"),
        layers=number("num_hidden_layers"),
        heads=number("num_attention_heads"),
        max_position=min(most, length) if isinstance(length, int) and length > 0 else most,
        layer_norm_eps=config.get("layer_norm_eps", 1e-12),
        activation=activation,
        pools_first=first,
        labels=_labels(path, config),
    )


def _labels(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """The labels of a token classifier by their numbers; none for a model that makes vectors."""
    if "BertForTokenClassification" not in (config.get("architectures") or ()):
        return ()
    names = config.get("id2label") or {}
    if list(names) != [str(number) for number in range(len(names))] or not names:
        raise ModelError(f"{path}/config.json: id2label must name the labels 0, 1, 2 and so on")
    return tuple(map(str, names.values()))


def _json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if missing is not None and not path.exists():
        return missing
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value
