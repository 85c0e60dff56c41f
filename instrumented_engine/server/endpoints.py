"""The two generation endpoints: how each reads its prompts and words its response."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from instrumented_engine.core.sequence import TokenLogprobs
from instrumented_engine.model.tokenizer import Tokenizer
from instrumented_engine.server.schemas import ChatRequest, CompletionRequest, turns
from tokentrail import semconv

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. `choice(text, reasoning, finish_reason)` builds the JSON of a choice.

    `chunk_choice(text, reasoning, finish_reason, first)` builds that of a streamed chunk.
    `logprobs(tokens, tokenizer, offset)` builds that of the log-probabilities of tokens. Their text begins
    after `offset` characters of the answer. With `divides_reasoning`, hidden reasoning stands apart from the text.
    """

    operation: str
    id_prefix: str
    prompt_field: str
    object: str
    chunk_object: str
    encode: Callable[[Any, Tokenizer], list[list[int]]]
    divides_reasoning: bool
    choice: Callable[[str, str, str], Json]
    chunk_choice: Callable[[str, str, str | None, bool], Json]
    logprobs: Callable[[Seq[TokenLogprobs], Tokenizer, int], Json]

    def attributes(self, body: Any) -> dict[str, str | int | float | bool]:
        """Attributes of the request span: the sampling parameters, never the content."""
        parameters = {
            semconv.REQUEST_MAX_TOKENS: body.wanted_tokens,
            semconv.REQUEST_TEMPERATURE: body.temperature,
            semconv.REQUEST_TOP_P: body.top_p,
            semconv.REQUEST_TOP_K: body.top_k,
            semconv.REQUEST_STREAM: bool(body.stream),
            semconv.PRIORITY: body.priority or None,
            semconv.CHOICE_COUNT: body.n if body.n > 1 else None,
            semconv.BEAM_WIDTH: body.n if body.use_beam_search else None,
        }
        return {key: value for key, value in parameters.items() if value is not None}


def _encode_chat(body: ChatRequest, tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode_chat(turns(body.messages))]


def _encode_completion(body: CompletionRequest, tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in body.prompts]


def _chat_choice(text: str, reasoning: str, finish_reason: str) -> Json:
    message = {"role": "assistant", "content": text, "refusal": None}
    hidden = {"reasoning_content": reasoning} if reasoning else {}
    return {"message": message | hidden, "finish_reason": finish_reason}


def _chat_chunk_choice(text: str, reasoning: str, finish_reason: str | None, first: bool) -> Json:
    role = {"role": "assistant"} if first else {}
    hidden = {"reasoning_content": reasoning} if reasoning else {}
    return {"delta": role | hidden | ({"content": text} if text or first else {}), "finish_reason": finish_reason}


# The arguments are those that `Endpoint` declares.
def _completion_choice(text: str, reasoning: str, finish_reason: str) -> Json:
    return {"text": text, "finish_reason": finish_reason}


def _completion_chunk_choice(text: str, reasoning: str, finish_reason: str | None, first: bool) -> Json:
    return {"text": text, "finish_reason": finish_reason}


def _chat_logprobs(tokens: Seq[TokenLogprobs], tokenizer: Tokenizer, offset: int) -> Json:
    def entry(token_id: int, logprob: float | None) -> Json:
        raw = tokenizer.token_bytes(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}

    content = [
        entry(token.token_id, token.logprob)
        | {"top_logprobs": [entry(*pair) for pair in token.top], "entropy": token.entropy}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _completion_logprobs(tokens: Seq[TokenLogprobs], tokenizer: Tokenizer, offset: int) -> Json:
    names = [tokenizer.token_name(token.token_id) for token in tokens]
    offsets = [offset]
    for name in names:
        offsets.append(offsets[-1] + len(name))
    return {
        "tokens": names,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_named(token, tokenizer) for token in tokens],
        "text_offset": offsets[:-1],
        "token_entropies": [token.entropy for token in tokens],
    }


def _named(token: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, float] | None:
    """The likely tokens and, as in OpenAI's API, the chosen one."""
    if token.logprob is None:
        return None
    return {tokenizer.token_name(token_id): value for token_id, value in [*token.top, (token.token_id, token.logprob)]}


CHAT = Endpoint(
    operation="chat",
    id_prefix="chatcmpl-",
    prompt_field="messages",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    encode=_encode_chat,
    divides_reasoning=True,
    choice=_chat_choice,
    chunk_choice=_chat_chunk_choice,
    logprobs=_chat_logprobs,
)
COMPLETION = Endpoint(
    operation="text_completion",
    id_prefix="cmpl-",
    prompt_field="prompt",
    object="text_completion",
    chunk_object="text_completion",
    encode=_encode_completion,
    divides_reasoning=False,
    choice=_completion_choice,
    chunk_choice=_completion_chunk_choice,
    logprobs=_completion_logprobs,
)
