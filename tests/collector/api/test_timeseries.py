from collections import defaultdict

import numpy as np
import pytest

from tests.collector.rows import NOW, SECOND

MS = 1_000_000


def by_bucket(made, step):
    buckets = defaultdict(list)
    for row in made:
        buckets[row["end"] // step * step].append(row)
    return dict(sorted(buckets.items()))


@pytest.fixture
def traffic(rows):
    return rows.requests(
        [
            {"ended": NOW - i * 3 * SECOND - 1, "e2e": (i * 71 % 40 + 1) * 20 * MS, "output_tokens": i % 5,
            "slo_class": "chat" if i % 2 else "",
             "status": ("ok", "ok", "ok", "error", "cancelled")[i % 5 if i % 3 else 0], "queue_ns": i * MS,
             "gap_ns": (None, 0, i * MS)[i % 3]}
            for i in range(100)
        ]
    )  # fmt: skip


@pytest.mark.parametrize(("points", "status"), [(11_000, 200), (11_001, 400)])
def test_an_answer_has_so_many_points_at_most(api, points, status):
    params = {"metric": "requests", "step": "1s", "start": f"-{points}s"}
    assert api.client.get("/api/v1/timeseries", params=params).status_code == status


@pytest.mark.parametrize("metric", ["ttft", "tpot", "e2e", "queue", "gap"])
def test_latencies_by_bucket(api, traffic, metric):
    answer = api("timeseries", metric=metric, step="10s")
    assert (answer["metric"], answer["unit"], answer["step_s"]) == (metric, "s", 10.0)
    expected = {}
    for t, bucket in by_bucket(traffic, 10 * SECOND).items():
        values = [r[f"{metric}_ns"] / 1e9 for r in bucket if r["status"] == "ok" and r[f"{metric}_ns"] is not None]
        values = [one for one in values if one or metric != "gap"]
        if values:
            expected[t] = values
    assert len(answer["points"]) == len(expected)
    for point, values in zip(answer["points"], expected.values(), strict=True):
        assert point["count"] == len(values)
        assert point["max"] == pytest.approx(max(values))
        for q in (50, 90, 95, 99):
            assert point[f"p{q}"] == pytest.approx(np.percentile(values, q))
    assert [p["t"] for p in answer["points"]] == sorted(p["t"] for p in answer["points"])


def test_itl_of_tokens_by_the_bucket_in_which_their_request_ended(api, rows):
    first = rows.request(ended=NOW - 65 * SECOND, e2e=200 * SECOND)
    second = rows.request(ended=NOW - 64 * SECOND)
    failed = rows.request(ended=NOW - 64 * SECOND, status="error")
    rows.tokens(first, [100_000_000, 10_000, 20_000])
    rows.tokens(second, [1_000, 30_000])
    rows.tokens(failed, [1_000, 99_000])
    (point,) = api("timeseries", metric="itl", step="30s")["points"]
    assert point["t"] == "2026-11-21T09:58:30Z"
    assert (point["count"], point["p50"], point["max"]) == (3, 0.02, 0.03)


def test_rates_are_per_second_of_the_part_of_the_bucket_that_was_asked_about(api, rows):
    rows.requests(
        [
            {"ended": NOW - 1, "output_tokens": 7},
            {"ended": NOW - 9 * SECOND},
            {"ended": NOW - 12 * SECOND, "status": "error"},
        ]
    )
    assert api("timeseries", metric="requests", step="10s", start="-15s")["points"] == [
        {"t": "2026-11-21T09:59:40Z", "partial": True, "covered_s": 5.0, "value": 1 / 5},
        {"t": "2026-11-21T09:59:50Z", "partial": False, "covered_s": 10.0, "value": 2 / 10},
    ]
    assert [p["value"] for p in api("timeseries", metric="failed", start="-15s")["points"]] == [0.2, 0.0]
    assert [p["value"] for p in api("timeseries", metric="output_tokens", start="-15s")["points"]] == [2.0, 1.7]


def test_goodput_and_attainment_are_judged_by_the_slo_that_is_asked_for(api, traffic):
    def good(row):
        return row["status"] == "ok" and (row["ttft_ns"] or 0) <= 500 * MS and (row["tpot_ns"] or 0) <= 100 * MS

    chat = [r for r in traffic if r["slo_class"] == "chat"]
    buckets = by_bucket(chat, 20 * SECOND)
    goodput = api("timeseries", metric="goodput", step="20s", slo="chat")["points"]
    assert [p["value"] for p in goodput] == [pytest.approx(sum(map(good, b)) / 20) for b in buckets.values()]
    attainment = api("timeseries", metric="attainment", step="20s", slo="chat")["points"]

    def is_judged(row):
        no_token = row["output_tokens"] == 0 and row["e2e_ns"] > 500 * MS
        late = no_token or (row["ttft_ns"] or 0) > 500 * MS or (row["tpot_ns"] or 0) > 100 * MS
        return row["status"] != "cancelled" or late

    judged = [[r for r in b if is_judged(r)] for b in buckets.values()]
    assert [p["value"] for p in attainment] == [pytest.approx(sum(map(good, b)) / len(b)) for b in judged if b]
    assert min(p["value"] for p in attainment) < max(p["value"] for p in attainment)


@pytest.mark.parametrize(("vantage", "attained"), [("client", 1.0), ("server", 0.5)])
def test_a_lost_request_that_no_slo_selects_is_not_judged(api, rows, vantage, attained):
    rows.request(slo_class="chat", ended=NOW - 200 * SECOND, ttft_ns=1, tpot_ns=1.0, e2e=1)
    rows.open(vantage=vantage, start=NOW - 300 * SECOND, seen=NOW - 230 * SECOND)
    (point,) = api("timeseries", metric="attainment", step="15m", start="-15m")["points"]
    assert point["value"] == attained


@pytest.mark.parametrize(("metric", "answer"), [("attainment", 1), ("goodput", 1), ("requests", None)])
def test_lost_requests_are_bad_in_a_bucket_without_others_and_late_ones_in_flight_in_none(api, rows, metric, answer):
    rows.open(start=NOW - 5 * SECOND, seen=NOW - SECOND, slo_class="chat")
    rows.open(start=NOW - 200 * MS, seen=NOW - 100 * MS, slo_class="chat")
    rows.open(start=NOW - 100 * SECOND, seen=NOW - 95 * SECOND)
    found = api("timeseries", metric=metric, step="30s")
    lost = [{"t": "2026-11-21T09:58:30Z", "partial": False, "covered_s": 30.0, "value": 0.0}]
    assert (found["points"], found["in_flight_violations"]) == (lost if answer else [], answer)
    if answer:
        assert api("timeseries", metric=metric, step="30s", slo="all")["in_flight_violations"] == 0
        before = api("timeseries", metric=metric, step="30s", end="-4s")
        assert before["in_flight_violations"] == api("summary", end="-4s")["requests"]["in_flight_violations"] == 1


def test_a_hang_makes_no_cliff_in_the_last_bucket(api, rows):
    rows.requests([{"ended": NOW - SECOND, "slo_class": "chat", "ttft_ns": MS, "tpot_ns": 1.0} for _ in range(3)])
    rows.request(ended=NOW - SECOND, status="cancelled")
    rows.request(ended=NOW - 40 * SECOND, status="cancelled")
    for _ in range(50):
        rows.open(start=NOW - 5 * SECOND, seen=NOW - SECOND, slo_class="chat")
    last = {"t": "2026-11-21T09:59:30Z", "partial": False, "covered_s": 30.0}
    attainment, goodput = (api("timeseries", metric=metric, step="30s") for metric in ("attainment", "goodput"))
    assert attainment["points"] == [last | {"value": 1.0}]
    assert goodput["points"] == [last | {"t": "2026-11-21T09:59:00Z", "value": 0.0}, last | {"value": 0.1}]
    assert attainment["in_flight_violations"] == goodput["in_flight_violations"] == 50


@pytest.mark.parametrize("metric", ["requests", "goodput", "attainment", "output_tokens", "ttft", "running"])
def test_the_bucket_that_is_not_over_says_how_much_of_it_is_covered(api, rows, clock, metric):
    """One request a second: the rate of the last two seconds is not that of a fifth of them in ten."""
    rows.requests(
        [{"ended": NOW - i * SECOND - 1, "slo_class": "chat", "ttft_ns": MS, "tpot_ns": 1.0} for i in range(60)]
    )
    for i in range(60):
        rows.step(start=NOW - i * SECOND - 1, running=3)
    clock.now = NOW - 8 * SECOND
    points = api("timeseries", metric=metric, step="10s", start="-15s")["points"]
    assert [(point["partial"], point["covered_s"]) for point in points] == [(True, 3.0), (False, 10.0), (True, 2.0)]
    values = {point.get("value", point.get("p50")) for point in points}
    rate = {"requests": 1.0, "goodput": 1.0, "attainment": 1.0, "running": 3.0, "ttft": 0.001}
    if metric in rate:
        assert values == {rate[metric]}
    else:
        assert len(values) == 1


def test_engine_states_and_events(api, rows):
    at = NOW - 30 * SECOND
    rows.step(start=at, running=3, waiting=1, kv_blocks_used=30, kv_blocks_total=60)
    rows.step(start=at + SECOND, running=5, waiting=0, kv_blocks_used=45, kv_blocks_total=60)
    rows.step(start=at, instance="i-2", running=4, waiting=2, kv_blocks_used=1, kv_blocks_total=60)
    rows.step(start=at, instance="encoder", running=1)
    rows.kv_event(start=at, blocks=6)
    rows.kv_event(start=at, blocks=4, reason="cache_full")
    rows.kv_event(start=at, blocks=9, kind="offload")

    def one(metric, **params):
        return [p["value"] for p in api("timeseries", metric=metric, step="10s", **params)["points"]]

    assert one("running") == [10]
    assert one("waiting") == [3]
    assert one("kv_usage") == [0.75]
    assert one("kv_evictions") == [1.0]
    assert one("preemptions") == [0.2]
    assert one("running", model="m") == []
    rows.request(instance="i-2")
    assert one("running", model="m") == [4]


def test_kv_usage_is_the_largest_of_a_step_when_a_restart_changes_the_number_of_blocks(api, rows):
    at = NOW - 30 * SECOND
    for second, used, total in ((0, 90, 100), (1, 40, 200), (2, 5, 0), (3, 7, None)):
        rows.step(start=at + second * SECOND, kv_blocks_used=used, kv_blocks_total=total)
    assert api("timeseries", metric="kv_usage", step="10s")["points"] == [
        {"t": "2026-11-21T09:59:30Z", "partial": False, "covered_s": 10.0, "value": 0.9}
    ]


def test_itl_of_speculation_is_that_of_its_steps_and_their_mean_is_the_tpot(rows, api):
    """Each step of 60 ms accepts three tokens: the first carries the wait (docs/numbers.md)."""
    request = rows.request(e2e=800_000_000, output_tokens=31, tpot_ns=20_000_000)
    waits_us = [200_000, *[60_000, 0, 0] * 10]
    rows.tokens(request, waits_us)
    (point,) = api("timeseries", metric="itl")["points"]
    assert (point["count"], point["p50"], point["p99"], point["max"]) == (30, 0, 0.06, 0.06)
    (of_requests,) = api("timeseries", metric="tpot")["points"]
    assert of_requests["p50"] == sum(waits_us[1:]) / 30 / 1e6
