"""Units, a request with defaults, and Python code that runs in a process of its own."""

import os
import subprocess
import sys

from tokentrail.testing import START_NS

T0 = START_NS
US = 1_000
MS = 1_000_000


def start(trail, **given):
    return trail.start_request(**{"operation": "chat", "model": "m", "arrival_ns": T0} | given)


def run(code, url=""):
    """The output of a process that runs this code and exports to the URL."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOKENTRAIL_"))}
    env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = url
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
