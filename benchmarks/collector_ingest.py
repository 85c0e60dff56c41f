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

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx
import typer

from benchmarks import ingest_shapes
from benchmarks.ingest_floor import drop_views, floors
from benchmarks.ingest_processes import (
    LONGEST_WAIT_S,
    busy_cores,
    collecting,
    cpu_s,
    peak_mb,
    running_rotel,
    wait_until_exported,
    wait_until_stored,
)
from benchmarks.report import JsonPath, Quick, publish
from collector.otlp.signals import TRACES
from collector.otlp.tokens import token_columns
from collector.store import Store
from collector.store.definitions import statements, without_comments
from collector.store.insert import insert_otlp
from collector.store.parts import row_count
from collector.store.schema import apply_schema

CONNECTIONS: Final = 4
MANY_CONNECTIONS: Final = 16
HEADERS: Final = {"content-type": "application/x-protobuf"}
WARM_UP_SPANS: Final = 5000
LEAST_EXPORTED_BYTES: Final = 20
"""Of a span, compressed."""
SMALL_PER_S: Final = 5
OTEL_INSERT_BODIES: Final = 40
OTEL: Final = [Path(__file__).with_name(name) for name in ("otel_traces.sql", "otel_fill.sql")]


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Send the same bodies to both and print the ratios."""
    bodies, tokens, spans = ingest_shapes.of_our_sdk(8 if quick else 30)
    warm, warm_tokens, _ = ingest_shapes.of_our_sdk(2)
    some = 20_000 if quick else 60_000
    rounds = 1 if quick else 2
    numbers: dict[str, float] = {
        "spans": spans,
        "tokens": tokens,
        "bytes_per_span_on_the_wire": sum(map(len, bodies)) / spans,
    }
    took: dict[str, float] = {}

    def measure(part: str, take: Callable[[], dict[str, float]]) -> None:
        """Add the numbers of one part, and print when it is done: the whole takes minutes."""
        begun = time.perf_counter()
        numbers.update(take())
        took[part] = time.perf_counter() - begun
        print(f"{part}: {took[part]:.0f} s", flush=True)

    measure("own", lambda: _best(rounds, lambda: _round("", warm, bodies, spans, tokens + warm_tokens)))
    with busy_cores():
        under_load = partial(_round, "_under_load", warm, bodies, spans, connections=MANY_CONNECTIONS)
        measure("under_load", lambda: _best(1, under_load))
    shapes = {"_genai_client": ingest_shapes.genai_clients, "_vllm": ingest_shapes.vllm_requests}
    for name, shape in {"_plain_tokens": ingest_shapes.plain_tokens, **shapes}.items():
        warm, shaped = shape(WARM_UP_SPANS), shape(some)
        measure(name.strip("_"), partial(_best, 1, partial(_round, name, warm, shaped, some)))
    measure("floors", lambda: floors(bodies, {name: shape(some) for name, shape in shapes.items()}, some))
    measure("small_bodies", lambda: _small(4 if quick else 20))
    measure("otel_schema", lambda: {"otel_schema_bytes_per_token_at_rest": _otel_bytes_per_token(bodies)})
    numbers["seconds"] = sum(took.values())
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
    with running_rotel() as (process, url):
        send(url, warm, connections)
        of_warm_up = wait_until_exported(1)
        before = cpu_s(process.pid)
        send(url, bodies, connections)
        wait_until_exported(of_warm_up + spans * LEAST_EXPORTED_BYTES)
        numbers["rotel_us_per_span"] = (cpu_s(process.pid) - before) / spans * 1e6
    return {f"{key}{name}": value for key, value in numbers.items()}


def _collector(warm: list[bytes], bodies: list[bytes], spans: int, tokens: int, connections: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with collecting(data) as (process, url):
            send(url, warm, connections)
            wait_until_stored(data)
            before, begun = cpu_s(process.pid), time.perf_counter()
            send(url, bodies, connections)
            acknowledged = time.perf_counter() - begun
            wait_until_stored(data)
            waited = time.perf_counter() - begun - acknowledged
            spent = cpu_s(process.pid) - before
            peak = peak_mb(process.pid)
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
        with collecting(data) as (process, url):
            send(url, ingest_shapes.small_bodies(1), 1)
            wait_until_stored(data)
            idle = _share(process.pid, lambda: time.sleep(seconds))
            busy = _share(process.pid, lambda: _send_slowly(url, bodies))
    with running_rotel() as (process, url):
        theirs = _share(process.pid, lambda: _send_slowly(url, bodies))
    return {
        "collector_share_of_a_core_idle_percent": idle,
        "collector_share_of_a_core_small_bodies_percent": busy,
        "rotel_share_of_a_core_small_bodies_percent": theirs,
    }


def _share(pid: int, work: Callable[[], None]) -> float:
    before, begun = cpu_s(pid), time.perf_counter()
    work()
    return (cpu_s(pid) - before) / (time.perf_counter() - begun) * 100


def _send_slowly(url: str, bodies: Sequence[bytes]) -> None:
    with httpx.Client(timeout=60.0) as client:
        for body in bodies:
            _post(client, url, body)
            time.sleep(1 / SMALL_PER_S)


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
            drop_views(store)
            for path in OTEL:
                for statement in statements(without_comments(path.read_text())):
                    store.client().command(statement)
            of_tokens = [(body, columns) for body in bodies if (columns := token_columns(body))]
            for begin in range(0, len(of_tokens), OTEL_INSERT_BODIES):
                some = b"".join(body for body, _ in of_tokens[begin : begin + OTEL_INSERT_BODIES])
                insert_otlp(store, TRACES, some, f"bodies from {begin}")
            return _bytes_per_row(store, "otel_traces", row_count([columns for _, columns in of_tokens]))
        finally:
            store.close()


def _bytes_per_row(store: Store, table: str, expected: int) -> float:
    store.client().command(f"OPTIMIZE TABLE {table} FINAL")
    sql = f"SELECT sum(rows), sum(data_compressed_bytes) FROM system.parts WHERE active AND table = '{table}'"
    rows, size = store.query(sql).result_rows[0]
    if rows != expected:
        raise RuntimeError(f"{expected} tokens were sent and {rows} are stored")
    return float(size) / float(rows)


def send(url: str, bodies: Sequence[bytes], connections: int) -> None:
    """Send bodies as an exporter does: again after a 503, and again when the server has closed an idle connection."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    with httpx.Client(timeout=60.0, limits=limits) as client, ThreadPoolExecutor(connections) as pool:
        list(pool.map(partial(_post, client, url), bodies))


def _post(client: httpx.Client, url: str, body: bytes) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_S
    while True:
        try:
            answer = client.post(url, content=body, headers=HEADERS)
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
        else:
            if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                answer.raise_for_status()
                return
        time.sleep(0.05)


if __name__ == "__main__":
    typer.run(main)
