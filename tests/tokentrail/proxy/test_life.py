"""Cancellation, back-pressure, time-outs, limits, and the end of the proxy."""

import asyncio
import re
import socket
import sys

import aiohttp
import pytest
from typer.testing import CliRunner

from tests.tokentrail.proxy.support import (
    BODY,
    CHAT,
    DONE,
    END,
    STREAMED,
    Client,
    Upstream,
    chunked,
    delta,
    exchange,
    proxied,
    request_span,
)  # fmt: skip
from tokentrail import now_ns, semconv
from tokentrail.cli.app import app
from tokentrail.proxy import flushes, server
from tokentrail.proxy.counters import ChunkTimes
from tokentrail.proxy.server import Proxy
from tokentrail.proxy.settings import ProxySettings, WrongSetting
from tokentrail.shared import open_files


def outcome(trail):
    request, tokens = request_span(trail)
    return request.attributes[semconv.STATUS], request.attributes.get(semconv.ERROR_TYPE), len(tokens)


def first_chunk(answer):
    return b"data:" in answer.body


def test_a_client_that_goes_away_closes_the_upstreams_connection_at_once():
    async def run():
        never = asyncio.Event()
        async with Upstream(STREAMED, *chunked(delta("a")), never) as upstream, proxied(upstream) as proxy:
            async with Client(proxy.url) as client:
                await client.send()
                await client.receive(until=first_chunk)
            await asyncio.wait_for(upstream.gone.wait(), 120)
            return proxy.trail

    assert outcome(asyncio.run(run())) == ("cancelled", None, 1)


def test_a_chunk_that_the_lost_connection_does_not_take_is_no_error_in_the_log(monkeypatch, caplog):
    async def reset(*_):
        raise ConnectionResetError

    monkeypatch.setattr(aiohttp.web.StreamResponse, "write", reset)
    _, _, trail = exchange(STREAMED, *chunked(delta("a")), END)
    assert outcome(trail) == ("cancelled", None, 0)
    assert caplog.records == []


def test_a_client_that_goes_away_before_the_answer_does_the_same():
    async def run():
        async with Upstream(asyncio.Event()) as upstream, proxied(upstream) as proxy:
            async with Client(proxy.url) as client:
                await client.send()
                await asyncio.wait_for(upstream.asked.wait(), 120)
            await asyncio.wait_for(upstream.gone.wait(), 120)
            return proxy.trail

    assert outcome(asyncio.run(run())) == ("cancelled", None, 0)


def test_a_client_that_goes_away_after_the_end_was_told_was_answered():
    async def run():
        async with (
            Upstream(STREAMED, *chunked(delta("a", finish="stop"), DONE), asyncio.Event()) as upstream,
            proxied(upstream) as proxy,
        ):
            async with Client(proxy.url) as client:
                await client.send()
                await client.receive(until=lambda answer: DONE in answer.body)
            await asyncio.wait_for(upstream.gone.wait(), 120)
            return proxy.trail

    assert outcome(asyncio.run(run())) == ("ok", None, 1)


def test_a_client_that_does_not_read_stops_the_upstream_and_is_cut_off_in_the_end():
    piece = chunked(delta("x" * 60_000))

    async def run():
        async with (
            Upstream(STREAMED, *(piece * 400), END) as upstream,
            proxied(upstream, read_timeout_s=0.5, write_timeout_s=1) as proxy,
            Client(proxy.url) as client,
        ):
            client.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            await client.send()
            await asyncio.wait_for(upstream.gone.wait(), 120)
            async with aiohttp.ClientSession() as session, session.get(f"{proxy.admin_url}/metrics") as page:
                return upstream.sent, proxy.trail, await page.text(), (await client.receive()).whole

    sent, trail, metrics, whole = asyncio.run(run())
    assert not whole, "what it reads in the end breaks off"
    assert sent < 16 << 20  # of 24 MB; the kernel's buffers on both sides hold some
    assert outcome(trail)[0] == "cancelled", "the time of the upstream stands still meanwhile"
    assert 'tokentrail_proxy_refused_total{reason="slow_client"} 1.0' in metrics


def test_a_slow_client_gets_everything():
    parts = [delta(f"{number:06}" * 2000) for number in range(50)]

    async def run():
        async with (
            Upstream(STREAMED, *chunked(*parts), END) as upstream,
            proxied(upstream) as proxy,
            Client(proxy.url) as client,
        ):
            await client.send()
            await asyncio.sleep(0.3)
            return await client.receive()

    assert asyncio.run(run()).body == b"".join(parts)


def test_an_upstream_that_is_away_is_a_502():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def run():
        async with proxied(url) as proxy, Client(proxy.url) as client:
            await client.send()
            return await client.receive(), proxy.trail

    answer, trail = asyncio.run(run())
    assert answer.status == 502
    assert answer.header("content-type") == ["application/problem+json"]
    assert answer.json()["error"]["type"] == answer.json()["title"].rpartition(" ")[2] == "upstream_unreachable"
    assert outcome(trail) == ("error", "upstream_unreachable", 0)


@pytest.mark.parametrize("script", [[b"", asyncio.Event()], [STREAMED, *chunked(delta("a")), asyncio.Event()]])
def test_an_upstream_that_is_silent_ends_with_the_read_time_out(script):
    answer, _, trail = exchange(*script[:-1], asyncio.Event(), read_timeout_s=3)
    began = len(script) > 2
    assert (answer.status, answer.whole) == ((200, False) if began else (504, True))
    assert outcome(trail) == ("error", "upstream_timeout", int(began))


def test_an_upstream_that_speaks_no_http_is_a_502():
    answer, _, trail = exchange(b"SSH-2.0-OpenSSH\r\n\r\n", close=True)
    assert (answer.status, outcome(trail)) == (502, ("error", "upstream_unreachable", 0))


def test_a_body_over_the_limit_is_a_413_and_one_at_the_limit_passes():
    for extra, status in ((0, 200), (1, 413)):
        body = b"x" * ((1 << 20) + extra)
        answer, seen, trail = exchange(STREAMED, *chunked(delta(finish="stop")), END, body=body, max_body_mib=1)
        assert answer.status == status
        assert (seen is None) == (status == 413)
        assert outcome(trail)[:2] == (("ok", None) if status == 200 else ("error", "413"))


def test_requests_over_the_limit_get_503_and_count_as_errors():
    async def run(upstream, proxy):
        async with Client(proxy.url) as first, Client(proxy.url) as second:
            await first.send()
            await first.receive(until=first_chunk)
            await second.send()
            refused = await second.receive()
        await asyncio.wait_for(upstream.gone.wait(), 120)
        upstream.script = (STREAMED, *chunked(delta(finish="stop")), END)
        async with Client(proxy.url) as third:
            await third.send()
            return refused, await third.receive()

    async def both():
        async with (
            Upstream(STREAMED, *chunked(delta("a")), asyncio.Event()) as upstream,
            proxied(upstream, max_requests=1) as proxy,
        ):
            return *await run(upstream, proxy), proxy.trail

    refused, served, trail = asyncio.run(both())
    assert (refused.status, refused.header("retry-after"), served.status) == (503, ["1"], 200)
    assert refused.json()["error"]["type"] == "too_many_requests"
    ended = [s.attributes.get(semconv.ERROR_TYPE) for s in trail.spans() if semconv.STATUS in s.attributes]
    assert sorted(ended, key=str) == ["503", None, None]


def test_a_broken_body_is_a_400():
    async def run():
        async with Upstream(STREAMED, END) as upstream, proxied(upstream) as proxy, Client(proxy.url) as client:
            client.writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode())
            return (await client.reader.readline()).split()[1], upstream.requests

    assert asyncio.run(run()) == (b"400", [])


def test_connections_are_kept_on_both_sides():
    async def run():
        async with (
            Upstream(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as upstream,
            proxied(upstream) as proxy,
            Client(proxy.url) as client,
        ):
            for _ in range(3):
                await client.send()
                assert (await client.receive()).whole
                client.next()
            return len(upstream.requests), upstream.connections

    assert asyncio.run(run()) == (3, 1)


async def probed(proxy):
    async with aiohttp.ClientSession(proxy.admin_url) as session:
        return [(await session.get(path)).status for path in ("/healthz", "/readyz")]


def test_stopping_waits_for_requests_under_way_and_takes_no_new_ones():
    async def run(drain_timeout_s):
        go = asyncio.Event()
        async with (
            Upstream(STREAMED, *chunked(delta("a")), go, *chunked(DONE), END) as upstream,
            proxied(upstream, drain_timeout_s=drain_timeout_s) as proxy,
            Client(proxy.url) as client,
        ):
            await client.send()
            await client.receive(until=first_chunk)
            assert await probed(proxy) == [200, 200]
            stopping = asyncio.create_task(proxy.stop())
            if drain_timeout_s > 1:
                await asyncio.sleep(0.05)
                assert await probed(proxy) == [200, 503]
                with pytest.raises(ConnectionRefusedError):
                    await Client(proxy.url).__aenter__()
                go.set()
            rest = await client.receive()
            return rest.whole, await stopping, proxy.trail

    whole, finished, trail = asyncio.run(run(120))
    assert (whole, finished, outcome(trail)) == (True, True, ("ok", None, 1))
    whole, finished, trail = asyncio.run(run(0.3))
    assert (whole, finished, outcome(trail)) == (False, False, ("error", "proxy_shutdown", 1))


def test_metrics_count_what_passed():
    async def run():
        async with (
            Upstream(STREAMED, *chunked(delta("a", finish="stop"), DONE), END) as upstream,
            proxied(upstream) as proxy,
            aiohttp.ClientSession() as session,
        ):
            for path in (CHAT, CHAT, "/v1/models"):
                async with session.post(proxy.url + path, json=BODY) as answer:
                    await answer.read()
            spans = len(proxy.trail.spans())
            async with session.get(f"{proxy.admin_url}/metrics") as page:
                text = await page.text()
            late = proxy.trail.start_request(operation="chat", model="m")
            proxy.trail.shutdown()
            proxy.trail.step(1, now_ns(), now_ns(), [late])
            async with session.get(f"{proxy.admin_url}/metrics") as page:
                return text, spans, await page.text()

    text, spans, later = asyncio.run(run())
    assert f"tokentrail_proxy_spans_exported_total {spans}.0" in text
    assert "tokentrail_proxy_spans_queued 0.0" in text
    assert "spans_dropped_total{" not in text
    assert re.search(r'tokentrail_proxy_spans_dropped_total{reason="shutdown"} 2.0', later), "the step and its token"
    assert 'tokentrail_proxy_requests_total{operation="chat",outcome="ok"} 2.0' in text
    assert 'tokentrail_proxy_requests_total{operation="",outcome="passed"} 1.0' in text
    assert "tokentrail_proxy_requests_in_flight 0.0" in text
    held_s = float(re.search(r"tokentrail_proxy_chunk_seconds_sum (\S+)", text)[1])
    assert 0 < held_s < 60


def test_a_chunk_is_counted_up_to_the_bound_that_it_took_and_the_slowest_behind_all():
    held = ChunkTimes()
    for seconds in (1e-5, 0.5, 10.0, 10.1):
        held.observe(seconds)
    (histogram,) = held.collect()
    counted = {sample.labels.get("le"): sample.value for sample in histogram.samples}
    assert [counted[bound] for bound in ("1e-05", "3e-05", "0.1", "1.0", "10.0", "+Inf")] == [1, 1, 1, 2, 3, 4]
    assert counted[None] == pytest.approx(20.60001)


def test_arrivals_reach_the_trail_while_the_answer_goes_on(monkeypatch):
    monkeypatch.setattr(flushes, "FLUSH_S", 0.01)

    async def run():
        never = asyncio.Event()
        async with (
            Upstream(STREAMED, *chunked(delta("a")), never) as upstream,
            proxied(upstream) as proxy,
            Client(proxy.url) as client,
        ):
            await client.send()
            for _ in range(12_000):
                await asyncio.sleep(0.01)
                if tokens := proxy.trail.spans("tokentrail.token"):
                    return len(tokens), [span for span in proxy.trail.spans() if semconv.STATUS in span.attributes]
            return 0, []

    assert asyncio.run(run()) == (1, []), "one token, and the request has not ended"


def test_wrong_settings_are_named():
    for given, name in (
        ({"upstream": "ftp://x"}, "--upstream"),
        ({"upstream": "http://x", "tenant_header": "x team"}, "--tenant-header: the name of a header such as x-team"),
        ({"upstream": "http://x", "tenant_header": ""}, "--tenant-header"),
        ({"upstream": "http://x", "label_headers": {"a b": "x-a"}}, "--label-header: NAME=HEADER"),
        ({"upstream": "http://x", "label_headers": {"a": ""}}, "--label-header"),
        ({"upstream": "http://x", "label_headers": {f"a{i}": "x-a" for i in range(17)}}, "--label-header: at most 16"),
        ({"upstream": "http://x", "class_header": "x-class:"}, "--class-header"),
        ({"upstream": "http://key@x"}, "--upstream"),
        ({"upstream": "http://x", "listen": "8000"}, "--listen"),
        ({"upstream": "http://x", "admin": "h:99999"}, "--admin"),
        ({"upstream": "http://x", "listen": "http://127.0.0.1:8001"}, "--listen: HOST:PORT"),
        ({"upstream": "http://x", "max_requests": 0}, "--max-requests"),
        ({"upstream": "http://x", "vantage": "gateway"}, "--vantage"),
        ({"upstream": "http://x", "read_timeout_s": 0}, "--read-timeout"),
        ({"upstream": "http://x", "connect_timeout_s": float("nan")}, "--connect-timeout"),
        ({"upstream": "http://x", "write_timeout_s": float("inf")}, "--write-timeout"),
        ({"upstream": "http://x", "drain_timeout_s": -1}, "--drain-timeout"),
        ({"upstream": "http://x", "drain_timeout_s": float("inf")}, "--drain-timeout"),
        ({"upstream": "http://[::1"}, "--upstream"),
        ({"upstream": "http://a..b"}, "--upstream"),
        ({"upstream": "http://x:99999"}, "--upstream"),
        ({"upstream": "http://x", "admin": "a..b:1"}, "--admin"),
    ):
        with pytest.raises(WrongSetting, match=name):
            ProxySettings(**given)
    for upstream in ("http://[::1]:8000/v1", "https://bücher.example", "http://x:8000"):
        ProxySettings(upstream=upstream, listen="[::1]:0", drain_timeout_s=0)


def test_the_engine_is_named_by_the_setting_or_the_upstream():
    names = [
        ProxySettings(upstream="https://api.openai.com").engine_name,
        ProxySettings(upstream="http://gpu-1:8000/x").engine_name,
        ProxySettings(upstream="http://gpu-1:8000", engine="vllm").engine_name,
    ]
    assert names == ["openai", "gpu-1", "vllm"]


def test_an_address_in_use_ends_the_start_and_nothing_stays_open(monkeypatch):
    started = []
    monkeypatch.setattr(server, "Proxy", lambda settings: started.append(Proxy(settings)) or started[0])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = ProxySettings(upstream="http://127.0.0.1:9", listen=address, admin="127.0.0.1:0")
        with pytest.raises(OSError, match="address already in use"):
            asyncio.run(server._serve(settings))
    (proxy,) = started
    assert proxy._session.closed


def test_the_proxy_may_open_two_connections_for_each_request(monkeypatch):
    needed = []
    monkeypatch.setattr(open_files, "allow", needed.append)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    monkeypatch.setattr(server, "_serve", lambda _: asyncio.sleep(0, result=True))
    assert server.run(ProxySettings(upstream="http://127.0.0.1:9", max_requests=100))
    assert needed == [2 * 100 + server.OTHER_FILES]


def test_the_command_names_the_options_of_an_address_in_use(monkeypatch):
    monkeypatch.setattr(server, "run", lambda _: (_ for _ in ()).throw(OSError(98, "address already in use")))
    refused = CliRunner().invoke(app, ["proxy", "--upstream", "http://127.0.0.1:9"])
    assert refused.exit_code == 1
    assert "address already in use: --listen and --admin name other addresses" in refused.output


def test_the_admin_port_answers_no_page_that_rebound_its_name(monkeypatch):
    monkeypatch.setenv("TOKENTRAIL_ALLOWED_HOSTS", "proxy.monitoring")

    async def run():
        async with proxied("http://127.0.0.1:9") as proxy, aiohttp.ClientSession() as session:
            found = {}
            for host in ("rebound.test", "proxy.monitoring:9464", "localhost"):
                async with session.get(f"{proxy.admin_url}/metrics", headers={"Host": host}) as page:
                    found[host] = page.status
            return found

    assert asyncio.run(run()) == {"rebound.test": 421, "proxy.monitoring:9464": 200, "localhost": 200}
