"""Bodies of many empty messages: a few bytes of each, and hundreds of them in memory."""

import os
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.otlp import json_otlp, logs, parse_bombs
from collector.otlp.checked import ItemLimits
from collector.otlp.errors import BusyError, MalformedError, TooLargeError
from collector.otlp.metrics import check as check_samples
from collector.otlp.parse_bombs import check_for_bomb, tiny_fields, turn_to_parse
from collector.otlp.validate import check
from tests.fuzz_wire import LEN, field
from tests.support.otlp import T0, Request, token_body

LIMITS = ItemLimits()
EMPTY = 200_000
GROUP = b"\x7b\x7c"
"""A group, field 15, which OTLP does not have."""


def nested(*tags, payload):
    for tag in reversed(tags):
        payload = field(tag, LEN, payload)
    return payload


BOMBS = {
    "items": nested(1, 2, payload=b"\x12\x00" * EMPTY),
    "items of many scopes": nested(1, payload=nested(2, payload=b"\x12\x00" * 100) * 2000),
    "scopes": nested(1, payload=b"\x12\x00" * EMPTY),
    "resources": b"\x0a\x00" * EMPTY,
}


@pytest.mark.parametrize("check_of", [check, logs.check, check_samples], ids=["traces", "logs", "metrics"])
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("before", [b"", GROUP], ids=["alone", "behind a group"])
def test_many_empty_messages_are_refused(check_of, bomb, before):
    with pytest.raises(MalformedError, match=r"the body has \d+ parts or more in \d+ bytes, so most of them are empty"):
        check_of(before + BOMBS[bomb], LIMITS)


@pytest.mark.parametrize("kind", [5, 7, 9, 10, 11], ids=["gauge", "sum", "histogram", "exponential", "summary"])
def test_many_empty_data_points_are_refused(kind):
    """64 MiB of them took four minutes."""
    metric = field(1, LEN, b"vllm:num_requests_running") + nested(kind, payload=b"\x0a\x00" * EMPTY)
    with pytest.raises(MalformedError, match="most of them are empty"):
        check_samples(nested(1, 2, 2, payload=metric), LIMITS)


def smallest_spans(count, **at):
    """Spans of 46 bytes, two of which are not alike."""
    request = Request()
    request.scope_spans.scope.name = "s"
    for n in range(count):
        span = request.span("", trace=n + 1, span=n + 1, kind=0, ns=n % 2)
        assert span.ByteSize() == 46
    return request


@pytest.mark.parametrize("before", [b"", GROUP], ids=["alone", "behind a group"])
def test_the_smallest_good_spans_are_taken(before):
    body = before + smallest_spans(20_000).body()
    check_for_bomb(body, 46)
    checked = check(body, LIMITS)
    assert (checked.items, checked.rejected) == (20_000, {})
    with pytest.raises(MalformedError):
        check_for_bomb(body, 100)


def test_every_good_span_may_have_a_resource_and_a_scope_of_its_own():
    one = smallest_spans(1).message.resource_spans[0]
    one.schema_url = one.scope_spans[0].schema_url = "https://s"
    body = field(1, LEN, one.SerializeToString()) * 12_000
    check_for_bomb(body, 46)


def test_a_small_body_says_of_each_span_what_is_wrong():
    body = nested(1, 2, payload=b"\x12\x00" * 100_000)
    assert len(body) < 256 * 1024
    assert check(body, LIMITS).rejected == {"trace_id": 100_000}


def test_a_large_body_that_is_no_protobuf_is_refused_by_its_parser():
    with pytest.raises(MalformedError, match="is not an OTLP ExportTraceServiceRequest"):
        check(nested(1, 2, payload=b"\x12\x01" * 200_000), LIMITS)


@pytest.mark.parametrize(("spans", "taken"), [(4, True), (5, False)])
def test_a_json_body_has_a_limit_of_objects_and_arrays(monkeypatch, spans, taken):
    """22 million empty spans took minutes."""
    monkeypatch.setattr(json_otlp, "_MOST_OBJECTS", 10)  # six are around the spans
    body = b'{"resourceSpans": [{"scopeSpans": [{"spans": [' + b", ".join([b"{}"] * spans) + b"]}]}]}"
    if taken:
        assert ExportTraceServiceRequest.FromString(json_otlp.to_protobuf(body, ExportTraceServiceRequest))
    else:
        with pytest.raises(TooLargeError, match="more than 10 JSON objects and arrays; send smaller batches"):
            json_otlp.to_protobuf(body, ExportTraceServiceRequest)


OF_ONE_SPAN = {
    "attributes": nested(1, 2, 2, payload=b"\x4a\x00" * EMPTY),
    "events": nested(1, 2, 2, payload=b"\x5a\x00" * EMPTY),
    "links": nested(1, 2, 2, payload=b"\x6a\x00" * EMPTY),
    "items of an array": nested(1, 2, 2, 9, 2, 5, payload=b"\x0a\x00" * EMPTY),
    "lengths of more bytes": nested(1, 2, 2, payload=b"\x6a\x80\x00" * EMPTY),
    "tags of more bytes": nested(1, 2, 2, payload=b"\xea\x80\x00\x00" * EMPTY),
    "some bytes": nested(1, 2, 2, payload=b"\x4a\x07\x0a\x05abcde" * EMPTY),
    "attributes of a resource": nested(1, 1, payload=b"\x0a\x00" * EMPTY) + token_body(count=3, start=T0),
}


@pytest.mark.parametrize("check_of", [check, logs.check, check_samples], ids=["traces", "logs", "metrics"])
@pytest.mark.parametrize("bomb", OF_ONE_SPAN)
def test_many_tiny_fields_anywhere_are_refused_before_they_are_parsed(check_of, bomb, monkeypatch):
    """64 MiB of empty links of one span took 3 GB until it was refused as too large."""
    monkeypatch.setattr(parse_bombs, "_MOST_TINY", EMPTY - 1)
    with pytest.raises(TooLargeError, match="more than 199999 fields of less than 8 bytes; send smaller batches"):
        check_of(OF_ONE_SPAN[bomb], LIMITS)


def test_tiny_fields_are_counted_across_the_pieces_in_which_a_body_is_read(monkeypatch):
    monkeypatch.setattr(parse_bombs, "_MOST_TINY", 1)
    for size in (0, 1, 3, 4, 5):
        monkeypatch.setattr(parse_bombs, "_AT_ONCE_BYTES", size or 2**20)
        assert tiny_fields(b"\x4a\x07\x0a\x01k\x12\x02\x18\x05" * 2) == 6


def test_text_and_random_bytes_have_few_tiny_fields(monkeypatch):
    monkeypatch.setattr(parse_bombs, "_MOST_TINY", 1)
    assert tiny_fields(b"*2:BJRZbjrz" * 1000) == 0
    assert tiny_fields(os.urandom(2**20)) < 2**20 / 100


def test_large_bodies_are_checked_one_at_a_time_and_small_ones_beside_them():
    entered, done = threading.Event(), []

    def second():
        entered.set()
        with turn_to_parse(2**23 + 1):
            done.append("second")

    thread = threading.Thread(target=second)
    with turn_to_parse(2**23 + 1):
        thread.start()
        assert entered.wait(120)
        with turn_to_parse(2**23):
            done.append("small")
        done.append("first")
    thread.join(120)
    assert done == ["small", "first", "second"]
    assert check(token_body(count=3, start=T0), LIMITS).items == 3


def test_a_body_whose_turn_does_not_come_is_refused_and_takes_no_place(monkeypatch):
    monkeypatch.setattr(parse_bombs, "_LONGEST_WAIT_S", 0.01)
    size = 2**23 + 1
    for _ in range(2):
        with (
            turn_to_parse(size),
            pytest.raises(BusyError, match=r"checked for 0.01 s; try again"),
            turn_to_parse(size),
        ):
            pass
    with pytest.raises(ZeroDivisionError), turn_to_parse(size):
        raise ZeroDivisionError
    with turn_to_parse(size):
        pass
