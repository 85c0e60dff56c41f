"""Clients that read their answers slowly, or not at all, with and without TLS."""

import shutil
import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest

from collector.app import http_server
from collector.app.http_server import HttpServer
from tests.support.certificates import make_certificate

WAIT_S = 120
NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
GET = b"GET / HTTP/1.1\r\nHost: c\r\n\r\n"


@pytest.fixture(params=["plain", pytest.param("TLS", marks=NEEDS_OPENSSL)])
def tls(request, tmp_path):
    """The contexts of a server with TLS and of its clients; or neither."""
    if request.param == "plain":
        return None, None
    certificate, key = make_certificate(tmp_path)
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(certificate, key)
    return of_server, ssl.create_default_context(cafile=str(certificate))


@pytest.fixture
def serve(tls):
    """Starts a server of an application, and opens connections to it."""
    opened = []

    def serve(app, **timeouts):
        server = HttpServer(app, "test", "127.0.0.1", 0, tls=tls[0], **timeouts)
        server.start()
        opened.append(server)

        def connect():
            client = socket.socket()
            client.settimeout(WAIT_S)
            client.connect(tuple(server._socket.getsockname()))
            opened.append(client)
            if tls[1]:
                client = tls[1].wrap_socket(client, server_hostname="localhost")
                opened.append(client)
            return client

        return server._server.server_state.connections, connect

    yield serve
    for one in reversed(opened):
        one.stop(1.0) if isinstance(one, HttpServer) else one.close()


@pytest.mark.parametrize("pieces", [1, 200], ids=["in one piece", "in pieces"])
def test_a_client_that_does_not_read_its_answer_is_given_up(pieces, serve):
    ended = threading.Event()

    async def large(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": bytes(40_000_000 // pieces), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ended.set()

    connections, connect = serve(large, body_timeout_s=0.2)
    connect().sendall(GET)
    assert ended.wait(WAIT_S)
    wait_until(lambda: not connections)


def test_unread_answers_have_a_limit_together_and_the_slowest_client_makes_room(monkeypatch, serve):
    """Thirty clients that read slowly held a page of 48 MB each for minutes."""
    monkeypatch.setattr(http_server, "_MOST_UNREAD_BYTES", 100_000_000)
    size = 40_000_000
    content = bytes(range(250)) * (size // 250)

    async def large(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": content})

    connections, connect = serve(large, body_timeout_s=WAIT_S)
    fast = connect()
    fast.sendall(GET)
    assert taken(fast, size).endswith(b"\r\n\r\n" + content)
    wait_until(lambda: all(one._unread_since is None for one in connections))
    assert len(connections) == 1, "it is open, and has read everything"
    clients = []
    for number in range(1, 5):
        clients.append(client := connect())
        client.sendall(GET)
        assert client.recv(1) == b"H"
        wait_until(lambda: sum(one._unread_since is not None for one in connections) == min(number, 2))  # noqa: B023
    assert [len(taken(client, size)) > size for client in clients] == [False, False, True, True]


def test_little_of_an_answer_is_left_when_it_ends(serve):
    """asyncio drops what a client of TLS has not taken 30 s later. It was a megabyte, too much for 35 KB/s."""
    size, ended = 3_000_000, threading.Event()

    async def large(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(size)})
        ended.set()

    connections, connect = serve(large, body_timeout_s=WAIT_S)
    client = connect()
    wait_until(lambda: connections)
    for one in connections:
        one.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    client.sendall(GET)
    read = 0
    while not ended.is_set():
        read += len(client.recv(4096))
        time.sleep(0.001)  # so that the server may be ahead
    assert size - 300_000 < read < size


def taken(client, size):
    """The header and a body of that size, or as much of them as arrives."""
    answer = bytearray()
    with suppress(ConnectionResetError, ssl.SSLError):
        while len(answer) < size and (piece := client.recv(2**20)):
            answer += piece
        while not answer.endswith(b"\xf8\xf9") and (piece := client.recv(2**20)):
            answer += piece
    return bytes(answer)


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
