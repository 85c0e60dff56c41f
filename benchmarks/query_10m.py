"""How much CPU an answer costs over ten thousand to ten million requests with tokens, beside plain SQL over spans.

Thirty days of synthetic requests in the real tables, ten tokens each, asked through the real HTTP application. The peer
holds the same requests as OpenTelemetry's ClickHouse exporter stores spans, one row with a map of attributes, and is
asked the same questions by plain `countIf` and `quantileExactInclusive`. Both are chDB in this process. A number is the
CPU time of the process for one answer, all threads, with merges in between: of the first answer to a question
(`_first_cpu_ms`), and the median of later ones, for which the collector remembers past days and hours (`_cpu_ms`).
A request with a token is inserted before each answer, a second later, as in live traffic. Some questions are asked
with forty SLOs too. Each request has its row of causes, by which `/explain` and `/requests/{trace_id}` answer.

ITL of an hour is asked in a store of its own: a hundred thousand requests that ended in the last hour, with a hundred
tokens each. Its peer reads exact percentiles of the durations of all tokens of that hour.

A run that must not last long goes on where the one before stopped:

    python -m benchmarks.query_10m --folder /tmp/q --minutes 8 --json r.json     again, until it has written r.json
    python -m benchmarks.query_10m --folder /tmp/q --fill                        makes the rows and measures nothing
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any

import typer
from fastapi.testclient import TestClient

from benchmarks.chart import growth_chart
from benchmarks.report import JsonPath, Quick, publish
from collector.app.service import build_api
from collector.ask.past_days import partition
from collector.ask.queries import Queries
from collector.ask.window import Window
from collector.base.status import IngestStatus
from collector.causes.split.names import PARTS
from collector.numbers.itl import itl
from collector.slo.model import Slo, load_slos
from collector.sql.fragment import TRUE
from collector.store import Store
from collector.store.definitions import statements, without_comments
from collector.store.schema import apply_schema

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
DAYS = 30
SLOS = Path(__file__).parent.parent / "alerts" / "slos.yaml"
PEER_TABLE, FILL, ARRIVAL = (
    Path(__file__).parent / name for name in ("otel_traces.sql", "query_10m.sql", "query_10m_arrival.sql")
)
ONE_BLOCK = {
    "max_partitions_per_insert_block": 0,
    "min_insert_block_size_rows": 8_000_000,
    "min_insert_block_size_bytes": 2**31,
    "max_insert_threads": 1,
}
"""Settings of inserts. Smaller blocks would leave several parts of a day, and a merge costs as much as the insert."""


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
_ALL_TOKENS = (
    f"SELECT quantilesExactInclusive{_LEVELS}(duration_us) FROM tokens"
    " WHERE minute >= toStartOfMinute(fromUnixTimestamp64Nano({start_ns:Int64})) AND token_index > 0"
)
LONG = {"start": f"-{DAYS}d"}
MILLION = {"start": "-3d"}
"""A million of ten million requests, which are spread over thirty days."""
THRESHOLDS = {"ttft": "500ms", "tpot": "100ms"}

QUESTIONS = {
    "goodput": Question(
        "goodput", LONG | THRESHOLDS,
        f"SELECT count(), countIf({_GOOD}), countIf(StatusCode = 'Error') FROM otel_traces WHERE {_WINDOW}",
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
    "explain_15m": Question("explain", {}),
    "explain_1m": Question("explain", MILLION),
    "timeouts_1m": Question("timeouts", MILLION),
    "explain_1m_without_each": Question("explain", MILLION | {"without": PARTS[:-1]}),
    "heatmap": Question("heatmap", LONG | {"metric": "ttft"}),
    "differences_1m": Question("differences", MILLION),
    "compare_two_days": Question("compare", {"a.start": "-2d", "a.end": "-1d", "b.start": "-1d"}),
    "changes": Question("changes", LONG),
}  # fmt: skip
_OF_ANALYSIS = ("explain_1m", "heatmap", "differences_1m", "compare_two_days", "changes")
"""Charts show their growth too."""
OF_MANY_SLOS = {
    "bad_of_30d": Question("requests", LONG | {"verdict": "bad"}),
    "goodput_over_30d": Question("timeseries", LONG | {"metric": "goodput", "step": "6h"}),
}
"""Asked with two SLOs for each tenant, all of which burn: for its chat, and for all of its requests."""


def main(
    quick: Quick = False,
    json: JsonPath = None,
    largest: Annotated[int, typer.Option(help="The largest number of requests.")] = 10_000_000,
    chart: Annotated[Path | None, typer.Option(help="Write the growth there, as SVG.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Keep the stores there, to go on later.")] = None,
    minutes: Annotated[float, typer.Option(help="Stop between two inserts after so long.")] = 1e6,
    fill: Annotated[bool, typer.Option("--fill", help="Make the rows, and measure nothing.")] = False,
) -> None:
    """Measure and print milliseconds of CPU time by number of requests."""
    sizes = [n for n in (10_000, 100_000, 1_000_000, 10_000_000) if n <= (100_000 if quick else largest)]
    rounds, until_s = 3 if quick else 5, time.monotonic() + 60 * minutes
    hour = Load(2_000 if quick else 100_000, HOUR_NS, tokens=100)
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="query_10m_") as temporary:
        at = folder or Path(temporary)
        places = {
            **{rows: _Place(at / str(rows), Load(rows), until_s) for rows in sizes},
            0: _Place(at / "hour", hour, until_s),
        }
        if not all(place.filled() for place in places.values()):
            print("there was no time to make all rows; run it again with the same --folder")
            raise typer.Exit(3)
        if fill:
            return
        numbers = places.pop(0).measured(lambda store, now_ns: measure_itl(store, now_ns, rounds))
        for rows, place in places.items():
            of_place = place.measured(lambda store, now_ns: measure(store, now_ns, rounds))
            numbers |= {f"{name}_{rows}": value for name, value in of_place.items()}
    publish("query_10m", numbers, packages=("chdb-core", "clickhouse-connect", "fastapi"), quick=quick, path=json)
    if chart:
        lines = {
            f"{name.replace('_', ' ')}{label}": [(rows, numbers[f"{name}{suffix}_cpu_ms_{rows}"]) for rows in sizes]
            for name, question in QUESTIONS.items()
            for label, suffix in (("", ""), *([(" (peer)", "_peer")] if question.peer else []))
            if question.peer or name in _OF_ANALYSIS
        }
        chart.write_text(growth_chart(lines, x="requests", y="CPU ms per answer"))


@dataclass(frozen=True)
class Load:
    """Requests that ended at even distances in the time before now."""

    rows: int
    window_ns: int = DAYS * DAY_NS
    tokens: int = 10
    """Output tokens of a request, on average."""

    def steps(self, now_ns: int) -> Iterator[_Step]:
        """The inserts that fill a store, table by table and day by day, the present day first."""
        apart_ns, today = self.window_ns // self.rows, now_ns // DAY_NS
        whole = {"now_ns": now_ns, "rows": self.rows, "apart_ns": apart_ns, "tokens": self.tokens}
        for statement in statements(without_comments(FILL.read_text())):
            table = statement.split()[2]
            if not {"{day_ns:Int64}", "{first:UInt64}"} & {*re.findall(r"\{\w+:\w+\}", statement)}:
                yield _Step(table, statement, whole)
                continue
            for day in range(today, (now_ns - self.window_ns) // DAY_NS - 1, -1):
                first, last = (self._number(now_ns - one * DAY_NS, apart_ns) for one in (day + 1, day))
                yield _Step(table, statement, {**whole, "day_ns": day * DAY_NS, "first": first, "count": last - first})

    def _number(self, back_ns: int, apart_ns: int) -> int:
        """How many requests ended less than so long ago. Request n ended n · `apart_ns` + 1 ns ago."""
        return min(self.rows, max(0, (back_ns - 1) // apart_ns + 1))


@dataclass(frozen=True)
class _Step:
    """One insert: its table, its SQL, and the values that it binds."""

    table: str
    statement: str
    parameters: Mapping[str, int]

    def run(self, store: Store) -> None:
        """Insert. One block of rows, and so one part, holds a day."""
        store.client().command(self.statement, parameters=dict(self.parameters), settings=ONE_BLOCK)


class _Place:
    """The store of one load, with the steps of its filling that are done and the numbers that are taken."""

    def __init__(self, folder: Path, load: Load, until_s: float) -> None:
        self._folder = folder
        self._load = load
        self._until_s = until_s
        self._state: dict[str, Any] = {"now_ns": time.time_ns(), "begun": 0, "done": 0, "fill_cpu_s": 0.0}
        state = folder / "state.json"
        if state.exists():
            self._state = loads(state.read_text())
        folder.mkdir(parents=True, exist_ok=True)

    def filled(self) -> bool:
        """Make the rows. False when the time is over."""
        steps = [*self._load.steps(self._state["now_ns"])]
        if self._state["done"] == len(steps):
            return True
        with self._store() as store:
            self._begin_again(store, steps)
            for number in range(self._state["done"], len(steps)):
                if time.monotonic() > self._until_s:
                    return False
                self._save(begun=number + 1)
                start = time.process_time()
                steps[number].run(store)
                self._save(done=number + 1, fill_cpu_s=self._state["fill_cpu_s"] + time.process_time() - start)
        return True

    def measured(self, measure: Callable[[Store, int], dict[str, float]]) -> dict[str, float]:
        """The numbers of the store, which is filled."""
        with self._store() as store:
            return {"fill_cpu_s": self._state["fill_cpu_s"], **measure(store, self._state["now_ns"])}

    @contextmanager
    def _store(self) -> Iterator[Store]:
        store = Store.open(f"chdb://{self._folder}/store")
        try:
            _prepare(store)
            yield store
        finally:
            store.close()

    def _begin_again(self, store: Store, steps: Sequence[_Step]) -> None:
        """Empty the table in whose insert the process was killed, and fill it from its first step on."""
        begun = self._state["begun"]
        if begun != self._state["done"]:
            table = steps[begun - 1].table
            store.client().command(f"TRUNCATE TABLE {table}")
            first = next(i for i, step in enumerate(steps) if step.table == table)
            self._save(begun=first, done=first)

    def _save(self, **changed: Any) -> None:
        self._state |= changed
        (self._folder / "state.json").write_text(dumps(self._state))


def _prepare(store: Store) -> None:
    """Make the tables, and stop merges: they would take CPU while answers are measured."""
    apply_schema(store)
    store.client().command(PEER_TABLE.read_text())
    store.client().command("SYSTEM STOP MERGES")


def fill(store: Store, rows: int, now_ns: int) -> None:
    """Make all rows of thirty days at once."""
    _prepare(store)
    for step in Load(rows).steps(now_ns):
        step.run(store)


def measure(store: Store, now_ns: int, rounds: int) -> dict[str, float]:
    """The numbers of a store that is filled."""
    numbers: dict[str, float] = {}
    moment_ns = now_ns

    # Time goes on, so no answer has the bounds of the one before, whose rows ClickHouse would remember.
    def arrive() -> None:
        nonlocal moment_ns
        moment_ns += SECOND_NS
        for statement in statements(without_comments(ARRIVAL.read_text())):
            store.client().command(statement, parameters={"now_ns": moment_ns})

    def client_of(slos: Sequence[Slo]) -> TestClient:
        app, _ = build_api(store, slos, IngestStatus(), lost_after_s=30.0, clock=lambda: moment_ns)
        return TestClient(app)

    def ask_all(client: TestClient, questions: Mapping[str, Question], suffix: str = "") -> None:
        for name, question in questions.items():
            _merge_arrivals(store, moment_ns)
            first, median = cpu_ms(lambda q=question: _ask(client, q), rounds, arrive)  # type: ignore[misc]
            numbers.update({f"{name}{suffix}_first_cpu_ms": first, f"{name}{suffix}_cpu_ms": median})

    with client_of(load_slos(SLOS)) as client:
        ask_all(client, QUESTIONS)
        # Each time another one: ClickHouse remembers where it found the last.
        traces = iter([Question(f"requests/{_newest_trace(client, day)}", {}) for day in range(1, rounds + 2)])
        numbers["one_request_cpu_ms"] = cpu_ms(lambda: _ask(client, next(traces)), rounds)[1]
        numbers["scrape_cpu_ms"] = cpu_ms(lambda: client.get("/metrics").raise_for_status(), rounds)[1]
    with client_of(many_slos()) as client:
        ask_all(client, OF_MANY_SLOS, "_40_slos")
    start = {"start_ns": now_ns - DAYS * DAY_NS}
    for name, question in QUESTIONS.items():
        if question.peer:
            numbers[f"{name}_peer_cpu_ms"] = cpu_ms(lambda q=question: store.query(q.peer, start), 0)[0]  # type: ignore[misc]
    return numbers


def _ask(client: TestClient, question: Question) -> None:
    client.get(f"/api/v1/{question.path}", params=question.params).raise_for_status()


def many_slos() -> list[Slo]:
    """Two SLOs for each of the twenty tenants, with different thresholds."""
    slos = []
    for i in range(20):
        common = {"select": {"tenant": [f"tenant-{i}"]}, "window": "30d", "objective": "0.95"}
        chat = {"tenant": [f"tenant-{i}"], "slo_class": ["chat"]}
        fast = {"ttft": f"{(300, 500, 800, 1000)[i % 4]}ms", "tpot": f"{(40, 60, 100)[i % 3]}ms"}
        slow = {"e2e": f"{(500, 1000, 2000)[i % 3]}ms"}
        slos += [
            Slo.model_validate({**common, "name": f"chat-{i}", "select": chat, "thresholds": fast}),
            Slo.model_validate({**common, "name": f"all-{i}", "window": "7d", "thresholds": slow}),
        ]
    return slos


def _merge_arrivals(store: Store, now_ns: int) -> None:
    """Merge the parts of the present day, as live traffic has few small ones at a time."""
    day = partition(now_ns // DAY_NS)
    store.client().command("SYSTEM START MERGES")
    for table in ("requests", "tokens"):
        store.client().command(f"OPTIMIZE TABLE {table} PARTITION ID '{day}' FINAL")
    store.client().command("SYSTEM STOP MERGES")


def _newest_trace(client: TestClient, days: int) -> str:
    """The newest request that ended so many days ago or earlier."""
    params: dict[str, Any] = {"limit": 1, "start": f"-{days + 1}d", "end": f"-{days}d"}
    trace_id: str = client.get("/api/v1/requests", params=params).json()["requests"][0]["trace_id"]
    return trace_id


def measure_itl(store: Store, now_ns: int, rounds: int) -> dict[str, float]:
    """The numbers of the store with an hour of many tokens."""
    queries = Queries(store)
    window = Window(now_ns - HOUR_NS, now_ns, TRUE)
    tokens = itl(queries, window)
    peer = {"start_ns": window.start_ns}
    return {
        "itl_1h_tokens": tokens.count,
        "itl_1h_cpu_ms": cpu_ms(lambda: itl(queries, window), rounds)[1],
        "itl_1h_peer_cpu_ms": cpu_ms(lambda: store.query(_ALL_TOKENS, peer), rounds)[1],
    }


def cpu_ms(ask: Callable[[], Any], rounds: int, before: Callable[[], None] = lambda: None) -> tuple[float, float]:
    """The CPU time of a first answer and the median of `rounds` answers after it, in milliseconds.

    `before` is called before each answer and not measured. Without rounds, the first answer is both.
    """
    taken = []
    for _ in range(rounds + 1):
        before()
        start = time.process_time()
        ask()
        taken.append((time.process_time() - start) * 1e3)
    return taken[0], statistics.median(taken[1:] or taken)


if __name__ == "__main__":
    typer.run(main)
