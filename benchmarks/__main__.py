"""`python -m benchmarks`: every published number, one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

BENCHMARKS = (
    "sdk_span_cost",
    "sdk_metrics",
    "sdk_wakeups",
    "sdk_post",
    "collector_ingest",
    "query_10m",
    "several_collectors",
    "shared_store",
    "proxy",
    "engine_decode",
    "engine_tracing",
    "engine_quality",
    "engine_pressure",
    "alerts_simulation",
    "alerts_kv_waits",
    "alerts_counts",
    "chance",
    "differences",
    "alerts_cost",
    "alerts",
)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes; the numbers are rough.")] = False,
    results: Annotated[Path, typer.Option(help="Where the JSON files go.")] = Path(__file__).parent / "results",
) -> None:
    """Run all benchmarks and write one JSON file each."""
    results.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in BENCHMARKS:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(results / f"{name}.json")]
        if subprocess.run([*command, *(["--quick"] if quick else [])], check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    typer.run(main)
