import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.otlp.divide import halves, without_misread
from tests.support.otlp import Request

NAME_AS_VARINT = b"\x28\x05"
UNKNOWN_FIELD = b"\xf8\x07\x01"
UNKNOWN_GROUP = b"\xfb\x07\x08\x01\xfc\x07"


def names(payload):
    request = ExportTraceServiceRequest.FromString(payload)
    return [
        (r.resource.attributes[0].value.string_value, s.scope.name, span.name)
        for r in request.resource_spans
        for s in r.scope_spans
        for span in s.spans
    ]


def two_resources():
    first, second = Request(scope="a"), Request(scope="b", **{"service.name": "other"})
    for request, letters in ((first, "xyz"), (second, "uv")):
        for n, letter in enumerate(letters):
            request.span(letter, span=n + 1, attributes={"n": n})
    first.message.MergeFrom(second.message)
    return first.message


def test_a_request_without_misread_fields_stays_as_it_is():
    body = two_resources().SerializeToString()
    assert without_misread(body) == (body, b"")


@pytest.mark.parametrize("unknown", [UNKNOWN_FIELD, UNKNOWN_GROUP])
def test_a_field_that_otlp_does_not_have_is_left_out_alone(unknown):
    """ClickHouse skips unknown fields, but refuses groups."""
    message = two_resources()
    body = message.SerializeToString()
    message.resource_spans[0].scope_spans[0].spans[0].MergeFromString(unknown)
    assert without_misread(message.SerializeToString()) == (body, b"")


def test_a_bool_that_is_written_as_another_number_is_written_as_1():
    request = Request()
    request.span("x", attributes={"b": True})
    body = request.body()
    odd = body.replace(b"\x10\x01", b"\x10\x03")
    assert odd != body
    assert without_misread(odd) == (body, b"")


def test_of_two_values_of_an_attribute_the_last_one_stays():
    request = Request(odd="8 more")
    request.span("x", attributes={"n": 1})
    body = request.body()
    value = b"\x0a\x068 more"
    good, misread = without_misread(body.replace(value, b"\x0a\x04abcd\x18\x05"))
    request.message.resource_spans[0].resource.attributes[-1].value.int_value = 5
    assert (good, misread) == (request.body(), b"")


def spoil_span(message):
    message.resource_spans[0].scope_spans[0].spans[1].MergeFromString(NAME_AS_VARINT)


def spoil_attribute(message):
    message.resource_spans[0].scope_spans[0].spans[1].attributes[0].value.MergeFromString(b"\x1a\x01\x01")


@pytest.mark.parametrize("spoil", [spoil_span, spoil_attribute], ids=lambda spoil: spoil.__name__)
def test_a_misread_span_is_taken_out_alone(spoil):
    message = two_resources()
    before = names(message.SerializeToString())
    spoil(message)
    good, misread = without_misread(message.SerializeToString())
    assert names(good) == [before[0], *before[2:]]
    assert names(misread) == [before[1]]


def test_a_misread_resource_or_scope_takes_its_spans_along():
    message = two_resources()
    message.resource_spans[0].resource.MergeFromString(b"\x08\x01")
    good, misread = without_misread(message.SerializeToString())
    assert [name for *_, name in names(good)] == ["u", "v"]
    assert b"\x08\x01" in misread
    message = two_resources()
    message.resource_spans[1].scope_spans[0].scope.MergeFromString(b"\x08\x01")
    good, misread = without_misread(message.SerializeToString())
    assert [name for *_, name in names(good)] == ["x", "y", "z"]
    assert [name for *_, name in names(misread)] == ["u", "v"]


def test_both_parts_keep_the_urls_of_their_schemas():
    message = two_resources()
    for number, of_resource in enumerate(message.resource_spans):
        of_resource.schema_url, of_resource.scope_spans[0].schema_url = f"resource {number}", f"scope {number}"
    spoil_span(message)
    good, misread = without_misread(message.SerializeToString())
    for part, numbers in ((good, [0, 1]), (misread, [0])):
        found = ExportTraceServiceRequest.FromString(part).resource_spans
        assert [r.schema_url for r in found] == [f"resource {n}" for n in numbers]
        assert [r.scope_spans[0].schema_url for r in found] == [f"scope {n}" for n in numbers]


def test_a_misread_field_beside_the_spans_costs_none_of_them():
    message = two_resources()
    before = names(message.SerializeToString())
    message.resource_spans[0].MergeFromString(b"\x18\x63")
    message.MergeFromString(b"\x08\x01")
    good, misread = without_misread(message.SerializeToString())
    assert (names(good), misread) == (before, b"")
    assert b"\x18\x63" not in good


def test_halves_have_all_spans_once_and_in_order():
    body = two_resources().SerializeToString()
    first, second = halves(body)
    assert names(first) + names(second) == names(body)
    assert len(names(first)) == 2


def test_one_span_has_no_halves():
    request = Request()
    request.span("alone")
    assert halves(request.body()) is None


def test_a_request_that_protobuf_cannot_read_stays_as_it_is():
    unreadable = Request().tokens(count=2).body() + b"\x0a\x05x"
    assert without_misread(unreadable) == (unreadable, b"")
    assert halves(unreadable) is None
