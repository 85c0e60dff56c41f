"""tokentrail.testing, as the tests of somebody else's engine use it."""

from dataclasses import replace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.tokentrail.support import MS, T0, run, start
from tokentrail import Phase, semconv
from tokentrail.testing import (
    ManualClock,
    MemoryTrail,
    MemoryTransport,
    SendResult,
    SendStatus,
    SequentialIds,
    parse_spans,
)

RETRY = SendResult(SendStatus.RETRY, "503")


def test_importing_the_sdk_does_not_import_its_test_helpers():
    assert run("import sys, tokentrail; print('tokentrail.testing' in sys.modules)").strip() == "False"


def test_the_clock_stands_still_until_it_is_moved():
    clock = ManualClock()
    assert clock() == clock() == T0
    clock.advance(3 * MS)
    assert clock() == clock.now == T0 + 3 * MS


def test_a_trail_reads_the_clock_of_the_test(clock, trail):
    clock.advance(MS)
    request = start(trail, arrival_ns=None)
    clock.advance(MS)
    (announced,) = trail.spans(semconv.OPEN_SPAN)
    assert (announced.start_ns, announced.end_ns) == (T0 + MS, T0 + 2 * MS)
    assert announced.parent_id == request.span_id


def test_ids_count_up_and_two_trails_give_the_same():
    ids = SequentialIds()
    assert ids.generate_trace_id() + 1 == ids.generate_trace_id()
    assert ids.generate_span_id() + 1 == ids.generate_span_id()

    def recorded():
        trail = MemoryTrail()
        request = start(trail)
        trail.step(0, T0, T0 + MS, [request])
        request.end(T0 + MS)
        return trail.spans()

    assert recorded() == recorded()


def test_spans_are_found_by_name_and_by_parent(trail):
    one, two = start(trail), start(trail)
    trail.step(0, T0, T0 + MS, [one, two])
    one.phase(Phase.DECODE, T0 + MS)
    one.end(T0 + MS)
    (request,) = trail.spans("chat m")
    assert [span.name for span in trail.spans(parent=one)] == [span.name for span in trail.spans(parent=request)]
    assert {span.name for span in trail.spans(parent=one)} == {semconv.TOKEN_SPAN, semconv.PHASE_SPAN}
    (token,) = trail.spans(semconv.TOKEN_SPAN, parent=two)
    assert (token.trace_id, token.parent_id, token.duration_ns) == (two.trace_id, two.span_id, MS)
    assert len(trail.spans(semconv.TOKEN_SPAN)) == 2
    assert trail.spans("tokentrail") == []


def test_the_same_span_id_in_another_trace_is_not_the_parent(trail):
    request = start(trail)
    trail.step(0, T0, T0, [request])
    request.end(T0)
    (span,) = trail.spans("chat m")
    assert trail.spans(parent=span) != []
    assert trail.spans(parent=replace(span, trace_id=1)) == []


def test_answers_are_given_in_order_and_then_everything_is_accepted():
    refused = SendResult(SendStatus.REFUSED, "400")
    transport = MemoryTransport(RETRY, ValueError("down"), refused)
    assert transport(b"a") is RETRY
    with pytest.raises(ValueError, match="down"):
        transport(b"b")
    assert transport(b"c") is refused
    assert transport(b"d").status is SendStatus.DELIVERED
    assert transport.attempts == [b"a", b"b", b"c", b"d"]
    assert transport.bodies == [b"d"]


def test_spans_that_wait_for_a_retry_are_not_there_yet():
    trail = MemoryTrail(RETRY)
    trail.step(0, T0, T0, [])
    assert trail.spans() == []
    assert trail.stats.queued == 1
    assert [span.name for span in trail.spans()] == [semconv.STEP_SPAN]


def test_a_memory_trail_is_strict_unless_told_otherwise():
    with pytest.raises(TypeError):
        MemoryTrail().step(0, T0, T0, 5)
    tolerant = MemoryTrail(strict=False)
    tolerant.step(0, T0, T0, 5)
    assert tolerant.stats.errors == 1


def test_settings_and_the_resource_are_passed_on():
    trail = MemoryTrail(resource={"service.name": "engine", semconv.DEVICE_COUNT: 2}, max_payload_spans=1)
    trail.step(0, T0, T0, [])
    trail.step(1, T0, T0, [])
    given = {"service.name": "engine", semconv.DEVICE_COUNT: 2}
    first, second = (span.resource for span in trail.spans())
    assert first == second == given | {"service.instance.id": first["service.instance.id"]}
    assert len(trail.transport.bodies) == 2
    assert MemoryTrail()._provider.resource.attributes == {"service.name": "test"}


def test_every_kind_of_attribute_is_read():
    message = ExportTraceServiceRequest()
    span = message.resource_spans.add().scope_spans.add().spans.add()
    kinds = {
        "text": {"string_value": "a"},
        "number": {"int_value": -3},
        "real": {"double_value": 0.5},
        "flag": {"bool_value": True},
        "raw": {"bytes_value": b"x"},
        "nothing": {},
        "list": {"array_value": {"values": [{"int_value": 1}, {"string_value": "b"}]}},
        "map": {"kvlist_value": {"values": [{"key": "k", "value": {"int_value": 2}}]}},
    }
    for key, value in kinds.items():
        span.attributes.add(key=key, value=value)
    (read,) = parse_spans(message.SerializeToString())
    assert read.attributes == {
        "text": "a", "number": -3, "real": 0.5, "flag": True, "raw": b"x", "nothing": None,
        "list": [1, "b"], "map": {"k": 2},
    }  # fmt: skip
    assert (read.trace_id, read.span_id, read.parent_id) == (0, 0, 0)
