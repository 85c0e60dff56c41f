"""Requests and their parts meet, in any order."""

import time

import pytest

from collector.base.status import IngestStatus
from collector.otlp.signals import LOGS
from collector.store import joiner as joiner_module
from collector.store.insert import insert_otlp
from collector.store.joiner import Joiner, owners
from tests.collector.otlp.test_logs import dynamo
from tests.collector.store.joining.spans import dynamos_span, found, insert, make_older, parts, root
from tests.support.otlp import MS, T0, Request, set_attributes
from tokentrail import semconv


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


@pytest.mark.parametrize("first", ["acme", "bolt"])
@pytest.mark.parametrize("apart", [True, False])
def test_a_tenant_that_knows_the_ids_of_another_one_changes_nothing_of_its_request(store, joiner, first, apart):
    """bolt sends the ids of acme's request and of its parts, with times and parents of its own."""
    payloads = {}
    for tenant, prefill in (("acme", 10 * MS), ("bolt", 5 * MS)):
        request = parts(root(**{"gen_ai.request.id": tenant}))
        set_attributes(request.message.resource_spans[0].resource, {semconv.TENANT: tenant})
        if tenant == "bolt":
            *_, decode, last = request.scope_spans.spans
            decode.parent_span_id, last.end_time_unix_nano = last.span_id, last.start_time_unix_nano + prefill
        payloads[tenant] = request
    for tenant in (first, *(payloads.keys() - {first})):
        insert(store, payloads[tenant], f"{first}-{tenant}-{apart}")
        assert not apart or joiner.run_once()
    assert joiner.run_once()
    sql = "SELECT process_tenant, request_id, prefill_ns FROM requests ORDER BY ALL"
    assert store.query(sql).result_rows == [("acme", "acme", 10 * MS), ("bolt", "bolt", 5 * MS)]
    assert store.query("SELECT count() FROM tokens GROUP BY tenant_hash").result_rows[0] == (2,)


def test_a_tenant_that_knows_the_link_of_another_one_keeps_nothing_out(store, joiner):
    """bolt's log record has the link of acme's span, and became a request before it came."""
    logs, span = dynamo(1), dynamos_span(1)
    set_attributes(logs.resource_logs[0].resource, {semconv.TENANT: "bolt"})
    set_attributes(span.message.resource_spans[0].resource, {semconv.TENANT: "acme"})
    insert_otlp(store, LOGS, logs.SerializeToString(), "log of bolt")
    assert joiner.run_once()
    insert(store, span, "span of acme")
    assert joiner.run_once()
    assert store.query("SELECT process_tenant FROM requests ORDER BY ALL").result_rows == [("acme",), ("bolt",)]
    logs = dynamo(1)
    set_attributes(logs.resource_logs[0].resource, {semconv.TENANT: "acme"})
    insert_otlp(store, LOGS, logs.SerializeToString(), "log of acme")
    assert joiner.run_once()
    assert store.query("SELECT count() FROM requests").result_rows == [(2,)], "its span has told of it"


def test_spans_that_are_each_others_parents_have_no_request():
    r, a, b, x, y = (("t", name, "acme") for name in "rabxy")
    assert owners({r}, {a: r, b: a, x: y, y: x}) == {r: r, a: r, b: r}
    assert owners({r}, {a: a}) == {r: r}
    assert owners({r, a}, {a: r, b: a}) == {r: r, a: a, b: a}
    assert owners({r}, {b: a, a: r}) == {r: r, a: r, b: r}
    assert owners({r}, {("u", "a", "acme"): ("u", "r", "acme"), ("t", "a", "bolt"): ("t", "r", "bolt")}) == {r: r}
