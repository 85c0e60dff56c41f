"""How much CPU an answer costs over ten thousand to ten million requests with tokens, beside plain SQL over spans.

Thirty days of synthetic requests in the real tables, ten tokens each, asked through the real HTTP application. The peer
holds the same requests as OpenTelemetry's ClickHouse exporter stores spans, one row with a map of attributes, and is
asked the same questions by plain `countIf` and `quantileExactInclusive`. Both are chDB in this process. A number is the
median CPU time of the process for one answer, all threads, with merges stopped.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from fastapi.testclient import TestClient

from benchmarks.chart import growth_chart
from benchmarks.report import JsonPath, Quick, publish
from collector.service import build_api
from collector.slo.model import load_slos
from collector.status import IngestStatus
from collector.store import Store
from collector.store.definitions import statements, without_comments
from collector.store.schema import apply_schema

SECOND_NS = 1_000_000_000
DAY_NS = 86400 * SECOND_NS
DAYS = 30
SLOS = Path(__file__).parent.parent / "alerts" / "slos.yaml"
SQL = [Path(__file__).parent / name for name in ("otel_traces.sql", "query_10m.sql")]
TOKENS_EACH = 10
PEER_ROUNDS = 1


@dataclass(frozen=True)
class Question:
    """An answer of the API, and the plain SQL over spans that a peer would be asked."""

    path: str
    params: dict[str, Any]
    peer: str = ""


_WINDOW = "Timestamp + toIntervalNanosecond(Duration) >= fromUnixTimestamp64Nano({start_ns:Int64})"
_TTFT = "toFloat64OrNull(SpanAttributes['tokentrail.time_to_first_token'])"
_TPOT = "toFloat64OrNull(SpanAttributes['tokentrail.time_per_output_token'])"
_GOOD = f"StatusCode = 'Ok' AND {_TTFT} <= 0.5 AND ifNull({_TPOT} <= 0.1, true)"
_LEVELS = "(0.5, 0.9, 0.95, 0.99, 0.999)"
_GRID = "[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]"
LONG = {"start": f"-{DAYS}d"}
THRESHOLDS = {"ttft": "500ms", "tpot": "100ms"}

QUESTIONS = {
    "goodput": Question(
        "goodput", LONG | THRESHOLDS,
        f"SELECT count(), countIf({_GOOD}), countIf(StatusCode = 'Error') FROM otel_traces WHERE {_WINDOW}",
    ),
    "goodput_and_surface": Question(
        "goodput", LONG | THRESHOLDS | {"surface": 1},
        f"SELECT roundDown({_TTFT}, {_GRID}), roundDown(ifNull({_TPOT}, 0), {_GRID}), count() FROM otel_traces"
        f" WHERE {_WINDOW} GROUP BY ALL",
    ),
    "summary": Question(
        "summary", LONG,
        f"SELECT count(), countIf({_GOOD}), quantilesExactInclusive{_LEVELS}({_TTFT}),"
        f" quantilesExactInclusive{_LEVELS}({_TPOT}), quantilesExactInclusive{_LEVELS}(Duration)"
        f" FROM otel_traces WHERE {_WINDOW}",
    ),
    "slos": Question(
        "slos", {},
        f"SELECT SpanAttributes['tokentrail.slo_class'] AS class, count(), countIf({_GOOD}) FROM otel_traces"
        f" WHERE {_WINDOW} GROUP BY class",
    ),
    "summary_15m": Question("summary", {}),
    "goodput_15m": Question("goodput", THRESHOLDS),
    "slowest_of_30d": Question("requests", LONG | {"sort": "ttft", "limit": 10}),
    "incidents_15m": Question("incidents", {}),
}  # fmt: skip


def main(
    quick: Quick = False,
    json: JsonPath = None,
    largest: Annotated[int, typer.Option(help="The largest number of requests.")] = 10_000_000,
    chart: Annotated[Path | None, typer.Option(help="Write the growth there, as SVG.")] = None,
) -> None:
    """Measure and print milliseconds of CPU time by number of requests."""
    sizes = [n for n in (10_000, 100_000, 1_000_000, 10_000_000) if n <= (100_000 if quick else largest)]
    numbers: dict[str, Any] = {}
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="query_10m_") as folder:
            numbers |= {
                f"{name}_{rows}": value for name, value in measure(Path(folder), rows, 3 if quick else 5).items()
            }
    publish("query_10m", numbers, packages=("chdb-core", "clickhouse-connect", "fastapi"), quick=quick, path=json)
    if chart:
        shown = [name for name, question in QUESTIONS.items() if question.peer]
        lines = {
            label: [(rows, numbers[f"{name}{suffix}_cpu_ms_{rows}"]) for rows in sizes]
            for name in shown
            for label, suffix in ((name.replace("_", " "), ""), (f"{name.replace('_', ' ')} (peer)", "_peer"))
        }
        chart.write_text(growth_chart(lines, x="requests", y="CPU ms per answer"))


def measure(folder: Path, rows: int, rounds: int) -> dict[str, float]:
    """All numbers at one size."""
    store = Store.open(f"chdb://{folder}/store")
    apply_schema(store)
    now_ns = time.time_ns()
    numbers = {"fill_s": fill(store, rows, now_ns)}
    app, _ = build_api(store, load_slos(SLOS), IngestStatus(), lost_after_s=30.0, clock=lambda: now_ns)
    with TestClient(app) as client:

        def ask(path: str, params: dict[str, Any]) -> None:
            client.get(path, params=params).raise_for_status()

        for name, question in QUESTIONS.items():
            path = f"/api/v1/{question.path}"
            numbers[f"{name}_cpu_ms"] = cpu_ms(lambda p=path, q=question: ask(p, q.params), rounds)  # type: ignore[misc]
        trace = client.get("/api/v1/requests", params={"limit": 1}).json()["requests"][0]["trace_id"]
        numbers["one_request_cpu_ms"] = cpu_ms(lambda: ask(f"/api/v1/requests/{trace}", {}), rounds)
        numbers["scrape_cpu_ms"] = cpu_ms(lambda: ask("/metrics", {}), rounds)
    start = {"start_ns": now_ns - DAYS * DAY_NS}
    for name, question in QUESTIONS.items():
        if question.peer:
            numbers[f"{name}_peer_cpu_ms"] = cpu_ms(lambda q=question: store.query(q.peer, start), PEER_ROUNDS)  # type: ignore[misc]
    store.close()
    return numbers


def fill(store: Store, rows: int, now_ns: int) -> float:
    """Seconds that it took to make the rows: requests, then the tables that follow from them, day by day."""
    start = time.perf_counter()
    settings = {"max_partitions_per_insert_block": 0}
    client = store.client()
    for statement in (s for path in SQL for s in statements(without_comments(path.read_text()))):
        days = range(DAYS) if "{day:Int64}" in statement else [0]
        for day in days:
            parameters = {"now_ns": now_ns, "rows": rows, "window_ns": DAYS * DAY_NS, "day": day, "tokens": TOKENS_EACH}
            client.command(statement, parameters=parameters, settings=settings)
    client.command("SYSTEM STOP MERGES")
    return time.perf_counter() - start


def cpu_ms(ask: Callable[[], Any], rounds: int) -> float:
    """The median CPU time of `rounds` answers after one that warms the caches, in milliseconds."""
    taken = []
    for _ in range(rounds + 1):
        start = time.process_time()
        ask()
        taken.append((time.process_time() - start) * 1e3)
    return statistics.median(taken[1:])


if __name__ == "__main__":
    typer.run(main)
