"""`tokentrail up`: the collector on the embedded store, and the dashboard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from tokentrail.cli import parts
from tokentrail.cli.home import owned
from tokentrail.cli.output import progress
from tokentrail.cli.processes import ProcessFailed
from tokentrail.cli.stack import Stack, choose_addresses
from tokentrail.shared.folders import has_data

_REMEMBERED: Final = "up-slos.yaml"
"""A link to the SLO file that the last `up` with --slos has named."""


def run(console: Console, *, data_dir: Path, slos: Path | None, ports: Mapping[str, int | None]) -> None:
    """Run until Ctrl-C. Raises ProcessFailed when a process does not start or dies, or when the folder is in use."""
    parts.require("collector", "dashboard")
    with owned(data_dir, command="up", empty=False) as home:
        folder = _data_of(home)
        stack = Stack(home=home, slos=_slos_of(home, slos), addresses=choose_addresses(ports), named=ports)
        try:
            with progress(console, "starting the collector"):
                stack.collector(folder)
            with progress(console, "starting the dashboard"):
                stack.dashboard()
            stack.tell(console, ports, 10)
            console.print(f"  {'SLOs':<10} {stack.slos}", soft_wrap=True, highlight=False)
            console.print(f"\nPoint an OTLP exporter here: OTEL_EXPORTER_OTLP_ENDPOINT={stack.urls['OTLP/HTTP']}")
            console.print(f"Open {stack.urls['dashboard']} · Ctrl-C stops.")
            while True:
                stack.check()
                time.sleep(1)
        except KeyboardInterrupt:
            console.print()
        finally:
            stack.stop(console.print)


def _data_of(home: Path) -> Path:
    """The collector's folder: inside of `home`, or `home` itself where a collector or a restored backup is in it.

    Raises ProcessFailed when there is data in both, of which one would be hidden.
    """
    within = home / "collector"
    if not has_data(home):
        return within
    if has_data(within):
        raise ProcessFailed(
            f"{home} and {within} have the data of a collector each, and `up` would show one of them: "
            "move the other one away"
        )
    return home


def _slos_of(home: Path, given: Path | None) -> Path:
    """The SLOs to judge by, which the next `up` on this folder takes too, and a backup of it brings along.

    Without a file, those of the last `up`, of a demo's recording, of a restored backup; otherwise the shipped ones.
    Raises ProcessFailed when the file of the last `up` is not there any more.
    """
    remembered = home / _REMEMBERED
    if given and given.absolute() != remembered:
        remembered.unlink(missing_ok=True)
        remembered.symlink_to(given.absolute())
    if remembered.is_symlink():
        file = remembered.readlink()
        if not file.exists():
            raise ProcessFailed(f"{file}, the SLO file of the last `up` on {home}, is not there: name one with --slos")
        return file
    recorded = (home / "slos.yaml", *sorted((home / "settings").glob("*")))
    return next((file for file in recorded if file.is_file()), parts.folder() / "alerts" / "slos.yaml")
