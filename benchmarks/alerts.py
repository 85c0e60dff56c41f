"""Seconds from a fault to the webhook, with a real Prometheus, a real Alertmanager and the shipped rules and routes.

All scenarios run side by side, in real time: each is a cluster of its own that Prometheus scrapes every 5 s. Most are
pages of `/metrics` that play a fault; four have a real collector that gets OTLP (`benchmarks.alerts_real`). The
processes start first. Then all is well for 5.5 minutes, the faults follow, and 6.5 minutes later it is over; the two
slowest faults begin while the others are well. Meanwhile a second Prometheus plays an hour of normal load, with the
same rules five times faster. --quick takes 5 minutes, without the slowest faults, and its seconds are too good, because
less had been well before.
"""

from __future__ import annotations

import contextlib
import http.server
import json as json_
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from alerts.engine_packs import packs
from alerts.generate import generate
from benchmarks.alerts_real import HOUR_PER_S, normal_hour, play, real_faults
from benchmarks.alerts_scenarios import SLOS, Scenario, scenarios
from benchmarks.report import JsonPath, Quick, publish
from tokentrail.cli.processes import free_port
from tokentrail.shared.durations import parse_duration

ALERTS = Path(__file__).parents[1] / "alerts"
TIMES = re.compile(r"(?<=\[)(\d+[smhdw])(?=\])|(?<=offset )(\d+[smhdw])")
"""Lengths of time within an expression: `[5m]` and `offset 1d`, and not the end of `increase5m`."""


WELL_S, FAULT_S = 330.0, 390.0
QUICK_WELL_S, QUICK_FAULT_S = 60.0, 240.0
START_S = 20.0
"""Prometheus and Alertmanager start in this time."""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Run and print. Exit with 1 when an expected alert is missing or an unexpected one came."""
    if not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")):
        sys.exit("prometheus and prometheus-alertmanager must be installed")
    well_s, fault_s = (QUICK_WELL_S, QUICK_FAULT_S) if quick else (WELL_S, FAULT_S)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = Path(name)
        hour = normal_hour(folder)
        real = [one for one in real_faults(folder, well_s) if one.scenario.fits(well_s, fault_s)]
        played = [s for s in (*scenarios(), *(one.scenario for one in real)) if s.fits(well_s, fault_s)]
        for one in (hour, *real):
            running.callback(one.stop)
            one.start()
        fault_at = time.time() + START_S + well_s
        fleet = Fleet([*played, hour.scenario], fault_at)
        running.callback(fleet.stop)
        for one in (*real, hour):
            one.load(fault_at)
        jobs = targets(played, fleet.address), targets([hour.scenario], fleet.address, first=len(played))
        running.enter_context(monitoring(folder / "seconds", jobs[0], fleet.address))
        running.enter_context(monitoring(folder / "compressed", jobs[1], fleet.address, times_faster=round(HOUR_PER_S)))
        timers = play([event for one in (*real, hour) for event in one.events], fault_at)
        time.sleep(max(0.0, fault_at + fault_s - time.time()))
        for timer in timers:
            timer.join()
    results = {scenario.name: judged(scenario, fleet.first_s) for scenario in (*played, hour.scenario)}
    lasted = {"well_s": well_s, "fault_s": fault_s, "compressed_minutes": (well_s + fault_s) * HOUR_PER_S / 60}
    lasted |= {name: s for one in real for name, s in one.took_s.items()}
    publish("alerts", lasted | results, packages=(), quick=quick, path=json)
    if any(result["missing"] or result["unexpected"] for result in results.values()):
        sys.exit(1)


def judged(scenario: Scenario, first_s: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Seconds to the webhook by alert, the expected alerts that did not come, and those that should not have come."""
    came = {
        alert: round(s - scenario.begins_s, 1)
        for (cluster, alert), s in sorted(first_s.items())
        if cluster == scenario.name
    }
    allowed = scenario.expected | {alert for alert in came if alert.startswith(tuple(scenario.may_follow))}
    return {
        "seconds": came,
        "missing": sorted(scenario.expected - came.keys()),
        "unexpected": sorted(came.keys() - allowed),
    }


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
            burn = ("alertname", "severity", "slo") if "slo" in labels else ("alertname",)
            name = " ".join(labels[key] for key in burn if key in labels)
            self.first_s.setdefault((labels.get("cluster", ""), name), t)

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def targets(played: Sequence[Scenario], address: str, *, first: int = 0) -> list[dict[str, Any]]:
    """The scrape jobs: collectors in one, engines in another. `first` is the fleet's number of the first scenario."""
    jobs: dict[str, list[dict[str, Any]]] = {"tokentrail-collector": [], "engines": []}
    for i, scenario in enumerate(played, first):
        for target in scenario.pages:
            labels = {"cluster": scenario.name, "instance": f"{i}-{target}", "__metrics_path__": f"/{i}/{target}"}
            job = jobs["engines" if target == "vllm" else "tokentrail-collector"]
            job.append({"targets": [address], "labels": labels})
    return [{"job_name": name, "honor_labels": True, "static_configs": found} for name, found in jobs.items() if found]


def compressed(rules: str, times_faster: int) -> str:
    """A rule file in which everything happens faster: windows, `for` and intervals are that many times shorter."""
    file = yaml.safe_load(rules)

    def shorter(time_: str) -> str:
        return f"{parse_duration(time_) // times_faster // 10**6}ms"

    for group in file["groups"]:
        if "interval" in group:
            group["interval"] = shorter(group["interval"])
        for rule in group["rules"]:
            rule["expr"] = TIMES.sub(lambda found: shorter(found[0]), rule["expr"])
            if "for" in rule:
                rule["for"] = shorter(rule["for"])
    return yaml.safe_dump(file)


@contextlib.contextmanager
def monitoring(folder: Path, jobs: list[dict[str, Any]], hook: str, *, times_faster: int = 1) -> Iterator[None]:
    """A Prometheus and an Alertmanager with the shipped rules and routes; every receiver is the hook."""
    folder.mkdir()
    prometheus, alertmanager = free_port(0), free_port(0)
    rules = generate(SLOS) | {f"pack-{name}.yml": text for name, text in packs().items()}
    for name, text in rules.items():
        (folder / name).write_text(compressed(text, times_faster))
    routes = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())
    for receiver in routes["receivers"]:
        receiver["webhook_configs"] = [{"url": f"http://{hook}/", "send_resolved": False}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    config = yaml.safe_load((ALERTS / "prometheus.yml").read_text())
    config["global"] = {
        name: f"{parse_duration(every) // times_faster // 10**6}ms" for name, every in config["global"].items()
    }
    config |= {
        "rule_files": [str(folder / name) for name in rules],
        "scrape_configs": jobs,
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with running_servers(folder, prometheus, alertmanager):
        yield


@contextlib.contextmanager
def running_servers(folder: Path, prometheus: int, alertmanager: int) -> Iterator[None]:
    """A Prometheus and an Alertmanager on these ports, with prometheus.yml and alertmanager.yml of a folder."""
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
