"""`tokentrail up`: the collector on the embedded store, and the dashboard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from tokentrail.cli import parts
from tokentrail.cli.home import owned
from tokentrail.cli.output import progress
from tokentrail.cli.stack import Stack, choose_addresses


def run(console: Console, *, data_dir: Path, slos: Path | None, ports: Mapping[str, int | None]) -> None:
    """Run until Ctrl-C. Raises ProcessFailed when a process does not start or dies, or when the folder is in use."""
    parts.require("collector", "dashboard")
    with owned(data_dir, command="up", empty=False) as home:
        stack = Stack(home=home, slos=(slos or _slos_of(home)).absolute(), addresses=choose_addresses(ports))
        try:
            with progress(console, "starting the collector"):
                stack.collector(home / "collector")
            with progress(console, "starting the dashboard"):
                stack.dashboard()
            for name, url in stack.urls.items():
                console.print(f"  {name:<10} {url}")
            for sentence in stack.moved(ports):
                console.print(f"[yellow]note:[/] {sentence}", soft_wrap=True, highlight=False)
            console.print(f"\nPoint an OTLP exporter here: OTEL_EXPORTER_OTLP_ENDPOINT={stack.urls['OTLP/HTTP']}")
            console.print(f"Open {stack.urls['dashboard']} · Ctrl-C stops.")
            while True:
                stack.check()
                time.sleep(1)
        except KeyboardInterrupt:
            console.print()
        finally:
            stack.stop(console.print)


def _slos_of(home: Path) -> Path:
    """The SLOs that a recording was judged by, when `home` holds one of a demo; otherwise the shipped ones."""
    recorded = home / "slos.yaml"
    return recorded if recorded.exists() else parts.folder() / "alerts" / "slos.yaml"
