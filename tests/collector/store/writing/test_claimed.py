"""Payloads that another segment of the store has claimed are left out."""

from collector.store.insert import insert_otlp
from collector.wal.frame import digest_of
from tests.collector.store.writing.written import ClaimedElsewhere, unreadable
from tests.support.otlp import token_body


def test_a_payload_that_another_segment_has_claimed_is_left_out_and_counted(setup):
    claims = ClaimedElsewhere(token_body(trace=2))
    s = setup(claims=claims, max_wait_s=0.001)
    segment = s.segment(token_body(trace=1), token_body(trace=2), unreadable(3))
    s.writer.write(segment)
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().payloads_repeated == 1
    assert claims.withdrawn == [(segment.id, {digest_of(unreadable(3))})]
    assert s.log.pending == (0, 0)
    assert s.log.seen(digest_of(token_body(trace=2)))
    assert s.status.snapshot().ready
    s.writer.write(s.segment(token_body(trace=4), token_body(trace=2)))
    assert s.tokens() == {1: 3, 4: 3}
    assert len(claims.withdrawn) == 1


def test_a_file_that_is_damaged_while_claims_wait_for_the_store_makes_no_other_rows(setup):
    sources = []

    def keep(store, signal, body, token):
        sources.append(body)

    s = setup(claims=ClaimedElsewhere(), insert=keep, max_wait_s=0.001)
    payload = token_body(trace=1)
    s.writer.write(s.segment(payload))
    assert sources == [payload], "the bytes, and not the file"


def test_claims_that_the_server_has_forgotten_are_made_again_before_the_next_attempt(setup):
    """Another collector has the first claim of one of the payloads by then."""
    claims = ClaimedElsewhere()

    def fails_once(store, signal, body, token):
        if not claims.payloads:
            claims.payloads = (token_body(trace=2),)
            raise ConnectionError("connection refused")
        insert_otlp(store, signal, body, token)

    s = setup(claims=claims, insert=fails_once, max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1), token_body(trace=2)))
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().payloads_repeated == 1
    assert s.log.pending == (0, 0)


def test_a_segment_of_which_others_have_claimed_all_inserts_nothing(setup):
    s = setup(claims=ClaimedElsewhere(token_body(trace=1)), max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1)))
    assert (s.tokens(), s.segments, s.log.pending) == ({}, [], (0, 0))
    s.writer.write(s.segment(token_body(trace=2)))
    assert s.tokens() == {2: 3}
    assert s.writer._claims.withdrawn == []
