import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from collector.otlp.checked import ItemLimits
from collector.otlp.envelope import repeats_more
from collector.otlp.errors import MalformedError
from collector.otlp.validate import DAY_NS, LATEST_NS, Reason, check
from tests.fuzz_wire import I32, I64, LEN, VARINT, field
from tests.support.otlp import MS, T0, Request, set_attributes, token_body

LIMITS = ItemLimits(max_bytes=2000, max_attributes=100)
DAY = 86400 * 10**9


def names(payload):
    request = ExportTraceServiceRequest.FromString(payload)
    return [span.name for r in request.resource_spans for s in r.scope_spans for span in s.spans]


def test_a_good_request_is_stored_as_it_came():
    body = token_body(count=3)
    checked = check(body, LIMITS)
    assert (checked.payload, checked.items, checked.rejected, checked.message) == (body, 3, {}, "")


MANY = 20
"""The number of spans of different lengths that are checked at once."""


@pytest.mark.parametrize("others", [1, MANY])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"trace_id": b"x" * 15}, Reason.TRACE_ID),
        ({"trace_id": b"x" * 17}, Reason.TRACE_ID),
        ({"trace_id": bytes(16)}, Reason.TRACE_ID),
        ({"trace_id": b""}, Reason.TRACE_ID),
        ({"span_id": b"x" * 9}, Reason.SPAN_ID),
        ({"span_id": bytes(8)}, Reason.SPAN_ID),
        ({"parent_span_id": b"x" * 7}, Reason.PARENT_SPAN_ID),
        ({"start_time_unix_nano": 0}, Reason.TIME),
        ({"end_time_unix_nano": 2**64 - 1}, Reason.TIME),
        ({"start_time_unix_nano": 1}, Reason.TIME),
        ({"end_time_unix_nano": T0 - 1}, Reason.END_BEFORE_START),
        ({"end_time_unix_nano": T0 + 401 * 86400 * 10**9}, Reason.TIME),
        ({"name": "n" * 3000}, Reason.TOO_LARGE),
        ({"attributes": {str(n): n for n in range(101)}}, Reason.TOO_MANY_ATTRIBUTES),
    ],
)
def test_a_bad_span_is_rejected_alone_and_says_why(change, reason, others):
    request = spans_of_all_lengths(others)
    bad = request.span("bad")
    set_attributes(bad, change.get("attributes", {}))
    for name, value in change.items():
        if name != "attributes":
            setattr(bad, name, value)
    request.span("after")
    checked = check(request.body(), LIMITS)
    assert checked.items == others + 2
    assert checked.rejected == {reason: 1}
    assert names(checked.payload) == [*("n" * n for n in range(others)), "after"]
    assert checked.message.startswith("1 spans: ")


def spans_of_all_lengths(count):
    request = Request()
    for n in range(count):
        request.span("n" * n, span=n + 1, parent=[None, 7][n % 2], start=T0 + n * DAY // count, ns=MS * n)
    return request


def test_many_good_spans_are_stored_as_they_came_with_their_days():
    body = spans_of_all_lengths(MANY).body()
    checked = check(body, ItemLimits(unix_ns=lambda: T0 + DAY))
    assert (checked.payload, checked.items, checked.rejected) == (body, MANY, {})
    assert checked.days == (T0 // DAY, (T0 + DAY * (MANY - 1) // MANY + MS * (MANY - 1)) // DAY)


@pytest.mark.parametrize("others", [1, MANY])
def test_a_span_may_end_before_2100_and_not_in_it(others):
    limits = ItemLimits(max_days=100_000, unix_ns=lambda: LATEST_NS)
    for end, rejected in ((LATEST_NS - 1, {}), (LATEST_NS, {Reason.TIME: 1})):
        request = spans_of_all_lengths(others)
        request.span("last", start=end - 1, ns=1)
        assert check(request.body(), limits).rejected == rejected


def test_a_size_limit_holds_for_the_spans_of_every_scope_and_resource():
    message = ExportTraceServiceRequest()
    for size in (100, 300, 301):
        for scope in range(2):
            added = spans_of_all_lengths(MANY)
            span = added.span("", span=scope + 1)
            span.name = "n" * (size - span.ByteSize() - 3)
            message.resource_spans.extend(added.message.resource_spans)
    checked = check(message.SerializeToString(), ItemLimits(max_bytes=300, max_attributes=1000))
    assert checked.rejected == {Reason.TOO_LARGE: 2}
    assert len(names(checked.payload)) == 6 * MANY + 4


def test_a_resource_may_be_repeated_so_often_as_the_store_has_room_for_it():
    """One attribute of 1 MB and 4,000 spans are 1.8 MB as sent, and were 4 GB in the store's memory."""
    request = Request(big="r" * 10_000)
    for n in range(30):
        request.span("x", span=n + 1, attributes={"n": n})
    other = Request()
    other.span("other", attributes={"n": 1})
    request.message.resource_spans.extend(other.message.resource_spans)
    body = request.body()
    assert check(body, ItemLimits()).rejected == {}
    checked = check(body, ItemLimits(max_repeated_bytes=205_000))
    assert (checked.items, checked.rejected) == (31, {Reason.RESOURCE_TOO_LARGE: 10})
    assert "10 spans: their resource and scope" in checked.message
    assert names(checked.payload) == ["x"] * 20 + ["other"]
    assert check(body, ItemLimits(max_repeated_bytes=9_000)).rejected == {Reason.RESOURCE_TOO_LARGE: 30}


def test_all_resources_of_a_request_share_the_room():
    request = Request(big="r" * 10_000)
    for n in range(10):
        request.span("x", span=n + 1)
    checked = check(request.body() * 2, ItemLimits(max_repeated_bytes=155_000))
    assert checked.rejected == {Reason.RESOURCE_TOO_LARGE: 5}


@pytest.mark.parametrize("of", ["resource", "scope"])
def test_bytes_are_repeated_for_each_span(of):
    request = Request()
    message = request.message.resource_spans[0].resource if of == "resource" else request.scope_spans.scope
    message.attributes.add(key="big").value.string_value = "r" * 100_000
    for n in range(500):
        request.span("x", span=n + 1)
    body = request.body()
    assert repeats_more([body], 49_000_000)
    assert not repeats_more([body], 51_000_000)
    assert repeats_more([body, body], 99_000_000)


def test_the_smallest_attributes_count_too():
    request = Request()
    for n in range(5):
        request.span("few", span=n + 1).attributes.extend([KeyValue()] * 200)
    assert check(request.body(), ItemLimits(max_attributes=200)).rejected == {}
    assert check(request.body(), ItemLimits(max_attributes=199)).rejected == {Reason.TOO_MANY_ATTRIBUTES: 5}


def test_a_request_of_which_nothing_is_left_stores_nothing():
    request = Request()
    request.span("bad", start=0, ns=1)
    checked = check(request.body(), LIMITS)
    assert (checked.payload, checked.items, checked.rejected) == (b"", 1, {Reason.TIME: 1})


def test_a_request_without_spans_stores_nothing():
    assert check(b"", LIMITS).payload == b""
    assert check(Request().body(), LIMITS).payload == b""


def test_zero_durations_and_whole_days_are_fine():
    request = Request()
    request.span("instant", ns=0)
    request.span("long", ns=86400 * 10**9)
    assert check(request.body(), LIMITS).rejected == {}


@pytest.mark.parametrize("body", [b"\xff\xff", b"\x0a\x05abc", b"hello", token_body()[:-3]])
def test_what_is_no_request_is_malformed(body):
    with pytest.raises(MalformedError, match="ExportTraceServiceRequest"):
        check(body, LIMITS)


def test_invalid_utf8_is_malformed():
    body = Request()
    body.span("name")
    with pytest.raises(MalformedError):
        check(body.body().replace(b"name", b"n\xff\xfee"), LIMITS)


@pytest.mark.parametrize(("more_ns", "rejected"), [(0, {}), (1, {Reason.TIME: 1})])
def test_a_span_lasts_four_hundred_days_at_most(more_ns, rejected):
    request = Request()
    request.span("x", start=T0 - 400 * DAY_NS, ns=400 * DAY_NS + more_ns)
    assert check(request.body(), ItemLimits()).rejected == rejected


def at_days(make_body, days):
    """A request whose spans lie on these days."""
    request = Request()
    for n, day in enumerate(days):
        make_body(request, n, T0 + day * DAY)
    return request.body()


def one_span(request, n, start):
    request.span(f"day {n}", span=n + 1, start=start)


def a_run(request, n, start):
    request.tokens(trace=n + 1, parent=n + 1, count=50, start=start)


@pytest.mark.parametrize(("make_body", "each"), [(one_span, 1), (a_run, 50)])
def test_a_payload_has_so_many_days_and_further_ones_are_rejected_with_the_reason(make_body, each):
    days = [0, -3, 0, -1, -2, -3, -40]
    body = at_days(make_body, days)
    assert check(body, ItemLimits(max_days=5)).payload == body
    checked = check(body, ItemLimits(max_days=3))
    assert checked.rejected == {Reason.TOO_MANY_DAYS: 2 * each}
    assert "TOKENTRAIL_MAX_PAYLOAD_DAYS" in checked.message
    kept = ExportTraceServiceRequest.FromString(checked.payload).resource_spans[0].scope_spans[0].spans
    assert {(span.start_time_unix_nano - T0) // DAY for span in kept} == {0, -3, -1}


def test_the_day_of_the_start_counts_as_the_day_of_the_end_does():
    request = Request()
    request.span("long", start=T0 - 5 * DAY, ns=5 * DAY)
    assert check(request.body(), ItemLimits(max_days=1)).rejected == {Reason.TOO_MANY_DAYS: 1}
    assert check(request.body(), ItemLimits(max_days=2)).rejected == {}
    one_span(request, 1, T0 - 3 * DAY)
    assert check(request.body(), ItemLimits(max_days=2)).rejected == {Reason.TOO_MANY_DAYS: 1}


@pytest.mark.parametrize("make_body", [one_span, a_run])
def test_the_future_is_rejected_with_the_reason(make_body):
    body = at_days(make_body, [0])
    end = max(
        span.end_time_unix_nano
        for span in ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    )
    assert check(body, ItemLimits(max_future_s=60, unix_ns=lambda: end - 60 * 10**9)).payload == body
    checked = check(body, ItemLimits(max_future_s=60, unix_ns=lambda: end - 60 * 10**9 - 1))
    assert checked.rejected == {Reason.FUTURE: 1}
    assert "TOKENTRAIL_MAX_FUTURE_S" in checked.message


def test_the_same_rejections_give_the_same_bytes_again():
    request = Request()
    request.span("good", ns=5 * MS)
    request.span("bad", start=0, ns=1)
    assert check(request.body(), LIMITS).payload == check(request.body(), LIMITS).payload


@pytest.mark.parametrize("spans_a_day", [1, 20], ids=["parsed", "runs"])
def test_one_day_too_many_is_rejected(spans_a_day):
    request = Request()
    for n in range(4 * spans_a_day):
        request.span("n", trace=n + 1, start=T0 - n // spans_a_day * DAY_NS)
    assert check(request.body(), ItemLimits(max_days=4)).rejected == {}
    assert check(request.body(), ItemLimits(max_days=3)).rejected == {Reason.TOO_MANY_DAYS: spans_a_day}


NAME, KEY, SCOPE = field(5, LEN, b"last"), field(1, LEN, b"key"), field(1, LEN, field(1, LEN, b"last"))
TWICE = {
    "name": (NAME, b""),
    "key": (field(9, LEN, KEY + field(2, LEN, field(3, VARINT, 1)) + KEY), b""),
    "event": (field(11, LEN, field(2, LEN, b"e") + field(1, I64, bytes(8)) + field(2, LEN, b"last")), b""),
    "status": (field(15, LEN, field(2, LEN, b"e") + field(3, VARINT, 1) + field(2, LEN, b"last")), b""),
    "scope": (b"", SCOPE + SCOPE),
    "a field of the scope": (b"", field(1, LEN, field(1, LEN, b"a") + field(2, LEN, b"1") + field(1, LEN, b"b"))),
}


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("twice", TWICE)
def test_a_field_that_comes_twice_has_its_last_value(twice, count):
    """ClickHouse takes a text as empty whose field comes again behind another one: it gets each field once."""
    of_span, of_scope = TWICE[twice]
    request = Request()
    for n in range(count):
        request.span("first", trace=n + 1, attributes={"a": 1})
    spans = [field(2, LEN, span.SerializeToString() + of_span) for span in request.scope_spans.spans]
    resource = field(1, LEN, request.message.resource_spans[0].resource.SerializeToString())
    body = field(1, LEN, resource + field(2, LEN, of_scope + b"".join(spans)))
    checked = check(body, LIMITS)
    assert (checked.items, checked.rejected) == (count, {})
    assert checked.payload == ExportTraceServiceRequest.FromString(body).SerializeToString()
    assert len(checked.payload) < len(body)
    again = check(field(1, LEN, resource + resource + field(2, LEN, b"".join(spans))), LIMITS)
    assert len(ExportTraceServiceRequest.FromString(again.payload).SerializeToString()) == len(again.payload)


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("number", [1, 2, 5], ids=["trace id", "span id", "name"])
def test_a_field_that_comes_again_with_another_wire_type_is_left_out(number, count):
    """ClickHouse takes it for an empty text: there was a row without a trace id, which nobody had sent."""
    request = Request()
    for n in range(count):
        request.span("first", trace=n + 1, attributes={"a": 1})
    good = request.body()
    spans = [
        field(2, LEN, span.SerializeToString() + field(number, I32, bytes(4))) for span in request.scope_spans.spans
    ]
    scope = field(1, LEN, request.scope_spans.scope.SerializeToString())
    resource = field(1, LEN, request.message.resource_spans[0].resource.SerializeToString())
    checked = check(field(1, LEN, resource + field(2, LEN, scope + b"".join(spans))), LIMITS)
    assert (checked.items, checked.rejected, checked.payload) == (count, {}, good)


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize(
    "inside",
    {
        "the key of an attribute": lambda request: [span.attributes[0] for span in request.scope_spans.spans],
        "the name of an event": lambda request: [span.events[0] for span in request.scope_spans.spans],
        "the key of a resource's attribute": lambda request: [request.message.resource_spans[0].resource.attributes[0]],
        "the name of the scope": lambda request: [request.scope_spans.scope],
    }.items(),
    ids=lambda item: item[0],
)
def test_so_is_one_inside_an_attribute_an_event_a_resource_or_a_scope(inside, count):
    """ClickHouse took each for an empty text: a row had no instance, or its span was of another engine."""
    request = Request()
    for n in range(count):
        request.span("first", trace=n + 1, attributes={"a": 1}).events.add(name="e", time_unix_nano=T0)
    good = request.body()
    for message in inside[1](request):
        number = 2 if message.DESCRIPTOR.name == "Event" else 1
        message.MergeFromString(field(number, I32, bytes(4)))
    assert request.body() != good
    checked = check(request.body(), LIMITS)
    assert (checked.items, checked.rejected, checked.payload) == (count, {}, good)


@pytest.mark.parametrize("count", [1, 64])
def test_a_value_of_a_wrong_wire_type_is_left_out(count):
    """ClickHouse refused it, and the span was a dead letter."""
    request = Request()
    for n in range(count):
        request.span("first", trace=n + 1, attributes={"a": 1}).attributes[0].value.Clear()
    good = request.body()
    for span in request.scope_spans.spans:
        span.attributes[0].value.MergeFromString(field(1, VARINT, 5))
    assert request.body() != good
    assert check(request.body(), LIMITS).payload == good


@pytest.mark.parametrize("level", ["ScopeSpans", "ResourceSpans"])
def test_a_wrong_wire_type_around_spans_is_malformed(level):
    """ClickHouse takes the number for one more span, an empty one."""
    request = Request()
    request.span("a")
    scope, number = request.scope_spans.SerializeToString(), field(2, I32, bytes(4))
    inside = field(2, LEN, number + scope) if level == "ScopeSpans" else field(2, LEN, scope) + number
    with pytest.raises(MalformedError, match=f"a field of {level} has a wrong wire type"):
        check(field(1, LEN, inside), LIMITS)
