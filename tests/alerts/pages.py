"""What an outage and a slow-down send to the webhook, with a real Prometheus and Alertmanager and the shipped routes.

`python -m tests.alerts.pages` takes 16 minutes. One collector has an SLO for each of twelve faults: an outage and a
slow-down, of 3 tenants with 20 requests a minute each and of 40 with 2, as a proxy, a client of a hosted model, and a
vLLM that tells neither phases nor steps report them. It prints the posts of each and fails unless each has one page and
its end, the page within 190 s and with its reason.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
import yaml

from alerts.generate import generate
from benchmarks.alerts import running_servers
from collector.app.http_server import HttpServer
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.slo.model import load_slos
from tests.collector.rows import SECOND, Rows
from tests.support.stores import open_new_store
from tokentrail.cli.processes import free_port

ALERTS = Path(__file__).parents[2] / "alerts"
SOURCES = {
    "proxy": {"vantage": "client", "engine": "proxy"},
    "hosted": {"vantage": "client", "engine": "openai"},
    "vllm": {"vantage": "server", "engine": "vllm"},
}
FAULTS = {
    "outage": {"status": "error", "error_type": "500", "ttft_ns": None, "tpot_ns": None, "output_tokens": 0},
    "slow": {"tpot_ns": 112e6},
}
REASONS = {"outage": "ended with the error 500", "slow": "missed TPOT: 112 ms at the median, 60 ms promised"}
TENANTS = {3: 20, 40: 2}
"""Requests of each a minute, by the number of tenants."""
WITHIN_S = 190
"""The sum of its parts: docs/slos.md#error-budget-and-burn-rate."""
TICK_S = 3.0


@dataclass(frozen=True)
class Case:
    """A fault of one source and some tenants, which an SLO of its own judges."""

    source: str
    fault: str
    tenants: int

    @property
    def name(self) -> str:
        """Of its SLO and its model."""
        return f"{self.source}-{self.fault}-{self.tenants}"

    @property
    def slo(self) -> dict[str, Any]:
        """The SLO, as the file has it."""
        select = {"model": [self.name], "vantage": [SOURCES[self.source]["vantage"]]}
        promise = {"objective": "0.95", "window": "30d", "thresholds": {"ttft": "1s", "tpot": "60ms"}}
        return {"name": self.name, **promise, "select": select, "group_by": ["tenant"]}

    def requests(self, before_s: float, now_s: float, *, is_bad: bool) -> list[dict[str, Any]]:
        """The requests that ended between two times, of each tenant at moments of its own."""
        every_s = 60 / TENANTS[self.tenants]
        made = []
        for tenant in range(self.tenants):
            first = tenant * every_s / self.tenants
            n = int((now_s - first) // every_s) - int((before_s - first) // every_s)
            at = {"model": self.name, "tenant": f"t{tenant}", "service": self.source, "ttft_ns": 10**8, "tpot_ns": 2e7}
            made += [at | SOURCES[self.source] | (FAULTS[self.fault] if is_bad else {})] * n
        return made


CASES = [Case(source, fault, n) for source in SOURCES for fault in FAULTS for n in TENANTS]


class Hook:
    """A webhook that keeps what it is sent, with the time since the fault."""

    def __init__(self) -> None:
        self.posts: dict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
        self.fault_at = time.time()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                labels = body["commonLabels"]
                of = labels.get("slo", "") if labels["alertname"] == "TokentrailSloBurn" else labels["alertname"]
                hook.posts[of].append((time.time() - hook.fault_at, body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


@contextlib.contextmanager
def monitoring(folder: Path, slos: Path, collector: str, hook: str) -> Iterator[str]:
    """A Prometheus, whose address is given, and an Alertmanager, as they are shipped."""
    for name, text in generate(load_slos(slos)).items():
        (folder / name).write_text(text)
    routes = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())
    for receiver in routes["receivers"]:
        receiver["webhook_configs"] = [{"url": hook}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    ports = [free_port(0), free_port(0)]
    config = yaml.safe_load((ALERTS / "prometheus.yml").read_text()) | {
        "rule_files": [str(folder / name) for name in ("slos.yml", "conditions.yml")],
        "scrape_configs": [{"job_name": "tokentrail-collector", "static_configs": [{"targets": [collector]}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{ports[0]}"]}]}]},
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with running_servers(folder, ports[1], ports[0]):
        yield f"http://127.0.0.1:{ports[1]}"


def play(rows: Rows, live: Any, well_s: float, fault_s: float, after_s: float) -> None:
    """Store what ended, every few seconds."""
    began = before = time.time()
    while before < began + well_s + fault_s + after_s:
        time.sleep(TICK_S)
        now, segment = time.time(), str(time.time_ns())
        is_bad = well_s <= before - began < well_s + fault_s
        stamps = {"ended": time.time_ns() - SECOND, "ingested_at": time.time_ns(), "segment": segment, "e2e": SECOND}
        made = [one | stamps for case in CASES for one in case.requests(before - began, now - began, is_bad=is_bad)]
        if made:
            stored = rows.requests(made)
            rows.all_causes([(one, {"level": 0}) for one in stored])
            live.counters.on_segment(segment)
            live.counters.on_explained(segment)
        before = now


STEPS = {
    "more than half were bad": "max by (slo) (slo:tokentrail_bad_requests:ratio5m > 0.5)",
    "Prometheus fired": 'max by (slo) (ALERTS{alertname="TokentrailSloBurn",alertstate="firing",severity="page"})',
}
STATE_AGE = (
    "max_over_time((timestamp(tokentrail_collector_state_timestamp_seconds) - "
    "tokentrail_collector_state_timestamp_seconds)[10m:5s])"
)


def steps(prometheus: str, fault_at: float) -> dict[str, list[float]]:
    """When each step to a page was taken, in seconds since the fault, over all SLOs; and how old /metrics were."""
    found: dict[str, list[float]] = {}
    for name, query in STEPS.items():
        asked = {"query": query, "start": fault_at, "end": fault_at + 300, "step": 1}
        answer = httpx.get(f"{prometheus}/api/v1/query_range", params=asked, trust_env=False).json()
        found[name] = sorted(float(one["values"][0][0]) - fault_at for one in answer["data"]["result"])
    asked = {"query": STATE_AGE, "time": fault_at + 240}
    answer = httpx.get(f"{prometheus}/api/v1/query", params=asked, trust_env=False).json()
    found["oldest /metrics"] = [float(one["value"][1]) for one in answer["data"]["result"]]
    return found


def shown(case: Case, posts: list[tuple[float, dict[str, Any]]]) -> list[str]:
    """What is wrong with the posts of a case; prints them."""
    alerts = [(at_s, body["status"], alert) for at_s, body in posts for alert in body["alerts"]]
    pages = [(at_s, alert) for at_s, status, alert in alerts if status == "firing"]
    ends = [at_s for at_s, status, _ in alerts if status == "resolved"]
    cause = pages[0][1]["annotations"]["cause"] if pages else ""
    of = {alert["labels"].get("tenant", alert["labels"].get("groups", "")) for _, alert in pages}
    times = f"page {', '.join(f'{at_s:.0f}' for at_s, _ in pages)} s, end {', '.join(f'{at_s:.0f}' for at_s in ends)} s"
    print(f"{case.name:16} {len(posts)} posts, {times}, of {', '.join(sorted(of))}: {cause}")
    wrong = []
    if (len(posts), len(pages), len(ends)) != (2, 1, 1):
        wrong.append(f"{case.name}: not one page and its end")
    if pages and pages[0][0] > WITHIN_S:
        wrong.append(f"{case.name}: its page came after {pages[0][0]:.0f} s")
    if REASONS[case.fault] not in cause:
        wrong.append(f"{case.name}: its page does not say why")
    return wrong


def main(
    well: Annotated[float, typer.Option(help="Seconds before the fault.")] = 240,
    fault: Annotated[float, typer.Option(help="Seconds of it.")] = 240,
    after: Annotated[float, typer.Option(help="Seconds after it.")] = 480,
) -> None:
    """Play the faults and print what the webhook got."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slos = folder / "slos.yaml"
        slos.write_text(yaml.safe_dump({"slos": [case.slo for case in CASES]}))
        store, status, hook = open_new_store(folder / "store"), IngestStatus(), Hook()
        status.set_ready("start")
        app, live = build_api(store, load_slos(slos), status, lost_after_s=30, data_dir=folder)
        live.start()
        server = HttpServer(app, "api", "127.0.0.1", 0)
        server.start()
        with monitoring(folder, slos, server.url.removeprefix("http://"), hook.url) as prometheus:
            hook.fault_at = time.time() + well
            play(Rows(store), live, well, fault, after)
            taken = steps(prometheus, hook.fault_at)
        server.stop(10)
        live.stop(20)
        store.close()
    for step, at_s in taken.items():
        print(f"{step}: {', '.join(f'{one:.0f}' for one in at_s)} s")
    wrong = [problem for case in CASES for problem in shown(case, hook.posts.pop(case.name, []))]
    print(f"other posts: { {of: len(posts) for of, posts in hook.posts.items()} or 'none' }")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    typer.run(main)
