"""The table of causes: its latencies are those of the requests, so answers judge its rows as they judge requests."""

import random

import pytest

from collector.causes.split.model import StepModel
from tests.collector.rows import NOW, SECOND

LATENCIES = ("ttft_us", "tpot_us", "e2e_us")
SHARED = (
    "end, ingested_at, engine, service, instance, process_tenant, variant, vantage, operation, model, tenant,"
    " slo_class, status, error_type, output_tokens, weight"
)


@pytest.fixture(scope="module")
def many_requests():
    rng = random.Random(3)
    many = []
    for i in range(300):
        e2e, tokens = rng.randrange(1, 9 * SECOND), rng.choice([None, 0, 1, 2, 3, 60])
        ttft = rng.choice([None, rng.choice([0, rng.randrange(e2e + 1)])]) if tokens != 0 else None
        tpot = rng.choice([None, rng.random() * 10**8]) if tokens and tokens > 1 else None
        bound = rng.choice([None, 10**7]) if tokens and tokens > 1 and tpot is None else None
        many.append(
            {"ended": NOW - i, "e2e": e2e, "output_tokens": tokens, "ttft_ns": ttft, "tpot_ns": tpot,
             "tpot_at_most_ns": bound, "status": rng.choice(["ok", "error", "cancelled"]), "weight": 1 + i % 3}
        )  # fmt: skip
    return many


@pytest.fixture
def store(rows, many_requests):
    requests = rows.requests(many_requests)
    rows.causes([(request, {}) for request in requests])
    return rows.store


def test_a_row_names_its_request_and_has_its_latencies_in_microseconds(store, many_requests):
    asked, found = (
        store.query(f"SELECT end, {key} AS key, {', '.join(LATENCIES)} FROM {table} ORDER BY end, key").result_rows
        for key, table in (("toUInt32(cityHash64(trace_id, span_id))", "requests"), ("request_key", "causes FINAL"))
    )
    assert found == asked
    assert len(asked) == len(many_requests)


def test_nanoseconds_are_null_where_those_of_the_request_are(store):
    nulls = "end, ttft_ns IS NULL, tpot_ns IS NULL, tpot_at_most_ns IS NULL, e2e_us * 1000 - e2e_ns < 1000"
    asked = store.query(f"SELECT {nulls} FROM requests ORDER BY end").result_rows
    assert store.query(f"SELECT {nulls} FROM causes FINAL ORDER BY end").result_rows == asked


def test_all_thatmany_requests_are_filtered_by_is_here(store):
    asked = store.query(f"SELECT {SHARED} FROM requests ORDER BY end").result_rows
    assert store.query(f"SELECT {SHARED} FROM causes FINAL ORDER BY end").result_rows == asked


def test_a_row_replaces_one_of_a_lower_version(rows):
    request = rows.request()
    rows.causes([(request, {"version": version, "ttft_stall_us": version}) for version in (2, 3, 1)])
    assert rows.store.query("SELECT ttft_stall_us FROM causes FINAL").result_rows == [(3,)]


def test_times_that_no_column_can_hold_are_the_longest_ofmany_requests_too(rows):
    request = rows.request(e2e=9000 * SECOND, ttft_ns=8000 * SECOND)
    parts = {f"{part}_{cause}_us": us for part, cause, us in
             [("ttft", "wait_batch", 4 * 10**9), ("ttft", "busy", 4 * 10**9), ("rest", "batch", 10**9)]}  # fmt: skip
    rows.causes([(request, parts)])
    for name in LATENCIES[::2]:
        (of_request,), (of_causes,) = (
            rows.store.query(f"SELECT {name} FROM {t}").result_rows for t in ("requests", "causes")
        )
        assert of_causes == of_request == (2**32 - 2,)


def test_a_model_has_a_column_for_each_of_its_numbers(rows):
    named = {"service", "instance", "process_tenant", "variant", "model", "at", "version"}
    columns = "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'step_models'"
    model = StepModel(1, 2, 3.0, 0.1, 0.9, (1.0,), (2.0,), (3.0,))
    assert {name for (name,) in rows.store.query(columns).result_rows} == {*named, *model.row()}


def test_error_us_is_a_share_of_the_whole(rows):
    rows.causes([(rows.request(e2e=2 * SECOND), {"error_permille": 25})])
    assert rows.store.query("SELECT error_us FROM causes").result_rows == [(50_000,)]
