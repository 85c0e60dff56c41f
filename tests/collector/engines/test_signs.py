"""What engine processes did is put together from rows of several tables, and empty tables are not asked."""

from types import SimpleNamespace

import numpy as np
import pytest

from collector.ask.queries import Queries
from collector.count.in_flight import judge_in_flight
from collector.engines.abilities import _minutes
from collector.engines.signs import processes_of

MINUTE = 60 * 10**9


def sign(last, service="s", instance="i", **fields):
    return {
        "service": service,
        "instance": instance,
        "process_tenant": "",
        "variant_now": "",
        "first_ns": last - 5,
        "last_ns": last,
        **fields,
    }


def test_a_process_has_the_labels_and_times_of_all_its_signs():
    (found,) = processes_of([
        sign(20, variant_now="new", variants=["new"], kv=1),
        sign(10, variant_now="old", variants=["", "old"], engine="", vantage="server", models=["b"], n=1.5),
        sign(15, engine="vllm", vantage="client", models=["a", "b"], n=2.1),
        sign(90, listed=False, models=["c"]),
    ])  # fmt: skip
    assert found == {
        "service": "s", "instance": "i", "process_tenant": "", "engine": "vllm", "vantage": "client", "variant": "new",
        "variants": ["new", "old"], "models": ["a", "b"], "first_seen_ns": 5, "last_seen_ns": 20, "requests": 4,
    }  # fmt: skip


def test_the_latest_process_is_the_first():
    found = processes_of([sign(10), sign(30, instance="j"), sign(20, service="t"), sign(20, service="r")])
    assert [(one["service"], one["instance"]) for one in found] == [("s", "j"), ("r", "i"), ("t", "i"), ("s", "i")]


def test_a_process_has_a_bounded_number_of_models():
    (found,) = processes_of([sign(10, models=[f"m{n:03}"]) for n in range(150)])
    assert found["models"] == [f"m{n:03}" for n in range(100)]


def test_tokens_are_looked_for_in_the_minutes_in_which_a_request_ran():
    assert [*_minutes(7 * MINUTE + 1, 9 * MINUTE)] == [7, 8, 9]
    assert [*_minutes(0, 10_000 * MINUTE)] == [*range(10_000 - 24 * 60, 10_001)]


def test_requests_in_flight_are_chosen_with_their_columns():
    processes = ("service", "instance", "process_tenant")
    names = ("trace_id", "span_id", *processes, "output_tokens", "ttft_ns", "unmeasured", "last_token_ns", "gap_ns")
    columns = {name: [None, None, None] for name in names} | {
        "began_ns": [1, 2, 3],
        "seen_ns": [10, 20, 30],
        "heard_ns": [10, 20, 30],
    }
    found = judge_in_flight(columns, {}, end_ns=40, lost_after_ns=15, heard_until_ns=40)
    some = found.where(found.lost_at_ns >= 35)
    assert (some.size, some.began_ns.tolist(), some.columns["seen_ns"]) == (2, [2, 3], [20, 30])
    assert (found.is_lost.tolist(), some.is_lost.tolist()) == ([True, True, False], [True, False])
    none = judge_in_flight(dict.fromkeys(columns, ()), {}, end_ns=40, lost_after_ns=15, heard_until_ns=40)
    assert none.where(np.ones(0, bool)).columns["slo_class"] == []


class Store:
    layout = SimpleNamespace(cluster="")

    def __init__(self, *tables):
        self.asked = 0
        self.tables = tables

    def query(self, sql, parameters, settings):
        if "system.parts" in sql:
            rows = [(table, "20261120", [1]) for table in self.tables]
            return SimpleNamespace(column_names=("name", "partition", "version"), result_rows=rows)
        self.asked += 1
        return SimpleNamespace(column_names=("kind",), result_rows=[("evict",)])


@pytest.mark.parametrize(
    ("tables", "settings", "asked"),
    [
        (("requests",), {"log_comment": "a"}, 0),
        (("requests", "cold_starts"), {"log_comment": "a"}, 1),
        (("kv_events",), {"log_comment": "a"}, 1),
        (("requests",), {}, 1),
    ],
)
def test_a_query_is_left_out_when_no_table_that_it_reads_has_rows(tables, settings, asked):
    store = Store(*tables)
    rows = Queries(store, lambda: settings).rows("request_events", limit=1)
    assert (store.asked, len(rows)) == (asked, asked)


def test_a_cluster_is_always_asked():
    store = Store("requests")
    store.layout = SimpleNamespace(cluster="c")
    assert Queries(store, lambda: {"log_comment": "a"}).rows("request_events", limit=1)
