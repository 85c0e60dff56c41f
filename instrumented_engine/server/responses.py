"""Responses of the generation endpoints: one JSON document, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, TypeVar

from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from instrumented_engine.core.sequence import Output, TokenLogprobs
from instrumented_engine.model.tokenizer import Tokenizer
from instrumented_engine.server.endpoints import Endpoint, Json
from instrumented_engine.server.errors import ApiError, cut_off
from instrumented_engine.server.generation import Generation
from instrumented_engine.server.schemas import GenerationRequest, StreamOptions

T = TypeVar("T")


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. When the client disconnects first, cancel it and raise ClientDisconnect."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Part(NamedTuple):
    """The next part of an answer: its text, which begins after `offset` characters, and its log-probabilities.

    `reasoning` is the part's hidden text.
    """

    text: str
    reasoning: str
    tokens: Seq[TokenLogprobs]
    offset: int
    first: bool


class Parts:
    """Makes parts of outputs. Each answer begins with its prompt where the request wants that."""

    def __init__(self, body: GenerationRequest, tokenizer: Tokenizer) -> None:
        self._body = body
        self._tokenizer = tokenizer
        self._lengths: dict[int, int] = {}  # characters so far, by the index of the answer

    def of(self, output: Output) -> Part:
        """The part that an output adds."""
        sequence = output.sequence
        offset = self._lengths.get(sequence.index)
        text, tokens = output.text, output.logprobs
        if offset is None and self._body.echoes:
            prompt = sequence.token_ids[: sequence.num_prompt_tokens]
            text = self._tokenizer.decode(prompt) + text
            if self._body.wanted_logprobs is not None:
                told = (sequence.leader or sequence).prompt_logprobs
                tokens = (TokenLogprobs(prompt[0]), *told, *tokens)
        self._lengths[sequence.index] = (offset or 0) + len(text)
        return Part(text, output.reasoning, tokens, offset or 0, offset is None)


async def full_response(endpoint: Endpoint, body: GenerationRequest, generation: Generation) -> JSONResponse:
    """Wait for all outputs and return them as one JSON document."""
    parts = Parts(body, generation.tokenizer)
    texts: defaultdict[int, str] = defaultdict(str)
    reasoning: defaultdict[int, str] = defaultdict(str)
    tokens: defaultdict[int, list[TokenLogprobs]] = defaultdict(list)
    reasons: dict[int, str] = {}
    async for output in generation.outputs():
        index, part = output.sequence.index, parts.of(output)
        texts[index] += part.text
        reasoning[index] += part.reasoning
        tokens[index] += part.tokens
        reasons[index] = output.finish_reason
    content = _head(endpoint.object, body, generation)
    content["choices"] = [
        {"index": index, "logprobs": _logprobs(endpoint, tokens[index], generation, 0)}
        | endpoint.choice(texts[index], reasoning[index], reasons[index])
        for index in sorted(reasons)
    ]
    assert generation.request is not None
    content["usage"] = _usage(generation, generation.request.num_output_tokens)
    return JSONResponse(content, headers=generation.headers)


class EventStream(StreamingResponse):
    """The output as server-sent events, one chunk per step; `[DONE]` or an error event is the last."""

    def __init__(self, endpoint: Endpoint, body: GenerationRequest, generation: Generation) -> None:
        events = _events(endpoint, body, generation)
        super().__init__(events, media_type="text/event-stream", headers=generation.headers)
        self.headers["cache-control"] = "no-cache"
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the output ends, the client disconnects or the process ends; the engine stops working on it."""
        try:
            await unless_disconnected(receive, self.stream_response(send))
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:  # uvicorn does that at the end of --shutdown-grace-s, and logs what comes out
            error = cut_off()
            self._generation.close(error.code)
            await send({"type": "http.response.body", "body": _event(error.body).encode()})
        finally:
            self._generation.close()


async def _events(endpoint: Endpoint, body: GenerationRequest, generation: Generation) -> AsyncIterator[str]:
    head = _head(endpoint.chunk_object, body, generation)
    options = body.stream_options or StreamOptions()
    if options.include_usage:
        head["usage"] = None
    parts = Parts(body, generation.tokenizer)
    sent = 0
    try:
        async for output in generation.outputs():
            sent += output.num_tokens
            part = parts.of(output)
            if part.text or part.reasoning or part.tokens or part.first or output.final:
                choice = endpoint.chunk_choice(part.text, part.reasoning, output.finish_reason or None, part.first)
                told = _logprobs(endpoint, part.tokens, generation, part.offset)
                usage = {"usage": _usage(generation, sent)} if options.continuous_usage_stats else {}
                yield _event(head | usage | {"choices": [{"index": output.sequence.index, "logprobs": told} | choice]})
    except ApiError as error:
        yield _event(error.body)
        return
    if options.include_usage:
        yield _event(head | {"choices": [], "usage": _usage(generation, sent)})
    yield "data: [DONE]\n\n"


def _logprobs(endpoint: Endpoint, tokens: Seq[TokenLogprobs], generation: Generation, offset: int) -> Json | None:
    return endpoint.logprobs(tokens, generation.tokenizer, offset) if tokens else None


def _head(kind: str, body: GenerationRequest, generation: Generation) -> Json:
    return {"id": generation.request_id, "object": kind, "created": int(time.time()), "model": body.model}


def _usage(generation: Generation, output: int) -> Json:
    """The usage after so many output tokens. The engine may have more of them than the client was told of."""
    request = generation.request
    assert request is not None
    prompt = request.num_prompt_tokens
    cached, reasoning = request.num_cached_tokens, request.num_reasoning_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "completion_tokens_details": None if reasoning is None else {"reasoning_tokens": reasoning},
    }


def _event(payload: Json) -> str:
    return f"data: {json.dumps(payload, ensure_ascii=False, separators=(',', ':'))}\n\n"
