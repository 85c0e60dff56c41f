"""The calls of one request: its span, and the arguments that cannot be used."""

from collections import Counter

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

from tests.tokentrail.support import MS, T0, attributes_of, phases_of, start
from tests.tokentrail.test_context import SAMPLED, TRACE
from tokentrail import Phase, Status, semconv
from tokentrail.testing import MemoryTrail

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


BAD = ["three", -1, 2**63, 1.5, [1], np.array([1, 2])]


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


PARTS = [
    ("cached_tokens", "input_tokens", semconv.CACHED_TOKENS),
    ("cache_creation_tokens", "input_tokens", semconv.CACHE_CREATION_TOKENS),
    ("reasoning_tokens", "output_tokens", semconv.REASONING_TOKENS),
]


@pytest.mark.parametrize(("part", "whole", "key"), PARTS)
def test_a_part_that_is_more_than_its_whole_is_refused_by_name(tolerant, caplog, part, whole, key):
    for n in (6, 7, 8):
        start(tolerant, input_tokens=None).end(T0 + MS, **{whole: 7, part: n})
    start(tolerant, input_tokens=None).end(T0 + MS, **{part: 8})
    of_whole = semconv.OUTPUT_TOKENS if whole == "output_tokens" else semconv.INPUT_TOKENS
    found = [(span.attributes.get(of_whole), span.attributes.get(key)) for span in tolerant.spans("chat m")]
    alone = 0 if whole == "output_tokens" else None  # the recorded tokens
    assert Counter(found) == Counter([(7, 6), (7, 7), (None, None), (alone, 8)]), "nobody knows which of both is wrong"
    assert tolerant.stats.errors == 1
    assert f"{part} that are more than {whole}: 8" in caplog.text


def test_cached_tokens_are_a_part_of_the_input_that_the_start_gave(tolerant):
    for n in (5, 6):
        start(tolerant, input_tokens=5).end(T0 + MS, cached_tokens=n)
    start(tolerant, input_tokens=5).end(T0 + MS, input_tokens=6, cached_tokens=6)
    ends = [span.attributes for span in tolerant.spans("chat m")]
    found = [(end.get(semconv.INPUT_TOKENS), end.get(semconv.CACHED_TOKENS)) for end in ends]
    assert Counter(found) == Counter([(5, 5), (None, None), (6, 6)])


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


# --- the facts of the end --------------------------------------------------------------------------------------


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
        "a": 1,
        "b": 2,
    }


def test_what_nobody_said_is_absent(trail):
    start(trail, kind=SpanKind.CLIENT).end(T0 + MS)
    assert set(attributes_of(trail)) == {
        semconv.OPERATION_NAME, semconv.PROVIDER_NAME, semconv.REQUEST_MODEL, semconv.STATUS, semconv.OUTPUT_TOKENS,
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
    of_their_own_release = {  # v0.1.0, which the package does not have
        semconv.CACHE_CREATION_TOKENS,
        semconv.IMAGE_INPUT_TOKENS,
        semconv.AUDIO_INPUT_TOKENS,
        semconv.IMAGE_OUTPUT_TOKENS,
        semconv.AUDIO_OUTPUT_TOKENS,
    }
    theirs = {name for name in ours if name.startswith("gen_ai.")} - of_their_own_release
    assert theirs <= registry
    assert semconv.SCHEMA_URL in {schema.value for schema in Schemas}


def test_the_payload_names_the_version_of_the_conventions(trail):
    start(trail)
    trail.flush()
    (resource,) = ExportTraceServiceRequest.FromString(trail.transport.bodies[0]).resource_spans
    assert [resource.schema_url, resource.scope_spans[0].schema_url] == [semconv.SCHEMA_URL] * 2


# --- sampling --------------------------------------------------------------------------------------------------


class Scripted(Sampler):
    """Answers with one decision and remembers the question."""

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
