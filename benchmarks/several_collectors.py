"""CPU of one, two and four collectors on one ClickHouse server, for each token, beside a collector with its own store.

All get the same bodies of tokentrail's SDK, in turn. The server is chDB behind ClickHouse's HTTP interface
(tests/support/clickhouse_http.py), written in Python: a real one needs less for its HTTP, and the same for inserts.
CPU is user + system of each process from the first body until all logs are empty, after a few bodies to warm up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import typer

from benchmarks import ingest_shapes
from benchmarks.collector_ingest import CONNECTIONS, send
from benchmarks.ingest_processes import collecting, cpu_s, peak_mb, wait_until_stored
from benchmarks.report import JsonPath, Quick, publish
from tests.support.clickhouse_server import Server

COLLECTORS: Final = (1, 2, 4)


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Send the same bodies to each arrangement."""
    bodies, tokens, _ = ingest_shapes.of_our_sdk(8 if quick else 30)
    warm, _, _ = ingest_shapes.of_our_sdk(4)
    numbers: dict[str, float] = {"tokens": tokens}
    with tempfile.TemporaryDirectory() as folder:
        numbers |= _named("embedded", _spent(Path(folder), 1, None, warm, bodies), tokens)
    for count in COLLECTORS:
        with tempfile.TemporaryDirectory() as folder:
            server = Server(Path(folder))  # type: ignore[no-untyped-call]
            server.start()  # type: ignore[no-untyped-call]
            try:
                numbers |= _named(f"server_{count}", _spent(Path(folder), count, server, warm, bodies), tokens)
            finally:
                server.kill()  # type: ignore[no-untyped-call]
        print(f"{count} on one server: done", flush=True)
    publish("several_collectors", numbers, packages=("tokentrail", "chdb-core"), quick=quick, path=json)


def _spent(
    folder: Path, count: int, server: Server | None, warm: Sequence[bytes], bodies: Sequence[bytes]
) -> dict[str, float]:
    """CPU seconds of all collectors and of the server, and the most memory of a collector in MB."""
    store = f"{server.url}/default" if server else "chdb://"
    folders = [folder / f"collector-{number}" for number in range(count)]
    with ExitStack() as stack, ThreadPoolExecutor(count) as senders:
        running = [stack.enter_context(collecting(data, store)) for data in folders]
        pids = [process.pid for process, _ in running]

        def share(all_bodies: Sequence[bytes]) -> None:
            """Give each collector its part of the bodies, and wait until the store has them."""
            of_each = [all_bodies[number::count] for number in range(count)]
            urls = [url for _, url in running]
            list(senders.map(send, urls, of_each, [max(1, CONNECTIONS // count)] * count))
            for data in folders:
                wait_until_stored(data)

        def cpu() -> tuple[float, float]:
            return sum(map(cpu_s, pids)), cpu_s(server.process.pid) if server and server.process else 0.0

        share(warm)
        before = cpu()
        share(bodies)
        after = cpu()
        return {
            "collectors_cpu_s": after[0] - before[0],
            "server_cpu_s": after[1] - before[1],
            "peak_mb": max(map(peak_mb, pids)),
        }


def _named(arrangement: str, spent: dict[str, float], tokens: int) -> dict[str, float]:
    return {
        f"{arrangement}_collectors_us_per_token": spent["collectors_cpu_s"] / tokens * 1e6,
        f"{arrangement}_store_us_per_token": spent["server_cpu_s"] / tokens * 1e6,
        f"{arrangement}_peak_mb": spent["peak_mb"],
    }


if __name__ == "__main__":
    typer.run(main)
