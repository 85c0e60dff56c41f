"""The exported tokens, phases and requests are those that an engine recorded, and add up to the nanosecond."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.tokentrail.support import MS, T0, US, start
from tokentrail import KvEvent, Phase, Status, Trail, semconv
from tokentrail.semconv import Limit
from tokentrail.testing import MemoryTrail


def test_token_durations_are_ttft_then_itl(trail):
    request = start(trail)
    for step, end in enumerate((9, 12, 20)):
        trail.step(step, T0 + end * MS - MS, T0 + end * MS, [request])
    tokens = trail.spans(semconv.TOKEN_SPAN)
    assert [t.duration_ns for t in tokens] == [9 * MS, 3 * MS, 8 * MS]
    assert [t.start_ns for t in tokens] == [T0, T0 + 9 * MS, T0 + 12 * MS]
    assert [(t.token_index, t.attributes) for t in tokens] == [(i, {semconv.STEP: i}) for i in range(3)]
    assert {t.parent_id for t in tokens} == {request.span_id}
    assert {t.trace_id for t in tokens} == {request.trace_id}
    wanted = [(request.span_id + (i + 1) * semconv.TOKEN_ID_STRIDE) % 2**64 for i in range(3)]
    assert [t.span_id for t in tokens] == wanted


def test_tokens_of_one_step_share_its_end(trail):
    one, two = start(trail), start(trail)
    trail.step(4, T0, T0 + 5 * MS, [one, two], counts=[3, 0])
    trail.step(5, T0, T0 + 6 * MS, [one, two], counts=[1, 2])
    tokens = trail.spans(semconv.TOKEN_SPAN, parent=one)
    assert [t.duration_ns for t in tokens] == [5 * MS, 0, 0, 1 * MS]
    assert [t.attributes[semconv.STEP] for t in tokens] == [4, 4, 4, 5]
    tokens = trail.spans(semconv.TOKEN_SPAN, parent=two)
    assert [t.duration_ns for t in tokens] == [6 * MS, 0]


def test_state_lives_across_batches_and_slots_are_reused(trail):
    requests = [start(trail, request_id=str(number)) for number in range(600)]  # more than the first slots hold
    for round_, request in enumerate(requests):
        trail.step(round_, T0, T0 + 2 * MS, [request])
        if round_ % 3 == 0:
            trail.flush()
        trail.step(round_, T0, T0 + 5 * MS, [request])
        if round_ % 5:
            request.end(T0 + 5 * MS)
    durations = defaultdict(list)
    for token in trail.spans(semconv.TOKEN_SPAN):
        durations[token.trace_id, token.parent_id].append(token.duration_ns)
    assert list(durations.values()) == [[2 * MS, 3 * MS]] * 600
    assert len(trail.spans("chat m")) == 480
    assert trail.stats.dropped == 0


def test_the_request_span_carries_the_whole_story(trail):
    request = start(
        trail, request_id="r-1", input_tokens=7, tenant="acme", slo_class="chat", provider="p",
        attributes={semconv.REQUEST_MAX_TOKENS: 64, semconv.REQUEST_TEMPERATURE: 0.5, semconv.REQUEST_STREAM: True},
    )  # fmt: skip
    request.phase(Phase.PREFILL, T0 + 2 * MS)
    trail.step(0, T0 + 2 * MS, T0 + 4 * MS, [request])
    request.phase(Phase.DECODE, T0 + 4 * MS)
    request.phase(Phase.PREEMPTED, T0 + 5 * MS)
    request.phase(Phase.PREFILL, T0 + 6 * MS)
    trail.step(1, T0 + 6 * MS, T0 + 9 * MS, [request])
    request.end(T0 + 9 * MS, finish_reason="stop", cached_tokens=3, reasoning_tokens=1)
    (span,) = trail.spans("chat m")
    assert (span.start_ns, span.end_ns) == (T0, T0 + 9 * MS)
    assert span.message.kind == 2
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "p",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "r-1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.004,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 1,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": True,
        "tokentrail.tenant": "acme",
        "tokentrail.slo_class": "chat",
        "tokentrail.status": "ok",
        "tokentrail.finish_reason": "stop",
        "tokentrail.preemptions": 1,
        "tokentrail.time_to_first_token": 0.004,
        "tokentrail.time_to_last_token": 0.009,
        "tokentrail.longest_gap": 0.005,
        "tokentrail.longest_gap.index": 1,
        "tokentrail.phase_time.queued": 2 * MS,
        "tokentrail.phase_time.prefill": 5 * MS,
        "tokentrail.phase_time.decode": 1 * MS,
        "tokentrail.phase_time.preempted": 1 * MS,
    }
    phases = trail.spans(semconv.PHASE_SPAN)
    assert sorted((p.start_ns - T0, p.attributes[semconv.PHASE_NAME], p.duration_ns) for p in phases) == [
        (0, "queued", 2 * MS),
        (2 * MS, "prefill", 2 * MS),
        (4 * MS, "decode", 1 * MS),
        (5 * MS, "preempted", 1 * MS),
        (6 * MS, "prefill", 3 * MS),
    ]
    assert {p.parent_id for p in phases} == {span.span_id}


def test_a_failure_is_an_error_span_without_token_attributes(trail):
    start(trail).end(T0 + MS, status=Status.ERROR, error_type="TimeoutError")
    start(trail).end(T0 + MS, status=Status.CANCELLED)
    failed, cancelled = trail.spans("chat m")
    assert failed.message.status.code == StatusCode.ERROR.value
    assert failed.attributes[semconv.ERROR_TYPE] == "TimeoutError"
    assert semconv.TIME_TO_FIRST_TOKEN not in failed.attributes
    assert cancelled.message.status.code == StatusCode.UNSET.value
    assert cancelled.attributes[semconv.STATUS] == "cancelled"


def test_a_request_span_is_what_opentelemetry_makes_of_the_same_request(trail):
    request = start(trail, kind=SpanKind.CLIENT)
    request.end(T0 + MS)
    (span,) = trail.spans("chat m")

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    theirs = provider.get_tracer("t").start_span(
        "chat m", kind=SpanKind.CLIENT, attributes=span.attributes, start_time=T0
    )
    theirs.end(T0 + MS)
    (expected,) = encode_spans(exporter.get_finished_spans()).resource_spans[0].scope_spans[0].spans
    expected.trace_id, expected.span_id = span.message.trace_id, span.message.span_id
    assert span.message == expected


def test_steps_and_kv_events_belong_to_the_engine_and_victims_to_their_request(trail):
    request = start(trail)
    trail.step(
        3, T0, T0 + MS, [request], prefill_tokens=40, decode_tokens=3, running=4, waiting=5, preempted=1,
        kv_used=30, kv_total=64, kv_evicted=2,
    )  # fmt: skip
    trail.kv_event(KvEvent.EVICT, blocks=4, reason="preemption", step=3, start_ns=T0 + US, request=request)
    trail.kv_event(KvEvent.OFFLOAD, blocks=9, reason="cache_full", step=3, start_ns=T0, end_ns=T0 + MS)
    (step,) = trail.spans(semconv.STEP_SPAN)
    assert list(step.attributes) == list(semconv.STEP_ATTRIBUTES)
    assert list(step.attributes.values()) == [3, 40, 3, 4, 5, 1, 30, 64, 2]
    assert step.parent_id == 0
    (evict,) = trail.spans("tokentrail.kv.evict")
    assert (evict.trace_id, evict.parent_id) == (request.trace_id, request.span_id)
    assert evict.attributes == {semconv.KV_BLOCKS: 4, semconv.KV_REASON: "preemption", semconv.STEP: 3}
    (offload,) = trail.spans("tokentrail.kv.offload")
    assert (offload.parent_id, offload.duration_ns) == (0, MS)
    assert step.trace_id != request.trace_id


def test_a_kv_event_names_whom_it_served_and_the_bytes_that_were_copied(trail):
    victim, winner = start(trail), start(trail)
    for blocks, more in ((1, {}), (2, {"moved_bytes": 512}), (3, {"moved_bytes": 0, "beneficiary": winner})):
        trail.kv_event(KvEvent.OFFLOAD, blocks=blocks, reason="preemption", step=3, start_ns=T0, request=victim, **more)
    spans = sorted((span.attributes for span in trail.spans("tokentrail.kv.offload")), key=len)
    same = {semconv.KV_REASON: "preemption", semconv.STEP: 3}
    assert spans == [
        same | {semconv.KV_BLOCKS: 1},
        same | {semconv.KV_BLOCKS: 2, semconv.KV_BYTES: 512},
        same | {semconv.KV_BLOCKS: 3, semconv.KV_BYTES: 0, semconv.KV_BENEFICIARY: f"{winner.trace_id:032x}"},
    ]


def test_each_batch_of_steps_is_a_trace_of_its_own(trail):
    for step in range(2):
        trail.step(step, T0, T0 + MS, [])
        trail.flush()
    assert len({step.trace_id for step in trail.spans(semconv.STEP_SPAN)}) == 2


def test_an_open_request_is_announced_on_arrival_and_every_five_seconds(trail, clock):
    request = start(trail, request_id="r", tenant="acme", slo_class="chat", input_tokens=7)
    clock.now = T0 + MS
    trail.flush()
    trail.step(0, T0, T0 + 2 * MS, [request])
    trail.step(0, T0, T0 + 502 * MS, [request])
    for now in (T0 + 1_000 * MS, T0 + 5_001 * MS):
        clock.now = now
        trail.flush()
    first, second = trail.spans(semconv.OPEN_SPAN)
    assert (first.start_ns, first.duration_ns, second.duration_ns) == (T0, MS, 5_001 * MS)
    assert first.parent_id == request.span_id
    assert second.attributes == {
        semconv.OPERATION_NAME: "chat",
        semconv.PROVIDER_NAME: "tokentrail",
        semconv.REQUEST_MODEL: "m",
        semconv.RESPONSE_ID: "r",
        semconv.TENANT: "acme",
        semconv.SLO_CLASS: "chat",
        semconv.INPUT_TOKENS: 7,
        semconv.OUTPUT_TOKENS: 2,
        semconv.TIME_TO_FIRST_TOKEN: 0.002,
        semconv.TIME_TO_LAST_TOKEN: 0.502,
        semconv.LONGEST_GAP: 0.5,
    }
    request.end(T0 + 6_000 * MS)
    clock.now = T0 + 60_000 * MS
    assert len(trail.spans(semconv.OPEN_SPAN)) == 2


def test_tokens_may_be_emitted_after_the_end_of_their_step(trail):
    request = start(trail)
    trail.step(0, T0, T0 + 10 * MS, [request], emitted_ns=T0 + 12 * MS)
    trail.step(1, T0 + 10 * MS, T0 + 20 * MS, [request], emitted_ns=T0 + 25 * MS)
    request.end(T0 + 25 * MS)
    assert [step.duration_ns for step in trail.spans(semconv.STEP_SPAN)] == [10 * MS, 10 * MS]
    assert [token.duration_ns for token in trail.spans(semconv.TOKEN_SPAN, parent=request)] == [12 * MS, 13 * MS]


def test_a_token_that_was_emitted_after_the_end_is_late_although_its_step_was_over_before(trail):
    request = start(trail)
    request.end(T0 + 11 * MS)
    trail.step(0, T0, T0 + 10 * MS, [request], emitted_ns=T0 + 12 * MS)
    trail.step(1, T0, T0 + 10 * MS, [request], emitted_ns=T0 + 11 * MS)
    assert len(trail.spans(semconv.TOKEN_SPAN, parent=request)) == 1
    assert trail.stats.drops == {"late": 1}


def test_a_cold_start_that_began_before_the_sdk_was_there(trail, clock):
    clock.advance(9 * MS)
    with trail.cold_start("m", start_ns=T0 + 1 * MS) as cold:
        cold.passed("import", T0 + 1 * MS, T0 + 3 * MS)
    (whole,), (part,) = trail.spans(semconv.COLD_START_SPAN), trail.spans("tokentrail.cold_start.import")
    assert (whole.start_ns - T0, whole.duration_ns) == (1 * MS, 8 * MS)
    assert (part.start_ns - T0, part.duration_ns, part.parent_id) == (1 * MS, 2 * MS, whole.span_id)


def test_a_cold_start_and_its_phases(trail, clock):
    try:
        with trail.cold_start("m") as cold:
            clock.now += 2 * MS
            with cold.phase("load_weights"):
                clock.now += 5 * MS
            with cold.phase("warm_up"):
                raise MemoryError("no room")
    except MemoryError:
        pass
    (cold_span,) = trail.spans(semconv.COLD_START_SPAN)
    (load,) = trail.spans("tokentrail.cold_start.load_weights")
    (warm,) = trail.spans("tokentrail.cold_start.warm_up")
    assert (cold_span.duration_ns, load.duration_ns, warm.duration_ns) == (7 * MS, 5 * MS, 0)
    assert load.parent_id == warm.parent_id == cold_span.span_id
    assert {load.trace_id, warm.trace_id} == {cold_span.trace_id}
    assert load.attributes == {semconv.REQUEST_MODEL: "m"}
    assert warm.attributes[semconv.ERROR_TYPE] == cold_span.attributes[semconv.ERROR_TYPE] == "MemoryError"
    assert cold_span.message.status.code == StatusCode.ERROR.value


def test_a_cold_start_tells_the_limits_that_are_known_and_sensible(trail):
    with trail.cold_start("m") as cold, cold.phase("load_weights"):
        cold.limits({Limit.MAX_SEQS: 64, Limit.BLOCK_SIZE: -1, Limit.KV_BLOCKS: None, Limit.CHUNKED_PREFILL: True})
        cold.limits({Limit.POLICY: "fcfs", Limit.PREFIX_CACHING: False, Limit.MAX_BATCHED_TOKENS: 2**63})
    (whole,), (part,) = trail.spans(semconv.COLD_START_SPAN), trail.spans("tokentrail.cold_start.load_weights")
    assert whole.attributes == {
        semconv.REQUEST_MODEL: "m", "tokentrail.engine.max_seqs": 64, "tokentrail.engine.chunked_prefill": True,
        "tokentrail.engine.policy": "fcfs", "tokentrail.engine.prefix_caching": False,
    }  # fmt: skip
    assert part.attributes == {semconv.REQUEST_MODEL: "m"}


def test_a_prefill_tells_the_tokens_that_it_computes_where_the_prompt_does_not(trail):
    request = start(trail, arrival_ns=T0)
    marks = [(Phase.PREFILL, 1, None), (Phase.DECODE, 2, None), (Phase.PREEMPTED, 3, None), (Phase.PREFILL, 4, 70),
             (Phase.DECODE, 5, 9)]  # fmt: skip
    for phase, at, tokens in marks:
        request.phase(phase, T0 + at * MS + 1, tokens=tokens)
    request.end(T0 + 6 * MS)
    spans = sorted(trail.spans(semconv.PHASE_SPAN), key=lambda span: span.start_ns)
    found = [(s.attributes[semconv.PHASE_NAME], s.attributes.get(semconv.PHASE_TOKENS)) for s in spans]
    assert found == [("queued", None), ("prefill", None), ("decode", None), ("preempted", None), ("prefill", 70),
                     ("decode", None)]  # fmt: skip


def test_tokens_of_a_phase_that_are_no_count_are_left_out(tolerant):
    trail = tolerant
    request = start(trail, arrival_ns=T0)
    request.phase(Phase.PREFILL, T0 + MS, tokens=-5)
    request.end(T0 + 6 * MS)
    assert [semconv.PHASE_TOKENS in span.attributes for span in trail.spans(semconv.PHASE_SPAN)] == [False, False]


@st.composite
def workloads(draw):
    """Requests, steps that emit to some of them, and where the trail is flushed."""
    requests = draw(st.integers(1, 5))
    steps = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, requests - 1), unique=True),
                st.integers(-2_000, 9_000),  # ns since the step before: the clock may run backwards
                st.integers(1, 3),
                st.booleans(),
            ),
            max_size=25,
        )
    )
    return requests, steps, draw(st.booleans())


@settings(max_examples=60)
@given(workloads())
def test_tokens_and_phases_add_up_for_every_workload(workload):
    count, steps, speculative = workload
    trail = MemoryTrail()
    requests = [start(trail, arrival_ns=T0 + 7 * i) for i in range(count)]
    now, emitted = T0, np.zeros(count, int)
    for number, (chosen, gap, each, flush) in enumerate(steps):
        now += gap
        counts = [each] * len(chosen) if speculative else None
        trail.step(number, now - US, now, [requests[i] for i in chosen], counts=counts)
        emitted[chosen] += each if speculative else 1
        for i in chosen:
            requests[i].phase(Phase.DECODE if number % 3 else Phase.PREEMPTED, now)
        if flush:
            trail.flush()
    for request in requests:
        request.end(now)
    trail.flush()
    for request, output in zip(requests, emitted.tolist(), strict=True):
        (span,) = [s for s in trail.spans("chat m") if s.span_id == request.span_id]
        mine = trail.spans(semconv.TOKEN_SPAN, parent=request)
        assert [t.token_index for t in mine] == list(range(output))
        assert span.attributes[semconv.OUTPUT_TOKENS] == output
        assert all(t.start_ns <= t.end_ns for t in mine)
        if mine:
            total = sum(token.duration_ns for token in mine)
            assert round(span.attributes[semconv.TIME_TO_LAST_TOKEN] * 1e9) == total <= span.duration_ns
            assert round(span.attributes[semconv.TIME_TO_FIRST_TOKEN] * 1e9) == mine[0].duration_ns
        phases = trail.spans(semconv.PHASE_SPAN, parent=request)
        assert sum(phase.duration_ns for phase in phases) == span.duration_ns
        shared = [v for k, v in span.attributes.items() if k.startswith(semconv.PHASE_TIME_PREFIX)]
        assert sum(shared) == span.duration_ns
    assert all(s.start_ns % US == s.end_ns % US == 0 for s in trail.spans())
    stats = trail.stats
    assert stats.accepted == stats.exported == len(trail.spans())


def test_an_address_in_the_place_of_settings_says_where_it_belongs():
    with pytest.raises(TypeError, match=r"Trail\('http://c:4318'\): .* write Trail\(endpoint=…\)"):
        Trail("http://c:4318")
