"""The fast way of checking must never pass what the parser would not."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from collector.otlp import runs, validate
from collector.otlp.checked import ItemLimits
from collector.otlp.errors import MalformedError
from collector.otlp.validate import Reason, check, check_if_uniform
from tests.support.otlp import MS, T0, Request, token_body
from tokentrail import semconv
from tokentrail.testing import ManualClock, MemoryTrail, parse_spans

LIMITS = ItemLimits()


def count_if_uniform(body, limits):
    uniform = check_if_uniform(body, limits)
    return uniform and uniform.items


def parsed(body):
    """What the parser says of a body, without the fast way."""
    request = ExportTraceServiceRequest.FromString(body)
    return validate.check_parsed(request, body, LIMITS)


def requests_body(count, **first):
    request = Request()
    for n in range(count):
        attributes = {
            semconv.OPERATION_NAME: "chat",
            semconv.RESPONSE_ID: f"id-{n:04}",
            semconv.OUTPUT_TOKENS: 100 + n % 20,
        }
        request.span(
            "chat m", trace=n + 1, span=n + 1, kind=2, attributes=attributes, status=Status(code=Status.STATUS_CODE_OK)
        )
    for field, value in first.items():
        setattr(request.scope_spans.spans[0], field, value)
    return request.body()


@pytest.mark.parametrize(
    "body",
    [token_body(count=100), requests_body(64), token_body(count=50) + requests_body(50), token_body(count=1)],
)
def test_long_runs_are_counted_without_parsing_them(body):
    assert count_if_uniform(body, LIMITS) == parsed(body).items
    assert check(body, LIMITS).payload == body


def test_the_tokens_that_the_sdk_sends_are_counted_without_parsing_them():
    trail = MemoryTrail(clock=ManualClock(T0))
    requests = [trail.start_request(operation="chat", model="m", arrival_ns=T0) for _ in range(64)]
    for step in range(20):
        trail.step(step, T0, T0, requests)
    trail.flush()
    (tokens,) = [body for body in trail.transport.bodies if len(parse_spans(body)) == 64 * 20]
    assert count_if_uniform(tokens, LIMITS) == 64 * 20
    url = semconv.SCHEMA_URL.encode()
    assert tokens.count(url) == 2
    no_text = url[:-1] + b"\xff"
    head, inner, tail = tokens.split(url)
    assert count_if_uniform(head + no_text + inner + url + tail, LIMITS) is None
    assert count_if_uniform(head + url + inner + no_text + tail, LIMITS) is None


@pytest.mark.parametrize("where", [0, 1, 300, 511, 599])
@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("trace_id", bytes(16), Reason.TRACE_ID),
        ("span_id", bytes(8), Reason.SPAN_ID),
        ("end_time_unix_nano", T0 - 10**12, Reason.END_BEFORE_START),
        ("start_time_unix_nano", 5, Reason.TIME),
        ("end_time_unix_nano", 2**64 - 1, Reason.TIME),
        ("trace_id", b"short", Reason.TRACE_ID),
        ("end_time_unix_nano", T0 + validate.LONGEST_NS + 10**12, Reason.TIME),
    ],
)
def test_a_bad_span_anywhere_in_a_run_is_found(where, field, value, reason):
    request = Request().tokens(count=600)
    setattr(request.scope_spans.spans[where], field, value)
    checked = check(request.body(), LIMITS)
    assert (checked.items, checked.rejected) == (600, {reason: 1})


@pytest.mark.parametrize("where", [1, 127, 128, 383, 384, 385, 599])
def test_a_span_of_another_shape_anywhere_in_a_run_is_found(where):
    """From index 128 on, a record is a byte longer: a run begins there, and 256 records later its second window."""
    request = Request().tokens(count=600)
    name = request.scope_spans.spans[0].name.encode()
    parts = request.body().split(name)
    body = name.join(parts[: where + 1]) + name[:-1] + b"\xff" + name.join(parts[where + 1 :])
    assert (len(parts), len(body)) == (601, len(request.body()))
    assert count_if_uniform(body, LIMITS) is None


def test_text_that_is_not_ascii_is_left_to_the_parser():
    request = Request()
    for n in range(20):
        request.span("chat m", trace=n + 1, attributes={semconv.TENANT: "ü" if n == 7 else "uu"})
    assert check(request.body(), LIMITS).items == 20
    broken = request.body().replace("ü".encode(), b"\xff\xff")
    assert broken != request.body()
    with pytest.raises(MalformedError):
        check(broken, LIMITS)


def test_many_different_spans_are_parsed_at_once():
    request = Request()
    for n in range(100):
        request.span("n" * (n + 1), trace=n + 1)
    assert count_if_uniform(request.body(), LIMITS) is None
    assert check(request.body(), LIMITS).items == 100


def plain_tokens(count, seed=0):
    """Tokens of several lengths that take turns, as any Protobuf library writes them."""
    chance = random.Random(seed)
    request = Request()
    for n in range(count):
        attributes = {semconv.TOKEN_INDEX: chance.choice([5, 200, 20_000]), semconv.STEP: n}
        request.span(
            semconv.TOKEN_SPAN, trace=n + 1, span=n + 1, parent=n + 7, start=T0 + n * MS, attributes=attributes
        )
    return request


def test_spans_of_a_few_lengths_that_take_turns_are_counted_without_parsing_them():
    body = plain_tokens(500).body()
    checked = check_if_uniform(body, LIMITS)
    assert checked == parsed(body)
    assert checked.payload == body


@pytest.mark.parametrize(
    ("shapes", "each", "sorted_well"), [(1, 32, True), (1, 31, False), (4, 32, True), (5, 31, False), (20, 33, True)]
)
def test_runs_that_must_be_sorted_are_32_spans_long_on_average(shapes, each, sorted_well):
    request = Request()
    request.span("first of all, and long")
    for n in range(shapes * each):
        request.span("n" * (1 + n % shapes), trace=n + 1, span=n + 1)
    count = shapes * each + 1
    assert parsed(request.body()).items == count
    found = check_if_uniform(request.body(), LIMITS)
    assert (found and found.items) == (count if sorted_well else None)


def test_spans_of_one_length_and_two_shapes_are_two_runs():
    request = Request()
    for n in range(200):
        request.span("ab" if n % 3 else "ba", trace=n + 1, span=n + 1)
    request.span("abcd")
    found = sorted((len(run.rows), run.first.count(b"ab")) for run in runs.runs(request.body()))
    assert sum(count for count, _ in found) == 201
    assert check_if_uniform(request.body(), LIMITS) == parsed(request.body())


@pytest.mark.parametrize("where", [0, 1, 150, 299])
def test_a_bad_span_among_spans_of_several_lengths_is_found(where):
    request = plain_tokens(300)
    request.scope_spans.spans[where].span_id = bytes(8)
    checked = check(request.body(), LIMITS)
    assert (checked.items, checked.rejected) == (300, {Reason.SPAN_ID: 1})


def test_a_field_behind_the_spans_is_left_to_the_parser():
    request = plain_tokens(300)
    assert count_if_uniform(request.body(), LIMITS) == 300
    request.scope_spans.schema_url = "behind"
    assert count_if_uniform(request.body(), LIMITS) is None
    assert check(request.body(), LIMITS).items == 300


def test_limits_hold_for_runs():
    body = requests_body(50)
    assert check(body, ItemLimits(max_attributes=2)).rejected == {Reason.TOO_MANY_ATTRIBUTES: 50}
    assert check(body, ItemLimits(max_bytes=50)).rejected == {Reason.TOO_LARGE: 50}


@pytest.mark.parametrize("length", [100_000, 1_000_000])
def test_two_alike_spans_take_no_more_memory_than_others(length):
    """256 copies of the first span were compared with the others: two spans of 30 MB took 15 GB."""
    request = Request()
    for n in range(2):
        request.span("x", span=n + 1, attributes={"a": "y" * length})
    body = request.body()
    tracemalloc.start()
    try:
        assert check(body, LIMITS).items == 2
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body) + 1_000_000
    finally:
        tracemalloc.stop()


def test_what_is_remembered_of_shapes_is_bounded():
    for length in range(3000, 3900, 10):
        check(requests_of(length, 30), LIMITS)
    shapes = [shape for known in runs._known_shapes.values() for shape in known]
    assert any(len(shape.record) > 3000 for shape in shapes)
    assert max(len(shape.record) for shape in shapes) <= 4096
    assert max(len(shape.window[0]) for shape in shapes) <= 64 * 1024


def requests_of(length, count, other=None):
    """Spans with a text of this length; that of number `other` has another kind of value."""
    request = Request()
    for n in range(count):
        value = bytes(length) if n == other else "y" * length
        request.span("x", trace=n + 1, span=n + 1, attributes={"a": value})
    return request.body()


@pytest.mark.parametrize("other", [20, 21, 22, 41, 42, 43, 49])
def test_long_spans_are_compared_in_parts(other):
    found = [len(run.rows) for run in runs.runs(requests_of(2950, 50, other))]
    assert (found[0], sum(found)) == (other, 50)


def padded(number, size):
    """A varint of this many bytes."""
    return bytes(number >> 7 * i & 0x7F | (0x80 if i < size - 1 else 0) for i in range(size))


def with_a_padded_head(body, *, tag=1, length=2):
    """The body, whose first field has a tag and a length of this many bytes."""
    ((_, _, _, begin, end),) = runs.fields(body, 0, len(body))
    return padded(0x0A, tag) + padded(end - begin, length) + body[begin:end]


@pytest.mark.parametrize("head", ["tag", "length"])
@pytest.mark.parametrize("size", range(4, 12))
def test_a_tag_or_a_length_of_more_than_five_bytes_is_no_protobuf(head, size):
    body = with_a_padded_head(token_body(count=30), **{head: size})
    if size <= 5:
        assert count_if_uniform(body, LIMITS) == parsed(body).items == 30
    else:
        with pytest.raises(MalformedError):
            check(body, LIMITS)


@pytest.mark.parametrize(("size", "fast"), [(3_900, 30), (4_200, None)])
def test_a_large_resource_is_not_remembered(size, fast):
    """Resources are remembered with their bytes, 256 of them."""
    body = Request(note="n" * size).tokens(count=30).body()
    assert count_if_uniform(body, LIMITS) == fast
    assert check(body, LIMITS).items == 30


def test_the_shapes_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(runs, "_known_shapes", {})
    names = ["n" * (n + 1) for n in range(runs._MOST_LENGTHS + 5)] + [f"{n:03}" for n in range(runs._MOST_SHAPES + 5)]
    for name in names:
        request = Request()
        for n in range(8):
            request.span(name, trace=n + 1, span=n + 1)
        assert count_if_uniform(request.body(), LIMITS) == 8
    assert len(runs._known_shapes) <= runs._MOST_LENGTHS
    assert max(map(len, runs._known_shapes.values())) == runs._MOST_SHAPES


UNIFORM = token_body(count=30, ns=7 * MS)
SORTED = plain_tokens(100).body()


@pytest.mark.parametrize("whole", [UNIFORM, SORTED], ids=["one run", "sorted"])
@settings(max_examples=400)
@given(damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3))
def test_whatever_is_damaged_the_fast_way_says_no_more_than_the_parser(whole, damage):
    body = bytearray(whole)
    for where, bits in damage:
        body[int(where * len(body))] ^= bits
    fast = count_if_uniform(bytes(body), LIMITS)
    if fast is not None:
        slow = parsed(bytes(body))
        assert (slow.items, slow.rejected) == (fast, {})


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_answer(data):
    try:
        checked = check(data, LIMITS)
    except MalformedError:
        assert count_if_uniform(data, LIMITS) is None
    else:
        assert checked.items >= 0


@given(st.integers(0, len(UNIFORM)))
def test_a_cut_body_is_never_taken_for_a_whole_one(cut):
    fast = count_if_uniform(UNIFORM[:cut], LIMITS)
    assert fast is None or fast == parsed(UNIFORM[:cut]).items
