"""ASGI applications on threads of their own, on sockets that are bound before they start."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import suppress
from functools import partial
from typing import Any, Final

import uvicorn

from tokentrail.shared.folders import words_of
from tokentrail.shared.http_protocol import HEADER_TIMEOUT_S, HttpProtocol

_MAX_CONNECTIONS: Final = 512
_MOST_UNREAD_BYTES: Final = 256 * 1024 * 1024
"""Of all answers that clients have not taken yet. A page of spans has 64 MiB, which a slow client takes in minutes."""
_TICK_S: Final = 1.0


class HttpServer:
    """A uvicorn server with its own event loop and thread."""

    def __init__(
        self,
        app: Any,
        name: str,
        host: str,
        port: int,
        *,
        header_timeout_s: float = HEADER_TIMEOUT_S,
        body_timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind at once; raises OSError when the address cannot be had.

        A connection is closed when a request's header or body has not arrived in its time, and when its client takes
        nothing of an answer for as long as a body may take. When clients that read slowly hold more than
        `_MOST_UNREAD_BYTES`, the slowest loses its connection.
        """
        self.name = name
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()  # IPv4 too, as gRPC takes it
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=both)
        except OSError as error:
            reason = words_of(error).partition(" (while")[0]
            msg = f"cannot listen on {host}:{port}: {reason}; set another --{name}"
            raise OSError(msg) from error
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._socket.getsockname()[1]}"
        """The address that it listens on, with the real port."""
        protocol = partial(
            HttpProtocol,
            header_timeout_s=header_timeout_s,
            body_timeout_s=body_timeout_s,
            read_timeout_s=body_timeout_s,
            most_unread_bytes=_MOST_UNREAD_BYTES,
            max_connections=_MAX_CONNECTIONS,
            beyond=_too_many_connections,
        )
        config = uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]  # any callable that makes a protocol works
            ws="none",  # no application here speaks it, so such a request is answered as plain HTTP
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # a client on this machine could write any address into the audit log
        )
        config.load()
        config.ssl = tls
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name=name, daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Take nothing new and let the requests in progress be answered; False when some were not in time."""
        self._server.config.timeout_graceful_shutdown = timeout_s  # type: ignore[assignment]  # a float works, too
        self._server.leave()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._socket.close()
        return not self._thread.is_alive() and not self._server.cut_off


class _Server(uvicorn.Server):
    """Remembers whether it had to cut requests off, and wakes up once a second where uvicorn does ten times."""

    cut_off = False
    _loop: asyncio.AbstractEventLoop | None = None

    def leave(self) -> None:
        """Begin to shut down. Any thread may call."""
        self.should_exit = True
        if self._loop:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._leaving.set)

    async def main_loop(self) -> None:
        """Wait until the server leaves. A tick sets the answers' date."""
        self._leaving, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does: a request that is still there afterwards has been cancelled."""
        await super().shutdown(sockets)
        self.cut_off = bool(self.server_state.tasks)


async def _too_many_connections(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer a request beyond the limit of connections. (uvicorn's own answer to it has no time to retry.)"""
    headers = [(b"content-type", b"text/plain"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    text = f"{_MAX_CONNECTIONS} connections are open; try again\n"
    await send({"type": "http.response.body", "body": text.encode()})
