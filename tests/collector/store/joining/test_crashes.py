"""A joiner that dies, a store that refuses or is away: no request is lost or joined twice."""

import threading

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.base.once_a_minute import OnceAMinute
from collector.base.status import IngestStatus
from collector.base.store_errors import StoreUnavailableError
from collector.otlp.signals import LOGS
from collector.store import joiner as joiner_module
from collector.store import part_folders
from collector.store.insert import insert_otlp
from collector.store.joiner import Joiner
from tests.collector.otlp.test_logs import dynamo
from tests.collector.store.joining.spans import dynamos_span, found, insert, parts, root


def test_a_store_that_is_away_is_one_line_in_a_minute(store, monkeypatch, caplog):
    tried = threading.Semaphore(0)

    def away():
        tried.release()
        raise StoreUnavailableError("away")

    joiner = Joiner(store, IngestStatus(), after_s=0)
    monkeypatch.setattr(joiner, "run_once", away)
    monkeypatch.setattr(joiner, "_line_due", OnceAMinute(lambda: 0.0))
    joiner.start()
    try:
        assert all(tried.acquire(timeout=120) for _ in range(4))
    finally:
        assert joiner.stop(120)
    assert caplog.messages == ["requests wait to be joined: away (they are tried again)"]


def test_a_segment_is_joined_once_also_after_a_crash_before_it_was_marked(store, joiner):
    announced = []
    joiner.on_joined(announced.append)
    insert(store, parts(root()), "once")
    assert joiner.run_once()
    assert joiner.run_once()
    assert announced == ["once.joined.0"]
    store.client().command("TRUNCATE TABLE joined_segments")
    after_a_crash = Joiner(store, IngestStatus(), after_s=0)
    assert after_a_crash.run_once()
    assert len(found(store)[0]) == 1
    assert len(found(store)[1]) == 2
    assert store.query("SELECT segment FROM requests").result_rows == [("once.joined.0",)]


def test_joined_rows_are_durable_before_the_segment_counts_as_joined(store, joiner, monkeypatch):
    table, synced = store.table_folder("requests"), []

    def sync(folder):
        if folder == table:
            joined = store.query("SELECT (SELECT count() FROM requests), (SELECT count() FROM joined_segments)")
            synced.append(joined.result_rows[0])

    insert(store, parts(root()), "once")
    monkeypatch.setattr(part_folders, "sync_folder", sync)
    assert joiner.run_once()
    assert synced == [(1, 0)]


class Crash(Exception):
    """The collector dies."""


def crash_at(store, monkeypatch, number):
    """A joiner that dies at its statement of this number, counted from 0."""
    commands = iter(range(number))
    real = store.command

    def command(*arguments):
        if next(commands, None) is None:
            raise Crash
        real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(store, "command", command)
        with pytest.raises(Crash):
            Joiner(store, IngestStatus(), after_s=0).run_once()


def test_no_request_is_lost_when_a_joiner_dies_between_two_inserts_and_a_parent_comes(store, joiner, monkeypatch):
    monkeypatch.setattr(joiner_module, "_MOST_REQUESTS", 2)
    requests = [root(trace=trace, span=9, parent=1, **{"gen_ai.request.id": f"r{trace}"}) for trace in range(1, 7)]
    for request in requests[1:]:
        requests[0].scope_spans.spans.extend(request.scope_spans.spans)
    insert(store, requests[0], "many")
    crash_at(store, monkeypatch, 1)
    assert [row[0] for row in found(store)[0]] == ["r1", "r2"]
    late = root(trace=1)
    late.scope_spans.spans.extend(root(trace=3).scope_spans.spans)
    insert(store, late, "late")
    while not joiner.run_once():
        pass
    assert [row[0] for row in found(store)[0] if row[0]] == ["r1", "r2", "r4", "r5", "r6"]


def test_a_log_record_that_was_joined_alone_before_a_crash_stays_the_request(store, joiner, monkeypatch):
    insert_otlp(store, LOGS, dynamo(1).SerializeToString(), "log")
    crash_at(store, monkeypatch, 2)
    insert(store, dynamos_span(1), "span")
    insert_otlp(store, LOGS, dynamo(1).SerializeToString(), "log again")
    for _ in range(2):
        assert joiner.run_once()
    assert store.query("SELECT count(), countDistinct(segment), any(segment) FROM requests").result_rows == [
        (1, 1, "log.joined.0")
    ]


def test_a_log_record_whose_insert_never_came_leaves_its_span_out_of_nothing(store, joiner, monkeypatch):
    insert_otlp(store, LOGS, dynamo(1).SerializeToString(), "log")
    crash_at(store, monkeypatch, 1)
    insert(store, dynamos_span(1), "span")
    assert joiner.run_once()
    assert store.query("SELECT count() FROM requests").result_rows == [(1,)]


def test_a_span_takes_the_place_of_a_log_record_that_the_store_refused(store, joiner, monkeypatch):
    insert_otlp(store, LOGS, dynamo(1).SerializeToString(), "log")
    real = store.command

    def refuse(sql, parameters):
        if "INTO joins" in sql:
            raise DatabaseError("bad", code=6)
        real(sql, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(store, "command", refuse)
        assert [joiner.run_once() for _ in range(4)] == [False, False, False, True]
    insert(store, dynamos_span(1), "span")
    assert joiner.run_once()
    assert store.query("SELECT segment FROM requests").result_rows == [("span.joined.0",)]


def test_rows_that_the_store_refuses_are_counted_and_do_not_hold_up_the_others(store, joiner, monkeypatch, caplog):
    insert(store, root(trace=1, **{"gen_ai.request.id": "bad"}), "bad")
    insert(store, root(trace=2, **{"gen_ai.request.id": "good"}), "good")
    status = IngestStatus()
    joiner = Joiner(store, status, after_s=0)
    real = joiner._join

    def refuse(segment, place):
        if segment == "bad":
            store.query("SELECT toUInt8('x')")
        return real(segment, place)

    monkeypatch.setattr(joiner, "_join", refuse)
    assert [joiner.run_once() for _ in range(5)] == [False, False, False, True, True]
    assert [row[0] for row in found(store)[0]] == ["good"]
    assert status.snapshot().segments_not_joined == 1
    refused = store.query("SELECT segment, refused != '' FROM joined_segments ORDER BY ALL").result_rows
    assert refused == [("bad", True), ("good", False)]
    assert joiner._attempts == {}
