"""CPU of one evaluation of each group of rules of 50 SLOs in Prometheus, and of `/slos` for them over 10,000 requests.

Prometheus has a made-up history, loaded with promtool: counters every 60 s for three days and every 5 s for the last
two hours, and sums of five minutes for 30 days. It goes on scraping the counters every 5 s. Each group is evaluated
alone every second; the CPU of a Prometheus that only scrapes is taken off. The peer is one group that reads every
window straight from the counters, as Sloth generates it; with a sample every 60 s it looks cheaper than it is.

The floor of `/slos` is a query that counts the rows, and the peer is the same endpoint with one SLO. The floor of the
group that reads a month of sums is a rule that counts these samples.
"""

from __future__ import annotations

import contextlib
import http.server
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import typer
import yaml
from fastapi.testclient import TestClient

from alerts.generate import generate
from alerts.text import fill, template
from benchmarks.report import JsonPath, Quick, publish
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.slo.model import Slo
from tests.collector.rows import NOW, SECOND, Rows
from tests.support.stores import open_new_store
from tokentrail.cli.processes import free_port
from tokentrail.testing import ManualClock

DAY_S = 86_400
WINDOWS = ("1m", "5m", "30m", "1h", "2h", "6h", "1d", "3d")
PER_S = 20.0
"""Requests a second of each SLO; one in a hundred is bad."""
REQUESTS = 10_000


def slo(i: int) -> Slo:
    """One of 50 SLOs, with thresholds of its own, for a class, a model or a tenant."""
    select = ({"slo_class": ["chat"]}, {"model": [f"m{i % 5}"]}, {"tenant": [f"t{i % 7}"]})[i % 3]
    thresholds = {"ttft": f"{100 + 20 * i}ms", "tpot": f"{30 + i % 10 * 7}ms"}
    content = {"name": f"slo{i}", "objective": "0.99", "window": "30d", "select": select, "thresholds": thresholds}
    return Slo.model_validate(content)


SLOS = tuple(slo(i) for i in range(50))


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure and print; about three minutes on an idle machine, and one and a half with --quick."""
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        sys.exit("prometheus and promtool must be installed")
    peer = [fill(rule, {"window": window}) for window in WINDOWS for rule in template("slo_recording")["counted"]]
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(generate(SLOS)["slos.yml"])["groups"]}
    groups["peer: all windows from the counters"] = peer
    groups["floor of the period: its samples are counted"] = [
        {"record": f"floor:{name}", "expr": f"count_over_time(slo:tokentrail_{name}:sum5m[30d])"}
        for name in ("requests", "bad_requests")
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"/slos over {REQUESTS} requests")
        numbers: dict[str, Any] = {"slos": len(SLOS), "requests": REQUESTS, **endpoint(folder, REQUESTS)}
        with counters() as address:
            say("a history of a month")
            history(folder)
            seconds = 4.0 if quick else 10.0
            idle = spent(folder, [], address, seconds)
            idle_per_s = idle.cpu_s / idle.wall_s
            for name, rules in groups.items():
                say(f"{len(rules)} rules: {name}")
                cost = spent(folder, rules, address, seconds)
                ms = (cost.cpu_s - idle_per_s * cost.wall_s) / max(cost.evaluations, 1) * 1000
                numbers[f"{name}, CPU ms per evaluation"] = round(ms, 1)
    numbers["scrapes alone (floor), CPU ms per s"] = round(idle_per_s * 1000, 1)
    publish("alerts_cost", numbers, packages=("psutil", "chdb", "clickhouse-connect"), quick=quick, path=json)


def say(measurement: str) -> None:
    """Print the name of the next measurement on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {measurement}", file=sys.stderr, flush=True)


def endpoint(folder: Path, requests: int, times: int = 15) -> dict[str, float]:
    """CPU ms of `/slos` with 50 SLOs and with one, and of the floor; the medians of `times` answers."""
    store = open_new_store(folder / "store")  # type: ignore[no-untyped-call]
    chance = random.Random(1)
    Rows(store).requests([_request(chance) for _ in range(requests)])  # type: ignore[no-untyped-call]

    def get(slos: tuple[Slo, ...]) -> Callable[[], Any]:
        app, _ = build_api(store, slos, IngestStatus(), lost_after_s=30.0, data_dir=folder, clock=ManualClock(NOW))
        client = TestClient(app)
        return lambda: client.get("/api/v1/slos").raise_for_status()

    try:
        return {
            "/slos, CPU ms": _cpu_ms(get(SLOS), times),
            "/slos with one SLO (peer), CPU ms": _cpu_ms(get(SLOS[:1]), times),
            "a query that counts the rows (floor), CPU ms": _cpu_ms(
                lambda: store.query("SELECT count() FROM requests WHERE status = 'ok'"), times
            ),
        }
    finally:
        store.close()


def _request(chance: random.Random) -> dict[str, Any]:
    """A request of the last 30 days; newer ones are more."""
    return {
        "ended": NOW - int(chance.random() ** 3 * 30 * DAY_S * SECOND) - 1,
        "e2e": int(chance.uniform(0.2, 9) * SECOND),
        "ttft_ns": int(chance.uniform(0.05, 1.5) * SECOND),
        "tpot_ns": chance.uniform(0.01, 0.12) * SECOND,
        "output_tokens": 50,
        "model": f"m{chance.randrange(5)}",
        "tenant": f"t{chance.randrange(20)}",
        "slo_class": chance.choice(["chat", "batch", ""]),
        "status": chance.choices(["ok", "error", "cancelled"], [97, 2, 1])[0],
    }


def _cpu_ms(run: Callable[[], Any], times: int) -> float:
    """The median CPU of one run in this process, all threads together."""
    for _ in range(3):
        run()
    spent = []
    for _ in range(times):
        before = time.process_time()
        run()
        spent.append(time.process_time() - before)
    return round(statistics.median(spent) * 1000, 1)


@contextlib.contextmanager
def counters() -> Iterator[str]:
    """A page of the counters that goes on where the history ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            lines = (f"{series} {_value(series, time.time()):.0f}\n" for series in COUNTERS)
            self.wfile.write("".join(lines).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _series(metric: str) -> list[str]:
    return [f'{metric}{{slo="{slo.name}"}}' for slo in SLOS]


COUNTERS = [*_series("tokentrail_slo_requests_total"), *_series("tokentrail_slo_good_requests_total")]
SUMS = [*_series("slo:tokentrail_requests:sum5m"), *_series("slo:tokentrail_bad_requests:sum5m")]
BEGAN_S = time.time() - 31 * DAY_S


def _value(series: str, at_s: float) -> float:
    """A counter at a time, or the sum of five minutes."""
    in_300_s = 300 * PER_S
    match series.partition("{")[0]:
        case "slo:tokentrail_requests:sum5m":
            return in_300_s
        case "slo:tokentrail_bad_requests:sum5m":
            return in_300_s / 100
        case name:
            share = 0.99 if "good" in name else 1.0
            return (at_s - BEGAN_S) * PER_S * share


def history(folder: Path) -> None:
    """Load the made-up samples into a new database."""
    now = int(time.time())
    recent = now - 7200
    times = [*range(now - 3 * DAY_S, recent, 60), *range(recent, now, 5)]
    with (folder / "history.txt").open("w") as file:
        for all_series, at in ((SUMS, range(now - 30 * DAY_S, now, 300)), (COUNTERS, times)):
            for series in all_series:
                stored = series if at[1] - at[0] == 300 else series.replace("{", '{instance="c",job="c",')
                file.writelines(f"{stored} {_value(series, t):.0f} {t}\n" for t in at)
        file.write("# EOF\n")
    # Blocks of 162 hours: the tool reads the whole file again for each block.
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=162h",
               str(folder / "history.txt"), str(folder / "tsdb")]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=200)


@dataclass(frozen=True)
class Spent:
    """The work of a Prometheus between two readings."""

    cpu_s: float
    wall_s: float
    evaluations: float
    """Evaluations that were made; a busy machine skips some."""


def spent(folder: Path, rules: list[dict[str, Any]], scraped: str, seconds: float) -> Spent:
    """The cost of a Prometheus that scrapes and evaluates the rules every second."""
    for leftover in ("wal", "chunks_head"):
        shutil.rmtree(folder / "tsdb" / leftover, ignore_errors=True)
    groups = [{"name": "g", "interval": "1s", "rules": rules}] if rules else []
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    target = {"targets": [scraped], "labels": {"instance": "c"}}
    job = {"job_name": "c", "scrape_interval": "5s", "static_configs": [target]}
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump({"rule_files": [str(folder / "rules.yml")], "scrape_configs": [job]})
    )
    url = f"http://127.0.0.1:{free_port(0)}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
               f"--web.listen-address={url.removeprefix('http://')}", "--storage.tsdb.retention.time=40d"]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = psutil.Popen(command, stdout=log, stderr=log)
    try:
        _wait_ready(f"{url}/-/ready")
        time.sleep(7)
        began = time.monotonic(), sum(process.cpu_times()[:2]), _evaluations(url)
        time.sleep(seconds)
        ended = time.monotonic(), sum(process.cpu_times()[:2]), _evaluations(url)
        wall_s, cpu_s, evaluations = (after - before for before, after in zip(began, ended, strict=True))
        return Spent(cpu_s, wall_s, evaluations)
    finally:
        process.kill()  # its folder is thrown away
        process.wait(20)


def _evaluations(url: str) -> float:
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    match = re.search(r"^prometheus_rule_group_duration_seconds_count (\S+)$", text, re.MULTILINE)
    return float(match[1]) if match else 0.0


def _wait_ready(url: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    sys.exit(f"{url} did not become ready in {timeout_s:.0f} s")


if __name__ == "__main__":
    typer.run(main)
