"""Units, a request and an exporter with defaults, and Python code that runs in a process of its own."""

import os
import subprocess
import sys
import time

from tokentrail import semconv
from tokentrail._encode.envelope import Payload
from tokentrail._host.guard import Guard
from tokentrail._send.export import Exporter
from tokentrail.testing import START_NS, SendResult, SendStatus

T0 = START_NS
US = 1_000
MS = 1_000_000

RETRY = SendResult(SendStatus.RETRY, "503")
REFUSED = SendResult(SendStatus.REFUSED, "400")
DELIVERED = SendResult(SendStatus.DELIVERED)


def start(trail, **given):
    return trail.start_request(**{"operation": "chat", "model": "m", "arrival_ns": T0} | given)


def run(code, url=""):
    """The output of a process that runs this code and exports to the URL."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOKENTRAIL_"))}
    env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = url
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def attributes_of(trail):
    (span,) = trail.spans("chat m")
    return span.attributes


def phases_of(trail, request):
    found = trail.spans(semconv.PHASE_SPAN, parent=request)
    return {p.attributes[semconv.PHASE_NAME]: p.duration_ns // MS for p in found}


def halves(payload):
    """Of a body with one byte for each span."""
    middle = len(payload.body) // 2
    return [Payload(part, len(part), payload.rank) for part in (payload.body[:middle], payload.body[middle:])]


def exporter(transport, *, max_spans=1_000, max_bytes=1 << 20, clock=time.monotonic):
    return Exporter(transport, Guard(), max_spans=max_spans, max_bytes=max_bytes, halves=halves, clock=clock)


def run_out(queue, attempts=500):
    """Makes attempts until the queue is empty."""
    for _ in range(attempts):
        if queue.attempt() is None:
            return
