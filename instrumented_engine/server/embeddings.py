"""`POST /v1/embeddings`: the vectors of texts. `POST /pooling`: the labels of their tokens."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence as Seq
from typing import Any, ClassVar, Literal

from fastapi.responses import JSONResponse
from pydantic import Field

from instrumented_engine.core.request import SamplingParams
from instrumented_engine.model.tokenizer import Tokenizer
from instrumented_engine.server import errors
from instrumented_engine.server.generation import Generation
from instrumented_engine.server.strict import Strict, Text
from tokentrail import semconv

MAX_INPUTS = 2048
"""Texts of one request, as in OpenAI's API."""


class EmbeddingRequest(Strict):
    """Body of the request: one text or several, as texts or token ids."""

    least_tokens: ClassVar[int] = 0
    wanted_tokens: ClassVar[None] = None

    model: str = Field(min_length=1, max_length=1024)
    input: Text | list[Text] | list[int] | list[list[int]] = Field(max_length=1 << 20)
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    user: str = ""

    @property
    def inputs(self) -> list[str | list[int]]:
        """The texts, or their token ids."""
        if isinstance(self.input, str) or not self.input or isinstance(self.input[0], int):
            return [self.input]  # type: ignore[list-item]  # a list of ints
        return list(self.input)

    def sampling(self, _: int) -> SamplingParams:
        """Nothing is sampled."""
        return SamplingParams(max_tokens=1, priority=self.priority)


class PoolingRequest(EmbeddingRequest):
    """Body of a request for the labels of tokens, as in vLLM."""

    task: Literal["token_classify"] = "token_classify"
    encoding_format: Literal["float"] = "float"
    dimensions: None = None


class EmbeddingEndpoint:
    """As `Endpoint`, for requests without output tokens."""

    operation = semconv.EMBEDDINGS
    id_prefix = "embd-"
    prompt_field = "input"
    divides_reasoning = False

    @staticmethod
    def attributes(body: Any) -> dict[str, str | int | float | bool]:
        """Attributes of the request span."""
        return {semconv.PRIORITY: body.priority} if body.priority else {}

    @staticmethod
    def encode(body: Any, tokenizer: Tokenizer) -> list[list[int]]:
        """The token ids of each text. Raises ValueError for too many texts."""
        if len(body.inputs) > MAX_INPUTS:
            raise ValueError(f"at most {MAX_INPUTS} texts per request")
        return [tokenizer.encode(text) if isinstance(text, str) else list(text) for text in body.inputs]


def check_kind(body: object, size: int | None, labels: tuple[str, ...]) -> None:
    """Raise ApiError for a request that the model cannot serve; `size` is that of its vectors, None if it has none."""
    if not isinstance(body, EmbeddingRequest):
        if size is not None:
            path = "/pooling" if labels else "/v1/embeddings"
            raise errors.invalid("model", f"this model is an encoder and makes no text; use {path}")
    elif size is None:
        raise errors.invalid("model", "this model makes text and no embeddings")
    elif isinstance(body, PoolingRequest) != bool(labels):
        one, other = ("labels", "embeddings") if labels else ("embeddings", "labels")
        raise errors.invalid("model", f"this model makes {one} and no {other}")
    elif body.dimensions not in (None, size):
        raise errors.invalid("dimensions", f"this model's embeddings have {size} dimensions and cannot be shortened")


async def embedding_response(body: EmbeddingRequest, generation: Generation) -> JSONResponse:
    """Wait for the vectors of all texts and return them as one JSON document."""
    vectors: dict[int, list[float] | str] = {}
    async for output in generation.outputs():
        assert output.embedding is not None
        vectors[output.sequence.index] = (
            _encoded(output.embedding) if body.encoding_format == "base64" else output.embedding
        )
    assert generation.request is not None
    tokens = generation.request.num_prompt_tokens
    data: list[dict[str, Any]] = [
        {"object": "embedding", "index": index, "embedding": vectors[index]} for index in sorted(vectors)
    ]
    content = {"object": "list", "data": data, "model": body.model}
    return JSONResponse(
        content | {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}, headers=generation.headers
    )


async def pooling_response(body: PoolingRequest, generation: Generation, labels: Seq[str]) -> JSONResponse:
    """Wait for the labels of all texts and return them: for each token the probability of each label."""
    by_index: dict[int, list[float]] = {}
    async for output in generation.outputs():
        assert output.embedding is not None
        by_index[output.sequence.index] = output.embedding
    assert generation.request is not None
    tokens, width = generation.request.num_prompt_tokens, len(labels)
    data: list[dict[str, Any]] = [
        {
            "object": "pooling",
            "index": index,
            "data": [by_index[index][at : at + width] for at in range(0, len(by_index[index]), width)],
        }
        for index in sorted(by_index)
    ]
    content = {"object": "list", "data": data, "model": body.model, "labels": list(labels)}
    return JSONResponse(
        content | {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}, headers=generation.headers
    )


def _encoded(vector: list[float]) -> str:
    """32-bit little-endian numbers in base64, as OpenAI's client reads them."""
    return base64.b64encode(array("f", vector).tobytes()).decode()
