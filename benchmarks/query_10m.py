"""How fast the API answers over ten million requests: exact percentiles, goodput under any thresholds, SLO burn.

Thirty days of synthetic requests in the real tables, each announced on arrival as the SDK does, asked through the real
HTTP application. The database is chDB on this machine; every answer is taken several times and the median counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import typer
from fastapi.testclient import TestClient

from benchmarks.report import JsonPath, Quick, publish
from collector.service import build_api
from collector.slo.model import load_slos
from collector.status import IngestStatus
from collector.store import Store
from collector.store.schema import apply_schema

SECOND_NS = 1_000_000_000
WINDOW_NS = 30 * 86400 * SECOND_NS
SLOS = Path(__file__).parent.parent / "alerts" / "slos.yaml"

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "summary_30d": ("summary", {"start": "-30d"}),
    "summary_15m": ("summary", {}),
    "goodput_surface_30d": ("goodput", {"start": "-30d", "ttft": "500ms", "tpot": "100ms", "surface": 1}),
    "goodput_surface_15m": ("goodput", {"ttft": "500ms", "tpot": "100ms", "surface": 1}),
    "all_slos": ("slos", {}),
    "timeseries_ttft_1d": ("timeseries", {"start": "-1d", "metric": "ttft", "step": "10m"}),
    "slowest_of_30d": ("requests", {"start": "-30d", "sort": "ttft", "limit": 10}),
    "incidents_15m": ("incidents", {}),
}

REQUESTS = """
INSERT INTO requests (end, start, trace_id, span_id, engine, service, instance, model, tenant, slo_class, status,
    input_tokens, output_tokens, ttft_ns, tpot_ns, e2e_ns, queue_ns, segment, ingested_at)
WITH
    {now_ns:Int64} - intDiv({window_ns:Int64}, {rows:Int64}) * toInt64(number) - 1 AS end_ns,
    toUInt64(exp(randNormal(18.2, 0.9, number))) AS first_ns,
    exp(randNormal(17.2, 0.5, number + 1)) AS each_ns,
    toUInt32(1 + rand(number + 2) % 400) AS n,
    toUInt64(first_ns + each_ns * (n - 1)) AS whole_ns
SELECT
    fromUnixTimestamp64Nano(end_ns), fromUnixTimestamp64Nano(end_ns - toInt64(whole_ns)),
    sipHash128(number), reinterpretAsFixedString(sipHash64(number)),
    'tokentrail', 'engine', concat('i-', toString(number % 8)), 'model', concat('tenant-', toString(number % 20)),
    ['chat', 'chat', 'completion', 'batch'][1 + rand(number + 3) % 4],
    multiIf(rand(number + 4) % 200 = 0, 'error', rand(number + 5) % 100 = 0, 'cancelled', 'ok'),
    rand(number + 6) % 2000, n, first_ns, if(n > 1, each_ns, NULL), whole_ns, intDiv(first_ns, 3),
    concat('segment-', toString(intDiv(number, 1000))), fromUnixTimestamp64Nano(end_ns)
FROM numbers({rows:UInt64})
"""
ANNOUNCED = """
INSERT INTO open_requests (start, seen, trace_id, span_id, engine, service, instance, model, tenant, slo_class, ended)
SELECT start, end + INTERVAL 1 HOUR, trace_id, span_id, engine, service, instance, model, tenant, slo_class, 1
FROM requests
WHERE start {which} toStartOfDay(fromUnixTimestamp64Nano({{now_ns:Int64}}))
"""
"""As a collector that has run for these thirty days leaves it: past days are cleaned up, the present one is not."""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure and print; every number is the median in milliseconds of one whole answer, JSON included."""
    rows, rounds = (200_000, 3) if quick else (10_000_000, 5)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"chdb://{folder}/store")
        apply_schema(store)
        now_ns = time.time_ns()
        filled_s = fill(store, rows, now_ns)
        app, _ = build_api(store, load_slos(SLOS), IngestStatus(), lost_after_s=30.0, clock=lambda: now_ns)
        numbers: dict[str, Any] = {"rows": rows, "filled_s": filled_s}
        with TestClient(app) as client:
            for name, (path, params) in ASKED.items():
                numbers[f"{name}_ms"] = answer_ms(client, f"/api/v1/{path}", params, rounds)
            numbers["metrics_scrape_ms"] = answer_ms(client, "/metrics", {}, rounds)
        store.close()
    publish("query_10m", numbers, packages=("chdb-core", "clickhouse-connect", "fastapi"), quick=quick, path=json)


def fill(store: Store, rows: int, now_ns: int) -> float:
    """Seconds that it took to make the rows."""
    start = time.perf_counter()
    settings = {"max_partitions_per_insert_block": 0}
    parameters = {"now_ns": now_ns, "window_ns": WINDOW_NS, "rows": rows}
    store.client().command(REQUESTS, parameters=parameters, settings=settings)
    store.client().command(ANNOUNCED.format(which="<"), parameters=parameters, settings=settings)
    store.client().command("OPTIMIZE TABLE open_requests FINAL CLEANUP")
    store.client().command(ANNOUNCED.format(which=">="), parameters=parameters, settings=settings)
    return time.perf_counter() - start


def answer_ms(client: TestClient, path: str, params: dict[str, Any], rounds: int) -> float:
    """The median of `rounds` answers after one that warms the caches, in milliseconds."""
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        client.get(path, params=params).raise_for_status()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken[1:])


if __name__ == "__main__":
    typer.run(main)
