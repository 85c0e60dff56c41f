"""Tokens that come without an engine step, and phases that nobody names."""

import pytest

from tests.tokentrail.support import MS, T0, attributes_of, phases_of, start
from tokentrail import semconv
from tokentrail._build.chunks import chunk_columns
from tokentrail._build.slots import Slots
from tokentrail._record import recorder
from tokentrail._record.recipient import ENDED_SLOT, FOREIGN_SLOT, Chunk


def test_tokens_without_a_step(trail, clock):
    request, other = start(trail), start(trail)
    clock.advance(4 * MS)
    request.token()
    other.token(at_ns=T0 + MS)
    request.token(3, T0 + 6 * MS)
    trail.flush()
    request.tokens([T0 + 7 * MS, T0 + 9 * MS])
    request.end(T0 + 9 * MS)
    tokens = trail.spans(semconv.TOKEN_SPAN, parent=request)
    assert [t.duration_ns // MS for t in tokens] == [4, 2, 0, 0, 1, 2]
    assert [(t.token_index, t.attributes) for t in tokens] == [(i, {}) for i in range(6)]
    assert [t.duration_ns // MS for t in trail.spans(semconv.TOKEN_SPAN, parent=other)] == [1]
    attributes = attributes_of(trail)
    assert (attributes[semconv.OUTPUT_TOKENS], attributes[semconv.TIME_TO_LAST_TOKEN]) == (6, 0.009)
    assert trail.spans(semconv.STEP_SPAN) == []
    stats = trail.stats
    assert stats.accepted == stats.exported == len(trail.spans())


def test_chunks_follow_the_steps_of_their_batch(trail):
    request = start(trail)
    trail.step(5, T0, T0 + MS, [request])
    request.token(2, T0 + 3 * MS)
    tokens = trail.spans(semconv.TOKEN_SPAN)
    assert [t.duration_ns // MS for t in tokens] == [1, 2, 0]
    assert [t.attributes.get(semconv.STEP) for t in tokens] == [5, None, None]


def test_chunks_after_the_end(trail):
    request = start(trail)
    request.token(at_ns=T0 + 5 * MS)
    request.end(T0 + 3 * MS)  # moved to the last token before it
    request.tokens([T0 + 3 * MS, T0 + 4 * MS])
    trail.flush()
    request.token(2, T0)
    (span,) = trail.spans("chat m")
    assert (span.attributes[semconv.OUTPUT_TOKENS], span.duration_ns) == (2, 5 * MS)
    assert trail.stats.drops == {"late": 3}


@pytest.mark.parametrize(
    ("call", "kept", "errors"),
    [
        (lambda r: r.token(0), 0, 0),
        (lambda r: r.token(-1), 0, 1),
        (lambda r: r.token("x"), 0, 1),
        (lambda r: r.token(5_000), 5_000, 0),
        (lambda r: r.token(65_536), 65_536, 0),
        (lambda r: r.token(65_537), 0, 1),
        (lambda r: r.token(at_ns="x"), 1, 1),
        (lambda r: r.tokens(5), 0, 1),
        (lambda r: r.tokens([T0, None, T0 + MS]), 2, 1),
        (lambda r: r.tokens([T0] * 65_536), 65_536, 0),
        (lambda r: r.tokens([T0] * 65_537), 65_536, 1),
        (lambda r: r.choice(65_535).token(), 1, 0),
        (lambda r: r.choice(65_536).token(), 1, 1),
    ],
)
def test_chunks_keep_what_is_good(tolerant, call, kept, errors):
    request = start(tolerant)
    call(request)
    request.end()
    assert attributes_of(tolerant)[semconv.OUTPUT_TOKENS] == kept
    assert tolerant.stats.errors == errors


def test_a_step_may_emit_5000_tokens_to_one_request(trail):
    request = start(trail)
    trail.step(0, T0, T0 + MS, [request], counts=[5_000])
    request.end(T0 + MS)
    assert attributes_of(trail)[semconv.OUTPUT_TOKENS] == 5_000


def test_a_chunk_of_a_request_that_no_trail_took_is_foreign(trail):
    request, refused = start(trail), []
    assert chunk_columns([Chunk(request, (T0, T0), False)], Slots(), lambda *why: refused.append(why)) is None
    assert refused == [(FOREIGN_SLOT, 2), (ENDED_SLOT, 0)]


def test_chunks_beyond_the_buffer_are_counted_by_their_tokens(trail):
    request = start(trail)
    trail.shutdown()
    request.token(3)
    assert trail.stats.drops["shutdown"] == 3


def test_a_chunk_that_found_no_room_is_told_by_its_request(trail, monkeypatch):
    request = start(trail)
    monkeypatch.setattr(recorder, "MAX_ENTRIES", 2)
    request.token(3)
    request.end(T0)
    attributes = attributes_of(trail)
    assert (attributes[semconv.DROPPED_TOKENS], attributes[semconv.OUTPUT_TOKENS]) == (3, 0)
    assert trail.stats.drops == {"buffer_full": 3}


def test_a_request_that_no_trail_took_is_not_abandoned(trail):
    """A forked child forgets the records of its parent, and the parent goes on with the request."""
    request = start(trail)
    trail._records.clear()
    del request
    assert not trail._records


# --- phases that nobody names ----------------------------------------------------------------------------------


def test_the_first_token_ends_prefill(trail):
    request = start(trail)
    request.tokens([T0 + 4 * MS, T0 + 9 * MS])
    request.end(T0 + 9 * MS)
    assert phases_of(trail, request) == {"prefill": 4, "decode": 5}


def test_without_a_token_a_request_was_queued(trail):
    request = start(trail)
    request.end(T0 + 3 * MS)
    assert phases_of(trail, request) == {"queued": 3}
