"""Trace context in and out, sampling, resource, and the trail that is switched off."""

from dataclasses import asdict

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.tokentrail.support import MS, T0, run, start
from tokentrail import KvEvent, Phase, Trail, semconv
from tokentrail.testing import MemoryTrail

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-00"}


def test_a_request_continues_the_callers_trace(trail):
    request = start(trail, carrier=SAMPLED)
    request.end(T0 + MS)
    (span,) = trail.spans("chat m")
    assert (span.trace_id, span.parent_id) == (int(TRACE, 16), int(SPAN, 16))
    assert span.message.trace_state == "vendor=1"
    assert span.message.flags == 0x300  # the parent is known to be remote


def test_a_current_span_without_ids_is_no_parent(trail):
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(0, 0, is_remote=False))):
        request = start(trail)
    assert request.trace_id
    assert request.started.parent is None


def test_header_names_are_compared_without_case(trail):
    assert start(trail, carrier={"Traceparent": SAMPLED["traceparent"]}).trace_id == int(TRACE, 16)


def test_two_requests_of_one_trace_have_tokens_of_their_own(trail):
    requests = [start(trail, carrier=SAMPLED), start(trail, carrier=SAMPLED)]
    trail.step(0, T0, T0 + MS, requests)
    tokens = trail.spans(semconv.TOKEN_SPAN)
    assert len({t.span_id for t in tokens}) == len({t.parent_id for t in tokens}) == 2


def test_traceparent_out_is_what_w3c_reads(trail):
    request = start(trail)
    context = TraceContextTextMapPropagator().extract({"traceparent": request.traceparent})
    read = trace.get_current_span(context).get_span_context()
    assert (read.trace_id, read.span_id, read.trace_flags.sampled) == (request.trace_id, request.span_id, True)


@pytest.mark.parametrize(
    "carrier",
    [{}, {"traceparent": ""}, {"traceparent": "00-zz-zz-01"}, {"traceparent": f"00-{'0' * 32}-{SPAN}-01"}, {"x": "y"}],
)
def test_without_a_valid_parent_a_trace_begins(trail, carrier):
    request = start(trail, carrier=carrier)
    request.end(T0 + MS)
    (span,) = trail.spans("chat m")
    assert request.trace_id not in (0, int(TRACE, 16))
    assert span.parent_id == 0


def test_a_header_that_is_not_utf_8_costs_no_request(trail):
    """Of aiohttp's headers: the bytes are halves of surrogate pairs."""
    request = start(trail, carrier={**SAMPLED, "baggage": "a=\udcff"})
    assert (request.sampled, request.trace_id) == (True, int(TRACE, 16))


def test_without_a_carrier_the_current_span_is_the_parent(trail):
    parent = trace.SpanContext(77, 88, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(parent)):
        assert start(trail).trace_id == 77
    assert start(trail).trace_id != 77


def test_a_caller_that_does_not_sample_is_obeyed_and_costs_nothing(trail):
    request = start(trail, carrier=UNSAMPLED)
    sampled = start(trail)
    assert request.sampled is False
    assert request.traceparent.startswith(f"00-{TRACE}-")
    assert request.traceparent.endswith("-00")
    request.phase(Phase.DECODE, T0)
    trail.step(0, T0, T0 + MS, [request, sampled], counts=[2, 1])
    trail.kv_event(KvEvent.EVICT, blocks=1, reason="preemption", step=0, start_ns=T0, request=request)
    request.end(T0 + MS)
    assert [t.parent_id for t in trail.spans(semconv.TOKEN_SPAN)] == [sampled.span_id]
    assert trail.spans("chat m") == []
    assert trail.spans("tokentrail.kv.evict")[0].parent_id == 0
    assert trail.stats.dropped == 0


def test_samplers_decide_requests_and_not_the_engines_own_spans():
    trail = MemoryTrail(sampler=ALWAYS_OFF)
    trail.step(0, T0, T0 + MS, [start(trail)])
    assert {span.name for span in trail.spans()} == {semconv.STEP_SPAN}


def test_a_sampler_sees_the_span_of_the_headers_and_without_headers_the_current_one():
    asked = []

    class Parents(ParentBased):
        def should_sample(self, parent_context, *args, **kwargs):
            asked.append(trace.get_current_span(parent_context).get_span_context().span_id)
            assert parent_context is not None
            return super().should_sample(parent_context, *args, **kwargs)

    trail = MemoryTrail(sampler=Parents(ALWAYS_OFF))
    current = trace.SpanContext(7, 9, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(current)):
        sampled = [start(trail, carrier=carrier).sampled for carrier in (SAMPLED, UNSAMPLED, None, {"x": "y"})]
    assert asked == [int(SPAN, 16), int(SPAN, 16), 9, 9]
    assert sampled == [True, False, True, True]


def test_a_ratio_is_about_kept():
    trail = MemoryTrail(sampler=ParentBased(TraceIdRatioBased(0.25)))
    ids = trail._provider.id_generator
    ids.generate_trace_id = iter(range(0, 2**128, 2**128 // 1000 + 12345678901234567)).__next__
    kept = sum(start(trail).sampled for _ in range(900))
    assert 150 < kept < 300


@pytest.fixture
def from_env(monkeypatch):
    trails = []

    def make(*, env=None, **given):
        for name, value in ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"} | (env or {})).items():
            monkeypatch.setenv(name, value)
        trails.append(Trail.from_env(**given))
        return trails[-1]

    yield make
    for trail in trails:
        trail.shutdown(0)


def resource(trail):
    return dict(trail._provider.resource.attributes)


def test_the_resource_names_service_instance_and_variant(from_env):
    found = resource(from_env(service_name="engine", variant="int8", resource={semconv.DEVICE_COUNT: 2}))
    assert (found["service.name"], found[semconv.VARIANT], found[semconv.DEVICE_COUNT]) == ("engine", "int8", 2)
    assert found["service.instance.id"]


def test_the_environment_names_the_service_and_fills_what_the_code_leaves_open(from_env):
    env = {"OTEL_SERVICE_NAME": "prod", "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=i-1,tokentrail.variant=b"}
    found = resource(from_env(service_name="engine", env=env))
    assert (found["service.name"], found["service.instance.id"], found[semconv.VARIANT]) == ("prod", "i-1", "b")
    assert resource(from_env(variant="a", env=env))[semconv.VARIANT] == "a"


def test_sampler_from_the_environment(from_env):
    trail = from_env(env={"OTEL_TRACES_SAMPLER": "always_off"})
    assert start(trail).sampled is False


def test_a_disabled_trail_is_another_object_that_does_nothing(from_env):
    trail = from_env(env={"OTEL_SDK_DISABLED": "true"})
    assert type(trail) is not Trail
    request = start(trail, carrier=SAMPLED)
    assert (request.sampled, request.traceparent) == (False, "")
    trail.step(0, T0, T0, [request], counts=[1], running=3)
    trail.kv_event(KvEvent.EVICT, blocks=1, reason="r", step=0, start_ns=T0)
    request.phase(Phase.DECODE, T0)
    request.end(T0)
    with trail.cold_start("m") as cold, cold.phase("load_weights"):
        pass
    assert trail.flush()
    assert trail.shutdown()
    counts = asdict(trail.stats)
    assert counts == {name: {} if name == "drops" else 0 for name in counts}


def test_start_request_survives_a_sampler_that_does_not():
    class Broken(ParentBased):
        def should_sample(self, *args, **kwargs):
            raise RuntimeError("sampler")

    trail = MemoryTrail(strict=False, sampler=Broken(ALWAYS_OFF))
    assert start(trail).sampled is False
    assert trail.stats.errors == 1


UNKNOWN_PROPAGATOR = """
import os
os.environ["OTEL_PROPAGATORS"] = "tracecontext,no-such-thing"
from tokentrail.testing import MemoryTrail
trail = MemoryTrail()
request = trail.start_request(operation="chat", model="m", carrier={"traceparent": f"00-{7:032x}-{8:016x}-01"})
headers = {}
request.inject(headers)
print(headers["traceparent"])
"""


def test_a_propagator_that_is_not_installed_costs_only_itself():
    assert run(UNKNOWN_PROPAGATOR).startswith(f"00-{7:032x}-")
