"""CPU per span of the collector, from OTLP/HTTP to rows that can be queried, against rotel on the way to ClickHouse.

Both get the same bodies, shape by shape: the token spans of tokentrail's SDK with their step, phase and request spans;
token spans as any Protobuf library writes them; spans of GenAI clients; request spans that a real vLLM sent. The
collector's figure is all of it: receiving, checking, the fsynced log, and ClickHouse (embedded) decoding, sorting and
writing. rotel's is the receiver, its batching and its ClickHouse exporter, which posts to a server that reads and
forgets: ClickHouse's own work is not in it, nor does rotel keep a log. CPU time is user + system of the process, after
both have taken a few bodies of the same shape to warm up.

The SDK's shape is also sent over 16 connections while other processes keep all cores busy, which is the other end of
the range. Bytes at rest are those of the token spans in `tokens`, and in the table of OpenTelemetry's ClickHouse
exporter without its indices.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import httpx
import psutil
import rotel
import typer

from benchmarks import ingest_shapes
from benchmarks.report import JsonPath, Quick, publish
from collector.receive.tokens import token_columns
from collector.signals import TRACES
from collector.store import Store
from collector.store.definitions import statements, without_comments
from collector.store.insert import insert_otlp
from collector.store.parts import row_count
from collector.store.schema import apply_schema

CONNECTIONS: Final = 4
MANY_CONNECTIONS: Final = 16
HEADERS: Final = {"content-type": "application/x-protobuf"}
WARM_UP_SPANS: Final = 5000
SMALL_PER_S: Final = 5
FLOOR_US: Final = {
    # 0.15 to receive 150 bytes over loopback, 0.09 for their SHA-256, 0.05 to compare them with their run, 0.03 to copy
    # them to the log, 0.13 for ClickHouse to sort and compress a row.
    "floor_us_per_token_span": 0.45,
    # 0.5 to receive 520 bytes and log them, 0.5 for their SHA-256, 1.4 for Protobuf to parse 12 attributes, 3.6 for
    # ClickHouse to decode them, 2.5 to sort, compress and merge a row of 35 columns.
    "floor_us_per_span_genai_client": 8.5,
}
"""Each step alone, on an idle machine."""
OTEL_INSERT_BODIES: Final = 40
OTEL: Final = [Path(__file__).with_name(name) for name in ("otel_traces.sql", "otel_fill.sql")]
_BUSY: Final = [sys.executable, "-c", "while True: pass"]


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Send the same bodies to both and print the ratios."""
    bodies, tokens, spans = ingest_shapes.of_our_sdk(8 if quick else 30)
    warm, warm_tokens, _ = ingest_shapes.of_our_sdk(2)
    some = 20_000 if quick else 60_000
    rounds = 1 if quick else 2
    numbers: dict[str, float] = {
        **FLOOR_US,
        "spans": spans,
        "tokens": tokens,
        "bytes_per_span_on_the_wire": sum(map(len, bodies)) / spans,
    }
    numbers |= _best(rounds, lambda: _round("", warm, bodies, spans, tokens + warm_tokens))
    with _busy_cores():
        numbers |= _best(rounds, lambda: _round("_under_load", warm, bodies, spans, connections=MANY_CONNECTIONS))
    for name, shape in (
        ("_plain_tokens", ingest_shapes.plain_tokens),
        ("_genai_client", ingest_shapes.genai_clients),
        ("_vllm", ingest_shapes.vllm_requests),
    ):
        warm, shaped = shape(WARM_UP_SPANS), shape(some)
        numbers |= _best(1, partial(_round, name, warm, shaped, some))
    numbers |= _small(4 if quick else 20)
    numbers["otel_schema_bytes_per_token_at_rest"] = _otel_bytes_per_token(bodies)
    packages = ("tokentrail", "chdb", "chdb-core", "clickhouse-connect", "protobuf", "uvicorn", "rotel")
    publish("collector_ingest", numbers, packages=packages, quick=quick, path=json)


def _best(rounds: int, take: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Take each number's least over the rounds, and the ratios of the least."""
    taken = [take() for _ in range(rounds)]
    best = {name: min(one[name] for one in taken) for name in taken[0]}
    for name in [name for name in best if name.startswith("collector_us_per_span")]:
        best[name.replace("collector_us_per_span", "ratio_collector_to_rotel")] = (
            best[name] / best[name.replace("collector", "rotel", 1)]
        )
    return best


def _round(
    name: str, warm: list[bytes], bodies: list[bytes], spans: int, tokens: int = 0, connections: int = CONNECTIONS
) -> dict[str, float]:
    numbers = _collector(warm, bodies, spans, tokens, connections)
    with _rotel() as (process, url):
        _send(url, warm, connections)
        _drained()
        before = _cpu_s(process.pid)
        _send(url, bodies, connections)
        if _drained() < spans * 20:
            raise RuntimeError(f"rotel exported only {_Forget.received} bytes of {spans} spans")
        numbers["rotel_us_per_span"] = (_cpu_s(process.pid) - before) / spans * 1e6
    return {f"{key}{name}": value for key, value in numbers.items()}


def _collector(warm: list[bytes], bodies: list[bytes], spans: int, tokens: int, connections: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with _collecting(data) as (process, url):
            _send(url, warm, connections)
            _wait_until_stored(data)
            before, begun = _cpu_s(process.pid), time.perf_counter()
            _send(url, bodies, connections)
            acknowledged = time.perf_counter() - begun
            _wait_until_stored(data)
            waited = time.perf_counter() - begun - acknowledged
            spent = _cpu_s(process.pid) - before
            peak = _peak_mb(process.pid)
        numbers = {
            "collector_us_per_span": spent / spans * 1e6,
            "collector_spans_per_s_acknowledged": spans / acknowledged,
            "collector_s_until_last_span_is_queryable": waited,
            "collector_peak_memory_mb": peak,
        }
        return numbers | ({"bytes_per_token_at_rest": _bytes_per_token(data, tokens)} if tokens else {})


def _small(seconds: int) -> dict[str, float]:
    """Share of one core in % at five bodies of one span a second, beside the share without any."""
    bodies = ingest_shapes.small_bodies(seconds * SMALL_PER_S)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with _collecting(data) as (process, url):
            _send(url, ingest_shapes.small_bodies(1), 1)
            _wait_until_stored(data)
            idle = _share(process.pid, lambda: time.sleep(seconds))
            busy = _share(process.pid, lambda: _send_slowly(url, bodies))
    with _rotel() as (process, url):
        theirs = _share(process.pid, lambda: _send_slowly(url, bodies))
    return {
        "collector_share_of_a_core_idle_percent": idle,
        "collector_share_of_a_core_small_bodies_percent": busy,
        "rotel_share_of_a_core_small_bodies_percent": theirs,
    }


def _share(pid: int, work: Callable[[], None]) -> float:
    before, begun = _cpu_s(pid), time.perf_counter()
    work()
    return (_cpu_s(pid) - before) / (time.perf_counter() - begun) * 100


def _send_slowly(url: str, bodies: Sequence[bytes]) -> None:
    with httpx.Client(timeout=60.0) as client:
        for body in bodies:
            client.post(url, content=body, headers=HEADERS).raise_for_status()
            time.sleep(1 / SMALL_PER_S)


@contextmanager
def _collecting(data: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    address = "127.0.0.1:0"
    command = [sys.executable, "-m", "collector", "--data-dir", str(data), "--otlp-http", address]
    with _running([*command, "--otlp-grpc", address, "--api", address], subprocess.PIPE) as process:
        assert process.stdout
        lines = dict(process.stdout.readline().decode().split(" listening on ") for _ in range(3))
        yield process, lines["otlp-http"].strip() + "/v1/traces"


def _wait_until_stored(data: Path) -> None:
    while list((data / "wal").glob("*.wal")):
        time.sleep(0.05)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))


def _bytes_per_token(data: Path, tokens: int) -> float:
    store = Store.open(f"chdb://{data / 'store'}")
    try:
        return _bytes_per_row(store, "tokens", tokens)
    finally:
        store.close()


def _otel_bytes_per_token(bodies: list[bytes]) -> float:
    """The token spans of the same bodies in the table of OpenTelemetry's exporter."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"chdb://{folder}/store")
        try:
            apply_schema(store)
            views = store.query("SELECT name FROM system.tables WHERE engine = 'MaterializedView'").result_rows
            for (view,) in views:
                store.client().command(f"DROP VIEW {view} SYNC")
            for path in OTEL:
                for statement in statements(without_comments(path.read_text())):
                    store.client().command(statement)
            of_tokens = [(body, columns) for body in bodies if (columns := token_columns(body))]
            for begin in range(0, len(of_tokens), OTEL_INSERT_BODIES):
                some = b"".join(body for body, _ in of_tokens[begin : begin + OTEL_INSERT_BODIES])
                insert_otlp(store, TRACES, some, f"bodies from {begin}")
            return _bytes_per_row(store, "otel_traces", sum(row_count(columns) for _, columns in of_tokens))
        finally:
            store.close()


def _bytes_per_row(store: Store, table: str, expected: int) -> float:
    store.client().command(f"OPTIMIZE TABLE {table} FINAL")
    sql = f"SELECT sum(rows), sum(data_compressed_bytes) FROM system.parts WHERE active AND table = '{table}'"
    rows, size = store.query(sql).result_rows[0]
    if rows != expected:
        raise RuntimeError(f"{expected} tokens were sent and {rows} are stored")
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


@contextmanager
def _rotel() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
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
        yield process, f"http://127.0.0.1:{ports[0]}/v1/traces"
    sink.shutdown()


def _drained() -> int:
    seen = -1
    while _Forget.received != seen:
        seen = _Forget.received
        time.sleep(1.0)
    return seen


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Keep every core busy with another process."""
    others = [subprocess.Popen(_BUSY) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _send(url: str, bodies: list[bytes], connections: int) -> None:
    def post(body: bytes) -> None:
        while (answer := client.post(url, content=body, headers=HEADERS)).status_code == 503:
            time.sleep(0.05)
        answer.raise_for_status()

    # Under load, a connection that expires while it is idle may be closed under a thread that has just taken it.
    limits = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(timeout=60.0, limits=limits) as client, ThreadPoolExecutor(connections) as pool:
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
