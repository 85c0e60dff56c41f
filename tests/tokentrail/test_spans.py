"""The span of a request equals the one that OpenTelemetry's encoder makes of the same attributes, for any arguments."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, TraceState
from opentelemetry.trace.status import Status as SpanStatus
from opentelemetry.trace.status import StatusCode

from tests.tokentrail.support import MS, T0, start
from tokentrail import Phase, Status, semconv
from tokentrail._build.ended import Table
from tokentrail._build.phases import partition
from tokentrail._build.spans import Emitted, _announced, _usual_bytes, request_parts
from tokentrail._encode.wire import NO_RESOURCE
from tokentrail._record.arguments import RequestEnd, RequestStart, start_attributes
from tokentrail.testing import MemoryTrail

texts = st.sampled_from(["", "a", "né", "x" * 200])
counts = st.none() | st.integers(0, 3) | st.sampled_from([2**28, 2**56 - 1, 2**56, 2**63 - 1])
keys = st.sampled_from(
    ["mine", semconv.OUTPUT_TOKENS, semconv.INPUT_TOKENS, semconv.RESPONSE_MODEL, semconv.RESPONSE_ID, semconv.TENANT,
     semconv.STATUS, semconv.TIME_TO_FIRST_TOKEN, semconv.PHASE_TIME_PREFIX + "prefill", semconv.ERROR_TYPE,
     semconv.REQUEST_STREAM, semconv.PREEMPTIONS]
)  # fmt: skip
given_attributes = st.dictionaries(keys, st.sampled_from([True, 7, 0.5, "text", None]), max_size=5)
parents = st.none() | st.builds(SpanContext, st.just(1), st.integers(1, 2**64 - 1), is_remote=st.booleans())
starts = st.builds(
    RequestStart, st.just(T0), texts, texts, texts, texts, texts, texts, counts,
    st.sampled_from([SpanKind.SERVER, SpanKind.CLIENT]), parents,
    st.sampled_from([None, TraceState([("a", "1")])]), given_attributes,
)  # fmt: skip
ends = st.builds(
    RequestEnd, st.integers(0, 9).map(lambda ms: T0 + ms * MS), st.sampled_from(Status), texts,
    st.lists(texts.filter(bool), max_size=2).map(tuple), counts, counts, counts, counts, counts, texts, texts,
    given_attributes,
)  # fmt: skip
emissions = st.just(Emitted(0, 0, 0, 3)) | st.builds(
    Emitted,
    st.integers(1, 9),
    st.just(T0 + MS),
    st.just(T0 + 3 * MS),
    st.integers(0, 2),
    st.integers(0, 2),
    st.just(MS),
    st.integers(0, 2).map(lambda ms: ms * MS),
    st.just(1),
)
marks = st.lists(st.tuples(st.sampled_from(Phase), st.integers(T0, T0 + 9 * MS)), max_size=4)


def attributes_of(started, ended, end, emitted, phases, weight):
    """The attributes of a request, written down one by one; later ones replace earlier ones."""
    known = {
        semconv.OPERATION_NAME: started.operation,
        semconv.PROVIDER_NAME: started.provider or None,
        semconv.REQUEST_MODEL: started.model,
        semconv.RESPONSE_ID: ended.response_id or started.request_id or None,
        semconv.TENANT: started.tenant or None,
        semconv.SLO_CLASS: started.slo_class or None,
        semconv.INPUT_TOKENS: started.input_tokens if ended.input_tokens is None else ended.input_tokens,
        semconv.OUTPUT_TOKENS: emitted.tokens if ended.output_tokens is None else ended.output_tokens,
        semconv.RESPONSE_MODEL: ended.response_model or (started.model if started.kind is SpanKind.SERVER else None),
        semconv.STATUS: str(ended.status),
        semconv.FINISH_REASONS: ended.finish_reasons or None,
        semconv.FINISH_REASON: ended.finish_reasons[0] if ended.finish_reasons else None,
        semconv.ERROR_TYPE: ended.error_type or None,
        semconv.CACHED_TOKENS: ended.cached_tokens,
        semconv.CACHE_CREATION_TOKENS: ended.cache_creation_tokens,
        semconv.REASONING_TOKENS: ended.reasoning_tokens,
        semconv.PREEMPTIONS: phases[1] or None,
        semconv.DROPPED_TOKENS: emitted.dropped or None,
        semconv.SAMPLING_WEIGHT: weight if weight != 1 else None,
        semconv.CHOICES: emitted.choices or None,
        semconv.TIME_BETWEEN_TOKENS: emitted.between / 1e9 if emitted.choices else None,
    }
    if emitted.tokens:
        known[semconv.TIME_TO_FIRST_TOKEN] = (emitted.first - T0) / 1e9
        known[semconv.TIME_TO_LAST_TOKEN] = (emitted.last - T0) / 1e9
        silence = end - emitted.last if ended.status in (Status.ERROR, Status.CANCELLED) else 0
        known[semconv.LONGEST_GAP] = max(emitted.gap, silence) / 1e9
        if silence > emitted.gap and not emitted.choices:
            known[semconv.LONGEST_GAP_INDEX] = emitted.tokens
        elif silence <= emitted.gap and emitted.gap:
            known[semconv.LONGEST_GAP_INDEX] = emitted.gap_index
        if started.attributes.get(semconv.REQUEST_STREAM) is True:
            known[semconv.TIME_TO_FIRST_CHUNK] = known[semconv.TIME_TO_FIRST_TOKEN]
    for phase, begun, over in phases[0]:
        key = semconv.PHASE_TIME_PREFIX + phase
        known[key] = known.get(key, 0) + over - begun
    known = {key: value for key, value in known.items() if value is not None}
    return {key: v for key, v in {**started.attributes, **ended.attributes, **known}.items() if v is not None}


@given(starts, ends, emissions, marks, st.sampled_from([1.0, 2.5]))
def test_a_request_span_is_what_opentelemetry_would_write(started, ended, emitted, marks, weight):
    trail = MemoryTrail()
    request = start(trail)
    request.started, request.ended = started, ended
    end = max(ended.at_ns, emitted.last)
    phases = partition(T0, end, marks, None, emitted.first or None)
    ints, doubles, tail = request_parts(request, ended, end, emitted, phases, weight)
    assert max(ints) < 2**56
    assembler = trail._pipeline._assembler
    assembler.bench.slots.take([request])
    (row,) = assembler.bench.slots.rows_of([request])
    (block,) = assembler._ended_requests._request_blocks(
        Table([row] * 2, [end] * 2, [*ints] * 2, [*doubles] * 2, [tail] * 2)
    )
    written = ScopeSpans.FromString(bytes(block.data)).spans
    failed = ended.status is Status.ERROR
    theirs = ReadableSpan(
        f"{started.operation} {started.model}",
        SpanContext(request.trace_id, request.span_id, is_remote=False, trace_state=started.trace_state),
        started.parent,
        NO_RESOURCE,
        attributes_of(started, ended, end, emitted, phases, weight),
        kind=started.kind,
        status=SpanStatus(StatusCode.ERROR, ended.error_type or None) if failed else SpanStatus(),
        start_time=T0,
        end_time=end,
    )
    (expected,) = encode_spans([theirs]).resource_spans[0].scope_spans[0].spans
    for span in (*written, expected):
        span.attributes.sort(key=lambda pair: pair.key)
    assert list(written) == [expected] * 2


def test_values_without_a_hash_and_values_that_are_equal_keep_their_types(trail):
    for tenant in (1, True, 1.0, ["a"]):
        start(trail, tenant=tenant, arrival_ns=T0).end(T0 + MS)
    tenants = [span.attributes[semconv.TENANT] for span in trail.spans("chat m")]
    assert [(type(tenant), tenant) for tenant in tenants] == [(int, 1), (bool, True), (float, 1.0), (list, ["a"])]


def test_real_zeros_are_sent_and_unknown_counts_are_absent(trail):
    start(trail).end(T0 + MS, cached_tokens=0, reasoning_tokens=0)
    start(trail).end(T0 + MS)
    zero, unknown = trail.spans("chat m")
    assert (zero.attributes[semconv.CACHED_TOKENS], zero.attributes[semconv.REASONING_TOKENS]) == (0, 0)
    assert not {semconv.CACHED_TOKENS, semconv.REASONING_TOKENS} & set(unknown.attributes)


def test_what_a_sampler_sees_are_the_attributes_of_the_start(trail):
    request = start(trail, request_id="r", tenant="acme", input_tokens=0, attributes={semconv.TENANT: "x", "mine": 1})
    assert start_attributes(request.started) == {
        semconv.OPERATION_NAME: "chat",
        semconv.PROVIDER_NAME: "tokentrail",
        semconv.REQUEST_MODEL: "m",
        semconv.RESPONSE_ID: "r",
        semconv.TENANT: "acme",
        semconv.INPUT_TOKENS: 0,
        "mine": 1,
    }


@pytest.mark.parametrize(
    ("emitted", "tpot"),
    [
        (Emitted(0, 0, 0), None),
        (Emitted(1, 10, 10), None),
        (Emitted(3, 10, 30), 10),
        (Emitted(4, 10, 30, choices=2, between=30), 15),
        (Emitted(2, 10, 30, choices=2, between=0), None),
    ],
)
def test_tpot_counts_the_gaps_within_choices(emitted, tpot):
    assert emitted.tpot_ns() == tpot
    assert Emitted(1, 10, 30).tpot_ns(3) == 10


@pytest.mark.parametrize(
    ("emitted", "output_tokens", "tpot"),
    [
        (Emitted(3, 10, 40), 11, 3),
        (Emitted(3, 10, 40), None, None),  # arrivals are no tokens
        (Emitted(1, 10, 10), 11, None),  # all at once: there is no time between them
        (Emitted(2, 10, 40, choices=2, between=30), 11, None),
        (Emitted(3, 10, 40, choices=2, between=30), 12, 3),
    ],
)
def test_arrivals_have_a_tpot_only_with_a_number_of_tokens_and_time_between_them(trail, emitted, output_tokens, tpot):
    request = start(trail)
    request.end(T0, output_tokens=output_tokens, attributes={semconv.ARRIVALS: emitted.tokens})
    assert emitted.tpot_of(request.ended) == tpot
    assert emitted.output_tokens(request.ended, "chat") == output_tokens


@pytest.mark.parametrize(("arrived", "tpot"), [(7, 5), (2, 30), (1, None), (0, None)])
def test_tokens_that_never_arrived_have_no_part_in_the_tpot(trail, arrived, tpot):
    request = start(trail)
    request.end(T0, output_tokens=11, attributes={semconv.ARRIVALS: 3, semconv.ARRIVED_TOKENS: arrived})
    assert Emitted(3, 10, 40).tpot_of(request.ended) == tpot


class Name(str):
    """A text of which a test sees whether somebody keeps it."""


@pytest.mark.parametrize(("length", "kept"), [(1_500, True), (5_000, False)])
@pytest.mark.parametrize(
    "write", [_announced, lambda *values: _usual_bytes(*values, None, Status.OK, None, None, None)]
)
def test_values_that_come_again_are_kept_unless_they_are_long(write, length, kept):
    """Models of a megabyte, which clients may ask for, filled a gigabyte."""
    name = Name("m" * length)
    (written,) = {write(SpanKind.SERVER, "chat", None, name, None, None) for _ in range(2)}
    assert name.encode() in written
    looked_at = weakref.ref(name)
    del name
    gc.collect()
    assert (looked_at() is not None) is kept
