"""A real collector that others reach: it refuses to start without keys, then asks for them on every port."""

import os
import re
import shutil
import ssl
import threading
from collections import Counter
from contextlib import suppress

import grpc
import httpx
import pytest

from collector.otlp.signals import TRACES
from tests.collector.rows import NOW
from tests.support import forked
from tests.support.certificates import make_certificate
from tests.support.collector import PROTOBUF, Collector
from tests.support.keys import add_key
from tests.support.otlp import token_body
from tests.support.stores import open_new_store

CLIENTS = 8


def test_it_does_not_start_where_others_reach_it_until_it_is_told_how(tmp_path):
    free = ["--otlp-grpc", "127.0.0.1:0", "--api", "127.0.0.1:0"]
    ended = forked.run("collector.__main__", "--data-dir", tmp_path, "--otlp-http", "0.0.0.0:0", *free)
    assert ended.returncode == 1
    assert "tokentrail keys create" in ended.stderr
    assert "TOKENTRAIL_ALLOW_ANONYMOUS=true" in ended.stderr
    assert str(tmp_path / "keys.json") in ended.stderr


def test_every_port_asks_for_a_key_and_a_new_one_counts_without_a_restart(tmp_path):
    data = tmp_path / "data"
    with Collector(data) as collector:
        assert collector.get("/api/v1/summary").status_code == 200
        reader, sender = add_key(data / "keys.json", "read", "acme"), add_key(data / "keys.json", "ingest", "acme")
        collector.wait_until(lambda: collector.get("/api/v1/summary").status_code == 401)
        assert collector.post(token_body()).status_code == 401
        assert collector.get("/metrics").status_code == 401
        assert collector.get("/readyz").status_code == 200
        assert collector.post(token_body(), **sender).status_code == 200
        answer = collector.http.get(collector.urls["api"] + "/api/v1/summary", headers=reader)
        assert answer.status_code == 200
        with grpc.insecure_channel(collector.urls["otlp-grpc"].removeprefix("http://")) as channel:
            call = channel.unary_unary(f"/{TRACES.grpc_service}/Export")
            with pytest.raises(grpc.RpcError, match="asks for a key"):
                call(token_body(), timeout=120)
            assert call(token_body(), timeout=120, metadata=[*sender.items()]) == b""
        (data / "keys.json").unlink()
        os.mkfifo(data / "keys.json")  # which nobody writes to
        said = "keys.json cannot be read: it is no regular file"
        while said not in (tmp_path / "data.log").read_text():
            assert collector.post(token_body(), **sender).status_code == 200
            assert collector.get("/healthz").status_code == 200
        assert collector.get("/metrics").status_code == 401
        assert collector.stop() == 0
    assert '"event": "denied"' in (data / "audit.denied.jsonl").read_text()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store of 500,000 requests with latencies of their own, so that percentiles need memory."""
    folder = tmp_path_factory.mktemp("filled") / "store"
    store = open_new_store(folder)
    store.client().command(
        "INSERT INTO requests (end, start, status, engine, e2e_ns, ttft_ns, tpot_ns, output_tokens) "
        f"SELECT fromUnixTimestamp64Nano({NOW} - number * 1000000) AS end, end, 'ok', 'tokentrail', 1000000 + number, "
        "500000 + number, number, 100 FROM numbers(500000)"
    )
    store.close()
    return folder


def test_eight_heavy_queries_at_once_are_bounded_and_data_goes_on_arriving(filled, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(filled, data / "store", symlinks=True)
    limits = ["--query-concurrency", "1", "--query-waiting", "3", "--query-memory-bytes", str(2**20)]
    with Collector(data, *limits) as collector:
        answers = []
        busy = threading.Event()

        def ask():
            path = f"/api/v1/summary?start={NOW // 10**9 - 30 * 86400}&end={NOW // 10**9}"
            with httpx.Client(timeout=120) as http:
                while not busy.is_set():
                    answers.append(http.get(collector.urls["api"] + path))
                    if answers[-1].status_code == 429:
                        busy.set()

        clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        stored = 0
        while any(client.is_alive() for client in clients) or not stored:
            assert collector.post(token_body(trace=stored + 1)).status_code == 200
            assert collector.get("/readyz").status_code == 200
            stored += 1
        for client in clients:
            client.join()
        refused = Counter(answer.status_code for answer in answers)
        assert refused.keys() == {503, 429}
        assert refused[503] >= 4  # one at a time and three that wait
        assert {answer.json()["detail"].partition(" ")[0] for answer in answers} == {"a", "too"}
        collector.wait_until_stored()
        metrics = collector.get("/metrics").text
        for reason, status in (("too_large", 503), ("busy", 429)):
            counted = f'tokentrail_collector_api_requests_refused_total{{reason="{reason}"}} {refused[status]}.0'
            assert counted in metrics
        assert f"tokentrail_collector_payloads_received_total {stored}" in metrics


def test_a_client_that_leaves_ends_its_query(filled, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(filled, data / "store", symlinks=True)
    with Collector(data, "--query-concurrency", "1") as collector:
        path = f"/api/v1/summary?start={NOW // 10**9 - 30 * 86400}&end={NOW // 10**9}"

        def a_query_ended():
            with suppress(httpx.ReadTimeout):
                httpx.get(collector.urls["api"] + path, timeout=httpx.Timeout(120, read=0.01))
            left = r'tokentrail_collector_api_requests_refused_total\{reason="client_left"\} [1-9]'
            return re.search(left, collector.get("/metrics").text)

        collector.wait_until(a_query_ended)
        # The place is free again.
        assert collector.get("/api/v1/slos").status_code == 200


def test_tls_on_all_ports(tmp_path):
    certificate, key = make_certificate(tmp_path)
    collector = Collector(tmp_path / "data", "--tls-cert", str(certificate), "--tls-key", str(key))
    collector.http = httpx.Client(timeout=120, verify=ssl.create_default_context(cafile=certificate))
    with collector:
        assert {url.partition(":")[0] for url in collector.urls.values()} == {"https"}
        assert collector.post(token_body()).status_code == 200
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(collector.urls["otlp-grpc"].removeprefix("https://"), credentials) as channel:
            assert channel.unary_unary(f"/{TRACES.grpc_service}/Export")(token_body(), timeout=120) == b""
        told = "tokentrail_collector_certificate_"
        assert {f"{told}usable 1.0", f"{told}not_after"} <= set(
            re.findall(rf"^{told}(?:usable .*|not_after)", collector.get("/metrics").text, re.MULTILINE)
        )
        plain = collector.urls["otlp-http"].replace("https", "http")
        with pytest.raises(httpx.HTTPError):
            httpx.post(plain + "/v1/traces", content=token_body(), headers=PROTOBUF)
