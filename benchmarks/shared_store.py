"""Eight heavy queries at once while data arrives: memory, answers, and how long an insert waits for them.

Eight clients ask for the summary of thirty days at the same time, again and again, through a real server. One thread
inserts a payload of 3,000 tokens every half second, as the writer does. The peer is the same collector without limits
on queries. The database is chDB in this process, so its memory is the process's.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import typer

from benchmarks.query_10m import fill
from benchmarks.report import JsonPath, Quick, publish
from collector.api.session import QueryLimits
from collector.app.http_server import HttpServer
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.otlp.signals import TRACES
from collector.store import Store
from collector.store.insert import insert_otlp
from collector.store.schema import apply_schema
from tests.support.otlp import Request

CLIENTS = 8
PAYLOAD: bytes = Request().tokens(count=3000).body()  # type: ignore[no-untyped-call]
LIMITS = {
    "limits": QueryLimits(),
    "no_limits": QueryLimits(concurrency=100, timeout_s=600.0, memory_bytes=2**40),
}


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure and print; times are wall-clock seconds on a machine that does nothing else."""
    rows, seconds = (200_000, 5.0) if quick else (10_000_000, 40.0)
    numbers: dict[str, Any] = {"rows": rows, "clients": CLIENTS}
    now_ns = time.time_ns()
    with tempfile.TemporaryDirectory() as folder:
        dsn = f"chdb://{folder}/store"
        _in_a_process(_fill, dsn, rows, now_ns)
        numbers["idle"] = _in_a_process(_idle, dsn, seconds / 4)
        for name, limits in LIMITS.items():
            numbers[name] = _in_a_process(_under_load, dsn, now_ns, limits, seconds)
    publish("shared_store", numbers, packages=("chdb-core", "clickhouse-connect", "fastapi"), quick=quick, path=json)


def _in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a fresh process, so that the memory of one measurement is not counted in the next."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def _fill(dsn: str, rows: int, now_ns: int) -> None:
    store = Store.open(dsn)
    apply_schema(store)
    fill(store, rows, now_ns)
    store.close()


def _idle(dsn: str, seconds: float) -> dict[str, Any]:
    store = Store.open(dsn)
    inserted = _inserts(store, seconds)
    store.close()
    return inserted


def _under_load(dsn: str, now_ns: int, limits: QueryLimits, seconds: float) -> dict[str, Any]:
    store = Store.open(dsn)
    app, _ = build_api(store, (), IngestStatus(), lost_after_s=30.0, clock=lambda: now_ns, limits=limits)
    server = HttpServer(app, "benchmark", "127.0.0.1", 0)
    server.start()
    answers: Counter[str] = Counter()
    waits: list[float] = []
    stop = threading.Event()
    peak = _Peak(stop)
    clients = [threading.Thread(target=_ask, args=(server.url, stop, answers, waits)) for _ in range(CLIENTS)]
    for thread in (*clients, peak):
        thread.start()
    inserted = _inserts(store, seconds)
    stop.set()
    for thread in (*clients, peak):
        thread.join()
    server.stop(60.0)
    store.close()
    return {**inserted, "answers": dict(answers), "slowest_answer_s": max(waits, default=None), "peak_mib": peak.mib}


def _ask(url: str, stop: threading.Event, answers: Counter[str], waits: list[float]) -> None:
    with httpx.Client(base_url=url, timeout=600.0) as client:
        while not stop.is_set():
            began = time.perf_counter()
            answer = client.get("/api/v1/summary", params={"start": "-30d"})
            waits.append(time.perf_counter() - began)
            answers[str(answer.status_code)] += 1


def _inserts(store: Store, seconds: float) -> dict[str, Any]:
    took = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        began = time.perf_counter()
        insert_otlp(store, TRACES, PAYLOAD, f"benchmark-{time.time_ns()}")
        took.append(time.perf_counter() - began)
        time.sleep(max(0.0, 0.5 - took[-1]))
    return {"inserts": len(took), "insert_median_s": statistics.median(took), "insert_slowest_s": max(took)}


class _Peak(threading.Thread):
    """Watches the resident memory of this process."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop_event = stop
        self.mib = 0.0

    def run(self) -> None:
        """Sample until told to stop."""
        while not self._stop_event.wait(0.05):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.mib = max(self.mib, pages * 4096 / 2**20)


if __name__ == "__main__":
    typer.run(main)
