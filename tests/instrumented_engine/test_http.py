"""Requests as they lie on the wire: offers of other protocols, trailers, and more than this server can take."""

import asyncio
import json
import socket

import httpx
import pytest

from instrumented_engine.server import http, middleware
from instrumented_engine.server.app import create_app
from tokentrail.shared.http_protocol import HttpProtocol

from .server_support import MODEL, post, served, tiny_loader

WAIT_S = 120
BODY = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 3}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ALONE = HEAD + b"Connection: close\r\n"


@pytest.fixture(scope="module")
def server():
    with served(tiny_loader()) as server:
        server.until(lambda: server.service.ready)
        yield server


def connect(server):
    url = httpx.URL(server.url)
    client = socket.create_connection((url.host, url.port), timeout=WAIT_S)
    client.settimeout(WAIT_S)
    return client


def answer(server, request):
    """All bytes until the server closes the connection."""
    with connect(server) as client:
        client.sendall(request)
        received = b""
        while data := client.recv(65536):
            received += data
    return received


def test_a_body_arrives_although_its_request_offers_http_2(server):
    """curl --http2 and Java's HttpClient make the offer. The body was lost, and `Field required` answered."""
    offer = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    got = answer(server, HEAD + offer + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b'"completion_tokens":3' in got


def test_a_trailer_is_not_a_header(server):
    chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
    got = answer(server, ALONE + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\nX-Request-Id: other\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b"cmpl-other" not in got


@pytest.mark.parametrize(
    ("request_bytes", "answered"),
    [
        (HEAD + b"X: " + b"x" * 70_000, b""),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"HTTP/1.1 400 "),
    ],
    ids=["an endless header", "two hosts"],
)
def test_a_wrong_header_closes_its_connection(server, request_bytes, answered):
    assert answer(server, request_bytes)[:13] == answered


def test_a_request_on_a_connection_too_many_is_told_when_to_come_again(monkeypatch):
    monkeypatch.setattr(http, "OTHER_CONNECTIONS", 1)
    with served(tiny_loader(max_seqs=1), max_waiting=1, max_seqs=1) as server:
        server.until(lambda: server.service.ready)
        others = [connect(server) for _ in range(3)]
        for other in others:
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert other.recv(65536).startswith(b"HTTP/1.1 200 ")
        refused = post(server, "beyond")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "overloaded"
        assert server.service.error_answers == {"overloaded": 1}
        for other in others:
            other.close()
        server.until(lambda: post(server, "later").status_code == 200)


def test_a_client_that_takes_nothing_of_its_answers_loses_its_connection(monkeypatch):
    """It held one of the connections that are served, and the answers, for ever."""
    made = HttpProtocol.connection_made

    def made_small(protocol, transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(protocol, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", made_small)
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.1)
    with served(tiny_loader()) as server, socket.socket() as silent:
        server.until(lambda: server.service.ready)
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.settimeout(WAIT_S)
        silent.connect(("127.0.0.1", httpx.URL(server.url).port))
        requests = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000_000  # more than both sides take
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            silent.sendall(requests)


def test_unfinished_bodies_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(middleware, "BODIES_AT_LIMIT", 1)
    monkeypatch.setattr(middleware, "LEAST", 0)
    with served(tiny_loader(), max_body_bytes=1024) as server:
        server.until(lambda: server.service.ready)
        with connect(server) as unfinished:
            unfinished.sendall(HEAD + b"Content-Length: 1024\r\n\r\n" + b" " * 1000)
            server.until(lambda: post(server, "beyond").status_code == 503)
            refused = post(server, "beyond")
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "overloaded"
        server.until(lambda: post(server, "later").status_code == 200)


def test_the_answer_to_a_client_that_left_has_the_status_499(server, monkeypatch):
    """A reader of the access log tells it from an answer that was sent. The application is asked without a socket."""
    sent = []

    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr("instrumented_engine.server.app.full_response", never)

    async def ask():
        news = iter([{"type": "http.request", "body": BODY, "more_body": False}])

        async def receive():
            return next(news, {"type": "http.disconnect"})

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
        }  # fmt: skip
        await asyncio.wait_for(create_app(server.service)(scope, receive, send), WAIT_S)

    asyncio.run(ask())
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == [499]
