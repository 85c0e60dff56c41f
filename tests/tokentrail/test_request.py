"""The calls of one request: what its span says, and the arguments that cannot be used."""

import asyncio

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

from tests.tokentrail.support import MS, T0, start
from tests.tokentrail.test_context import SAMPLED, SPAN, TRACE
from tokentrail import Phase, Status, Trail, records, semconv
from tokentrail.chunks import chunk_columns
from tokentrail.request import ENDED_SLOT, FOREIGN_SLOT, Chunk
from tokentrail.slots import Slots
from tokentrail.testing import MemoryTrail


@pytest.fixture
def tolerant(clock):
    return MemoryTrail(strict=False, clock=clock)


def attributes_of(trail):
    (span,) = trail.spans("chat m")
    return span.attributes


def phases_of(trail, request):
    found = trail.spans(semconv.PHASE_SPAN, parent=request)
    return {p.attributes[semconv.PHASE_NAME]: p.duration_ns // MS for p in found}


# --- arguments that cannot be used -----------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["noon", float("nan"), [], 1j])
def test_an_end_that_is_no_stamp_is_now(tolerant, clock, at):
    request = start(tolerant)
    clock.advance(3 * MS)
    request.end(at, finish_reason="stop")
    (span,) = tolerant.spans("chat m")
    assert (span.duration_ns, span.attributes[semconv.FINISH_REASON]) == (3 * MS, "stop")
    assert tolerant.stats.errors == 1


def test_stamps_that_are_not_given_are_now(trail, clock):
    request = start(trail, arrival_ns=None)
    clock.advance(MS)
    request.phase(Phase.PREFILL)
    clock.advance(2 * MS)
    request.token()
    trail.kv_event("evict", blocks=1, reason="cache_full", step=0)
    clock.advance(4 * MS)
    request.end()
    assert phases_of(trail, request) == {"queued": 1, "prefill": 2, "decode": 4}
    assert trail.spans("tokentrail.kv.evict")[0].start_ns == T0 + 3 * MS


BAD = ["three", -1, 2**63, 1.5, [1]]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("input_tokens", semconv.INPUT_TOKENS),
        ("output_tokens", semconv.OUTPUT_TOKENS),
        ("cached_tokens", semconv.CACHED_TOKENS),
        ("cache_creation_tokens", semconv.CACHE_CREATION_TOKENS),
        ("reasoning_tokens", semconv.REASONING_TOKENS),
    ],
)
def test_a_count_that_is_none_costs_itself_alone(tolerant, argument, key, bad):
    start(tolerant, tenant="acme").end(T0 + MS, **{argument: bad})
    start(tolerant, tenant="acme").end(T0 + MS, **{argument: np.int64(7)})
    without, given = (span.attributes for span in tolerant.spans("chat m"))
    assert without.get(key) == (0 if argument == "output_tokens" else None)
    assert given[key] == 7
    assert tolerant.stats.errors == 1


def test_a_start_keeps_what_is_good(tolerant, caplog):
    start(tolerant, input_tokens="x", attributes=["a"], kind="server", tenant="acme").end(T0 + MS, attributes=5)
    (span,) = tolerant.spans("chat m")
    assert span.attributes[semconv.TENANT] == "acme"
    assert semconv.INPUT_TOKENS not in span.attributes
    assert span.message.kind == 2
    assert tolerant.stats.errors == 4
    for mistake in (
        "input_tokens that is no count: 'x'",
        "attributes that are no mapping",
        "a kind that is no SpanKind",
    ):
        assert mistake in caplog.text


def test_a_value_that_cannot_be_shown_is_the_name_of_its_type(trail):
    class Silent:
        def __str__(self):
            raise RuntimeError

    start(trail, attributes={"odd": Silent()}).end(T0)
    assert attributes_of(trail)["odd"] == "Silent"


@pytest.mark.parametrize(
    ("carrier", "errors"),
    [
        ([(b"Host", b"x"), (b"traceparent", SAMPLED["traceparent"].encode())], 0),
        ([("Traceparent", SAMPLED["traceparent"])], 0),
        ({b"traceparent": SAMPLED["traceparent"].encode()}, 0),
        ({"traceparent": [SAMPLED["traceparent"]]}, 0),
        ([(b"x", None), "y", (b"traceparent", SAMPLED["traceparent"].encode())], 2),
    ],
    ids=["asgi", "pairs", "bytes", "lists", "some bad"],
)
def test_carriers_of_every_framework(tolerant, carrier, errors):
    request = start(tolerant, carrier=carrier)
    assert (request.trace_id, tolerant.stats.errors) == (int(TRACE, 16), errors)


@pytest.mark.parametrize("carrier", [5, ["traceparent"], object()])
def test_a_carrier_that_is_none_costs_the_parent_alone(tolerant, carrier):
    request = start(tolerant, carrier=carrier)
    assert request.sampled
    assert tolerant.stats.errors == 1


def test_a_header_that_comes_twice_counts_the_first_time(trail):
    other = SAMPLED["traceparent"].replace(TRACE, "1" * 32)
    carrier = [("traceparent", SAMPLED["traceparent"]), ("Traceparent", other)]
    assert start(trail, carrier=carrier).trace_id == int(TRACE, 16)


# --- status and errors -----------------------------------------------------------------------------------------


def test_an_error_type_makes_an_error(trail):
    start(trail).end(T0 + MS, error_type="TimeoutError")
    (span,) = trail.spans("chat m")
    assert (span.message.status.code, span.attributes[semconv.STATUS]) == (StatusCode.ERROR.value, "error")
    assert span.attributes[semconv.FINISH_REASONS] == ["error"]
    assert span.attributes[semconv.FINISH_REASON] == "error"


def test_an_error_always_has_a_type(trail):
    start(trail).end(T0 + MS, status=Status.ERROR, finish_reason="length")
    attributes = attributes_of(trail)
    assert (attributes[semconv.ERROR_TYPE], attributes[semconv.FINISH_REASONS]) == ("_OTHER", ["length"])


def test_a_cancelled_request_keeps_its_status_and_its_error_type(trail):
    start(trail).end(T0 + MS, status=Status.CANCELLED, error_type="ClientDisconnect")
    (span,) = trail.spans("chat m")
    assert (span.message.status.code, span.attributes[semconv.STATUS]) == (StatusCode.UNSET.value, "cancelled")
    assert span.attributes[semconv.ERROR_TYPE] == "ClientDisconnect"
    assert semconv.FINISH_REASONS not in span.attributes


def test_an_unknown_status_is_refused_and_never_a_success(tolerant, caplog):
    start(tolerant).end(T0 + MS, status="failed")
    attributes = attributes_of(tolerant)
    assert (attributes[semconv.STATUS], attributes[semconv.ERROR_TYPE]) == ("error", "_OTHER")
    assert tolerant.stats.errors == 1
    assert "an unknown status: 'failed'" in caplog.text


def test_a_status_by_its_value_is_a_status(trail):
    start(trail).end(T0 + MS, status="cancelled")
    assert attributes_of(trail)[semconv.STATUS] == "cancelled"


# --- what is known at the end ----------------------------------------------------------------------------------


def test_what_is_known_at_the_end(trail):
    request = start(trail, kind=SpanKind.CLIENT, request_id="asked", input_tokens=3, attributes={"a": 1, "b": 1})
    request.end(
        T0 + MS, input_tokens=5, output_tokens=9, cached_tokens=0, cache_creation_tokens=4, response_model="m-1",
        response_id="answered", finish_reasons=["stop", "length"], attributes={"b": 2, "c": None},
    )  # fmt: skip
    assert attributes_of(trail) == {
        semconv.OPERATION_NAME: "chat",
        semconv.PROVIDER_NAME: "tokentrail",
        semconv.REQUEST_MODEL: "m",
        semconv.RESPONSE_MODEL: "m-1",
        semconv.RESPONSE_ID: "answered",
        semconv.FINISH_REASONS: ["stop", "length"],
        semconv.FINISH_REASON: "stop",
        semconv.STATUS: "ok",
        semconv.INPUT_TOKENS: 5,
        semconv.OUTPUT_TOKENS: 9,
        semconv.CACHED_TOKENS: 0,
        semconv.CACHE_CREATION_TOKENS: 4,
        semconv.PHASE_TIME_PREFIX + "queued": MS,
        "a": 1,
        "b": 2,
    }


def test_what_nobody_said_is_absent(trail):
    start(trail, kind=SpanKind.CLIENT).end(T0 + MS)
    assert set(attributes_of(trail)) == {
        semconv.OPERATION_NAME, semconv.PROVIDER_NAME, semconv.REQUEST_MODEL, semconv.STATUS, semconv.OUTPUT_TOKENS,
        semconv.PHASE_TIME_PREFIX + "queued",
    }  # fmt: skip
    (announced, *_) = [trail := MemoryTrail(), start(trail), trail.spans(semconv.OPEN_SPAN)][-1]
    assert semconv.INPUT_TOKENS not in announced.attributes


def test_an_attribute_that_is_given_as_such_is_kept(trail):
    given = {
        semconv.CACHED_TOKENS: 3,
        semconv.INPUT_TOKENS: 4,
        semconv.CONVERSATION_ID: "c-1",
        semconv.SERVER_ADDRESS: "10.0.0.1",
        semconv.SERVER_PORT: 8000,
        semconv.CHOICE_COUNT: 2,
    }
    start(trail, attributes=given).end(T0)
    assert given.items() <= attributes_of(trail).items()


@pytest.mark.parametrize(("stream", "sent"), [(True, True), (False, False), (None, False)])
def test_only_a_streamed_request_has_a_first_chunk(trail, stream, sent):
    request = start(trail, attributes={semconv.REQUEST_STREAM: stream})
    request.token(at_ns=T0 + 4 * MS)
    request.end(T0 + 4 * MS)
    attributes = attributes_of(trail)
    assert attributes[semconv.TIME_TO_FIRST_TOKEN] == 0.004
    assert attributes.get(semconv.TIME_TO_FIRST_CHUNK) == (0.004 if sent else None)


def test_names_outside_our_own_are_in_opentelemetrys_registry():
    registry = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    ours = {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}
    theirs = {name for name in ours if name.startswith("gen_ai.")} - {semconv.OLD_TOKEN_INDEX}
    assert theirs <= registry
    assert semconv.SCHEMA_URL in {schema.value for schema in Schemas}


def test_the_payload_names_the_version_of_the_conventions(trail):
    start(trail)
    trail.flush()
    (resource,) = ExportTraceServiceRequest.FromString(trail.transport.bodies[0]).resource_spans
    assert [resource.schema_url, resource.scope_spans[0].schema_url] == [semconv.SCHEMA_URL] * 2


# --- sampling --------------------------------------------------------------------------------------------------


class Scripted(Sampler):
    """Answers with one decision and remembers what it was asked."""

    def __init__(self, decision, attributes=None):
        self.answer = SamplingResult(decision, attributes)
        self.asked = []

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
        self.asked.append((name, kind, dict(attributes or {})))
        return self.answer

    def get_description(self):
        return "scripted"


def test_a_request_that_is_only_recorded_is_not_exported():
    trail = MemoryTrail(sampler=Scripted(Decision.RECORD_ONLY))
    request = start(trail)
    request.end(T0 + MS)
    assert not request.sampled
    assert trail.spans() == []


def test_the_samplers_attributes_are_the_requests(trail):
    sampler = Scripted(Decision.RECORD_AND_SAMPLE, {"sampler.rule": "vip", "a": 2})
    trail = MemoryTrail(sampler=sampler)
    start(trail, attributes={"a": 1, "b": 1}).end(T0)
    assert {"sampler.rule": "vip", "a": 2, "b": 1}.items() <= attributes_of(trail).items()


def test_a_sampler_sees_what_it_decides_on():
    sampler = Scripted(Decision.DROP)
    trail = MemoryTrail(sampler=sampler)
    start(trail, tenant="acme", slo_class="chat", input_tokens=7, kind=SpanKind.CLIENT, attributes={"a": 1})
    assert sampler.asked == [
        (
            "chat m",
            SpanKind.CLIENT,
            {
                semconv.OPERATION_NAME: "chat",
                semconv.PROVIDER_NAME: "tokentrail",
                semconv.REQUEST_MODEL: "m",
                semconv.TENANT: "acme",
                semconv.SLO_CLASS: "chat",
                semconv.INPUT_TOKENS: 7,
                "a": 1,
            },
        )
    ]


# --- with trail.request(…) -------------------------------------------------------------------------------------


def given():
    return {"operation": "chat", "model": "m"}


def test_a_block_is_the_current_span_and_ends_its_request(trail, clock):
    with trail.request(**given()) as request:
        clock.advance(2 * MS)
        current = trace.get_current_span().get_span_context()
        assert (current.trace_id, current.span_id, current.trace_flags.sampled) == (
            request.trace_id, request.span_id, True,
        )  # fmt: skip
        child = start(trail)
    assert not trace.get_current_span().get_span_context().is_valid
    assert (child.trace_id, child.started.parent.span_id) == (request.trace_id, request.span_id)
    (span,) = trail.spans("chat m")
    assert (span.duration_ns, span.attributes[semconv.STATUS]) == (2 * MS, "ok")


@pytest.mark.parametrize(
    ("error", "status", "error_type"),
    [
        (ValueError("no"), "error", "ValueError"),
        (KeyboardInterrupt(), "error", "KeyboardInterrupt"),
        (asyncio.CancelledError(), "cancelled", None),
        (GeneratorExit(), "cancelled", None),
    ],
)
def test_an_exception_becomes_the_status_and_passes_through(trail, error, status, error_type):
    with pytest.raises(type(error)), trail.request(**given()):
        raise error
    attributes = attributes_of(trail)
    assert (attributes[semconv.STATUS], attributes.get(semconv.ERROR_TYPE)) == (status, error_type)
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_end_in_the_block_is_the_end(trail, clock):
    def serve():
        with trail.request(**given()) as request:
            request.end(T0 + MS, finish_reason="stop")
            clock.advance(9 * MS)
            raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        serve()
    (span,) = trail.spans("chat m")
    assert (span.duration_ns, span.attributes[semconv.STATUS]) == (MS, "ok")


def test_a_task_that_is_cancelled_cancels_its_request(trail):
    async def serve():
        async with trail.request(**given()) as request:
            assert trace.get_current_span().get_span_context().span_id == request.span_id
            await asyncio.sleep(60)

    async def main():
        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert attributes_of(trail)[semconv.STATUS] == "cancelled"


def test_a_block_that_is_not_sampled_hands_on_that_decision():
    trail = MemoryTrail(sampler=Scripted(Decision.DROP))
    with trail.request(**given()) as request:
        current = trace.get_current_span().get_span_context()
        assert (current.span_id, current.trace_flags.sampled) == (request.span_id, False)
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_block_of_a_disabled_trail_leaves_the_current_span_alone(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    trail = Trail.from_env()
    outer = trace.NonRecordingSpan(trace.SpanContext(7, 8, False))
    with trace.use_span(outer), trail.request(**given()) as request:
        assert trace.get_current_span() is outer
        headers = {}
        request.inject(headers)
        request.token()
        request.tokens([T0])
        assert headers == {}


def test_inject_writes_the_headers_of_the_context(trail):
    request = start(trail, carrier=SAMPLED)
    headers = {"accept": "text/event-stream"}
    request.inject(headers)
    assert headers == {
        "accept": "text/event-stream",
        "traceparent": f"00-{TRACE}-{request.span_id:016x}-01",
        "tracestate": "vendor=1",
    }
    assert SPAN not in headers["traceparent"]


# --- tokens without a step -------------------------------------------------------------------------------------


def test_tokens_without_a_step(trail, clock):
    request, other = start(trail), start(trail)
    clock.advance(4 * MS)
    request.token()
    other.token(at_ns=T0 + MS)
    request.token(3, T0 + 6 * MS)
    trail.flush()
    request.tokens([T0 + 7 * MS, T0 + 9 * MS])
    request.end(T0 + 9 * MS)
    tokens = trail.spans(semconv.TOKEN_SPAN, parent=request)
    assert [t.duration_ns // MS for t in tokens] == [4, 2, 0, 0, 1, 2]
    assert [(t.token_index, t.attributes) for t in tokens] == [(i, {}) for i in range(6)]
    assert [t.duration_ns // MS for t in trail.spans(semconv.TOKEN_SPAN, parent=other)] == [1]
    attributes = attributes_of(trail)
    assert (attributes[semconv.OUTPUT_TOKENS], attributes[semconv.TIME_TO_LAST_TOKEN]) == (6, 0.009)
    assert trail.spans(semconv.STEP_SPAN) == []
    stats = trail.stats
    assert stats.accepted == stats.exported == len(trail.spans())


def test_chunks_follow_the_steps_of_their_batch(trail):
    request = start(trail)
    trail.step(5, T0, T0 + MS, [request])
    request.token(2, T0 + 3 * MS)
    tokens = trail.spans(semconv.TOKEN_SPAN)
    assert [t.duration_ns // MS for t in tokens] == [1, 2, 0]
    assert [t.attributes.get(semconv.STEP) for t in tokens] == [5, None, None]


def test_chunks_after_the_end(trail):
    request = start(trail)
    request.token(at_ns=T0 + 5 * MS)
    request.end(T0 + 3 * MS)  # moved to the last token before it
    request.tokens([T0 + 3 * MS, T0 + 4 * MS])
    trail.flush()
    request.token(2, T0)
    (span,) = trail.spans("chat m")
    assert (span.attributes[semconv.OUTPUT_TOKENS], span.duration_ns) == (2, 5 * MS)
    assert trail.stats.drops == {"late": 3}


@pytest.mark.parametrize(
    ("call", "kept", "errors"),
    [
        (lambda r: r.token(0), 0, 0),
        (lambda r: r.token(-1), 0, 1),
        (lambda r: r.token("x"), 0, 1),
        (lambda r: r.token(5_000), 5_000, 0),
        (lambda r: r.token(65_537), 0, 1),
        (lambda r: r.token(at_ns="x"), 1, 1),
        (lambda r: r.tokens(5), 0, 1),
        (lambda r: r.tokens([T0, None, T0 + MS]), 2, 1),
        (lambda r: r.tokens([T0] * 65_537), 65_536, 1),
    ],
)
def test_chunks_keep_what_is_good(tolerant, call, kept, errors):
    request = start(tolerant)
    call(request)
    request.end()
    assert attributes_of(tolerant)[semconv.OUTPUT_TOKENS] == kept
    assert tolerant.stats.errors == errors


def test_a_step_may_emit_5000_tokens_to_one_request(trail):
    request = start(trail)
    trail.step(0, T0, T0 + MS, [request], counts=[5_000])
    request.end(T0 + MS)
    assert attributes_of(trail)[semconv.OUTPUT_TOKENS] == 5_000


def test_a_chunk_of_a_request_that_no_trail_took_is_foreign(trail):
    request, refused = start(trail), []
    assert chunk_columns([Chunk(request, (T0, T0), False)], Slots(), lambda *why: refused.append(why)) is None
    assert refused == [(FOREIGN_SLOT, 2), (ENDED_SLOT, 0)]


def test_chunks_beyond_the_buffer_are_counted_by_their_tokens(trail):
    request = start(trail)
    trail.shutdown()
    request.token(3)
    assert trail.stats.drops["shutdown"] == 3


def test_a_chunk_that_found_no_room_is_told_by_its_request(trail, monkeypatch):
    request = start(trail)
    monkeypatch.setattr(records, "MAX_PENDING_RECORDS", 1)
    request.token(3)
    request.end(T0)
    attributes = attributes_of(trail)
    assert (attributes[semconv.DROPPED_TOKENS], attributes[semconv.OUTPUT_TOKENS]) == (3, 0)
    assert trail.stats.drops == {"buffer_full": 3}


def test_a_request_that_no_trail_took_is_not_abandoned(trail):
    """A forked child forgets the records of its parent, and the parent goes on with the request."""
    request = start(trail)
    trail._records.clear()
    del request
    assert not trail._records


# --- phases that nobody names ----------------------------------------------------------------------------------


def test_the_first_token_ends_prefill(trail):
    request = start(trail)
    request.tokens([T0 + 4 * MS, T0 + 9 * MS])
    request.end(T0 + 9 * MS)
    assert phases_of(trail, request) == {"prefill": 4, "decode": 5}


def test_without_a_token_a_request_was_queued(trail):
    request = start(trail)
    request.end(T0 + 3 * MS)
    assert phases_of(trail, request) == {"queued": 3}
