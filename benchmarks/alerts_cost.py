"""CPU that Prometheus spends on one evaluation of each group of rules, for 50 SLOs with a month of history.

The history is made up and loaded with promtool: counters every 60 s for three days, and sums of five minutes for 30
days. Each group is then evaluated alone every 2 s by a real Prometheus; the CPU of one without rules is taken off. The
peer is one group that reads every window straight from the counters, as Sloth generates it. With a sample every 60 s it
looks cheaper than it is: at a scrape every 5 s it reads twelve times as many.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import typer
import yaml

from alerts.generate import generate
from alerts.text import fill, template
from benchmarks.report import JsonPath, Quick, publish
from collector.slo.model import Slo
from tokentrail.cli.processes import free_port

SLOS = tuple(
    Slo.model_validate({"name": f"slo{i}", "objective": "0.99", "window": "30d", "thresholds": {"e2e": "60s"}})
    for i in range(50)
)
DAY_S = 86_400
WINDOWS = ("1m", "5m", "30m", "1h", "2h", "6h", "1d", "3d")


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure and print; about three minutes, and one with --quick."""
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        sys.exit("prometheus and promtool must be installed")
    seconds = 10.0 if quick else 30.0
    peer = [fill(rule, {"window": window}) for window in WINDOWS for rule in template("slo_recording")["counted"]]
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(generate(SLOS)["slos.yml"])["groups"]}
    groups["peer: all windows from the counters"] = peer
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        history(folder)
        idle = cpu_per_s(folder, [], seconds)
        spent = {name: (cpu_per_s(folder, rules, seconds) - idle) * 2000 for name, rules in groups.items()}
    numbers: dict[str, Any] = {"slos": len(SLOS), "idle_cpu_ms_per_s": round(idle * 1000, 2)}
    numbers |= {f"{name}, CPU ms per evaluation": round(ms, 1) for name, ms in spent.items()}
    publish("alerts_cost", numbers, packages=("psutil",), quick=quick, path=json)


def history(folder: Path) -> None:
    """Load the made-up samples into a new database."""
    now = int(time.time())
    with (folder / "history.txt").open("w") as file:
        for name, step, length in (("sum5m", 300, 30 * DAY_S), ("total", 60, 3 * DAY_S)):
            for metric, every in (("requests", 1.0), ("bad_requests" if name == "sum5m" else "good_requests", 0.99)):
                file.writelines(_series(name, metric, every, range(now - length, now, step)))
        file.write("# EOF\n")
    command = [
        "promtool",
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(folder / "history.txt"),
        str(folder / "tsdb"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _series(name: str, metric: str, share: float, times: range) -> Iterator[str]:
    full = f"slo:tokentrail_{metric}:{name}" if name == "sum5m" else f"tokentrail_slo_{metric}_total"
    for slo in SLOS:
        for i, t in enumerate(times):
            value = 100 * (share if metric == "requests" else 0.01) if name == "sum5m" else int(20 * i * share)
            yield f'{full}{{slo="{slo.name}"}} {value} {t}\n'


def cpu_per_s(folder: Path, rules: list[dict[str, Any]], seconds: float) -> float:
    """CPU seconds a second of a Prometheus that evaluates the rules every 2 s."""
    for leftover in ("wal", "chunks_head"):
        shutil.rmtree(folder / "tsdb" / leftover, ignore_errors=True)
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "interval": "2s", "rules": rules}]}))
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"rule_files": [str(folder / "rules.yml")]}))
    port = free_port(0)
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
               f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=40d"]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = psutil.Popen(command, stdout=log, stderr=log)
    try:
        _wait_ready(f"http://127.0.0.1:{port}/-/ready")
        time.sleep(4)
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        return float(sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    finally:
        process.terminate()
        process.wait(20)


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
