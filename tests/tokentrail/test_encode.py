"""Spans written by hand are those that OpenTelemetry's encoder writes."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, TraceState
from opentelemetry.trace.status import Status, StatusCode

from tokentrail._encode import encode
from tokentrail._encode.encode import Span, attributes_bytes, span_bytes, text, varint

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
scalars = st.one_of(words, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
values = st.one_of(scalars, st.lists(scalars, max_size=4))
spans = st.builds(
    Span,
    words,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.none() | st.builds(SpanContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), is_remote=st.booleans()),
    st.dictionaries(words, values, max_size=12),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.sampled_from(SpanKind),
    st.sampled_from([None, Status(), Status(StatusCode.OK), Status(StatusCode.ERROR), Status(StatusCode.ERROR, "né")]),
    st.sampled_from([None, TraceState([("a", "1"), ("b", "2")])]),
)


@given(spans)
def test_a_span_is_what_opentelemetry_would_write(span):
    context = SpanContext(span.trace_id, span.span_id, is_remote=False, trace_state=span.trace_state)
    theirs = ReadableSpan(
        span.name, context, span.parent, Resource.get_empty(), span.attributes, kind=span.kind,
        status=span.status or Status(), start_time=span.start_ns, end_time=span.end_ns,
    )  # fmt: skip
    (expected,) = encode_spans([theirs]).resource_spans[0].scope_spans[0].spans
    (written,) = ScopeSpans.FromString(span_bytes(span)).spans
    assert written.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("value", "kind", "read"),
    [
        (np.int64(-7), "int_value", -7),
        (np.float32(0.5), "double_value", 0.5),
        (np.bool_(True), "string_value", "True"),
        (Fraction(1, 4), "double_value", 0.25),
        (2**63, "string_value", str(2**63)),
        (-(2**63), "int_value", -(2**63)),
        (-(2**63) - 1, "string_value", str(-(2**63) - 1)),
        ("\ud800", "string_value", "?"),
        (object, "string_value", "<class 'object'>"),
        (b"x", "string_value", "b'x'"),
    ],
)
def test_values_of_other_types_become_one_of_theirs(value, kind, read):
    body = b"".join([b"\x12", varint(len(attributes_bytes({"k": value}))), attributes_bytes({"k": value})])
    (attribute,) = ScopeSpans.FromString(body).spans[0].attributes
    assert attribute.value.WhichOneof("value") == kind
    assert getattr(attribute.value, kind) == read


@pytest.mark.parametrize(("length", "remembered"), [(256, 1), (257, 0)])
@pytest.mark.parametrize("write", [str, lambda value: [value]])
def test_long_texts_are_not_remembered(write, length, remembered):
    """The prompts of 4,096 requests stayed in the memory of an engine that records prompts."""

    def known():
        return encode._known_text.cache_info().currsize + encode._text_in_array.cache_info().currsize

    encode._known_text.cache_clear()
    encode._text_in_array.cache_clear()
    assert b"p" * length in attributes_bytes({"gen_ai.input.messages": write("p" * length)})
    assert known() == remembered


def test_none_is_left_out():
    assert attributes_bytes({"k": None}) == b""
    assert attributes_bytes({"k": [None, 1]}) == attributes_bytes({"k": (1,)})


def test_an_object_that_cannot_be_shown_becomes_its_type():
    class Odd:
        def __str__(self):
            raise RuntimeError

    assert text(Odd()) == "Odd"


@given(st.integers(0, 2**64 - 1) | st.integers(2**27, 2**36))
def test_varints_are_read_back(value):
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint(value))) == value
    assert [byte >> 7 for byte in varint(value)][:-1] == [1] * (len(varint(value)) - 1)
    assert varint(value)[-1] < 0x80


@pytest.mark.parametrize(("value", "written"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02")])
def test_varints(value, written):
    assert varint(value).hex() == written
