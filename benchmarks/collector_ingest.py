"""CPU per span of the collector, from OTLP/HTTP to rows that can be queried, against rotel on the way to ClickHouse.

Both get the same bodies, which the SDK built: token spans in bursts, with their step, phase and request spans. The
collector's figure is all of it: receiving, checking, the fsynced log, and ClickHouse (embedded) decoding, sorting and
writing. rotel's is the receiver, its batching and its ClickHouse exporter, which posts to a server that reads and
forgets: ClickHouse's own work is not in it, nor does rotel keep a log. CPU time is user + system of the process.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import httpx
import psutil
import rotel
import typer
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.report import JsonPath, Quick, publish
from collector.store import Store
from tokentrail import Phase, Trail, now_ns, semconv
from tokentrail.config import Settings
from tokentrail.export import SendResult, SendStatus
from tokentrail.http import Endpoint

BATCH: Final = 64
TOKENS_PER_REQUEST: Final = 256
STEPS_PER_EXPORT: Final = 40
"""One second of steps, the SDK's schedule delay: about 2,600 spans a body."""
CONNECTIONS: Final = 4
HEADERS: Final = {"content-type": "application/x-protobuf"}
FLOOR_US: Final = 0.66
"""Written down before optimising: ClickHouse's Protobuf reader alone takes this per span; nothing can go below."""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Send the same bodies to both and print the ratio."""
    waves = 12 if quick else 60
    bodies, tokens, spans = _bodies(waves)
    rounds = 1 if quick else 3
    numbers: dict[str, float] = {
        "floor_us_per_span": FLOOR_US,
        "spans": spans,
        "tokens": tokens,
        "bytes_per_span_on_the_wire": sum(map(len, bodies)) / spans,
    }
    taken = [_round(bodies, tokens, spans) for _ in range(rounds)]
    for name in taken[0]:
        numbers[name] = min(one[name] for one in taken)
    numbers["ratio_collector_to_rotel"] = numbers["collector_us_per_span"] / numbers["rotel_us_per_span"]
    packages = ("tokentrail", "chdb", "chdb-core", "clickhouse-connect", "protobuf", "uvicorn", "rotel")
    publish("collector_ingest", numbers, packages=packages, quick=quick, path=json)


def _round(bodies: list[bytes], tokens: int, spans: int) -> dict[str, float]:
    numbers = _collector(bodies, tokens, spans)
    numbers["rotel_us_per_span"] = _rotel(bodies, spans)
    return numbers


class _Capture:
    """A transport that keeps the bodies that the SDK would have sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, body: bytes) -> SendResult:
        self.bodies.append(bytes(body))
        return SendResult(SendStatus.DELIVERED)


def _bodies(waves: int) -> tuple[list[bytes], int, int]:
    """Bodies of an engine at batch 64: each wave is 64 requests of 256 tokens, about 25 ms a step with jitter."""
    chance = random.Random(1)
    capture = _Capture()
    settings = Settings(Endpoint("http://null.invalid", {}), strict=True)
    resource = Resource({semconv.SERVICE_NAME: "benchmark", semconv.SERVICE_INSTANCE_ID: "engine-0"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    trail = Trail(settings, provider, transport=capture, background=False)
    at = now_ns() - waves * TOKENS_PER_REQUEST * 25_000_000
    step = 0
    for _ in range(waves):
        requests = [
            trail.start_request(operation="chat", model="m", arrival_ns=at + n * 1000, input_tokens=40)
            for n in range(BATCH)
        ]
        at += 1_000_000
        for request in requests:
            request.phase(Phase.PREFILL, at)
        for position in range(TOKENS_PER_REQUEST):
            end = at + chance.randrange(24_000, 26_000) * 1000
            trail.step(step, at, end, requests, decode_tokens=BATCH, running=BATCH, kv_used=step % 1000, kv_total=1000)
            at, step = end, step + 1
            if position == 0:
                for request in requests:
                    request.phase(Phase.DECODE, at)
            if step % STEPS_PER_EXPORT == 0:
                trail.flush(60.0)
        for request in requests:
            request.end(at, finish_reason="length")
        trail.flush(60.0)
    spans = trail.stats.exported
    trail.shutdown()
    return capture.bodies, waves * BATCH * TOKENS_PER_REQUEST, spans


def _collector(bodies: list[bytes], tokens: int, spans: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        address = "127.0.0.1:0"
        command = [sys.executable, "-m", "collector", "--data-dir", str(data), "--otlp-http", address]
        with _running([*command, "--otlp-grpc", address, "--api", address], subprocess.PIPE) as process:
            assert process.stdout
            lines = dict(process.stdout.readline().decode().split(" listening on ") for _ in range(3))
            before, begun = _cpu_s(process.pid), time.perf_counter()
            _send(lines["otlp-http"].strip() + "/v1/traces", bodies)
            acknowledged = time.perf_counter() - begun
            while list((data / "wal").glob("*.wal")):
                time.sleep(0.05)
            queryable = time.perf_counter() - begun
            spent = _cpu_s(process.pid) - before
        return {
            "collector_us_per_span": spent / spans * 1e6,
            "collector_spans_per_s_acknowledged": spans / acknowledged,
            "collector_spans_per_s_queryable": spans / queryable,
            "bytes_per_token_at_rest": _bytes_per_token(data, tokens),
        }


def _bytes_per_token(data: Path, tokens: int) -> float:
    store = Store.open(f"chdb://{data / 'store'}")
    try:
        store.client().command("OPTIMIZE TABLE tokens FINAL")
        sql = "SELECT sum(rows), sum(data_compressed_bytes) FROM system.parts WHERE active AND table = 'tokens'"
        rows, size = store.query(sql).result_rows[0]
    finally:
        store.close()
    if rows != tokens:
        raise RuntimeError(f"{tokens} tokens were sent and {rows} are stored")
    return float(size) / float(rows)


class _Forget(BaseHTTPRequestHandler):
    """Reads the inserts that a ClickHouse exporter posts, and answers as ClickHouse does."""

    protocol_version = "HTTP/1.1"
    received = 0

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                _Forget.received += len(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            _Forget.received += len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _rotel(bodies: list[bytes], spans: int) -> float:
    _Forget.received = 0
    sink = ThreadingHTTPServer(("127.0.0.1", 0), _Forget)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    ports = [_free_port(), _free_port()]
    command = [
        str(Path(rotel.__file__).parent / "rotel-agent"), "start",
        "--otlp-http-endpoint", f"127.0.0.1:{ports[0]}", "--otlp-grpc-endpoint", f"127.0.0.1:{ports[1]}",
        "--exporter", "clickhouse", "--clickhouse-exporter-endpoint", f"http://127.0.0.1:{sink.server_port}",
    ]  # fmt: skip
    with _running(command, subprocess.DEVNULL) as process:
        _wait_for(ports[0])
        before = _cpu_s(process.pid)
        _send(f"http://127.0.0.1:{ports[0]}/v1/traces", bodies)
        seen = -1
        while _Forget.received != seen:
            seen = _Forget.received
            time.sleep(1.0)
        spent = _cpu_s(process.pid) - before
    sink.shutdown()
    if seen < spans * 20:
        raise RuntimeError(f"rotel exported only {seen} bytes of {spans} spans")
    return spent / spans * 1e6


def _send(url: str, bodies: list[bytes]) -> None:
    def post(body: bytes) -> None:
        while (answer := client.post(url, content=body, headers=HEADERS)).status_code == 503:
            time.sleep(0.05)
        answer.raise_for_status()

    with httpx.Client(timeout=60.0) as client, ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(post, bodies))


@contextmanager
def _running(command: list[str], stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


if __name__ == "__main__":
    typer.run(main)
