"""Spans that come again in other payloads make no second row: an OpenTelemetry Collector may batch a retry anew."""

import pytest

from collector.ask.template import part
from tests.collector.store.writing.written import MANY
from tests.support.otlp import MS, T0, Request
from tokentrail import semconv

REQUEST_KEY = part("request_key", {}).sql
CHAT = {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: "m"}


@pytest.fixture
def s(setup):
    s = setup()
    s.store.client().command("TRUNCATE TABLE requests")
    return s


def tokens(indices, *, trace=1, parent=1, choice=None, request=None):
    """Token spans of a request that began at T0, 20 ms each."""
    request = request or Request()
    of_choice = {} if choice is None else {semconv.CHOICE_INDEX: choice}
    for index in indices:
        attributes = {semconv.TOKEN_INDEX: index, semconv.STEP: index} | of_choice
        start = T0 + index * 20 * MS
        request.span(semconv.TOKEN_SPAN, trace=trace, parent=parent, start=start, ns=20 * MS, attributes=attributes)
    return request


def chats(*traces, request=None, ns=MS):
    request = request or Request(scope="a client")
    for trace in traces:
        request.span("chat m", trace=trace, ns=ns, kind=3, attributes=CHAT)
    return request


def write(s, *segments):
    """Each segment is a list of requests, which are its payloads."""
    for payloads in segments:
        s.writer.write(s.segment(*(payload.body() for payload in payloads)))


def stored(s, table="tokens", columns="token_index"):
    return [value for (value,) in s.store.query(f"SELECT {columns} FROM {table} ORDER BY ALL").result_rows]


def requests_of(s):
    return stored(s, "requests", "reinterpretAsUInt128(reverse(trace_id))")


ALL = [*range(MANY)]
A_THIRD = [*range(MANY // 3)]
THIRDS = [A_THIRD, [*range(MANY // 3, 2 * MANY // 3)], [*range(2 * MANY // 3, MANY)]]
AT_ONCE = {
    "the same tokens": [ALL],
    "the same and more": [[*range(MANY + 500)]],
    "the last half and more": [[*range(MANY // 2, 2 * MANY)]],
    "in three payloads": THIRDS,
    "in three payloads, the last one first": THIRDS[::-1],
    "some twice": [ALL, A_THIRD],
    "a few": [ALL[:5]],
    "the last one": [ALL[-1:]],
    "one in the middle, with many that are new": [[MANY // 2, *range(MANY, 2 * MANY)]],
    "the last one, with many that are new": [[*range(MANY - 1, 2 * MANY)]],
    "others": [[*range(MANY, 2 * MANY)]],
}


@pytest.mark.parametrize("again", AT_ONCE)
@pytest.mark.parametrize("apart", [True, False])
def test_tokens_are_stored_once(s, again, apart):
    """In many segments or in one: as columns when they are many, through the view when they are few."""
    first, then = [tokens(ALL)], [tokens(indices) for indices in AT_ONCE[again]]
    write(s, first, *([payload] for payload in then)) if apart else write(s, [*first, *then])
    assert stored(s) == sorted({*ALL, *(index for indices in AT_ONCE[again] for index in indices)})


@pytest.mark.parametrize("first", [ALL, ALL[:5], [7]])
@pytest.mark.parametrize("joined", [True, False])
def test_tokens_come_by_either_way_first(s, first, joined):
    """Tokens beside other spans of their resource are no columns."""
    write(s, [chats(9, request=tokens(first)) if joined else tokens(first)], [tokens(ALL)])
    assert stored(s) == ALL


def test_tokens_of_others_are_new(s):
    first = tokens(ALL, trace=2**64 + 1, parent=7)
    others = [
        tokens(ALL, trace=2**65 + 1, parent=7),
        tokens(ALL, trace=2**64 + 2, parent=7),
        tokens(ALL, trace=2**64 + 1, parent=8),
        tokens(ALL, trace=2**64 + 1, parent=7, choice=1),
    ]
    write(s, [first], others, [first, *others])
    assert stored(s) == sorted(ALL * 5)
    answers = "(reinterpretAsUInt128(reverse(trace_id)), reinterpretAsUInt64(reverse(request_span_id)), choice)"
    per_answer = s.store.query(f"SELECT {answers} AS a, count() FROM tokens GROUP BY a").result_rows
    assert len(per_answer) == 5
    assert {count for _, count in per_answer} == {MANY}


def test_two_requests_of_one_trace_are_two(s):
    both = tokens(ALL, parent=2, request=tokens(ALL, parent=1))
    write(s, [both], [tokens(ALL, parent=2)], [both])
    assert stored(s) == sorted(ALL * 2)


def test_tokens_of_several_minutes_are_found_again(s):
    long = [*range(3 * 3000 + 100)]
    write(s, [tokens(long[:5000])], [tokens(long)], [tokens(long[2000:4000])], [tokens(long[8000:])])
    assert stored(s) == long


def test_indices_that_no_answer_has_are_told_apart(s):
    large = [2**24 - 2, 2**24 - 1, 2**24, 2**24 + 1]
    many = [*range(MANY)]
    write(s, [tokens(many + large[:3])], [tokens(many + large)])
    assert stored(s) == many + large


def test_requests_are_stored_once(s):
    write(s, [chats(1, 2)], [chats(1, 2, 3)], [chats(3), chats(4)], [chats(4, 5), chats(5, 6), chats(6, 6)])
    assert requests_of(s) == [1, 2, 3, 4, 5, 6]


def test_a_request_that_ends_at_another_time_is_another(s):
    write(s, [chats(1)], [chats(1, ns=MS + 1)], [chats(1, ns=MS + 1), chats(1, ns=MS + 2)])
    assert stored(s, "requests", "e2e_ns") == [MS, MS + 1, MS + 2]


def of_tenant(tenant, indices=()):
    """A body with a request and its tokens, the same but for the tenant of the key with which it was sent."""
    resource = {semconv.TENANT: tenant} if tenant else {}
    return tokens(indices, request=chats(1, request=Request(scope="a client", **resource)))


@pytest.mark.parametrize("first", ["", "acme", "bolt"])
def test_no_tenant_keeps_a_request_of_another_one_out(s, first):
    """It knows the ids of the request, and sends the same body first. A resend of either is stored once."""
    tenants = sorted(["", "acme", "bolt"], key=lambda tenant: tenant != first)
    bodies = [of_tenant(tenant, ALL[:5]) for tenant in tenants]
    for payloads in ([bodies[:1], bodies], [bodies[1:], bodies[::-1]]):
        write(s, *payloads)
        assert stored(s, "requests", "process_tenant") == ["", "acme", "bolt"], "two of them came at once"
        assert stored(s) == sorted(ALL[:5] * 3)
    keys = set(stored(s, "requests", REQUEST_KEY))
    assert len(keys) == 3
    assert keys == {key for key in stored(s, "tokens", "request_key") if key}, "ITL finds the tokens of each by it"


@pytest.mark.parametrize("again", ["the same tokens", "a few"])
@pytest.mark.parametrize("apart", [True, False])
def test_tokens_of_another_tenant_are_others(s, again, apart):
    """Many tokens, which come as columns."""
    own = lambda indices, tenant: tokens(indices, request=Request(**{semconv.TENANT: tenant}))  # noqa: E731
    payloads = [own(ALL, "acme"), own(AT_ONCE[again][0], "bolt"), own(ALL, "acme"), own(AT_ONCE[again][0], "bolt")]
    write(s, *([payload] for payload in payloads)) if apart else write(s, payloads)
    assert stored(s) == sorted([*ALL, *AT_ONCE[again][0]])


def test_the_first_row_stays(s):
    write(s, [chats(1)])
    (segment,) = stored(s, "requests", "segment")
    write(s, [chats(2)], [chats(1, 2)])
    assert stored(s, "requests", "segment")[0] == segment


def test_tokens_before_their_request_and_without_one(s):
    write(s, [tokens(ALL, trace=1)], [chats(1, request=tokens(ALL, trace=1))], [chats(2)], [chats(1, 2), tokens(ALL)])
    assert stored(s) == ALL
    assert requests_of(s) == [1, 2]


def test_one_token_with_an_index_that_no_answer_has_is_found_again(s):
    odd = [2**24 + 1]
    write(s, [tokens(ALL, parent=1), tokens(odd, parent=9)], [tokens(ALL, parent=2), tokens(odd, parent=9)])
    assert stored(s) == sorted(ALL * 2) + odd


def test_a_few_that_come_twice_in_one_segment_are_stored_once(s):
    write(s, [tokens(ALL[:5]), tokens(ALL[3:7])], [chats(9, request=tokens(ALL[5:9])), tokens(ALL[6:10])])
    assert stored(s) == ALL[:10]


def test_a_restart_forgets_nothing(s, setup):
    """The next process asks the store for what was stored before it."""
    long = [*range(9000)]
    write(s, [tokens(long[:5000])], [chats(1, 2)])
    for last in (5500, 8800):  # in the minute of the newest token, and in later ones
        write(setup(), [tokens(long[:last]), chats(1, 2, 3)])
        assert stored(s) == long[:last]
    s = setup()
    write(s, [tokens(long[8000:])], [tokens(long[:100]), tokens(long[8700:])], [tokens(long[3000:6000])])
    assert stored(s) == long
    assert requests_of(s) == [1, 2, 3]


def test_tokens_that_the_store_decoded_are_found_again(s):
    """They are beside spans of another kind, or few."""
    long = [*range(12_000)]
    write(s, [tokens(long[:3000])], [chats(9, request=tokens(long[3000:9000]))], [tokens(long[6000:])])
    assert stored(s) == long
    write(s, [tokens([12_000])], [tokens([*range(11_990, 14_000)])])
    assert stored(s) == [*range(14_000)]
