"""One HTTP/1.1 connection of a server on uvicorn: bounded in time and size, without offers of other protocols.

For processes that have uvicorn; the SDK does not import it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_TIMEOUT_S: Final = 10.0
BODY_TIMEOUT_S: Final = 30.0
CUT_AT_SHUTDOWN: Final = "cut_at_shutdown"
"""A request with this in its state is not waited for when the server stops."""
_MAX_HEADER_BYTES: Final = 64 * 1024
"""Most bytes of a header, and of trailers."""
_TLS_CLOSE_S: Final = 2.0
"""Time for a client to answer the end of TLS. asyncio would wait 30 s for an idle one, which reads nothing."""
_PIECE_BYTES: Final = 32 * 1024
"""An answer that counts as unread is written in such pieces. Over TLS, asyncio encrypts at once all that is written at
once, counts none of it, and does not say that the client is slow. When the answer has ended, it gives the client 30 s
to take the rest, and drops what is left then: some pieces, which a client of 6 KB/s takes."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. It is closed when the next part of a request does not arrive in time.

    connection made    the header has 10 s
    POST /v1/tr
    aces …             header complete: the body has 30 s
    body complete      no limit, the server works
    next request       the header has 10 s again

    With `read_timeout_s`, it is also closed when the client takes nothing of an answer for that long: the bytes that it
    does not take are in memory. Those of all connections have `most_unread_bytes`: beyond, the connection whose client
    is busy with its answer for the longest time is closed.

    An answer of 1 MB to a client that reads slowly, over TLS:

    968 KB unsent      the first piece is encrypted
    872 KB unsent      asyncio has enough: wait until the client has taken most of it
    0 KB unsent        the last piece is in asyncio's buffer
    """

    def __init__(
        self,
        *args: Any,
        max_connections: int,
        beyond: Any,
        header_timeout_s: float = HEADER_TIMEOUT_S,
        body_timeout_s: float = BODY_TIMEOUT_S,
        read_timeout_s: float | None = None,
        most_unread_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        """`beyond` is the ASGI application that refuses requests while more than `max_connections` are open."""
        super().__init__(*args, **kwargs)
        self._max_connections = max_connections
        self._beyond = beyond
        self._header_timeout_s = header_timeout_s
        self._body_timeout_s = body_timeout_s
        self._read_timeout_s = read_timeout_s
        self._most_unread_bytes = most_unread_bytes
        self._unread_since: float | None = None
        self._unsent_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None
        self._in_header = True
        self._header_bytes = 0
        self._goes_on = False
        """The last data had a byte of a body, or the end of a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a header."""
        super().connection_made(transport)
        if self._most_unread_bytes is not None:
            transport.set_write_buffer_limits(_PIECE_BYTES)
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
        lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
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
        """Wait for the body. A request that offers another protocol is parsed again.

        One with two Host fields is refused (RFC 9112, 3.2): a proxy before this server may have checked the other.
        """
        self._in_header = False
        if self.parser.should_upgrade():
            return
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise httptools.HttpParserError
        self._expect_within(self._body_timeout_s)
        too_many = len(self.connections) > self._max_connections
        app = self._beyond if too_many else self.config.loaded_app
        self.app = app if self._most_unread_bytes is None else partial(self._in_pieces, app)
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

    async def _in_pieces(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Answer with the application, and send its answer in pieces."""

        async def send_in_pieces(message: Any) -> None:
            body = memoryview(message.get("body", b""))
            while len(body) > _PIECE_BYTES:
                self._unsent_bytes = len(body)
                await send({**message, "body": body[:_PIECE_BYTES], "more_body": True})
                body = body[_PIECE_BYTES:]
            self._unsent_bytes = 0
            await send({**message, "body": body} if body else message)
            if not self.flow.write_paused:
                self._unread_since = None

        await app(scope, receive, send_in_pieces)

    def pause_writing(self) -> None:
        """The client reads more slowly than the answer is written."""
        super().pause_writing()
        if self._unread_since is None:
            self._unread_since = self.loop.time()
        self._wait_for_reader()
        if self._most_unread_bytes is not None:
            self._make_room(self._most_unread_bytes)

    def resume_writing(self) -> None:
        """The client has read nearly all that was written."""
        self._stop_waiting_for_reader()
        if not self._unsent_bytes:
            self._unread_since = None
        super().resume_writing()

    def _make_room(self, most_bytes: int) -> None:
        """Close other connections, the one that has waited longest first, until all have no more unread bytes."""
        others = [one for one in self.connections if isinstance(one, HttpProtocol) and one is not self]
        slow = [(one._unread_since, one) for one in others if one._unread_since is not None]
        unread = self._unread_bytes() + sum(one._unread_bytes() for _, one in slow)
        for _, one in sorted(slow, key=lambda each: each[0]):
            if unread <= most_bytes:
                return
            unread -= one._unread_bytes()
            one.transport.abort()

    def _unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size() + self._unsent_bytes

    def _wait_for_reader(self) -> None:
        if self._read_timeout_s is not None:
            self._reader = self.loop.call_later(self._read_timeout_s, self._check_reader, self._unread_bytes())

    def _check_reader(self, unread: int) -> None:
        if self._unread_bytes() < unread:
            self._wait_for_reader()
        else:
            self.transport.abort()

    def _stop_waiting_for_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._expect_nothing()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: close an idle connection, and a busy one after its answer.

        An answer that may take its client hours is cut, so that the client sees that its end is missing.
        """
        if self.cycle and not self.cycle.response_complete and CUT_AT_SHUTDOWN in self.cycle.scope["state"]:
            self.transport.abort()
            return
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
