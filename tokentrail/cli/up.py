"""`tokentrail up`: the collector on the embedded store, and the dashboard."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from tokentrail.cli.stack import Stack, checkout


def run(console: Console, *, data_dir: Path, slos: Path | None) -> None:
    """Run until Ctrl-C. Raises ProcessFailed when a process does not start or dies."""
    stack = Stack(home=data_dir, slos=slos or checkout() / "alerts" / "slos.yaml")
    try:
        stack.collector(data_dir / "collector")
        stack.dashboard()
        for name, url in stack.urls.items():
            console.print(f"  {name:<10} {url}")
        console.print(f"\nPoint an OTLP exporter here: OTEL_EXPORTER_OTLP_ENDPOINT={stack.urls['OTLP/HTTP']}")
        console.print("Ctrl-C stops.")
        while True:
            stack.check()
            time.sleep(1)
    except KeyboardInterrupt:
        console.print()
    finally:
        stack.stop(console.print)
