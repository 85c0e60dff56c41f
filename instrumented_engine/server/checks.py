"""Checks of a request against the loaded model: lengths, token ids, and the room for beams."""

from __future__ import annotations

from collections.abc import Callable

from instrumented_engine.core.request import SamplingParams
from instrumented_engine.server import errors
from instrumented_engine.server.embeddings import EmbeddingEndpoint, EmbeddingRequest
from instrumented_engine.server.endpoints import Endpoint
from instrumented_engine.server.schemas import GenerationRequest
from instrumented_engine.startup import Loaded

AnyEndpoint = Endpoint | EmbeddingEndpoint
AnyBody = GenerationRequest | EmbeddingRequest


def checked(
    endpoint: AnyEndpoint,
    body: AnyBody,
    prompts: list[list[int]],
    loaded: Loaded,
) -> SamplingParams:
    """The sampling parameters, once the prompts and the ids of tokens are known to fit the model."""
    wanted = body.wanted_tokens
    room = _room(endpoint, body, prompts, loaded)
    longest = check_prompts(endpoint.prompt_field, prompts, wanted or body.least_tokens, room, loaded)
    params = body.sampling(wanted or room - longest)
    in_vocabulary, told = _vocabulary(loaded)
    if not all(in_vocabulary(token) for token, _ in params.logit_bias):
        raise errors.invalid("logit_bias", told)
    if not all(map(in_vocabulary, params.stop_token_ids)):
        raise errors.invalid("stop_token_ids", told)
    return params


def check_prompts(field: str, prompts: list[list[int]], output: int, room: int, loaded: Loaded) -> int:
    """The length of the longest prompt, once all are known to fit with so many tokens of output into the room."""
    in_vocabulary, told = _vocabulary(loaded)
    for prompt in prompts:
        if not prompt:
            raise errors.invalid(field, "the prompt is empty")
        if not all(map(in_vocabulary, prompt)):
            raise errors.invalid(field, told)
    longest = max(map(len, prompts))
    if longest + output > room:
        raise errors.too_long(longest, output, room, field)
    return longest


def _vocabulary(loaded: Loaded) -> tuple[Callable[[object], bool], str]:
    """Whether an object is a token id of the model, and the message for one that is not."""
    return range(loaded.vocab_size).__contains__, f"token ids must be between 0 and {loaded.vocab_size - 1}"


def _room(endpoint: AnyEndpoint, body: AnyBody, prompts: list[list[int]], loaded: Loaded) -> int:
    """The longest prompt and output. Beams must fit into cache and batch together, even if they share no block."""
    if isinstance(body, EmbeddingRequest) or not body.use_beam_search:
        return loaded.max_tokens
    scheduler = loaded.engine.scheduler
    if len(prompts) > 1:
        raise errors.invalid(endpoint.prompt_field, "use_beam_search takes one prompt")
    if body.n > scheduler.max_seqs:
        raise errors.invalid("n", f"n: at most {scheduler.max_seqs} beams (--max-seqs)")
    blocks = scheduler.block_manager
    return min(loaded.max_tokens, blocks.num_blocks // body.n * blocks.block_size)
