"""A request that one process starts and another one goes on with."""

import copy
import json

import numpy as np
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind

from tests.tokentrail.support import MS, T0, start
from tests.tokentrail.test_context import SAMPLED, SPAN, TRACE
from tokentrail import KvEvent, Phase, Trail, semconv
from tokentrail.testing import MemoryTrail


@pytest.fixture
def core(clock):
    """The trail of the other process."""
    return MemoryTrail(clock=clock, resource={"service.name": "core"})


def test_one_trail_through_two_processes(trail, core):
    front = start(
        trail, carrier=SAMPLED, tenant="acme", slo_class="chat", request_id="r", input_tokens=3, provider="p",
        kind=SpanKind.CLIENT, attributes={semconv.REQUEST_STREAM: True, "list": ["a"], "none": None},
    )  # fmt: skip
    front.phase(Phase.COLD_START, T0 + MS)
    request = core.take_over(trail.hand_over(front))
    request.phase(Phase.PREFILL, T0 + 2 * MS)
    core.step(0, T0 + 2 * MS, T0 + 4 * MS, [request])
    request.end(T0 + 4 * MS, finish_reason="stop")
    (span,) = core.spans("chat m")

    alone = MemoryTrail()
    whole = start(
        alone, carrier=SAMPLED, tenant="acme", slo_class="chat", request_id="r", input_tokens=3, provider="p",
        kind=SpanKind.CLIENT, attributes={semconv.REQUEST_STREAM: True, "list": ["a"]},
    )  # fmt: skip
    whole.phase(Phase.COLD_START, T0 + MS)
    whole.phase(Phase.PREFILL, T0 + 2 * MS)
    alone.step(0, T0 + 2 * MS, T0 + 4 * MS, [whole])
    whole.end(T0 + 4 * MS, finish_reason="stop")
    (expected,) = alone.spans("chat m")
    assert span.message == expected.message
    assert (span.trace_id, span.parent_id, span.span_id) == (int(TRACE, 16), int(SPAN, 16), front.span_id)
    assert span.message.trace_state == "vendor=1"
    assert len(core.spans(semconv.TOKEN_SPAN, parent=front)) == 1
    assert trail.spans() == []


def test_a_request_that_stays_is_named_by_events_of_another_process(trail, core):
    request = start(trail)
    lent = core.take_over(trail.lend(request))
    lent.phase(Phase.PREFILL, T0 + MS)
    core.kv_event(KvEvent.OFFLOAD, blocks=2, reason="handed_over", step=0, start_ns=T0 + MS, beneficiary=lent)
    lent.end(T0 + 2 * MS)
    request.end(T0 + 3 * MS)
    (event,) = core.spans()
    assert event.attributes[semconv.KV_BENEFICIARY] == f"{request.trace_id:032x}"
    (span,) = trail.spans("chat m")
    assert (span.span_id, span.end_ns) == (lent.span_id, T0 + 3 * MS)


def test_the_process_that_handed_over_is_done(trail, core, clock):
    front = start(trail)
    trail.flush()
    handle = trail.hand_over(front)
    request = core.take_over(handle)
    front.end(T0 + MS)
    front.token()
    trail.step(0, T0, T0 + MS, [front])
    clock.advance(60_000 * MS)
    trail.flush()
    assert [span.name for span in trail.spans()] == [semconv.OPEN_SPAN, semconv.STEP_SPAN]
    assert trail.stats.drops == {"late": 2}
    assert [span.parent_id for span in core.spans(semconv.OPEN_SPAN)] == [request.span_id]
    assert front.traceparent == request.traceparent
    heir = start(trail)  # the slot is free again
    heir.token()
    assert len(trail.spans(semconv.TOKEN_SPAN, parent=heir)) == 1


def test_a_block_does_not_end_a_request_that_was_handed_over(trail, core):
    with trail.request(operation="chat", model="m") as front:
        request = core.take_over(trail.hand_over(front))
    request.end(T0 + MS)
    assert trail.spans() == []
    assert len(core.spans("chat m")) == 1


def test_an_unsampled_request_stays_unsampled(core):
    front = start(MemoryTrail(sampler=ALWAYS_OFF))
    request = core.take_over(core.hand_over(front))
    request.end(T0)
    assert (request.sampled, request.traceparent) == (False, front.traceparent)
    assert core.spans() == []


def test_a_handle_of_a_disabled_trail(monkeypatch, core):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    off = Trail.from_env()
    handle = off.hand_over(off.start_request(operation="chat", model="m"))
    assert not core.take_over(handle).sampled
    assert not off.take_over(core.hand_over(start(core))).sampled


def test_a_handle_is_one_line_of_json(trail):
    handle = trail.hand_over(
        start(trail, model="\ud800", attributes={"odd": object, "n": np.int64(5), "x": np.float32(0.5)})
    )
    assert json.loads(handle)["attributes"] == {"odd": str(object), "n": 5, "x": 0.5}
    assert "\n" not in handle


@pytest.mark.parametrize("handle", ["", "{}", "5", "null", None, '{"version": 2}', "x"])
def test_a_handle_that_is_none_is_counted(handle):
    tolerant = MemoryTrail(strict=False)
    request = tolerant.take_over(handle)
    request.end(T0)
    assert (request.sampled, tolerant.stats.errors) == (False, 1)
    assert (request.trace_id, request.span_id) == (0, 0), "of no trace"


def test_nothing_is_taken_over_after_the_shutdown(trail, core):
    handle = trail.hand_over(start(trail))
    core.shutdown()
    assert not core.take_over(handle).sampled


def test_only_its_own_trail_hands_a_request_over(core):
    tolerant = MemoryTrail(strict=False)
    request = start(tolerant)
    for stranger in (copy.copy(request), start(MemoryTrail())):
        assert not core.take_over(tolerant.hand_over(stranger)).sampled
    request.end(T0)
    assert len(tolerant.spans("chat m")) == 1
    assert tolerant.stats.errors == 2


def test_a_request_that_was_handed_over_and_forgotten_is_not_abandoned(trail):
    front = start(trail)
    trail.flush()
    trail.hand_over(front)
    del front
    trail.shutdown()
    assert trail.stats.abandoned == 0
    assert trail.spans("chat m") == []
