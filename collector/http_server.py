"""ASGI applications on threads of their own, on sockets that are bound before they start."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from functools import partial
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_CONNECTIONS: Final = 512
_MAX_HEADER_BYTES: Final = 64 * 1024
"""Most bytes of a header, and of trailers."""
_OF_AN_OFFER: Final = frozenset({b"upgrade", b"http2-settings"})
_TLS_CLOSE_S: Final = 2.0
"""Time for a client to answer the end of TLS. asyncio would wait 30 s for an idle one, which reads nothing."""


class HttpServer:
    """A uvicorn server with its own event loop and thread."""

    def __init__(
        self,
        app: Any,
        name: str,
        host: str,
        port: int,
        *,
        header_timeout_s: float = 10.0,
        body_timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind at once; raises OSError when the address cannot be had.

        A connection is closed when a request's header or body has not arrived in its time.
        """
        self.name = name
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()  # IPv4 too, as gRPC takes it
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=both)
        except OSError as error:
            msg = f"cannot listen on {host}:{port} for {name}: {error.strerror or error}"
            raise OSError(msg) from error
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._socket.getsockname()[1]}"
        """The address that it listens on, with the real port."""
        protocol = partial(_Protocol, header_timeout_s=header_timeout_s, body_timeout_s=body_timeout_s)
        config = uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]  # any callable that makes a protocol works
            ws="none",  # no application here speaks it, so such a request is answered as plain HTTP
            log_level="warning",
            access_log=False,
            lifespan="off",
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
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._socket.close()
        return not self._thread.is_alive() and not self._server.cut_off


class _Server(uvicorn.Server):
    """Remembers whether it had to cut requests off."""

    cut_off = False

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


class _Protocol(HttpToolsProtocol):
    """One connection. It is closed when the next part of a request does not arrive in time.

    connection made    the header has 10 s
    POST /v1/tr
    aces …             header complete: the body has 30 s
    body complete      no limit, the collector works
    next request       the header has 10 s again
    """

    def __init__(self, *args: Any, header_timeout_s: float, body_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timeout_s = header_timeout_s
        self._body_timeout_s = body_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._in_header = True
        self._header_bytes = 0
        self._goes_on = False
        """The last data had a byte of a body, or the end of a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a header."""
        super().connection_made(transport)
        self._expect_within(self._header_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Parse the data. Close the connection when the header is too long, or that which follows the body."""
        self._unset_keepalive_if_required()
        self._goes_on = False
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
            return
        self._header_bytes = 0 if self._goes_on else self._header_bytes + len(data)
        if self._header_bytes > _MAX_HEADER_BYTES:
            self._close()

    def _parse(self, data: memoryview) -> None:
        """Parse the data. A request that offers another protocol is parsed again without the offer (RFC 9110, 7.8).

        curl --http2 and Java's HttpClient offer HTTP/2. httptools takes the body of such a request for that protocol.
        It would be lost, and an empty body be acknowledged in its place.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":  # which is an upgrade by itself
            raise httptools.HttpParserError
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % field for field in self.headers if field[0] not in _OF_AN_OFFER]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        """Wait for the rest of the header."""
        super().on_message_begin()
        self._in_header = True
        self._expect_within(self._header_timeout_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the header. A trailer must not become one (RFC 9110, 6.5.1), and nothing here reads any."""
        if self._in_header:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Wait for the body. A request that offers another protocol is parsed again."""
        self._in_header = False
        if self.parser.should_upgrade():
            return
        self._expect_within(self._body_timeout_s)
        too_many = len(self.connections) > _MAX_CONNECTIONS
        self.app = _too_many_connections if too_many else self.config.loaded_app
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._goes_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for nothing more of this request."""
        if self.parser.should_upgrade():
            return
        self._goes_on = True
        self._expect_nothing()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._expect_nothing()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: close an idle connection, and a busy one after its answer."""
        super().shutdown()
        if self.transport.is_closing():
            self._close()

    def _close(self) -> None:
        self.transport.close()
        if self.config.ssl is not None:
            self.loop.call_later(_TLS_CLOSE_S, self.transport.abort)

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._timer = self.loop.call_later(seconds, self._close)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
