"""How the app is served: on uvicorn, with bounds for connections and for the time in which a request arrives."""

from __future__ import annotations

import socket
from functools import partial

import uvicorn
from starlette.types import Receive, Scope, Send

from instrumented_engine.server import errors
from instrumented_engine.server.app import create_app
from instrumented_engine.server.service import Service
from tokentrail.shared.http_protocol import HttpProtocol

READ_TIMEOUT_S = 60.0
"""A client that takes nothing of an answer for so long loses its connection: what it does not take is in memory."""
OTHER_CONNECTIONS = 128
"""Connections of clients that ask for no tokens: probes, scrapes, idle ones."""


def create_config(service: Service, kv_listener: socket.socket | None = None) -> uvicorn.Config:
    """Settings of the HTTP server over one service."""
    settings = service.settings
    most = settings.max_waiting + settings.max_seqs + OTHER_CONNECTIONS
    refusal = errors.too_many_connections(most)

    async def beyond(scope: Scope, receive: Receive, send: Send) -> None:
        service.error_answers[refusal.code] += 1
        await errors.response(refusal)(scope, receive, send)

    return uvicorn.Config(
        create_app(service, kv_listener),
        http=partial(  # type: ignore[arg-type]  # makes a protocol
            HttpProtocol, max_connections=most, beyond=beyond, read_timeout_s=READ_TIMEOUT_S
        ),
        ws="none",  # such a request is answered as plain HTTP
        log_level="warning",
        timeout_graceful_shutdown=round(settings.shutdown_grace_s),
        lifespan="on",
    )
