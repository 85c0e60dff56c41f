"""Bytes against protobuf's own parser and OpenTelemetry's own encoder."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

from tests.tokentrail.support import T0
from tokentrail import semconv
from tokentrail._encode import wire
from tokentrail._encode.envelope import Envelope
from tokentrail._encode.wire import NARROW, WIDE, Block, Buffer, Columns, fill, padded_varint
from tokentrail.testing import parse_spans

ENVELOPE = Envelope(Resource({"service.name": "s", "tokentrail.device.count": 2}), "tokentrail", "9")
LIMITS = {"max_spans": 1_000, "max_bytes": 1 << 20}

ids = st.integers(1, 2**64 - 1)
spans = st.lists(
    st.tuples(ids, ids, ids, ids, st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**56 - 1), st.just(3)),
    min_size=1,
    max_size=20,
)


def columns(rows, *, child=True):
    high, low, span, parent, start, end, first, second = (list(column) for column in zip(*rows, strict=True))
    u64, i64 = (lambda v: np.array(v, np.uint64)), (lambda v: np.array(v, np.int64))
    return Columns(
        (u64(high), u64(low)),
        u64(span),
        u64(parent) if child else None,
        i64(start),
        i64(end),
        (i64(first), i64(second)),
    )


def by_opentelemetry(rows, *, child):
    return [
        ReadableSpan(
            semconv.TOKEN_SPAN,
            SpanContext(high << 64 | low, span, is_remote=False),
            SpanContext(high << 64 | low, parent, is_remote=False) if child else None,
            Resource({"service.name": "s", "tokentrail.device.count": 2}),
            {semconv.STEP_RUNNING: first, semconv.STEP: second},
            start_time=start,
            end_time=end,
            instrumentation_scope=InstrumentationScope("tokentrail", "9"),
        )
        for high, low, span, parent, start, end, first, second in rows
    ]


@given(spans, st.booleans())
def test_a_payload_is_what_opentelemetry_would_send(rows, child):
    block = fill(columns(rows, child=child), semconv.TOKEN_SPAN, (semconv.STEP_RUNNING, semconv.STEP))
    (payload,) = ENVELOPE.payloads([block], **LIMITS)
    assert payload.spans == len(rows)
    expected = encode_spans(by_opentelemetry(rows, child=child))
    for span in expected.resource_spans[0].scope_spans[0].spans:
        assert (span.status.code, span.flags) == (0, 0x100)  # unset; the parent is not remote
        span.ClearField("status")
        span.ClearField("flags")
    assert ExportTraceServiceRequest.FromString(payload.body) == expected


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_padded_varints_clip_instead_of_wrapping(width):
    largest = 2 ** (7 * width) - 1
    values = np.array([-5, 0, 1, 127, 128, largest, largest + 1, 2**63 - 1])
    packed = padded_varint(values, width)
    assert packed.dtype.itemsize == width
    for value, raw in zip(values.tolist(), packed.tolist(), strict=True):
        seven_bits = [byte & 0x7F for byte in raw.to_bytes(width, "little")]
        assert sum(bits << 7 * place for place, bits in enumerate(seven_bits)) == min(max(value, 0), largest)


def test_the_example_of_a_padded_varint():
    assert padded_varint(np.array([300]), NARROW).tobytes().hex() == "ac828000"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=8), st.integers(1, 12), st.integers(1, 200))
def test_payloads_keep_both_limits_and_the_order(shapes, max_spans, max_bytes):
    specimen = fill(columns([(1, 1, 1, 1, 0, 0, 0, 0)]), "s", ("a", "b"))
    blocks = [Block(bytes(specimen.data) * n, n, specimen.size) for n, _ in shapes]
    size = specimen.size * max_bytes // 40
    made = list(ENVELOPE.payloads(blocks, max_spans=max_spans, max_bytes=size))
    assert sum(p.spans for p in made) == sum(n for n, _ in shapes) == sum(len(parse_spans(p.body)) for p in made)
    assert all(1 <= p.spans <= max_spans for p in made)
    assert all(p.spans * specimen.size <= size or p.spans == 1 for p in made)


@given(spans, st.lists(st.integers(1, 7), min_size=1, max_size=20))
def test_spans_that_share_a_parent_are_those_that_repeat_it(rows, lengths):
    rows = rows[: len(lengths)]
    lengths = lengths[: len(rows)]
    owner = np.repeat(np.arange(len(rows)), lengths)
    whole = columns(rows)
    each = Columns(
        tuple(half[owner] for half in whole.trace),
        np.arange(1, len(owner) + 1, dtype=np.uint64),
        whole.parent[owner],
        whole.start[owner],
        whole.end[owner],
        [values[owner] for values in whole.ints],
    )
    shared = each._replace(trace=whole.trace, parent=whole.parent, lengths=np.array(lengths))
    keys = (semconv.STEP_RUNNING, semconv.STEP)
    assert bytes(fill(shared, "s", keys).data) == bytes(fill(each, "s", keys).data)


def test_blocks_share_a_buffer_until_it_is_reset():
    buffer, rows = Buffer(), columns([(1, 2, 3, 4, T0, T0, 5, 6)] * 100)
    alone = bytes(fill(rows, "s", ("a", "b")).data)
    for blocks in (3, 3, 1, 5, 4):
        buffer.reset()
        made = [fill(rows, "s", ("a", "b"), buffer=buffer) for _ in range(blocks)]
        assert [bytes(block.data) for block in made] == [alone] * blocks
    assert len(buffer._bytes) == len(alone) * 5 * 5 // 4  # it grew to the size of the largest batch, and a quarter


def test_a_buffer_keeps_no_more_than_its_limit(monkeypatch):
    monkeypatch.setattr(wire, "MAX_BUFFER_BYTES", 1_000)
    buffer = Buffer()
    for size in (1_001, 1_000, 1):
        assert buffer.rows(1, size).shape == (1, size)
        buffer.reset()
    assert len(buffer._bytes) == 1_250


def test_numbers_that_grow_take_the_wide_template():
    rows = [(1, 2, 3, 4, T0, T0, 2**28 - 1, 0), (1, 2, 3, 4, T0, T0, 2**28, 0)]
    narrow = fill(columns(rows[:1]), "s", ("a", "b"))
    wide = fill(columns(rows), "s", ("a", "b"))
    assert wide.size > narrow.size
    (payload,) = ENVELOPE.payloads([wide], **LIMITS)
    assert [span.attributes["a"] for span in parse_spans(payload.body)] == [2**28 - 1, 2**28]


def test_a_tail_says_the_kind_of_its_span():
    rows = [(1, 1, 1, 1, 0, 0, 0, 0)] * 2
    body = bytes(fill(columns(rows), "s", ("a", "b"), tails=[b"", b"\x30\x03"]).data)
    assert [span.kind for span in ScopeSpans.FromString(body).spans] == [0, 3]
