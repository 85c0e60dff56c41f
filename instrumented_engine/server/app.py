"""The routes of the HTTP server."""

from __future__ import annotations

import asyncio
import re
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from instrumented_engine.metrics import exposition
from instrumented_engine.server import errors
from instrumented_engine.server.embeddings import (
    EmbeddingEndpoint,
    EmbeddingRequest,
    PoolingRequest,
    embedding_response,
    pooling_response,
)
from instrumented_engine.server.endpoints import CHAT, COMPLETION, Endpoint
from instrumented_engine.server.generation import Generation
from instrumented_engine.server.middleware import Arrival, BodyLimit
from instrumented_engine.server.producer import Producer
from instrumented_engine.server.responses import EventStream, full_response, unless_disconnected
from instrumented_engine.server.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
    turns,
)
from instrumented_engine.server.service import Service
from instrumented_engine.startup import Loaded
from tokentrail import __version__
from tokentrail.shared.hosts import AllowedHosts, allowed_names

SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CLIENT_CLOSED_REQUEST = 499

Body = TypeVar("Body", GenerationRequest, EmbeddingRequest, PoolingRequest)


def create_app(service: Service, kv_listener: socket.socket | None = None) -> FastAPI:
    """Build the app over one service, which starts with it. Consumers of keys and values connect to `kv_listener`."""
    settings = service.settings

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        if kv_listener is None:
            yield
            return
        producer = Producer(kv_listener, service.prefill, places=settings.max_seqs, timeout_s=settings.kv_timeout_s)
        await producer.start()
        yield
        await producer.stop()

    app = FastAPI(title="tokentrail instrumented engine", lifespan=lifespan)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(AllowedHosts, names=allowed_names(settings.host))
    app.add_middleware(Arrival)
    errors.install(app, service.error_answers)
    _add_openai_routes(app, service)
    _add_tokenizer_routes(app, service)
    _add_operations_routes(app, service)
    return app


def _add_openai_routes(app: FastAPI, service: Service) -> None:
    model = service.settings.model_name
    created = int(time.time())

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await _generate(service, CHAT, body, request)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await _generate(service, COMPLETION, body, request)

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        return await _respond(service, EmbeddingEndpoint(), body, request, embedding_response)

    @app.post("/pooling")
    async def pooling(body: PoolingRequest, request: Request) -> Response:
        async def respond(body: PoolingRequest, generation: Generation) -> Response:
            return await pooling_response(body, generation, service.loaded.labels if service.loaded else ())

        return await _respond(service, EmbeddingEndpoint(), body, request, respond)

    def card() -> dict[str, object]:
        length = service.loaded.max_tokens if service.loaded else None
        return {"id": model, "object": "model", "created": created, "owned_by": "tokentrail", "max_model_len": length}

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, object]:
        if name != model:
            raise errors.unknown_model(name, model)
        return card()


def _add_operations_routes(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    @app.get("/health")
    @app.get("/ping")
    async def readyz() -> JSONResponse:
        if service.failure is not None:
            return JSONResponse({"status": "failed", "reason": str(service.failure)}, 503)
        if service.asleep:
            return JSONResponse({"status": "sleeping"})
        return JSONResponse({"status": "ok"}) if service.ready else JSONResponse({"status": "loading"}, 503)

    @app.post("/sleep")
    async def sleep() -> JSONResponse:
        if service.asleep or service.sleep():
            return JSONResponse({"is_sleeping": True})
        raise errors.busy()

    @app.post("/wake_up")
    async def wake_up() -> JSONResponse:
        await service.wake_up()
        if not service.ready:
            raise errors.unavailable(service.failure or "it did not start")
        return JSONResponse({"is_sleeping": False})

    @app.get("/is_sleeping")
    async def is_sleeping() -> JSONResponse:
        return JSONResponse({"is_sleeping": service.asleep})

    @app.get("/version")
    async def version() -> dict[str, str | int]:
        return {"version": __version__} | (service.loaded.facts if service.loaded else {})

    @app.get("/metrics")
    async def metrics() -> Response:
        content, media_type = exposition(service)
        return Response(content, headers={"content-type": media_type})


def _add_tokenizer_routes(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    def tokenize(body: TokenizeRequest) -> dict[str, object]:
        loaded = _loaded(service, body.model)
        try:
            ids = (
                loaded.tokenizer.encode_chat(turns(body.messages))
                if body.prompt is None
                else loaded.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)
            )
        except ValueError as error:
            raise errors.invalid("messages", str(error)) from error
        names = [loaded.tokenizer.token_name(token) for token in ids] if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": loaded.max_tokens, "tokens": ids, "token_strs": names}

    @app.post("/detokenize")
    def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        loaded = _loaded(service, body.model)
        if not all(0 <= token < loaded.vocab_size for token in body.tokens):
            raise errors.invalid("tokens", f"token ids must be between 0 and {loaded.vocab_size - 1}")
        return {"prompt": loaded.tokenizer.decode(body.tokens)}


def _loaded(service: Service, model: str | None) -> Loaded:
    if model not in (None, service.settings.model_name):
        raise errors.unknown_model(str(model), service.settings.model_name)
    if service.loaded is None:
        reason = "the model is unloaded; POST /wake_up loads it" if service.asleep else "the model is loading"
        raise errors.unavailable(service.failure or reason)
    return service.loaded


async def _generate(service: Service, endpoint: Endpoint, body: GenerationRequest, request: Request) -> Response:
    async def stream(body: GenerationRequest, generation: Generation) -> Response:
        return EventStream(endpoint, body, generation)

    async def full(body: GenerationRequest, generation: Generation) -> Response:
        return await full_response(endpoint, body, generation)

    return await _respond(service, endpoint, body, request, stream if body.stream else full)


async def _respond(
    service: Service,
    endpoint: Endpoint | EmbeddingEndpoint,
    body: Body,
    request: Request,
    respond: Callable[[Body, Generation], Coroutine[Any, Any, Response]],
) -> Response:
    """Admit a request and answer it. A client that leaves cancels it."""
    if body.model != service.settings.model_name:
        raise errors.unknown_model(body.model, service.settings.model_name)
    admission = service.admit(
        endpoint,
        body,
        headers=request.headers,
        arrival_ns=request.state.arrival_ns,
        request_id=endpoint.id_prefix + _request_id(request),
    )
    generation = response = None
    try:
        generation = await unless_disconnected(request.receive, admission)
        response = await unless_disconnected(request.receive, respond(body, generation))
        return response
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except asyncio.CancelledError:  # uvicorn does that at the end of --shutdown-grace-s, and logs what comes out
        error = errors.cut_off()
        if generation is not None:
            generation.close(error.code)
        raise error from None
    finally:
        if generation is not None and not isinstance(response, EventStream):  # a stream goes on, and closes it later
            generation.close()


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if SANE_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
