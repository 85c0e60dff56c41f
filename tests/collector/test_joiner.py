"""Requests of several processes wait for their parts and are joined once."""

import threading
import time
from queue import SimpleQueue

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.once_a_minute import OnceAMinute
from collector.signals import LOGS, TRACES
from collector.status import IngestStatus
from collector.store import joiner as joiner_module
from collector.store.insert import insert_otlp
from collector.store.joiner import Joiner, owners
from collector.store.store import StoreError, StoreUnavailableError
from tests.collector.test_logs import dynamo
from tests.support.otlp import MS, T0, Request

ROOT = {"module": "sglang::request", "gen_ai.usage.completion_tokens": 2, "gen_ai.latency.time_to_first_token": 0.01}


@pytest.fixture(scope="module")
def store(module_store):
    return module_store


@pytest.fixture
def joiner(store):
    for table in ("requests", "tokens", "phases", "held_requests", "held_spans", "joined_segments"):
        store.client().command(f"TRUNCATE TABLE {table}")
    return Joiner(store, IngestStatus(), after_s=0)


def root(*, trace=1, span=1, parent=None, **attributes):
    request = Request(scope="sglang server")
    request.span("Req", trace=trace, span=span, parent=parent, ns=30 * MS, attributes=ROOT | attributes)
    return request


def parts(request, *, trace=1, root=1, first=2, scheduler=None):
    """A scheduler's span with a prefill of 10 ms and one decoded token of 20 ms."""
    request = request or Request(scope="sglang server")
    scheduler, decode = first, first + 1
    request.span("Scheduler", trace=trace, span=scheduler, parent=root, attributes={"thread_label": "Scheduler"})
    request.span("decode_loop", trace=trace, span=first + 2, parent=decode, start=T0 + 10 * MS, ns=20 * MS)
    request.span("decode_forward", trace=trace, span=decode, parent=scheduler, start=T0 + 10 * MS, ns=20 * MS)
    request.span("prefill_forward", trace=trace, span=first + 3, parent=scheduler, ns=10 * MS)
    return request


def insert(store, request, segment):
    insert_otlp(store, TRACES, request.body(), segment)


def make_older(store, segment, seconds):
    """Let a segment's requests have arrived so long ago."""
    older = f"SELECT * REPLACE (arrived - {seconds} AS arrived) FROM held_requests WHERE segment = '{segment}'"
    store.client().command(f"INSERT INTO held_requests {older}")
    store.client().command(
        f"DELETE FROM held_requests WHERE segment = '{segment}' AND arrived > now() - {seconds // 2}"
    )


def found(store):
    sql = "SELECT request_id, prefill_ns, decode_ns FROM requests ORDER BY ALL"
    tokens = "SELECT token_index, duration_us FROM tokens ORDER BY request_span_id, token_index"
    return store.query(sql).result_rows, store.query(tokens).result_rows


@pytest.mark.parametrize("first", ["root", "parts"])
def test_a_request_and_its_parts_meet_in_either_order(store, joiner, first):
    requests = {"root": root(), "parts": parts(None)}
    for name in (first, *(requests.keys() - {first})):
        insert(store, requests[name], f"{first}-{name}")
    assert found(store) == ([], [])
    assert joiner.run_once()
    assert found(store) == ([("", 10 * MS, 20 * MS)], [(0, 10_000), (1, 20_000)])


@pytest.mark.parametrize(("trace", "span"), [(256, 1), (1, 256)])
def test_an_id_may_end_in_a_zero_byte(store, joiner, trace, span):
    """ClickHouse's toString cuts it off: one of 256 requests had no parts."""
    request = root(trace=trace, span=span)
    inner = root(trace=trace, span=9, parent=span)  # of a proxy's request
    request.scope_spans.spans.extend(inner.scope_spans.spans)
    insert(store, parts(request, trace=trace, root=span), f"zeros-{trace}-{span}")
    assert joiner.run_once()
    assert found(store) == ([("", 10 * MS, 20 * MS)], [(0, 10_000), (1, 20_000)])


def test_a_request_waits_for_its_parts(store):
    insert(store, root(trace=7), "waits")
    patient = Joiner(store, IngestStatus(), after_s=60)
    assert patient.run_once()
    assert ("waits",) not in store.query("SELECT segment FROM joined_segments").result_rows


def test_what_arrives_after_the_clock_was_set_back_is_joined(store, joiner):
    """Nothing was, until the clock showed the old time again or the collector had been started again."""
    ahead_s = [3600]
    joiner = Joiner(store, IngestStatus(), after_s=0, clock=lambda: time.time() + ahead_s[0])
    assert joiner.run_once()
    ahead_s[0] = 0
    insert(store, parts(root()), "behind")
    assert joiner.run_once()
    assert len(found(store)[0]) == 1


def test_a_request_that_has_waited_for_more_than_a_day_is_not_joined(store, joiner):
    """Its parts may be gone, and so may the mark that it was joined."""
    for segment, age_s in (("old", 86_460), ("older", 86_340)):
        insert(store, root(), segment)
        make_older(store, segment, age_s)
    joiner._since_s = 0
    assert joiner.run_once()
    assert len(found(store)[0]) == 1


def test_a_clock_that_is_days_ahead_of_the_servers_joins_what_arrives(store, joiner):
    ahead = Joiner(store, IngestStatus(), after_s=0, clock=lambda: time.time() + 3 * 86400)
    assert ahead.run_once()
    insert(store, parts(root()), "ahead")
    assert ahead.run_once()
    assert len(found(store)[0]) == 1


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


def test_a_segment_of_many_requests_is_several_inserts(store, joiner, monkeypatch):
    monkeypatch.setattr(joiner_module, "_MOST_REQUESTS", 2)
    announced = []
    joiner.on_joined(announced.append)
    request = root()
    for trace in range(2, 6):
        request.scope_spans.spans.extend(root(trace=trace).scope_spans.spans)
    insert(store, request, "many")
    assert joiner.run_once()
    assert announced == ["many.joined.0", "many.joined.2", "many.joined.4"]
    assert store.query("SELECT count(), uniqExact(trace_id) FROM requests").result_rows == [(5, 5)]


@pytest.fixture
def small_blocks(store):
    client = store.client()
    (default,) = store.query("SELECT getSetting('max_block_size')").result_rows[0]
    client.command("SET max_block_size = 1")
    client.command("SYSTEM STOP MERGES")
    yield
    client.command("SYSTEM START MERGES")
    client.command(f"SET max_block_size = {default}")


def test_requests_that_are_joined_together_are_one_part_of_each_table(store, joiner, small_blocks):
    """An insert that fails has stored nothing."""
    request = Request(scope="sglang server")
    for trace in range(1, 20):
        request.scope_spans.spans.extend(parts(root(trace=trace), trace=trace).scope_spans.spans)
    insert(store, request, "blocks")
    assert joiner.run_once()
    assert store.query("SELECT count(), uniqExact(_part) FROM tokens").result_rows == [(38, 1)]


def test_the_oldest_segments_are_joined_first(store, joiner):
    announced = []
    joiner.on_joined(announced.append)
    insert(store, root(), "e")
    ages = [("c", 10), ("a", 40), ("b", 60), ("d", 30)]
    older = "SELECT held_requests.* REPLACE (aged.1 AS segment, arrived - aged.2 AS arrived) FROM held_requests"
    store.client().command(f"INSERT INTO held_requests {older} ARRAY JOIN {ages} AS aged")
    assert joiner.run_once()
    assert announced == [f"{segment}.joined.0" for segment in "badce"]


def test_spans_that_are_sent_twice_are_one_request_with_its_parts(store, joiner, monkeypatch):
    monkeypatch.setattr(joiner_module, "_MOST_REQUESTS", 1)
    announced = []
    joiner.on_joined(announced.append)
    request = parts(parts(root()))
    request.scope_spans.spans.extend(root().scope_spans.spans)
    insert(store, request, "twice")
    assert joiner.run_once()
    assert found(store) == ([("", 10 * MS, 20 * MS)], [(0, 10_000), (1, 20_000)])
    assert announced == ["twice.joined.0"]


def test_two_spans_with_the_same_link_are_two_requests(store, joiner):
    for span in (1, 2):
        insert(store, dynamos_span(7, span=span), f"link-{span}")
        assert joiner.run_once()
    assert len(found(store)[0]) == 2


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


def dynamos_span(number, *, span=1):
    request = Request(scope="frontend")
    rid = f"00000000-0000-4000-8000-{number:012x}"
    attributes = {"code.module.name": "dynamo_llm", "uri": "/v1/completions", "request_id": rid}
    request.span("http-request", span=span, attributes=attributes)
    return request


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


def test_two_requests_of_one_trace_keep_their_own_parts(store, joiner):
    request = parts(root(**{"gen_ai.request.id": "a"}))
    other = root(span=10, **{"gen_ai.request.id": "b"})
    request.scope_spans.spans.extend(other.scope_spans.spans)
    parts(request, root=10, first=11)
    insert(store, request, "two")
    assert joiner.run_once()
    assert found(store) == (
        [("a", 10 * MS, 20 * MS), ("b", 10 * MS, 20 * MS)],
        [(0, 10_000), (1, 20_000), (0, 10_000), (1, 20_000)],
    )


def test_the_first_prefill_is_the_earliest_whatever_its_id(store, joiner):
    """It makes the first token, whose time the request itself has; one after a retraction makes a token of its own."""
    request = parts(root(**{"gen_ai.usage.completion_tokens": 3}))
    request.scope_spans.spans[-1].span_id = (9).to_bytes(8, "big")
    request.span("prefill_forward", span=5, parent=2, start=T0 + 12 * MS, ns=3 * MS)
    insert(store, request, "retracted")
    assert joiner.run_once()
    assert [duration for _, duration in found(store)[1]] == [10_000, 5_000, 15_000]


def test_a_request_without_parts_is_a_row_that_says_what_it_knows(store, joiner):
    insert(store, root(), "alone")
    assert joiner.run_once()
    assert found(store) == ([("", None, None)], [])


def test_a_request_of_another_engine_is_no_part(store, joiner):
    request = Request(scope="tensorrt_llm")
    request.span("llm_request", attributes={"gen_ai.latency.time_in_queue": 0.01})
    request.message.resource_spans.extend(root(span=2, parent=1).message.resource_spans)
    insert(store, request, "engines")
    assert joiner.run_once()
    engines = "SELECT engine FROM requests ORDER BY engine"
    assert store.query(engines).result_rows == [("sglang",), ("tensorrt_llm",)]


def test_a_request_whose_parent_came_in_an_earlier_segment_is_its_part(store, joiner):
    insert(store, root(), "proxy")
    make_older(store, "proxy", 60)
    insert(store, root(span=9, parent=1), "server")
    announced = []
    joiner.on_joined(announced.append)
    assert joiner.run_once()
    assert len(found(store)[0]) == 1
    assert announced == ["proxy.joined.0"]


def test_a_part_that_is_sent_twice_counts_once(store, joiner):
    insert(store, parts(root()), "first")
    insert(store, parts(None), "again")
    assert joiner.run_once()
    assert found(store) == ([("", 10 * MS, 20 * MS)], [(0, 10_000), (1, 20_000)])


def test_spans_that_are_each_others_parents_have_no_request():
    r, a, b, x, y = (("t", name) for name in "rabxy")
    assert owners({r}, {a: r, b: a, x: y, y: x}) == {r: r, a: r, b: r}
    assert owners({r}, {a: a}) == {r: r}
    assert owners({r, a}, {a: r, b: a}) == {r: r, a: a, b: a}
    assert owners({r}, {b: a, a: r}) == {r: r, a: r, b: r}
    assert owners({r}, {("u", "a"): ("u", "r")}) == {r: r}


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


def test_a_segment_whose_insert_ends_after_a_look_is_found_by_the_next_one(store, joiner):
    """Its rows have the time at which the insert began."""
    ahead = Joiner(store, IngestStatus(), after_s=0, clock=lambda: time.time() + 300)
    assert ahead.run_once()
    insert(store, root(), "long")
    assert ahead.run_once()
    assert len(found(store)[0]) == 1


def test_a_segment_is_joined_under_the_lock_that_a_pause_takes(store, joiner, monkeypatch):
    insert(store, root(), "locked")
    locked = []

    def join(*_):
        locked.append(joiner._working.locked())
        return True

    monkeypatch.setattr(joiner, "_join_if_the_store_takes_it", join)
    assert joiner.run_once()
    assert locked == [True]


def test_a_look_that_failed_is_repeated(store, joiner, monkeypatch):
    looks, again = iter((True, False)), threading.Event()

    def look():
        if next(looks):
            joiner._looks_s.clear()
            raise StoreError("away")
        again.set()
        return True

    monkeypatch.setattr(joiner, "run_once", look)
    joiner.start()
    try:
        assert again.wait(60)
    finally:
        assert joiner.stop(10)


def test_it_stops_and_pauses(store, joiner):
    with joiner.paused(0.1), pytest.raises(TimeoutError), joiner.paused(0.01):
        pass
    joiner.start()
    assert joiner.stop(10)
    assert joiner.stop(10)


def test_it_stops_behind_the_segment_that_is_being_joined(store, joiner, monkeypatch):
    for n in (1, 2):
        insert(store, root(trace=n), f"stops-{n}")
    joined = []

    def join(segment, *_):
        joined.append(segment)
        joiner._stopping.set()
        return True

    monkeypatch.setattr(joiner, "_join_if_the_store_takes_it", join)
    assert not joiner.run_once()
    assert joined == ["stops-1"]


def test_the_running_joiner_joins_by_itself(store, joiner):
    insert(store, parts(root()), "runs")
    joiner.on_segment("runs")
    done = threading.Event()
    joiner.on_joined(lambda _: done.set())
    joiner.start()
    try:
        assert done.wait(60)
    finally:
        assert joiner.stop(10)
    assert len(found(store)[0]) == 1


def test_a_segment_plans_a_look_and_a_look_that_found_something_another(store, joiner, monkeypatch):
    """One answer names 100 segments at most, and without a plan the store is not asked at all."""
    insert(store, parts(root()), "due")
    joiner._looks_s.clear()
    assert joiner.run_once()
    assert len(joiner._looks_s) == 1
    assert joiner.run_once()
    assert len(joiner._looks_s) == 1, "nothing was due"
    joiner._looks_s.clear()
    looks = SimpleQueue()
    monkeypatch.setattr(joiner, "run_once", lambda: looks.put("look") or True)
    joiner.on_segment("later")
    joiner.start()
    try:
        assert looks.get(timeout=60) == "look"
    finally:
        assert joiner.stop(10)
    assert not joiner._looks_s


def test_it_looks_at_its_start_and_when_a_segment_of_a_process_before_it_or_of_now_has_waited(store):
    joiner = Joiner(store, IngestStatus(), after_s=60)
    now = time.monotonic()
    joiner.on_segment("later")
    first, second, third = joiner._looks_s
    assert first <= now
    assert second - first >= 61
    assert third - now >= 61
