"""Payloads that the store refuses become dead letters, and cost no other payload."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.store.insert import insert_otlp
from collector.wal.frame import digest_of
from collector.wal.log import SegmentLog
from tests.collector.otlp.test_runs import with_a_padded_head
from tests.collector.store.writing.written import misread, unreadable
from tests.support.otlp import Request, token_body


@pytest.mark.parametrize("bad_at", [{0}, {4}, {1, 3}, {0, 1, 2, 3, 4}])
def test_only_the_payloads_that_the_store_refuses_are_set_aside(setup, bad_at):
    s = setup()
    payloads = [unreadable(n) if n in bad_at else token_body(trace=n + 1) for n in range(5)]
    s.writer.write(s.segment(*payloads))
    assert s.tokens() == {n + 1: 3 for n in range(5) if n not in bad_at}
    assert {path.read_bytes() for path in s.dead()} == {payloads[n] for n in bad_at}
    assert all("FixedString" in why["reason"] for why in s.dead().values())
    assert s.status.snapshot().payloads_dead_lettered == len(bad_at)
    assert s.log.pending == (0, 0)


@pytest.mark.parametrize(
    "value",
    [b"\x10\x03", b"\x18\x05\x10\x01", b"\x10\x01\xfb\x07\xfc\x07"],
    ids=["true as 3", "an integer and true", "true and a group"],
)
def test_a_value_that_protobuf_reads_and_clickhouse_refuses_holds_up_nothing_and_is_stored(setup, value):
    s = setup()
    s.writer._give_up.set()  # no second try
    attribute = b"\x0a\x01b\x12" + bytes([len(value)]) + value
    span = Request().tokens(trace=1, count=1).scope_spans.spans[0].SerializeToString()
    span += bytes([9 << 3 | 2, len(attribute)]) + attribute
    scope = b"\x0a\x0c\x0a\x0atokentrail" + bytes([2 << 3 | 2]) + encoded(len(span)) + span
    body = b"".join([b"\x0a", encoded(len(scope) + len(encoded(len(scope))) + 1), b"\x12", encoded(len(scope)), scope])
    s.writer.write(s.segment(body, token_body(trace=2)))
    assert (s.tokens(), s.dead()) == ({1: 1, 2: 3}, {})


def encoded(number):
    """A varint below 2^14, in two bytes."""
    return bytes([number & 127 | 128, number >> 7])


def test_a_payload_that_was_set_aside_may_be_sent_again_and_a_stored_one_is_known(setup):
    s = setup()
    stored, refused, divided = token_body(trace=1), unreadable(2), misread(3)
    s.writer.write(s.segment(stored, refused, divided))
    again = SegmentLog(s.folder / "wal", s.dead_letters)
    for log in (s.log, again):
        assert [log.seen(digest_of(payload)) for payload in (stored, refused, divided)] == [True, False, True]
    s.writer.write(s.segment(refused, token_body(trace=4)))
    assert s.tokens() == {1: 3, 3: 2, 4: 3}
    assert s.status.snapshot().payloads_dead_lettered == 3


@pytest.mark.parametrize("bad_at", [{0}, {1, 3}, {0, 1, 2, 3}])
def test_a_field_of_a_wrong_wire_type_costs_its_span_alone(setup, bad_at):
    s = setup()
    segment = s.segment(*(misread(n + 1) if n in bad_at else token_body(trace=n + 1) for n in range(4)))
    s.writer.write(segment)
    assert s.tokens() == {n + 1: 2 if n in bad_at else 3 for n in range(4)}
    assert s.segments == [f"{segment.id}.r"], "one insert for all that can be read"
    for path, why in s.dead().items():
        (span,) = ExportTraceServiceRequest.FromString(path.read_bytes()).resource_spans[0].scope_spans[0].spans
        assert b"\x28\x05" in span.SerializeToString()
        assert "wrong wire type" in why["reason"]
    assert len(s.dead()) == s.status.snapshot().payloads_dead_lettered == len(bad_at)
    assert s.log.pending == (0, 0)


def test_a_payload_without_a_span_that_can_be_read_is_no_insert(setup):
    s = setup()
    request = Request().tokens(trace=1, count=1)
    request.scope_spans.spans[0].ClearField("name")
    request.scope_spans.spans[0].MergeFromString(b"\x28\x05")
    s.writer.write(s.segment(request.body()))
    assert (s.tokens(), s.segments, len(s.dead())) == ({}, [], 1)
    assert s.log.pending == (0, 0)


def test_a_misread_field_beside_the_spans_costs_none_of_them(setup):
    s = setup()
    s.writer.write(s.segment(token_body(trace=1) + b"\x08\x01"))
    assert s.tokens() == {1: 3}
    assert s.dead() == {}


@pytest.mark.parametrize("values", [b"\x0a\x01a\x0a\x03bcd", b"\x0a\x04abcd\x18\x05", b"\x18\x05\x0a\x04abcd"])
@pytest.mark.parametrize("place", ["span", "resource"])
def test_a_payload_with_two_values_of_an_attribute_is_stored_with_the_last_one(setup, place, values):
    odd = Request().tokens(trace=2)
    holder = odd.scope_spans.spans[0] if place == "span" else odd.message.resource_spans[0].resource
    holder.attributes.add(key="odd").value.string_value = "8 more"
    body = odd.body().replace(b"\x0a\x068 more", values)
    s = setup(max_wait_s=0.01)
    s.writer.write(s.segment(token_body(trace=1), body, token_body(trace=3)))
    assert s.tokens() == {1: 3, 2: 3, 3: 3}
    assert s.dead() == {}


def test_an_enumeration_that_is_larger_than_32_bits_is_cut_as_in_protobuf(setup):
    odd = Request().tokens(trace=2)
    odd.scope_spans.spans[0].trace_state = "12345"
    body = odd.body().replace(b"\x1a\x0512345", b"\x30\x80\x80\x80\x80\x80\x01")  # kind = 2³⁵
    s = setup(max_wait_s=0.01)
    s.writer.write(s.segment(token_body(trace=1), body, token_body(trace=3)))
    assert s.tokens() == {1: 3, 2: 3, 3: 3}
    assert s.dead() == {}


def test_a_payload_beside_misread_ones_that_the_store_refuses_is_still_set_aside_alone(setup):
    s = setup()
    s.writer.write(s.segment(token_body(trace=1), misread(2), unreadable(3), token_body(trace=4)))
    assert s.tokens() == {1: 3, 2: 2, 4: 3}
    assert sorted("wrong wire type" in why["reason"] for why in s.dead().values()) == [False, True]


def test_a_payload_that_protobuf_cannot_read_holds_up_nothing(setup):
    """A length of six bytes. ClickHouse reads it; a collector took it when it did not parse long runs of spans."""
    s = setup()
    s.writer.write(s.segment(with_a_padded_head(token_body(trace=1), length=6), misread(2), token_body(trace=3)))
    assert s.tokens() == {1: 3, 2: 2, 3: 3}
    assert len(s.dead()) == 1


def test_a_crash_in_the_middle_of_setting_aside_adds_nothing_twice(setup):
    s = setup()
    payloads = [token_body(trace=1), unreadable(9), token_body(trace=2), token_body(trace=3)]
    segment = s.segment(*payloads)
    calls = []

    def crash_after_an_insert(store, signal, body, token):
        calls.append(token)
        insert_otlp(store, signal, body, token)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        s.another_writer(insert=crash_after_an_insert).write(segment)
    s.another_writer().write(segment)
    assert s.tokens() == {1: 3, 2: 3, 3: 3}
    assert len(s.dead()) == 1


def test_a_bad_payload_in_a_backlog_is_set_aside_alone(setup):
    s = setup()
    for payload in (token_body(trace=1), unreadable(2), misread(3), token_body(trace=4)):
        s.segment_that_waits(payload)
    s.writer.start()
    assert s.writer.stop(timeout_s=30.0)
    assert s.tokens() == {1: 3, 3: 2, 4: 3}
    assert len(s.dead()) == 2
