"""`tokentrail keys`: the collector's own command for its keys, `python -m collector.access`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import typer

from tokentrail.cli.stack import checkout


def run(arguments: Sequence[str]) -> int:
    """Return the command's exit status. Raises ProcessFailed when the collector is not installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout()), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "collector.access", *arguments]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    typer.echo(done.stdout, nl=False)
    typer.echo(done.stderr, nl=False, err=True)
    return done.returncode
