"""Inserts that are too large for the memory of the store are divided."""

import numpy as np

from collector.otlp.signals import TRACES
from collector.otlp.tokens import token_columns
from collector.store import insert
from collector.store.insert import TooMuchError, insert_otlp, native_block
from collector.wal.frame import digest_of
from tests.support.otlp import Request, token_body


def scarce(most_bytes, calls):
    """A store with memory for inserts of this many bytes."""

    def insert(store, signal, source, token):
        body = source.read_bytes() if hasattr(source, "read_bytes") else source
        calls.append((token.partition(".")[2], len(body)))
        if len(body) > most_bytes:
            raise TooMuchError("memory limit")
        insert_otlp(store, signal, source, token)

    return insert


def test_an_insert_that_is_too_large_for_the_memory_is_tried_again_and_then_divided(setup):
    calls = []
    s = setup(insert=scarce(1_500_000, calls), max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1, count=16_000, first_step=0.5), token_body(trace=2)))
    assert [token for token, _ in calls] == ["", "", "", "", "0", "0", "0", "0", "0.0", "0.1", "1"]
    assert s.tokens() == {1: 16_000, 2: 3}
    assert s.dead() == {}
    assert s.log.pending == (0, 0)


def test_a_small_insert_waits_for_memory_and_is_never_set_aside(setup):
    calls = []

    def recovers(store, signal, source, token):
        scarce(0 if len(calls) < 9 else 10**6, calls)(store, signal, source, token)

    s = setup(insert=recovers, max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1), token_body(trace=2)))
    assert {token for token, _ in calls} == {""}
    assert s.tokens() == {1: 3, 2: 3}


def test_a_single_span_that_is_too_large_for_the_memory_is_set_aside(setup):
    request = Request()
    request.span("large", attributes={"text": "x" * 2_000_000})
    s = setup(insert=scarce(10**6, []), max_wait_s=0.001)
    s.writer.write(s.segment(request.body(), token_body(trace=2)))
    assert [path.read_bytes() for path in s.dead()] == [request.body()]
    assert s.tokens() == {2: 3}
    assert s.log.pending == (0, 0)


def test_a_payload_of_which_a_half_is_stored_is_known(setup):
    request = Request().tokens(trace=1, count=1)
    request.span("large", attributes={"text": "x" * 2_000_000})
    s = setup(insert=scarce(10**6, []), max_wait_s=0.001)
    s.writer.write(s.segment(request.body()))
    assert (s.tokens(), len(s.dead())) == ({1: 1}, 1)
    assert s.log.seen(digest_of(request.body()))


def test_payloads_whose_resources_would_fill_the_memory_are_divided_before_they_are_inserted(setup, monkeypatch):
    """A store that is inside the collector would be killed with it, also at the next start."""
    monkeypatch.setattr("collector.store.writer._MOST_REPEATED", 1_000_000)
    calls = []

    def counting(store, signal, source, token):
        calls.append(token.split(".")[1:])
        insert_otlp(store, signal, source, token)

    large, small = Request(big="r" * 100_000), Request()
    for n in range(30):
        large.span("x", trace=n + 1)
    small.span("x", trace=99)
    s = setup(insert=counting)
    s.store.client().command("TRUNCATE TABLE spans")
    s.writer.write(s.segment(large.body(), small.body()))
    assert calls == [["0", "0", "0"], ["0", "0", "1"], ["0", "1", "0"], ["0", "1", "1"], ["1"]]
    assert s.store.query("SELECT count(), uniqExact(trace_id) FROM spans").result_rows == [(31, 31)]
    assert s.log.pending == (0, 0)


def test_columns_that_are_too_large_for_the_memory_are_divided(setup):
    calls = []

    def scarce_block(store, signal, block, token):
        calls.append(token.partition(".columns")[2])
        if sum(map(len, block)) > 1_350_000:
            raise TooMuchError("memory limit")
        insert.insert_block(store, signal, block, token)

    s = setup(insert_block=scarce_block, max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1, count=30_001), token_body(trace=2, count=10_000)))
    assert calls == ["", "", "", "", ".0", ".1"]
    assert s.tokens() == {1: 30_001, 2: 10_000}
    assert s.log.pending == (0, 0)


def test_an_insert_of_a_million_rows_is_one_part(setup):
    """Half of an insert would stay when the other half fails, and its token would not be known."""
    s, count = setup(), 1_200_000
    columns = token_columns(Request().tokens(trace=1, count=100).body())
    many = {name: np.repeat(column, count // 100, axis=0) for name, column in columns.items()}
    assert TRACES.plain
    insert.insert_block(s.store, TRACES, native_block([many], TRACES.plain.types), "a token")
    sql = "SELECT level, rows FROM system.parts WHERE table = 'tokens' AND active"
    assert s.store.query(sql).result_rows == [(0, count)]
