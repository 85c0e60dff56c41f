"""The gate through the real command: two hours of requests reach a collector, and `tokentrail check` asks all the time.

The requests have times of the past two hours, and come five minutes at a time. After each, two commands ask: one
compares the variants, one asks about the objective alone.
"""

from __future__ import annotations

import json as json_module
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import typer

from benchmarks.chance_time import noise
from benchmarks.report import JsonPath, Quick, publish
from collector.measure.times import SECOND_NS, rfc3339
from tests.support.collector import Collector
from tests.support.otlp import Request

SECONDS = 7200
EACH_S = 300
PER_S = 0.5
"""Requests of each variant."""
SLOS = "slos: [{name: chat, objective: 0.95, window: 30d, thresholds: {e2e: 1.2s}}]"
KINDS = {"identical": (0, 1.0), "identical, noise of 2 min": (120, 1.0), "× 1.5": (0, 1.5)}


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Send, ask and count. It takes about four minutes of one core; --quick is one kind and half an hour."""
    numbers: dict[str, Any] = {}
    for name, (tau_s, slower) in [*KINDS.items()][: 1 if quick else None]:
        seconds = 1800 if quick else SECONDS
        with tempfile.TemporaryDirectory() as folder:
            slos = Path(folder) / "slos.yaml"
            slos.write_text(SLOS)
            with Collector(Path(folder) / "data", "--slos", str(slos)) as collector:  # type: ignore[no-untyped-call]
                verdicts = _polled(collector, np.random.default_rng(1), tau_s, slower, seconds)
        for gate, found in verdicts.items():
            counts = {one: found.count(one) for one in ("good", "worse", "not decided")}
            first = next((i for i, one in enumerate(found, 1) if one == "worse"), None)
            numbers[f"{name}, {gate}"] = {**counts, "seconds_until_worse": first and first * EACH_S}
    publish("check_polled", numbers, packages=("numpy",), quick=quick, path=json)


def _polled(
    collector: Collector, random: np.random.Generator, tau_s: float, slower: float, seconds: int
) -> dict[str, list[str]]:
    """The verdicts of both gates, in the order of time."""
    began_s = time.time() - seconds - 60
    gates: dict[str, list[str]] = {"against-variant": ["--against-variant", "old"], "objective": []}
    verdicts: dict[str, list[str]] = {name: [] for name in gates}
    wander = {name: noise(random, tau_s, seconds) for name in ("old", "new")}
    for after_s in range(0, seconds, EACH_S):
        for number, (variant, by) in enumerate((("old", 1.0), ("new", slower))):
            n = int(EACH_S * PER_S)
            ends = after_s + np.sort(random.random(n)) * EACH_S
            took = by * np.exp(random.normal(-1, 0.5, n) + 0.3 * wander[variant][(ends // 10).astype(int)])
            traces = [(after_s + 1) * 10_000 + number * 5000 + i for i in range(n)]
            collector.post(_body(variant, began_s, ends, took, traces)).raise_for_status()  # type: ignore[no-untyped-call]
        collector.wait_until_stored()  # type: ignore[no-untyped-call]
        for name, more in gates.items():
            verdicts[name].append(_asked(collector.urls["api"], began_s, more))
    return verdicts


def _body(variant: str, began_s: float, ends: Any, took: Any, traces: list[int]) -> bytes:
    request = Request(**{"tokentrail.variant": variant})  # type: ignore[no-untyped-call]
    for end, e2e, trace in zip(ends, took, traces, strict=True):
        request.span(  # type: ignore[no-untyped-call]
            "chat m", trace=trace, start=int((began_s + end - e2e) * SECOND_NS), ns=int(e2e * SECOND_NS), kind=2,
            attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.output_tokens": 9},
        )  # fmt: skip
    body: bytes = request.body()  # type: ignore[no-untyped-call]
    return body


def _asked(api: str, began_s: float, more: list[str]) -> str:
    since = rfc3339(int(began_s * SECOND_NS))
    command = [
        str(Path(sys.executable).with_name("tokentrail")),
        "check",
        "--slo",
        "chat",
        "--variant",
        "new",
        "--since",
        since,
    ]
    done = subprocess.run([*command, *more, "--api", api, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(done.stderr or done.stdout)
    return str(json_module.loads(done.stdout)["verdict"])


if __name__ == "__main__":
    typer.run(main)
