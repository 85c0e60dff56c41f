"""A trail whose clock, ids and collector are in the test's hands; nothing in it is a stand-in for our own code."""

import os
import subprocess
import sys
from collections import defaultdict
from itertools import count

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

from tokentrail import Trail
from tokentrail.config import Settings
from tokentrail.export import Outcome, Verdict
from tokentrail.http import Endpoint

T0 = 1_800_000_000_000_000_000  # unix ns, a multiple of 1,000
US = 1_000
MS = 1_000_000

NOWHERE = Endpoint("http://collector.invalid/v1/traces", {})


class ManualClock:
    def __init__(self, now=T0):
        self.now = now

    def __call__(self):
        return self.now


class SequentialIds(IdGenerator):
    def __init__(self):
        self._trace, self._span = count(0xA000_0000_0000_0000_0000_0000_0000_0001), count(0xB000_0000_0000_0001)

    def generate_trace_id(self):
        return next(self._trace)

    def generate_span_id(self):
        return next(self._span)


class Collector:
    """A transport that keeps what it is sent and answers as scripted, then with success."""

    def __init__(self, *script):
        self.script = list(script)
        self.bodies = []
        self.attempts = []

    def __call__(self, body):
        self.attempts.append(body)
        outcome = self.script.pop(0) if self.script else Outcome(Verdict.DELIVERED)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome.verdict is Verdict.DELIVERED:
            self.bodies.append(body)
        return outcome

    @property
    def spans(self):
        return [span for body in self.bodies for span in parse(body)]

    def named(self, name):
        return [span for span in self.spans if span.name == name]


def parse(body):
    request = ExportTraceServiceRequest.FromString(body)
    return [span for resource in request.resource_spans for scoped in resource.scope_spans for span in scoped.spans]


def attributes(span):
    return {pair.key: _value(pair.value) for pair in span.attributes}


def _value(value):
    kind = value.WhichOneof("value")
    return [_value(v) for v in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def duration(span):
    return span.end_time_unix_nano - span.start_time_unix_nano


def by_parent(spans):
    groups = defaultdict(list)
    for span in spans:
        groups[span.trace_id, span.parent_span_id].append(span)
    return groups


def make_trail(collector, *, clock=None, strict=True, sampler=None, resource=None, **settings):
    provider = TracerProvider(
        sampler=sampler,
        resource=resource or Resource({"service.name": "test"}),
        id_generator=SequentialIds(),
        shutdown_on_exit=False,
    )
    return Trail(
        Settings(NOWHERE, strict=strict, **settings),
        provider,
        transport=collector,
        clock=clock or ManualClock(),
        ids=np.random.default_rng(7),
        background=False,
    )


def start(trail, **given):
    return trail.start_request(**{"operation": "chat", "model": "m", "arrival_ns": T0} | given)


def run(code, url=""):
    """What a process that runs this code and exports to the URL prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOKENTRAIL_"))}
    env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = url
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
