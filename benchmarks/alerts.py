"""Seconds from a fault to the webhook, with a real Prometheus, a real Alertmanager and the shipped rules and routes.

All scenarios run side by side, in real time: each is a cluster of its own that Prometheus scrapes every 5 s. One is a
real collector that gets OTLP and is restarted while all is well. The others are pages of `/metrics` that play a fault.
First all is well for 5.5 minutes, then the faults begin, and 11.5 minutes later it is over: 17 minutes in all. --quick
takes 5 minutes, without the slowest fault, and its seconds are too good, because less had been well before.
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json as json_
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import typer
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from alerts.engine_packs import packs
from alerts.generate import generate
from benchmarks.alerts_scenarios import OBJECTIVES, OUTAGE, SLOS, Page, Scenario, scenarios
from benchmarks.report import JsonPath, Quick, publish
from tests.support.collector import Collector
from tests.support.otlp import Request
from tokentrail.cli.processes import free_port

ALERTS = Path(__file__).parents[1] / "alerts"
SLO_FILE = "slos: [{}]".format(
    ", ".join(
        f'{{name: {name}, objective: "{objective}", window: 30d, thresholds: {{e2e: 60s}}}}'
        for name, objective in OBJECTIVES.items()
    )
)
PER_S = 1.0
"""Requests a second to the real collector."""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Run and print. Exit with 1 when an expected alert is missing or an unexpected one came."""
    if not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")):
        sys.exit("prometheus and prometheus-alertmanager must be installed")
    well_s, fault_s = (60.0, 240.0) if quick else (330.0, 690.0)
    with tempfile.TemporaryDirectory() as name:
        folder, fault_at = Path(name), time.time() + well_s
        (folder / "slos.yaml").write_text(SLO_FILE)
        collector = Collector(folder / "data", "--slos", str(folder / "slos.yaml")).start()  # type: ignore[no-untyped-call]
        real = Scenario(
            "total outage, a real collector that was restarted", {"c": page_of(collector)}, OUTAGE,
            frozenset({"TokentrailSloBurn"}),
        )  # fmt: skip
        played = [scenario for scenario in (*scenarios(), real) if scenario.needs_s <= fault_s]
        fleet, load = Fleet(played, fault_at), Load(collector, fault_at)
        with monitoring(folder, targets(played, fleet.address), fleet.address):
            load.start()
            time.sleep(well_s / 3)
            collector.stop()
            collector.start()
            time.sleep(max(0.0, fault_at + fault_s - time.time()))
        load.over.set()
        load.join()
        collector.stop()
        fleet.stop()
    results = {scenario.name: judged(scenario, fleet.first_s) for scenario in played}
    publish("alerts", {"well_s": well_s, "fault_s": fault_s, **results}, packages=(), quick=quick, path=json)
    if any(result["missing"] or result["unexpected"] for result in results.values()):
        sys.exit(1)


def judged(scenario: Scenario, first_s: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Seconds to the webhook by alert, the expected alerts that did not come, and those that should not have come."""
    came = {alert: round(s, 1) for (cluster, alert), s in sorted(first_s.items()) if cluster == scenario.name}
    allowed = scenario.expected | {alert for alert in came if alert.startswith(tuple(scenario.may_follow))}
    return {
        "seconds": came,
        "missing": sorted(scenario.expected - came.keys()),
        "unexpected": sorted(came.keys() - allowed),
    }


def page_of(collector: Collector) -> Page:
    """The collector's own page; an empty one while it does not answer."""

    def page(_: float) -> str:
        try:
            answer = httpx.get(f"{collector.urls['api']}/metrics", headers={"accept": "text/plain"}, timeout=5)
        except (httpx.HTTPError, KeyError):
            return ""
        return answer.text if answer.status_code == 200 else ""

    return page


class Load(threading.Thread):
    """One request a second to a real collector. From the fault on, each fails."""

    def __init__(self, collector: Collector, fault_at: float) -> None:
        super().__init__(daemon=True)
        self.collector, self.fault_at, self.over = collector, fault_at, threading.Event()

    def run(self) -> None:
        """Send until `over`. A body that is not acknowledged is sent again, as any exporter does."""
        waiting: list[bytes] = []
        for number in itertools.count(1):
            if self.over.wait(1 / PER_S):
                return
            waiting.append(request_body(number, failed=time.time() >= self.fault_at))
            with contextlib.suppress(httpx.HTTPError, KeyError):
                while waiting and self.collector.post(waiting[0]).status_code == 200:  # type: ignore[no-untyped-call]
                    waiting.pop(0)


def request_body(number: int, *, failed: bool) -> bytes:
    """One request that took 200 ms and ended now, as an OTLP body."""
    request = Request()  # type: ignore[no-untyped-call]
    request.span(  # type: ignore[no-untyped-call]
        "chat m", trace=number, span=number, start=time.time_ns() - 200_000_000, ns=200_000_000, kind=2,
        attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.output_tokens": 1},
        status=Status(code=Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_OK),
    )  # fmt: skip
    body: bytes = request.body()  # type: ignore[no-untyped-call]
    return body


class Fleet:
    """Serves the page of each target, and takes the webhooks of Alertmanager."""

    def __init__(self, played: list[Scenario], fault_at: float) -> None:
        self.first_s: dict[tuple[str, str], float] = {}
        """Seconds from the fault to the first webhook, by cluster and alert."""
        pages = {f"/{i}/{target}": page for i, s in enumerate(played) for target, page in s.pages.items()}
        fleet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = pages[self.path](time.time() - fault_at)
                self._answer(200 if text else 503, text)

            def do_POST(self) -> None:
                fleet.note(json_.loads(self.rfile.read(int(self.headers["Content-Length"]))), time.time() - fault_at)
                self._answer(200, "")

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # Prometheus gave up waiting
                    self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def note(self, body: Mapping[str, Any], t: float) -> None:
        """Remember when each alert of a webhook first came."""
        for alert in body["alerts"]:
            labels = alert["labels"]
            name = " ".join(labels[key] for key in ("alertname", "rule", "slo") if key in labels)
            self.first_s.setdefault((labels.get("cluster", ""), name), t)

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def targets(played: list[Scenario], address: str) -> list[dict[str, Any]]:
    """The scrape jobs: collectors in one, engines in another."""
    jobs: dict[str, list[dict[str, Any]]] = {"tokentrail-collector": [], "engines": []}
    for i, scenario in enumerate(played):
        for target in scenario.pages:
            labels = {"cluster": scenario.name, "instance": f"{i}-{target}", "__metrics_path__": f"/{i}/{target}"}
            job = jobs["engines" if target == "vllm" else "tokentrail-collector"]
            job.append({"targets": [address], "labels": labels})
    return [{"job_name": name, "honor_labels": True, "static_configs": found} for name, found in jobs.items()]


@contextlib.contextmanager
def monitoring(folder: Path, jobs: list[dict[str, Any]], hook: str) -> Iterator[None]:
    """A Prometheus and an Alertmanager with the shipped rules and routes; every receiver is the hook."""
    prometheus, alertmanager = free_port(0), free_port(0)
    rules = generate(SLOS) | {f"pack-{name}.yml": text for name, text in packs().items()}
    for name, text in rules.items():
        (folder / name).write_text(text)
    routes = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())
    for receiver in routes["receivers"]:
        receiver["webhook_configs"] = [{"url": f"http://{hook}/", "send_resolved": False}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    config = yaml.safe_load((ALERTS / "prometheus.yml").read_text()) | {
        "rule_files": [str(folder / name) for name in rules],
        "scrape_configs": jobs,
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    commands = [
        ["prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/am",
         f"--web.listen-address=127.0.0.1:{alertmanager}", "--cluster.listen-address="],
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
         f"--web.listen-address=127.0.0.1:{prometheus}"],
    ]  # fmt: skip
    with (folder / "monitoring.log").open("wb") as log:
        running = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    typer.run(main)
