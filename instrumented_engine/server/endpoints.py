"""The two generation endpoints: how each reads its prompt and words its response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from instrumented_engine.model.tokenizer import Tokenizer
from instrumented_engine.server.schemas import ChatRequest, CompletionRequest, GenerationRequest
from tokentrail import semconv

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. `choice(text, finish_reason)` builds the JSON of a choice.

    `chunk_choice(text, finish_reason, first)` builds that of a streamed chunk.
    """

    operation: str
    id_prefix: str
    prompt_field: str
    object: str
    chunk_object: str
    encode: Callable[[Any, Tokenizer], list[int]]
    choice: Callable[[str, str], Json]
    chunk_choice: Callable[[str, str | None, bool], Json]

    def attributes(self, body: GenerationRequest) -> dict[str, str | int | float | bool]:
        """Attributes of the request span: the sampling parameters, never the content."""
        parameters = {
            semconv.REQUEST_MAX_TOKENS: body.wanted_tokens,
            semconv.REQUEST_TEMPERATURE: body.temperature,
            semconv.REQUEST_TOP_P: body.top_p,
            semconv.REQUEST_TOP_K: body.top_k,
            semconv.REQUEST_STREAM: bool(body.stream),
        }
        return {key: value for key, value in parameters.items() if value is not None}


def _encode_chat(body: ChatRequest, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode_chat(body.conversation)


def _encode_completion(body: CompletionRequest, tokenizer: Tokenizer) -> list[int]:
    prompt = body.single_prompt
    return tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)


def _chat_choice(text: str, finish_reason: str) -> Json:
    return {"message": {"role": "assistant", "content": text, "refusal": None}, "finish_reason": finish_reason}


def _chat_chunk_choice(text: str, finish_reason: str | None, first: bool) -> Json:
    role = {"role": "assistant"} if first else {}
    return {"delta": role | ({"content": text} if text or first else {}), "finish_reason": finish_reason}


def _completion_choice(text: str, finish_reason: str) -> Json:
    return {"text": text, "finish_reason": finish_reason}


def _completion_chunk_choice(text: str, finish_reason: str | None, first: bool) -> Json:  # as `Endpoint` declares it
    return {"text": text, "finish_reason": finish_reason}


CHAT = Endpoint(
    operation="chat",
    id_prefix="chatcmpl-",
    prompt_field="messages",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    encode=_encode_chat,
    choice=_chat_choice,
    chunk_choice=_chat_chunk_choice,
)
COMPLETION = Endpoint(
    operation="text_completion",
    id_prefix="cmpl-",
    prompt_field="prompt",
    object="text_completion",
    chunk_object="text_completion",
    encode=_encode_completion,
    choice=_completion_choice,
    chunk_choice=_completion_chunk_choice,
)
