"""Responses of the generation endpoints: one JSON document, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from instrumented_engine.server.endpoints import Endpoint, Json
from instrumented_engine.server.errors import ApiError
from instrumented_engine.server.schemas import GenerationRequest
from instrumented_engine.server.service import Generation

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


async def full_response(endpoint: Endpoint, body: GenerationRequest, generation: Generation) -> JSONResponse:
    """Wait for the whole output and return it as one JSON document."""
    text, finish_reason = "", ""
    async for output in generation.outputs():
        text += output.text
        finish_reason = output.finish_reason
    content = _head(endpoint.object, body, generation)
    content["choices"] = [{"index": 0, "logprobs": None} | endpoint.choice(text, finish_reason)]
    content["usage"] = _usage(generation)
    return JSONResponse(content, headers=generation.headers)


class EventStream(StreamingResponse):
    """The output as server-sent events, one chunk per step; `[DONE]` or an error event is the last."""

    def __init__(self, endpoint: Endpoint, body: GenerationRequest, generation: Generation) -> None:
        events = _events(endpoint, body, generation)
        super().__init__(events, media_type="text/event-stream", headers=generation.headers)
        self.headers["cache-control"] = "no-cache"
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the output ends or the client disconnects; then the engine stops working on it."""
        try:
            await unless_disconnected(receive, self.stream_response(send))
        except ClientDisconnect:
            pass
        finally:
            self._generation.close()


async def _events(endpoint: Endpoint, body: GenerationRequest, generation: Generation) -> AsyncIterator[str]:
    head = _head(endpoint.chunk_object, body, generation)
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    if with_usage:
        head["usage"] = None
    first = True
    try:
        async for output in generation.outputs():
            if output.text or output.final or first:
                choice = endpoint.chunk_choice(output.text, output.finish_reason or None, first)
                yield _event(head | {"choices": [{"index": 0, "logprobs": None} | choice]})
            first = False
    except ApiError as error:
        yield _event(error.body)
        return
    if with_usage:
        yield _event(head | {"choices": [], "usage": _usage(generation)})
    yield "data: [DONE]\n\n"


def _head(kind: str, body: GenerationRequest, generation: Generation) -> Json:
    return {"id": generation.request_id, "object": kind, "created": int(time.time()), "model": body.model}


def _usage(generation: Generation) -> Json:
    request = generation.request
    assert request is not None
    prompt, output = request.num_prompt_tokens, request.num_output_tokens
    cached = request.num_cached_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
    }


def _event(payload: Json) -> str:
    return f"data: {json.dumps(payload, ensure_ascii=False, separators=(',', ':'))}\n\n"
