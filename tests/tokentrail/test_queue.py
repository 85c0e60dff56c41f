"""A full queue drops by rank, and small payloads travel together."""

import pytest

from tests.tokentrail.support import MS, RETRY, T0, exporter, halves, run_out, start
from tokentrail import Endpoint, Settings, Trail
from tokentrail._encode.envelope import Payload, Rank
from tokentrail._host.guard import Guard
from tokentrail._send.export import JOINED_BYTES, MAX_AGE_S, MAX_ATTEMPTS, Exporter
from tokentrail.testing import MemoryTrail, MemoryTransport, SendResult, SendStatus


def ranked(queue, *payloads):
    """Offers (rank, spans) with one byte a span, and tells which were taken."""
    return queue.offer(*(Payload(b"x" * spans, spans, rank) for rank, spans in payloads))


@pytest.mark.parametrize("limit", ["max_spans", "max_bytes"])
@pytest.mark.parametrize(("rank", "share"), [(Rank.TOKENS, 60), (Rank.STEPS, 70), (Rank.REQUESTS, 80)])
def test_each_rank_has_its_share_of_the_queue(limit, rank, share):
    queue = exporter(MemoryTransport(), **{limit: 80})
    assert ranked(queue, (rank, share - 1), (rank, 1), (rank, 1)) == [True, True, False]
    assert queue.stats.drops == {"buffer_full": 1}


def test_requests_displace_the_newest_tokens_and_then_steps():
    transport = MemoryTransport(RETRY)
    queue = exporter(transport, max_spans=80)
    ranked(queue, (Rank.TOKENS, 20), (Rank.STEPS, 11), (Rank.TOKENS, 19), (Rank.TOKENS, 18), (Rank.REQUESTS, 12))
    queue.attempt()  # the first one is under way from now on
    assert ranked(queue, (Rank.REQUESTS, 30)) == [True]
    assert queue.stats.drops == {"buffer_full": 18, "displaced": 19}
    assert ranked(queue, (Rank.REQUESTS, 18)) == [True]
    assert queue.stats.drops == {"buffer_full": 18, "displaced": 30}
    assert ranked(queue, (Rank.REQUESTS, 1)) == [False]
    assert queue.stats.drops == {"buffer_full": 19, "displaced": 30}
    run_out(queue)
    assert [len(body) for body in transport.bodies] == [20, 12, 30, 18]


def joining(transport, spans=100, **limits):
    limits = {"max_spans": 8_000, "max_bytes": 8 << 20} | limits
    return Exporter(transport, Guard(), halves=halves, joined_spans=spans, **limits)


def sizes(queue, transport, *payloads):
    queue.offer(*(Payload(b"x" * size, spans) for size, spans in payloads))
    run_out(queue)
    return [len(body) for body in transport.bodies]


def test_small_payloads_travel_together_in_their_order():
    transport = MemoryTransport()
    queue = joining(transport)
    queue.offer(Payload(b"tokens", 6, Rank.TOKENS), Payload(b"step", 1, Rank.STEPS), Payload(b"request", 3))
    assert queue.attempt() == 0
    assert transport.bodies == [b"tokenssteprequest"]
    stats = queue.stats
    assert (stats.accepted, stats.exported, stats.queued) == (10, 10, 0)
    assert queue.attempt() is None


@pytest.mark.parametrize(
    ("limits", "payloads", "bodies"),
    [
        ({}, [(JOINED_BYTES, 1), (1, 1), (JOINED_BYTES - 1, 1), (1, 1)], [JOINED_BYTES, JOINED_BYTES, 1]),
        ({}, [(JOINED_BYTES + 1, 1), (2, 1), (3, 1)], [JOINED_BYTES + 1, 5]),
        ({"spans": 10}, [(1, 4), (2, 6), (3, 1)], [3, 3]),
        ({"max_spans": 80}, [(1, 4), (2, 6), (3, 1)], [3, 3]),
        ({"max_bytes": 80}, [(4, 1), (6, 1), (1, 1)], [10, 1]),
        ({"spans": 0}, [(1, 1), (2, 1)], [1, 2]),
    ],
)
def test_a_joined_body_is_small(limits, payloads, bodies):
    transport = MemoryTransport()
    assert sizes(joining(transport, **limits), transport, *payloads) == bodies


def test_a_joined_body_is_sent_again_as_it_was():
    transport = MemoryTransport(RETRY, RETRY)
    queue = joining(transport)
    queue.offer(Payload(b"a", 1), Payload(b"b", 1))
    queue.attempt()
    queue.offer(Payload(b"c", 1), Payload(b"d", 1))
    queue.attempt()
    run_out(queue)
    assert transport.attempts == [b"ab", b"ab", b"ab", b"cd"]
    assert (queue.stats.exported, queue.stats.queued) == (4, 0)


def test_payloads_stay_apart_while_the_collector_is_away_so_that_tokens_can_be_displaced():
    transport = MemoryTransport(*[RETRY] * (2 * MAX_ATTEMPTS))
    queue = joining(transport, max_spans=80)
    queue.offer(Payload(b"a", 1, Rank.TOKENS))
    queue.attempt()
    queue.offer(Payload(b"s", 1, Rank.STEPS), Payload(b"ttttt", 5, Rank.TOKENS))
    for _ in range(MAX_ATTEMPTS):
        queue.attempt()
    assert transport.attempts[-1] == b"s"
    queue.offer(Payload(b"r" * 74, 74))
    assert queue.stats.drops == {"displaced": 5}


def test_a_payload_that_has_been_sent_is_not_joined_to_another():
    transport = MemoryTransport(RETRY)
    queue = joining(transport)
    queue.offer(Payload(b"a" * JOINED_BYTES, 1))
    queue.attempt()
    queue._queue.send_later(queue._queue.oldest)
    queue.offer(Payload(b"b", 1))
    queue._queue.send_later(queue._queue.oldest)
    run_out(queue)
    assert [body[:1] for body in transport.bodies] == [b"b", b"a"]


def test_a_joined_body_keeps_the_age_of_its_oldest_payload():
    now = [0.0]
    queue = joining(MemoryTransport(RETRY, RETRY), clock=lambda: now[0])
    queue.offer(Payload(b"a", 1))
    now[0] = MAX_AGE_S - 1
    queue.offer(Payload(b"b", 1))
    queue.attempt()
    now[0] = MAX_AGE_S
    queue.attempt()
    assert queue.stats.drops == {"expired": 2}


@pytest.mark.parametrize(("compression", "posts"), [("none", 1), ("gzip", 3)])
def test_a_small_batch_is_one_body_unless_it_is_compressed(compression, posts):
    transport = MemoryTransport()
    settings = Settings(Endpoint.to(compression=compression), strict=True)
    trail = Trail(settings, transport=transport, background=False, clock=lambda: T0)
    request = start(trail)
    trail.step(0, T0, T0 + MS, [request])
    request.end(T0 + MS)
    trail.flush()
    assert len(transport.bodies) == posts
    assert trail.stats.exported == 4  # the token, the step, the request and its phase


def test_the_halves_of_a_joined_body_hold_all_spans():
    trail = MemoryTrail(SendResult(SendStatus.TOO_LARGE, "413"))
    requests = [start(trail), start(trail)]
    trail.step(0, T0, T0 + MS, requests, counts=[3, 2])
    for request in requests:
        request.end(T0 + MS)
    spans = trail.spans()
    assert len(trail.transport.attempts) == 3
    assert trail.stats.exported == len({span.span_id for span in spans}) == 5 + 1 + 4
    assert all(span.resource["service.name"] == "test" for span in spans)
