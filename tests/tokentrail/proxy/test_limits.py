"""Requests and answers that stop on their way, or that would fill the memory: each ends, and frees its place."""

import asyncio
import contextlib
import socket

import aiohttp
import h11
import pytest
from aiohttp.base_protocol import BaseProtocol

from tests.tokentrail.proxy.support import (
    CHAT,
    DONE,
    END,
    STREAMED,
    Client,
    Upstream,
    chunked,
    exchange,
    proxied,
    request_span,
)  # fmt: skip
from tokentrail import semconv
from tokentrail.proxy import relay, server, uploads

FILES = "/v1/files"
HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"


@pytest.mark.parametrize("path", [CHAT, FILES])
def test_an_upstream_that_does_not_read_a_large_request_is_given_up(path):
    async def run(url):
        async with proxied(url, read_timeout_s=0.3) as proxy, Client(proxy.url) as client:
            sending = asyncio.ensure_future(client.send(bytes(24 << 20), path=path))
            answer = await client.receive()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            return answer, proxy.trail

    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its backlog
        answer, trail = asyncio.run(run(f"http://127.0.0.1:{silent.getsockname()[1]}"))
    assert answer.status == 504
    if path == CHAT:
        assert request_span(trail)[0].attributes[semconv.ERROR_TYPE] == "upstream_timeout"


def test_an_upload_that_stops_is_given_up_and_frees_its_place():
    async def run():
        async with (
            Upstream(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as upstream,
            proxied(upstream, read_timeout_s=0.3, max_requests=1) as proxy,
        ):
            async with Client(proxy.url) as client:
                client.writer.write(HEAD.format(FILES, 9).encode() + b"x")
                late = (await client.reader.readline(), await client.reader.readuntil(b"}}"))
            async with Client(proxy.url) as client:
                await client.send(path=FILES)
                return *late, (await client.receive()).status

    status, rest, after = asyncio.run(run())
    assert (status.split()[1], after) == (b"408", 200)
    assert b"slow_request" in rest


@pytest.mark.parametrize("stream", [False, True])
def test_each_piece_of_an_upload_moves_its_limit(stream):
    class Limit:
        moved = 0

        def reschedule(self, when):
            assert when > 9
            self.moved += 1

    async def run():
        body, limit = bytes(2 * uploads.PIECE) + b"x", Limit()
        reader = aiohttp.StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 20)
        reader.feed_data(body)
        reader.feed_eof()
        sent = b"".join([piece async for piece in uploads.Upload(reader if stream else body, limit, 9.0)])
        return sent == body, limit.moved

    assert asyncio.run(run()) == (True, 1 if stream else 3)


def test_an_answer_that_breaks_in_a_chunk_ends():
    answer, _, trail = exchange(STREAMED, b"5\r\nhellozz\r\n", asyncio.Event(), read_timeout_s=0.3)
    assert (answer.status, answer.body, answer.whole) == (200, b"hello", False)
    assert request_span(trail)[0].attributes[semconv.STATUS] == "error"


def test_unfinished_bodies_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(uploads, "LEAST", 1000)
    monkeypatch.setattr(uploads, "BODIES_AT_LIMIT", 0)

    async def ask(proxy):
        async with Client(proxy.url) as client:
            await client.send(b" " * 200)
            return await client.receive()

    async def until(proxy, status):
        async with asyncio.timeout(120):
            while (answer := await ask(proxy)).status != status:
                pass
        return answer

    async def run():
        async with Upstream(STREAMED, *chunked(DONE), END) as upstream, proxied(upstream) as proxy:
            async with Client(proxy.url) as unfinished:
                unfinished.writer.write(HEAD.format(CHAT, 1000).encode() + b" " * 900)
                refused = await until(proxy, 503)
            await until(proxy, 200)
            return refused

    refused = asyncio.run(run())
    assert refused.header("retry-after") == ["1"]
    assert refused.json()["error"]["type"] == "too_many_bytes"


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp"], ids=["nothing", "half a header"])
def test_a_connection_without_a_request_is_closed(sent, monkeypatch):
    monkeypatch.setattr(server, "IDLE_S", 0.2)

    async def run():
        async with Upstream() as upstream, proxied(upstream) as proxy, Client(proxy.url) as client:
            client.writer.write(sent)
            return await asyncio.wait_for(client.reader.read(), 120)

    assert asyncio.run(run()) == b""


OWN = {
    "no http": (b"hello\r\n\r\n", 400),
    "no path": (b"OPTIONS * HTTP/1.1\r\nHost: proxy\r\n\r\n", 404),
    "an expectation": (HEAD.format(CHAT, 0)[:-2].encode() + b"Expect: tea\r\n\r\n", 417),
}


@pytest.mark.parametrize(("sent", "status"), OWN.values(), ids=OWN)
def test_answers_of_the_http_stack_are_problems_and_counted(sent, status):
    async def run():
        async with Upstream() as upstream, proxied(upstream) as proxy, Client(proxy.url) as client:
            client._parser.send(h11.Request(method="GET", target="/", headers=[("Host", "proxy")]))
            client.writer.write(sent)
            return await client.receive(), proxy._counters.page().decode()

    answer, metrics = asyncio.run(run())
    assert (answer.status, answer.header("content-type")) == (status, ["application/problem+json"])
    assert (answer.json()["status"], answer.json()["error"]["type"]) == (status, "broken_request")
    assert answer.json()["error"]["message"]
    assert 'tokentrail_proxy_refused_total{reason="broken_request"} 1.0' in metrics


def test_a_fault_of_the_proxy_is_a_problem_and_counted(monkeypatch, caplog):
    async def fault(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(relay.Relay, "_recorded", fault)

    async def run():
        async with Upstream() as upstream, proxied(upstream) as proxy, Client(proxy.url) as client:
            await client.send()
            return await client.receive(), proxy._counters.page().decode()

    answer, metrics = asyncio.run(run())
    assert (answer.status, answer.json()["error"]["type"]) == (500, "fault")
    assert "a fault of ours" not in answer.body.decode()
    assert "a fault of ours" in caplog.text
    assert 'tokentrail_proxy_refused_total{reason="fault"} 1.0' in metrics


def test_a_request_that_is_no_http_is_counted_and_its_bytes_are_not_logged(caplog):
    async def run():
        async with Upstream() as upstream, proxied(upstream) as proxy, Client(proxy.url) as client:
            client.writer.write(HEAD.format(CHAT, 1)[:-2].encode() + b"Authorization: Bearer sk-secret\x01\r\n\r\nx")
            with contextlib.suppress(ConnectionError):
                status = await client.reader.readline()
            return status, proxy._counters.page().decode()

    status, metrics = asyncio.run(run())
    assert status.split()[1] == b"400"
    assert 'tokentrail_proxy_refused_total{reason="broken_request"} 1.0' in metrics
    assert "sk-secret" not in caplog.text
