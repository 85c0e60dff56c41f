"""Tokens that the collector reads as columns are those that the store would have decoded."""

import random
from unittest.mock import ANY

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from collector.ask.queries import Queries
from collector.otlp.signals import TRACES
from collector.otlp.tokens import NULLS, TYPES, token_columns, tokens_apart
from collector.store.insert import insert_block, insert_otlp, native_block
from collector.store.store import Store
from tests.support.clickhouse_server import Server
from tests.support.otlp import MS, T0, Request, token_body
from tests.support.stores import new_store
from tokentrail import semconv
from tokentrail.testing import ManualClock, MemoryTrail, parse_spans

ALL = "SELECT * FROM tokens ORDER BY ALL"
INDEX, STRIDE = semconv.TOKEN_INDEX, semconv.TOKEN_ID_STRIDE


def many(attributes_of, count=20, **fields):
    """Token spans whose attributes are given by their number, all of one shape."""
    request = Request()
    for n in range(count):
        request.span(
            semconv.TOKEN_SPAN, trace=2**64 + n, span=n + 1, parent=n + 7, ns=n * MS + n,
            attributes=attributes_of(n), **fields,
        )  # fmt: skip
    return request


def sdk_body():
    trail = MemoryTrail(clock=ManualClock(T0))
    requests = [trail.start_request(operation="chat", model="m", arrival_ns=T0) for _ in range(64)]
    at = T0
    for step in range(200, 240):
        trail.step(step, at, at + 25 * MS, requests)
        at += 25 * MS
    trail.flush()
    (body,) = [body for body in trail.transport.bodies if len(parse_spans(body)) == 64 * 40]
    return body


def random_body(seed):
    """Tokens with values of any size, as another SDK may send them."""
    chance = random.Random(seed)
    bits = {key: chance.choice([1, 7, 8, 14, 20, 28, 31, 32, 33, 40, 55, 56]) for key in (INDEX, semconv.STEP)}
    other = {"text": "abc", "on": True, "share": 0.5} if chance.random() < 0.5 else {}
    request = Request(**{"service.name": "s" * chance.randrange(1, 200)})
    with_index, with_step, with_choice, flags = (chance.random() < 0.5 for _ in range(4))
    for _ in range(chance.randrange(1, 60)):
        numbers = {key: chance.getrandbits(n - 1) | 1 << (n - 1) for key, n in bits.items()}
        parent, choice = chance.getrandbits(63), chance.randrange(128)
        derived = (parent + ((choice + 1 if with_choice else 0) * 2**32 + numbers[INDEX] % 2**32 + 1) * STRIDE) % 2**64
        attributes = other | ({INDEX: numbers[INDEX]} if with_index else {})
        attributes |= {semconv.STEP: numbers[semconv.STEP]} if with_step else {}
        attributes |= {semconv.CHOICE_INDEX: choice} if with_choice else {}
        request.span(
            semconv.TOKEN_SPAN, trace=chance.getrandbits(127) + 1,
            span=chance.getrandbits(63) + 1 if with_index else derived, parent=parent,
            start=T0 + chance.randrange(10**15), ns=chance.randrange(10**13),
            attributes=attributes, **({"flags": 257} if flags else {}),
        )  # fmt: skip
    return request.body()


BODIES = {
    "of the SDK": sdk_body(),
    "plain varints": token_body(count=100),
    "with an index": token_body(trace=2, count=100, index_key=INDEX),
    "varints of several lengths": many(lambda n: {INDEX: n * n % 400, semconv.STEP: n}, count=300).body(),
    **{f"random {seed}": random_body(seed) for seed in range(12)},
}


def insert_columns(store, *bodies):
    columns = [token_columns(body) for body in bodies]
    assert None not in columns
    insert_block(store, TRACES, native_block(columns, TYPES), f"columns {hash(bodies)}")


def rows_of(store, insert):
    store.client().command("TRUNCATE TABLE tokens")
    insert()
    return store.query(ALL).result_rows


def test_columns_are_the_rows_of_the_view(module_store):
    whole = b"".join(BODIES.values())
    decoded = rows_of(module_store, lambda: insert_otlp(module_store, TRACES, whole, "decoded"))
    assert len(decoded) == len(parse_spans(whole))
    assert rows_of(module_store, lambda: [insert_columns(module_store, body) for body in BODIES.values()]) == decoded
    assert rows_of(module_store, lambda: insert_columns(module_store, *BODIES.values())) == decoded


def test_a_server_stores_the_same_rows_of_columns(tmp_path):
    new_store(tmp_path / "db")
    server = Server(tmp_path)
    server.start()
    try:
        store = Store.open(f"{server.url}/default")
        body = b"".join(BODIES.values())
        decoded = rows_of(store, lambda: insert_otlp(store, TRACES, body, "decoded"))
        assert len(decoded) == len(parse_spans(body))

        def insert_all():
            block = native_block([token_columns(body) for body in BODIES.values()], TYPES)
            for _ in range(2):
                insert_block(store, TRACES, block, "columns")

        assert rows_of(store, insert_all) == decoded, "the second insert has the first one's token"
    finally:
        store.close()
        server.kill()


def strides(number, attributes=None):
    """Tokens without an index, of which the last one's span id is that many strides from its request's."""
    request = Request()
    for n in range(20):
        told = number if n == 19 else 2**32 * (1 + attributes[semconv.CHOICE_INDEX]) + 1 if attributes else 1
        request.span(semconv.TOKEN_SPAN, span=(7 + told * STRIDE) % 2**64, parent=7, attributes=attributes)
    return request


def with_field(request, data):
    for span in request.scope_spans.spans:
        span.MergeFromString(data)
    return request


def renamed(request, field, value):
    for span in request.scope_spans.spans:
        setattr(span, field, value)
    return request


PLAIN = {INDEX: 5, semconv.STEP: 7}
OTHERS = {
    "another name": renamed(many(lambda n: PLAIN), "name", "tokentrail.tokem"),
    "no index, and ids that tell none": many(lambda n: {semconv.STEP: 7}),
    "ids of a token before the first": strides(0),
    "ids of a choice that is not named": strides(2**32 + 1),
    "ids of another choice": strides(2**33 + 1, {semconv.CHOICE_INDEX: 0}),
    "ids of no choice": strides(1, {semconv.CHOICE_INDEX: 0}),
    "ids before the first of a choice": strides(2**32, {semconv.CHOICE_INDEX: 0}),
    "a text for an index": many(lambda n: {INDEX: "5"}),
    "a double for a step": many(lambda n: {INDEX: 5, semconv.STEP: 7.0}),
    "a text for a choice": many(lambda n: PLAIN | {semconv.CHOICE_INDEX: "1"}),
    "a negative step": many(lambda n: {INDEX: 5, semconv.STEP: -1}),
    "an index of 57 bits": many(lambda n: {INDEX: 2**56}),
    "no parent": renamed(many(lambda n: PLAIN), "parent_span_id", b""),
    "a parent of 16 bytes": renamed(many(lambda n: PLAIN), "parent_span_id", b"p" * 16),
    "a trace id of 8 bytes": renamed(many(lambda n: PLAIN), "trace_id", b"t" * 8),
    "an array": many(lambda n: PLAIN | {"list": ["a"]}),
    "a status": many(lambda n: PLAIN, status=Status(code=Status.STATUS_CODE_OK)),
    "an event": with_field(many(lambda n: PLAIN), b"\x5a\x00"),
    "a span id as a fixed64": with_field(renamed(many(lambda n: PLAIN), "span_id", b""), b"\x11idididid"),
    "a misread name": with_field(renamed(many(lambda n: PLAIN), "name", ""), b"\x28\x05"),
    "a misread attribute": with_field(many(lambda n: {INDEX: 5}), b"\x4a\x07\x0a\x01k\x12\x02\x08\x01"),
    "an attribute without a value": with_field(many(lambda n: {INDEX: 5}), b"\x4a\x05\x0a\x01k\x12\x00"),
    "an attribute without a key": with_field(many(lambda n: {INDEX: 5}), b"\x4a\x04\x12\x02\x18\x01"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_spans_are_left_to_the_store(name):
    assert token_columns(many(lambda n: PLAIN).body()) is not None
    assert token_columns(OTHERS[name].body()) is None


def test_ids_that_tell_no_index_are_stored_as_the_first_token(module_store):
    """The view has no other value, and does not refuse the rest of a segment. An answer has one first token."""
    body = b"".join(strides(number).body() for number in (0, 2**32 + 5, 2**33))
    rows = rows_of(module_store, lambda: insert_otlp(module_store, TRACES, body, "told"))
    assert [row[4] for row in rows] == [0]


def test_an_attribute_of_two_values_is_left_to_the_store():
    """The text's bytes are made a second value, which no parser writes."""
    body = many(lambda n: PLAIN | {"k": "ab"}).body()
    assert token_columns(body) is not None
    twice = body.replace(b"\x12\x04\x0a\x02ab", b"\x12\x04\x18\x01\x18\x02")
    assert twice != body
    assert token_columns(twice) is None


def test_an_index_that_is_sent_twice_is_left_to_the_store():
    request = many(lambda n: PLAIN)
    for span in request.scope_spans.spans:
        span.attributes.add(key=INDEX).value.int_value = 9
    assert token_columns(request.body()) is None


def test_a_request_with_another_span_is_left_to_the_store():
    request = many(lambda n: PLAIN)
    request.span("chat m", attributes={semconv.OPERATION_NAME: "chat"})
    assert token_columns(request.body()) is None
    assert token_columns(many(lambda n: PLAIN).body() + Request(scope="x").body()) is not None


@pytest.mark.parametrize("damage", [b"\x12\x01x", b"\x0a\x02\x08\x01"])
def test_a_misread_resource_is_left_to_the_store(damage):
    request = many(lambda n: PLAIN)
    request.message.resource_spans[0].resource.MergeFromString(damage)
    assert token_columns(request.body()) is None


def test_resources_of_tokens_are_taken_out_of_a_joined_request():
    chat = Request()
    chat.span("chat m", attributes={semconv.OPERATION_NAME: "chat"})
    first, second = many(lambda n: PLAIN, count=7).body(), many(lambda n: PLAIN, count=9).body()
    columns, rest = tokens_apart(first + chat.body() + second + chat.body())
    assert rest == chat.body() * 2
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys([*TYPES, *NULLS.values()], 16)
    assert tokens_apart(first) == (ANY, b"")
    assert tokens_apart(chat.body()) == (None, chat.body())
    assert tokens_apart(b"") == (None, b"")
    cut = (first + second)[:-1]
    assert tokens_apart(memoryview(cut)) == (None, cut)


def test_no_tokens_have_no_columns():
    assert token_columns(b"") is None
    assert token_columns(Request().body()) is None


def test_each_choice_has_a_time_of_its_own(module_store):
    module_store.client().command("TRUNCATE TABLE tokens")
    request = Request()
    for n, (choice, index) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]):
        attributes = {INDEX: index, semconv.STEP: index} | ({semconv.CHOICE_INDEX: choice} if choice else {})
        request.span(semconv.TOKEN_SPAN, span=n + 1, parent=9, ns=(choice + 1) * MS, attributes=attributes)
    insert_otlp(module_store, TRACES, request.body(), "choices")
    rows = Queries(module_store).rows(
        "request_tokens", trace_id=f"{1:032x}", span_id=f"{9:016x}", began_ns=T0, ended_ns=T0 + 60_000 * MS
    )
    assert [(row["choice"], row["token_index"], row["offset_ns"] // MS) for row in rows] == [
        (0, 0, 1), (0, 1, 2), (1, 0, 2), (1, 1, 4), (1, 2, 6),
    ]  # fmt: skip
