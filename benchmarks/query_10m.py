"""How much CPU an answer costs over ten thousand to ten million requests with tokens, beside plain SQL over spans.

Thirty days of synthetic requests in the real tables, ten tokens each, asked through the real HTTP application. The peer
holds the same requests as OpenTelemetry's ClickHouse exporter stores spans, one row with a map of attributes, and is
asked the same questions by plain `countIf` and `quantileExactInclusive`. Both are chDB in this process. A number is the
CPU time of the process for one answer, all threads, with merges stopped: of the first answer to a question
(`_first_cpu_ms`), and the median of those that follow, for which the collector remembers past days (`_cpu_ms`).

A run that must not last long goes on where the one before stopped:

    python -m benchmarks.query_10m --folder /tmp/q --minutes 8 --json r.json     again, until it has written r.json
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import dumps, loads
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
    folder: Annotated[Path | None, typer.Option(help="Keep stores and numbers there, to go on later.")] = None,
    minutes: Annotated[float, typer.Option(help="Stop between two steps after so long.")] = 1e6,
) -> None:
    """Measure and print milliseconds of CPU time by number of requests."""
    sizes = [n for n in (10_000, 100_000, 1_000_000, 10_000_000) if n <= (100_000 if quick else largest)]
    until_s = time.monotonic() + 60 * minutes
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="query_10m_") as temporary:
        for rows in sizes:
            place = _Place((folder or Path(temporary)) / str(rows), rows, until_s)
            found = place.measured(3 if quick else 5)
            if found is None:
                print(f"stopped at {rows} requests; run it again with the same --folder")
                raise typer.Exit(3)
            numbers |= {f"{name}_{rows}": value for name, value in found.items()}
    publish("query_10m", numbers, packages=("chdb-core", "clickhouse-connect", "fastapi"), quick=quick, path=json)
    if chart:
        shown = [name for name, question in QUESTIONS.items() if question.peer]
        lines = {
            label: [(rows, numbers[f"{name}{suffix}_cpu_ms_{rows}"]) for rows in sizes]
            for name in shown
            for label, suffix in ((name.replace("_", " "), ""), (f"{name.replace('_', ' ')} (peer)", "_peer"))
        }
        chart.write_text(growth_chart(lines, x="requests", y="CPU ms per answer"))


class _Place:
    """The store of one size, with the steps of its filling that are done and the numbers that are taken."""

    def __init__(self, folder: Path, rows: int, until_s: float) -> None:
        self._folder = folder
        self._rows = rows
        self._until_s = until_s
        self._state: dict[str, Any] = {"now_ns": time.time_ns(), "begun": 0, "done": 0, "fill_s": 0.0, "numbers": {}}
        state = folder / "state.json"
        if state.exists():
            self._state = loads(state.read_text())
        if self._state["begun"] != self._state["done"]:  # it was killed in the middle of a step
            shutil.rmtree(folder)
            self._state |= {"begun": 0, "done": 0, "fill_s": 0.0}
        folder.mkdir(parents=True, exist_ok=True)

    def measured(self, rounds: int) -> dict[str, float] | None:
        """All numbers at this size; None when the time is over."""
        if not self._state["numbers"]:
            store = Store.open(f"chdb://{self._folder}/store")
            try:
                apply_schema(store)
                if not self._filled(store):
                    return None
                store.client().command("SYSTEM STOP MERGES")
                numbers = measure(store, self._state["now_ns"], rounds)
            finally:
                store.close()
            self._save(numbers={"fill_s": self._state["fill_s"], **numbers})
        return dict(self._state["numbers"])

    def _filled(self, store: Store) -> bool:
        """Make the rows: requests, then the tables that follow from them, day by day. False when the time is over."""
        for number, (statement, day) in enumerate(_steps()):
            if number < self._state["done"]:
                continue
            if time.monotonic() > self._until_s:
                return False
            self._save(begun=number + 1)
            start = time.perf_counter()
            _run(store, statement, self._rows, self._state["now_ns"], day)
            self._save(done=number + 1, fill_s=self._state["fill_s"] + time.perf_counter() - start)
        return True

    def _save(self, **changed: Any) -> None:
        self._state |= changed
        (self._folder / "state.json").write_text(dumps(self._state))


def _steps() -> Iterator[tuple[str, int]]:
    for statement in (s for path in SQL for s in statements(without_comments(path.read_text()))):
        for day in range(DAYS) if "{day:Int64}" in statement else [0]:
            yield statement, day


def _run(store: Store, statement: str, rows: int, now_ns: int, day: int) -> None:
    parameters = {"now_ns": now_ns, "rows": rows, "window_ns": DAYS * DAY_NS, "day": day, "tokens": TOKENS_EACH}
    store.client().command(statement, parameters=parameters, settings={"max_partitions_per_insert_block": 0})


def fill(store: Store, rows: int, now_ns: int) -> None:
    """Make all rows at once, and stop merges."""
    for statement, day in _steps():
        _run(store, statement, rows, now_ns, day)
    store.client().command("SYSTEM STOP MERGES")


def measure(store: Store, now_ns: int, rounds: int) -> dict[str, float]:
    """The numbers of a store that is filled."""
    numbers: dict[str, float] = {}
    app, _ = build_api(store, load_slos(SLOS), IngestStatus(), lost_after_s=30.0, clock=lambda: now_ns)
    with TestClient(app) as client:

        def ask(path: str, params: dict[str, Any]) -> None:
            client.get(path, params=params).raise_for_status()

        for name, question in QUESTIONS.items():
            path = f"/api/v1/{question.path}"
            first, median = cpu_ms(lambda p=path, q=question: ask(p, q.params), rounds)  # type: ignore[misc]
            numbers |= {f"{name}_first_cpu_ms": first, f"{name}_cpu_ms": median}
        trace = client.get("/api/v1/requests", params={"limit": 1}).json()["requests"][0]["trace_id"]
        numbers["one_request_cpu_ms"] = cpu_ms(lambda: ask(f"/api/v1/requests/{trace}", {}), rounds)[1]
        numbers["scrape_cpu_ms"] = cpu_ms(lambda: ask("/metrics", {}), rounds)[1]
    start = {"start_ns": now_ns - DAYS * DAY_NS}
    for name, question in QUESTIONS.items():
        if question.peer:
            numbers[f"{name}_peer_cpu_ms"] = cpu_ms(lambda q=question: store.query(q.peer, start), PEER_ROUNDS)[1]  # type: ignore[misc]
    return numbers


def cpu_ms(ask: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The CPU time of a first answer and the median of `rounds` answers after it, in milliseconds."""
    taken = []
    for _ in range(rounds + 1):
        start = time.process_time()
        ask()
        taken.append((time.process_time() - start) * 1e3)
    return taken[0], statistics.median(taken[1:])


if __name__ == "__main__":
    typer.run(main)
