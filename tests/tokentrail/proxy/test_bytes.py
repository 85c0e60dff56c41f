"""The bytes of requests and answers pass as they are, however they are cut."""

import asyncio
import gzip
import json

import h11
import pytest

from tests.tokentrail.proxy.support import (
    BODY,
    CHAT,
    DONE,
    END,
    JSON,
    STREAMED,
    Client,
    Upstream,
    chunked,
    delta,
    exchange,
    proxied,
    request_span,
)
from tokentrail.proxy import server

CRLF = b'event: message\r\ndata: {"choices":\r\ndata: []}\r\n\r\n: ping\r\n\r\ndata: [DONE]\r\n\r\n'
TOOLS = delta() + (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\":1}"}}]}}]}\n\n'
)
BODIES = {
    "lf": delta() + delta("Grüße 🚀") + delta(finish="stop") + DONE,
    "crlf": CRLF,
    "tools": TOOLS + delta(finish="tool_calls") + DONE,
    "sse error": delta("a") + b'data: {"error":{"type":"server_error","message":"no"}}\n\n',
    "no json": b"data: {\n\ndata: \xff\xfe\n\ndata\n\n\n\n\r\r" + DONE,
    "no utf-8": b"\x00\xff" * 999,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_passes_byte_for_byte(body, size):
    size = max(size, len(body) // 60)  # at most 60 segments
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    answer, _, _ = exchange(STREAMED, *chunked(*parts), END)
    assert (answer.status, answer.body, answer.whole) == (200, body, True)


OTHER_APIS = {
    "/v1/messages": (
        b'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"tool_use"}}\n\n'
        b'data:  {"delta": {"type": "input_json_delta", "partial_json": "{\\"a\\": \\u00e9"}}\n\n'
        b'event: ping\ndata: {"type": "ping"}\n\n'
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    ),
    "/v1/responses": (
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
        b'data: {"delta":"{\\n","type":"response.function_call_arguments.delta"}\n\n'
        b'data: {"type":"response.failed","response":{"status":"failed","error":{"code":"x"}}}\n\n'
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", OTHER_APIS)
def test_tool_calls_and_errors_of_the_other_apis_pass_byte_for_byte(path):
    body = OTHER_APIS[path]
    streamed, _, _ = exchange(
        STREAMED, *chunked(*(body[at : at + 13] for at in range(0, len(body), 13))), END, path=path
    )
    assert (streamed.status, streamed.body, streamed.whole) == (200, body, True)
    head = b"HTTP/1.1 529 Overloaded\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    whole, _, _ = exchange(head + body, path=path, body={"model": "m"})
    assert (whole.status, whole.body, whole.whole) == (529, body, True)


def test_a_compressed_answer_passes_compressed():
    body = gzip.compress(BODIES["lf"])
    head = STREAMED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    answer, _, _ = exchange(head, *chunked(body[:20], body[20:]), END)
    assert answer.body == body
    assert answer.header("content-encoding") == ["gzip"]


def test_an_answer_with_a_length_keeps_its_length_and_its_headers():
    body = json.dumps({"error": {"message": "é"}}, indent=3).encode()
    head = (
        b"HTTP/1.1 429 Slow Down\r\nContent-Length: %d\r\nx-ratelimit: 1\r\nX-RateLimit: 2\r\nSet-Cookie: a=b\r\n"
        b"Connection: x-private, keep-alive\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Content-Type: application/json\r\n\r\n" % len(body)
    )
    answer, _, _ = exchange(head + body)
    assert (answer.status, answer.body) == (429, body)
    assert answer.headers == [
        (b"content-length", b"%d" % len(body)),
        (b"x-ratelimit", b"1"),
        (b"x-ratelimit", b"2"),
        (b"set-cookie", b"a=b"),
        (b"content-type", b"application/json"),
    ]  # and none that the proxy adds, such as Server or Date


def test_an_upstream_with_http_1_0_ends_its_answer_by_closing():
    body = BODIES["lf"]
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    answer, _, _ = exchange(head, body[:30], body[30:], close=True)
    assert (answer.body, answer.whole) == (body, True)


def test_a_stream_ends_for_a_client_with_http_1_0_that_keeps_its_connection(monkeypatch):
    monkeypatch.setattr(server, "IDLE_S", 3600)

    async def run():
        async with (
            Upstream(STREAMED, *chunked(delta("a"), DONE), END) as upstream,
            proxied(upstream) as proxy,
            Client(proxy.url) as client,
        ):
            head = b"POST %b HTTP/1.0\r\nConnection: keep-alive\r\n" % CHAT.encode()
            client.writer.write(head + b"Content-Length: 2\r\n\r\n{}")
            return await asyncio.wait_for(client.reader.read(), 120)

    assert asyncio.run(run()).endswith(DONE)


def test_trailers_are_dropped():
    body = BODIES["lf"]
    head = STREAMED.replace(b"\r\n\r\n", b"\r\nTrailer: x-sum\r\n\r\n")
    answer, _, _ = exchange(head, *chunked(body), b"0\r\nx-sum: 1\r\n\r\n")
    assert (answer.body, answer.whole, answer.header("trailer")) == (body, True, [])


def test_the_request_passes_byte_for_byte():
    body = json.dumps(BODY, indent=1).encode() + b"\n"
    headers = [
        ("Authorization", "Bearer k"),
        ("X-A", "1"),
        ("x-a", "2"),
        ("Connection", "x-b"),
        ("X-B", "3"),
        ("TE", "x"),
    ]
    _, (head, got), _ = exchange(STREAMED, END, body=body, path=f"{CHAT}?a=%2F&b=%C3%BC+x", headers=headers)
    first, *lines = head.decode().split("\r\n")
    assert got == body
    assert first == f"POST {CHAT}?a=%2F&b=%C3%BC+x HTTP/1.1"
    sent = [line for line in lines if line and not line.startswith(("Host: 127.", "traceparent"))]
    assert sorted(sent) == ["Authorization: Bearer k", f"Content-Length: {len(body)}", "X-A: 1", "X-A: 2"]


@pytest.mark.parametrize(
    ("asked", "handed_on"),
    [
        ((), []),
        (("gzip;q=0.5, deflate , identity;q=0, X-GZIP",), ["gzip;q=0.5, deflate , identity;q=0, X-GZIP"]),
        (("gzip, deflate, br, zstd",), ["gzip, deflate"]),
        (("br;q=1, gzip ;q=0.8", "deflate, *;q=0.1"), ["gzip ;q=0.8, deflate"]),
        (("br",), ["identity"]),
        (("*",), ["identity"]),
    ],
)
def test_no_encoding_is_asked_for_that_the_proxy_does_not_read(asked, handed_on):
    """The openai client asks for `br` as soon as brotli is installed, and its requests had no tokens."""
    for path, expected in ((CHAT, handed_on), ("/v1/models", list(asked))):
        _, (head, _), _ = exchange(STREAMED, END, path=path, headers=[("Accept-Encoding", value) for value in asked])
        lines = [line.partition(": ") for line in head.decode().split("\r\n")]
        assert [value for name, _, value in lines if name == "Accept-Encoding"] == expected


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("POST", "/v1/files"), ("DELETE", "/x%2Fy"), ("GET", "/a%0Ab"), ("POST", "/v1/messages/b")],
)
def test_other_paths_pass_unrecorded(method, path):
    answer, (head, got), trail = exchange(
        b"HTTP/1.1 201 Made\r\nContent-Length: 3\r\n\r\n\x00\xffa", method=method, path=path, body=b"\xffx" * 99
    )
    assert (answer.status, answer.body, got) == (201, b"\x00\xffa", b"\xffx" * 99)
    assert head.startswith(f"{method} {path} ".encode())
    assert b"traceparent" not in head
    assert trail.spans() == []


def test_long_headers_pass():
    long = "x" * 20_000
    head = b"HTTP/1.1 200 OK\r\nX-Long: %b\r\nContent-Length: 0\r\n\r\n" % long.encode()
    answer, (sent, _), _ = exchange(head, headers=[("X-Long", long)])
    assert answer.header("x-long") == [long]
    assert f"X-Long: {long}\r\n".encode() in sent


def test_an_answer_without_a_body_has_none():
    answer, _, _ = exchange(
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", method="HEAD", path="/v1/models", body=b""
    )
    assert (answer.status, answer.body, answer.header("content-length")) == (200, b"", ["12"])
    answer, _, _ = exchange(b"HTTP/1.1 204 No Content\r\n\r\n", path="/x")
    assert (answer.status, answer.headers) == (204, [])


def test_an_answer_that_breaks_off_breaks_off_for_the_client():
    answer, _, _ = exchange(STREAMED, *chunked(delta("a")), close=True)
    assert (answer.status, answer.body, answer.whole) == (200, delta("a"), False)
    answer, _, _ = exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", close=True)
    assert (answer.body, answer.whole) == (b"abc", False)


def test_only_a_flag_changes_a_request_and_only_by_its_usage():
    for path, changed in ((CHAT, True), ("/v1/completions", True), ("/v1/responses", False), ("/v1/messages", False)):
        _, (head, got), _ = exchange(STREAMED, END, path=path, ask_usage=True)
        want = {**BODY, "stream_options": {"include_usage": True}} if changed else BODY
        assert json.loads(got) == want
        assert f"Content-Length: {len(got)}".encode() in head
    given = json.dumps({**BODY, "stream_options": {"include_usage": False}}, indent=1).encode()
    assert exchange(STREAMED, END, body=given, ask_usage=True)[1][1] == given
    plain = json.dumps({**BODY, "stream": False}, indent=1).encode()
    assert exchange(STREAMED, END, body=plain, ask_usage=True)[1][1] == plain


@pytest.mark.parametrize("coding", ["gzip, chunked", "Deflate,chunked", "x-new , chunked"])
def test_a_transfer_coding_besides_chunked_is_refused_by_name(coding):
    """Handed on without the header that names it, the body would be other bytes."""
    named = coding.partition(",")[0].strip()

    async def asks():
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {coding}\r\n\r\n2\r\nab\r\n0\r\n\r\n"
        async with Upstream(JSON % (2, b"{}")) as upstream, proxied(upstream) as proxy, Client(proxy.url) as client:
            client._parser.send(h11.Request(method="GET", target="/", headers=[("Host", "proxy")]))
            client.writer.write(head.encode())
            return await client.receive(), upstream.requests

    answer, seen = asyncio.run(asks())
    assert (answer.status, seen) == (501, [])
    assert named in answer.json()["error"]["message"]
    answer, _, trail = exchange(STREAMED.replace(b"chunked", coding.encode()), *chunked(DONE), END)
    assert answer.status == 502
    assert named in answer.json()["error"]["message"]
    assert request_span(trail)[0].attributes["error.type"] == "upstream_unreachable"


@pytest.mark.parametrize("value", ["café".encode(), b"caf\xe9"], ids=["UTF-8", "Latin-1"])
def test_text_of_a_header_stays_the_same_text(value):
    """Bytes that are no UTF-8 are Latin-1, as HTTP had it, and become UTF-8, which is all that aiohttp writes."""

    async def run():
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nX-Team: %b\r\nContent-Length: 2\r\n\r\n{}" % (CHAT.encode(), value)
        script = JSON.replace(b"\r\n\r\n", b"\r\nX-Back: " + value + b"\r\n\r\n") % (2, b"{}")
        async with Upstream(script) as upstream, proxied(upstream, tenant_header="X-Team") as proxy:
            async with Client(proxy.url) as client:
                client._parser.send(h11.Request(method="GET", target="/", headers=[("Host", "proxy")]))
                client.writer.write(head)
                answer = await client.receive()
            return answer, upstream.requests[0][0], proxy.trail

    answer, seen, trail = asyncio.run(run())
    assert "X-Team: café".encode() in seen
    assert answer.header("x-back") == ["café"]
    assert request_span(trail)[0].attributes["tokentrail.tenant"] == "café"
