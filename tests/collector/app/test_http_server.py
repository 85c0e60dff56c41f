"""Requests that arrive in part: each connection is closed in time, and their bytes are bounded."""

import gzip
import socket
import time
from contextlib import suppress

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from collector.app.http_server import HttpServer
from collector.otlp.errors import BusyError
from collector.receive.buffer import Buffer
from collector.receive.http import BodyLimits, create_otlp_app
from tests.collector.receive.test_otlp_http import PROTOBUF, Receiver
from tests.support.otlp import token_body
from tokentrail.shared.http_protocol import HttpProtocol

WAIT_S = 120
HEADER = b"POST /v1/traces HTTP/1.1\r\nHost: c\r\nContent-Type: application/x-protobuf\r\n"


async def echo(scope, receive, send):
    size = 0
    while (message := await receive())["type"] == "http.request":
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            await PlainTextResponse(str(size))(scope, receive, send)
            return


@pytest.fixture
def connect():
    """Opens connections to a server with these time-outs, on whose closing the test waits."""
    opened = []

    def connect(**timeouts):
        server = HttpServer(echo, "test", "127.0.0.1", 0, **timeouts)
        server.start()
        opened.append(server)
        return lambda: open_socket(server.url)

    yield connect
    for server in opened:
        server.stop(1.0)


def open_socket(url):
    client = socket.create_connection(httpx.URL(url).netloc.decode().split(":"), timeout=WAIT_S)
    client.settimeout(WAIT_S)
    return client


def until_closed(client):
    received = b""
    while data := client.recv(65536):
        received += data
    return received


@pytest.mark.parametrize(
    "sent",
    [b"", b"P", HEADER],
    ids=["nothing", "a byte", "no end of the header"],
)
def test_a_header_that_does_not_arrive_in_time_closes_its_connection(connect, sent):
    client = connect(header_timeout_s=0.2, body_timeout_s=3600.0)()
    client.sendall(sent)
    assert until_closed(client) == b""


def test_a_half_header_behind_an_answered_request_closes_its_connection(connect):
    open_one = connect(header_timeout_s=0.2, body_timeout_s=3600.0)

    def closed_behind_an_answer():
        """False when this machine stood still, so that the first header was late too."""
        client = open_one()
        try:
            client.sendall(b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
            answered = client.recv(65536).startswith(b"HTTP/1.1 200")
            client.sendall(HEADER)
        except ConnectionError:
            return False
        return answered and until_closed(client) == b""

    assert becomes_true(closed_behind_an_answer), "no connection was closed without an answer to the half header"


def test_a_body_that_does_not_arrive_in_time_closes_its_connection(connect, monkeypatch):
    monkeypatch.setitem(HttpProtocol.__init__.__kwdefaults__, "body_timeout_s", 3600.0)
    client = connect(header_timeout_s=3600.0, body_timeout_s=0.2)()
    client.sendall(HEADER + b"Content-Length: 100\r\n\r\n" + b"x" * 99)
    assert until_closed(client) == b""


def test_an_endless_header_closes_its_connection(connect):
    client = connect(header_timeout_s=3600.0, body_timeout_s=3600.0)()
    client.sendall(HEADER + b"X: " + b"x" * 70_000)
    assert until_closed(client) == b""


def test_a_header_time_out_does_not_run_while_a_body_arrives_or_an_answer_is_made(connect):
    open_one = connect(header_timeout_s=0.2, body_timeout_s=3600.0)

    def answered():
        """False when this machine stood still before it sent the header; a time-out that runs on closes every one."""
        client = open_one()
        try:
            client.sendall(HEADER + b"Content-Length: 2\r\n\r\n" + b"x")
            time.sleep(0.6)
            client.sendall(b"x")
            return client.recv(65536).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            return False

    assert becomes_true(answered), "the time-out ran on, and closed each connection before its answer"


def test_no_time_out_runs_while_an_answer_is_made():
    running = []

    async def app(scope, receive, send):
        (connection,) = server._server.server_state.connections
        running.append((not connection._timer.cancelled(), connection.timeout_keep_alive_task is not None))
        await echo(scope, receive, send)

    server = HttpServer(app, "test", "127.0.0.1", 0)
    server.start()
    try:
        with open_socket(server.url) as client:
            for _ in range(2):  # the second one ends the time that an idle connection has
                assert answer_of(client).startswith("http/1.1 200")
    finally:
        server.stop(1.0)
    assert running == [(False, False)] * 2


def answer_of(client):
    """An answer with all of its body, which may arrive behind its header; a part of it, if it tells no length."""
    client.sendall(b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
    received = ""
    while data := client.recv(65536):
        received += data.decode().lower()
        header, end, body = received.partition("\r\n\r\n")
        if end and len(body) >= int(header.partition("content-length: ")[2].partition("\r\n")[0] or 0):
            break
    return received


def test_a_request_beyond_the_limit_of_connections_is_told_when_to_come_again(connect, monkeypatch):
    monkeypatch.setattr("collector.app.http_server._MAX_CONNECTIONS", 3)
    open_one = connect(header_timeout_s=3600.0, body_timeout_s=3600.0)
    first, *others = [open_one() for _ in range(3)]
    for client in (first, *others):
        assert answer_of(client).startswith("http/1.1 200")
    beyond = open_one()
    refused = answer_of(beyond)
    assert refused.startswith("http/1.1 503")
    assert "\r\nretry-after: 1\r\n" in refused
    assert "3 connections are open" in refused + until_closed(beyond).decode()
    assert answer_of(first).startswith("http/1.1 200"), "those that are open go on"
    first.close()
    assert becomes_true(lambda: answer_of(open_one()).startswith("http/1.1 200"))


@pytest.fixture
def receiver(tmp_path):
    receiver = Receiver(tmp_path)
    yield receiver
    receiver.commit.stop(WAIT_S)


def test_unfinished_bodies_share_a_budget_and_whoever_exceeds_it_is_told_to_come_again(receiver):
    app = create_otlp_app([receiver.ingest], BodyLimits(sent=4_000, decompressed=8_000, under_way=5_000))
    server = HttpServer(app, "test", "127.0.0.1", 0)
    server.start()
    try:
        unfinished = open_socket(server.url)
        unfinished.sendall(HEADER + b"Content-Length: 4000\r\n\r\n" + b"x" * 3_900)
        buffer = {"content": token_body(count=20), "headers": {"content-type": PROTOBUF}}
        assert 1_100 < len(buffer["content"]) < 4_000
        client = httpx.Client(base_url=server.url, timeout=WAIT_S)
        assert becomes_true(lambda: client.post("/v1/traces", **buffer).status_code == 503)
        refused = client.post("/v1/traces", **buffer)
        assert refused.headers["retry-after"] == "1"
        assert receiver.status.snapshot().payloads_rejected["busy"] >= 2
        inflating = {"content": gzip.compress(bytes(7_000)), "headers": {"content-encoding": "gzip"}}
        inflating["headers"]["content-type"] = PROTOBUF
        assert client.post("/v1/traces", **inflating).status_code == 503
        unfinished.close()
        assert becomes_true(lambda: client.post("/v1/traces", **buffer).status_code == 200)
    finally:
        server.stop(1.0)


def test_the_budget_may_be_used_up_to_its_last_byte_and_is_given_back():
    buffer = Buffer(10)
    for _ in range(2):
        with buffer.share() as one, buffer.share() as other:
            one(4)
            other(6)
            with pytest.raises(BusyError, match="more than 10 bytes"):
                other(1)


def test_a_large_body_that_is_alone_is_taken_although_the_budget_is_smaller(receiver):
    app = create_otlp_app([receiver.ingest], BodyLimits(sent=4_000, decompressed=8_000, under_way=10))
    receiver.client = TestClient(app)
    assert receiver.post(gzip.compress(token_body()), content_encoding="gzip").status_code == 200
    assert receiver.post(token_body(trace=2)).status_code == 200


def test_a_server_that_did_not_start_gives_its_port_back():
    server = HttpServer(echo, "test", "127.0.0.1", 0)
    port = httpx.URL(server.url).port
    assert server.stop(1.0)
    HttpServer(echo, "test", "127.0.0.1", port).stop(1.0)


def test_a_server_leaves_without_waiting_for_its_next_tick(connect, monkeypatch):
    monkeypatch.setattr("collector.app.http_server._TICK_S", 3600.0)
    server = HttpServer(echo, "test", "127.0.0.1", 0)
    server.start()
    assert httpx.post(server.url, content=b"abc").text == "3"
    assert server.stop(WAIT_S)
    assert server.stop(WAIT_S), "its event loop has ended"


def test_the_date_of_answers_goes_on():
    server = HttpServer(echo, "test", "127.0.0.1", 0)
    server.start()
    first = httpx.post(server.url).headers["date"]
    assert becomes_true(lambda: httpx.post(server.url).headers["date"] != first)
    server.stop(WAIT_S)


def test_a_request_for_a_web_socket_is_answered_as_http(connect):
    client = connect()()
    upgrade = (
        b"Connection: upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n"
    )
    client.sendall(b"GET / HTTP/1.1\r\nHost: c\r\n" + upgrade + b"\r\n")
    assert until_closed(client).startswith(b"HTTP/1.1 200 ")


def test_the_address_of_a_client_is_not_what_it_says(monkeypatch):
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["client"][0], scope["scheme"]))
        await PlainTextResponse("")(scope, receive, send)

    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    server = HttpServer(app, "test", "127.0.0.1", 0)
    server.start()
    httpx.get(server.url, headers={"X-Forwarded-For": "10.6.6.6", "X-Forwarded-Proto": "https"}, timeout=WAIT_S)
    server.stop(1.0)
    assert seen == [("127.0.0.1", "http")]


def test_all_addresses_of_ipv6_are_those_of_ipv4_too():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this system has no IPv6")
    server = HttpServer(echo, "test", "::", 0)
    server.start()
    try:
        for address in ("127.0.0.1", "[::1]"):
            assert httpx.get(f"http://{address}:{httpx.URL(server.url).port}/", timeout=WAIT_S).status_code == 200
    finally:
        server.stop(1.0)


OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "websocket": b"Connection: upgrade\r\nUpgrade: websocket\r\n",
}


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
@pytest.mark.parametrize("size", [7, 1000], ids=["in pieces", "whole"])
def test_a_body_arrives_although_its_request_offers_another_protocol(connect, offer, size):
    """curl --http2 and Java's HttpClient send one; the body was lost, and an empty one acknowledged."""
    client = connect()()
    request = HEADER + offer + b"Content-Length: 10\r\n\r\n" + b"x" * 10
    second = HEADER + b"Connection: close\r\nContent-Length: 3\r\n\r\nxxx"
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(0, len(request), size):
        client.sendall(request[at : at + size])
    client.sendall(second)
    first, _, rest = until_closed(client).partition(b"\r\n\r\n10")
    assert first.startswith(b"HTTP/1.1 200")
    assert rest.endswith(b"\r\n\r\n3")


def test_many_offers_at_once_are_many_requests(connect):
    client = connect()()
    many = b"GET / HTTP/1.1\r\nHost: c\r\n" + OFFERS["h2c"] + b"\r\n"
    client.sendall(many * 1500 + b"GET / HTTP/1.1\r\nHost: c\r\nConnection: close\r\n\r\n")
    assert until_closed(client).count(b"HTTP/1.1 200 OK") == 1501


def test_a_connect_is_refused(connect):
    client = connect()()
    client.sendall(b"CONNECT c:1 HTTP/1.1\r\nHost: c\r\n\r\n")
    assert until_closed(client).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("offer", [b"", OFFERS["h2c"]], ids=["plain", "h2c"])
def test_a_request_with_two_hosts_is_refused(connect, offer):
    """The last one counted; a proxy before the collector may have checked the first."""
    client = connect()()
    client.sendall(b"GET / HTTP/1.1\r\nHost: c\r\nhost: other\r\n" + offer + b"\r\n")
    assert until_closed(client).startswith(b"HTTP/1.1 400 ")


CHUNKED = HEADER + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


def sent_until_closed(client, piece):
    """Send pieces until the server closes the connection; the bytes that it took."""
    sent = 0
    with suppress(ConnectionError):
        while sent < 500 * len(piece):
            client.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"0\r\n", b"X: " + b"x" * 99_000 + b"\r\n"),
        (b"0\r\nX: ", b"x" * 99_000),
        (b"1;a=", b"x" * 99_000),
    ],
    ids=["trailers", "a trailer", "a chunk's extension"],
)
def test_what_follows_or_divides_a_body_without_an_end_closes_its_connection(connect, head, piece):
    client = connect(header_timeout_s=3600.0, body_timeout_s=3600.0)()
    client.sendall(CHUNKED + head)
    assert sent_until_closed(client, piece) < 500 * len(piece)


def test_a_large_body_of_many_chunks_is_read(connect):
    client = connect()()
    client.sendall(CHUNKED + b"186a0\r\n%b\r\n" % (b"x" * 100_000) * 30 + b"0\r\n\r\n")
    assert until_closed(client).endswith(b"\r\n\r\n3000000")


def test_a_trailer_is_not_a_header():
    seen = []

    async def headers(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        seen.extend(scope["headers"])
        await PlainTextResponse("")(scope, receive, send)

    server = HttpServer(headers, "test", "127.0.0.1", 0)
    server.start()
    try:
        client = open_socket(server.url)
        client.sendall(CHUNKED + b"1\r\nx\r\n0\r\nHost: other\r\nAuthorization: Bearer x\r\n\r\n")
        assert until_closed(client).startswith(b"HTTP/1.1 200")
    finally:
        server.stop(1.0)
    assert [value for name, value in seen if name in (b"host", b"authorization")] == [b"c"]


def becomes_true(condition):
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
