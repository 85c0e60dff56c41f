"""`tokentrail demo --day`: a synthetic day in a collector, and the dashboard on it, without an engine."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from tokentrail import Trail, now_ns
from tokentrail._send.transport import SendResult, SendStatus
from tokentrail.cli import parts
from tokentrail.cli.day.plan import Day
from tokentrail.cli.day.play import Outlet, play
from tokentrail.cli.home import owned
from tokentrail.cli.output import own_name, progress
from tokentrail.cli.processes import ProcessFailed
from tokentrail.cli.stack import Stack, choose_addresses

_ANNOUNCE_EVERY_S: Final = 5.0
"""The process that hangs says so often that its requests are open: after 30 s of silence they would be lost."""
_FILL_S: Final = 600


def run(
    console: Console,
    *,
    seconds: float | None,
    home: Path,
    slos: Path | None,
    seed: int,
    ports: Mapping[str, int | None],
) -> None:
    """Make a store with the day, and show it until Ctrl-C, or for `seconds`.

    Raises ProcessFailed when a process does not start or dies, or when `home` is in use or holds files of somebody
    else.
    """
    parts.require("collector", "dashboard")
    with owned(home, command="demo", empty=True) as folder:
        shutil.copyfile(slos or parts.folder() / "alerts" / "slos.day.yaml", folder / "slos.yaml")
        stack = Stack(home=folder, slos=folder / "slos.yaml", addresses=choose_addresses(ports), named=ports)
        made = False
        try:
            with contextlib.suppress(KeyboardInterrupt):
                with progress(console, "making a day of requests, tokens and steps, and finding its causes"):
                    outlet = Outlet()
                    hanging = _fill(folder, outlet, Day(now_ns(), seed))
                made = True
                with progress(console, "starting the collector"):
                    stack.collector(folder / "collector")
                outlet.to_collector(stack.urls["OTLP/HTTP"])
                with progress(console, "starting the dashboard"):
                    stack.dashboard()
                stack.tell(console, ports, 11)
                console.print(f"\nA day with five faults: {stack.urls['dashboard']}/?range=24h · Ctrl-C ends the demo")
                _stay(stack, hanging, seconds)
        finally:
            stack.stop(lambda line: console.print(f"[dim]{line}[/]"))
            if made:
                console.print(f"Open this recording again: {own_name()} up --data-dir {folder}", soft_wrap=True)


def _fill(home: Path, outlet: Outlet, day: Day) -> Sequence[Trail]:
    """Make the store. Returns the trails of what hangs, which send nothing until the outlet has another target."""
    log = home / "logs" / "history.log"
    log.parent.mkdir(exist_ok=True)
    command = parts.command("collector.app.history", str(home / "collector"))
    failed = f"the store was not made; its log: {log}"
    with (
        log.open("wb") as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=parts.environment()) as process,
    ):
        assert process.stdin
        to_it = process.stdin

        def send(body: bytes) -> SendResult:
            to_it.write(len(body).to_bytes(8) + body)
            return SendResult(SendStatus.DELIVERED)

        outlet.target = send
        try:
            hanging = play(day, outlet)
            to_it.close()
            if process.wait(_FILL_S) != 0:
                raise ProcessFailed(failed)
        except BrokenPipeError:
            raise ProcessFailed(failed) from None
        finally:
            process.kill()
    outlet.target = Outlet().target
    return hanging


def _stay(stack: Stack, hanging: Sequence[Trail], seconds: float | None) -> None:
    """Look after the processes, and announce the requests in flight."""
    ends = time.monotonic() + seconds if seconds is not None else float("inf")
    while time.monotonic() < ends:
        stack.check()
        for trail in hanging:
            trail.flush(0)
        time.sleep(max(min(_ANNOUNCE_EVERY_S, ends - time.monotonic()), 0))
