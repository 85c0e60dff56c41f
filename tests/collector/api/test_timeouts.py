"""`/timeouts` about rows written by hand: each way to end a request, in the part of the answer that it belongs to."""

from typing import Any

import pytest

from tests.collector.rows import NOW, SECOND

N = 400


@pytest.fixture
def traffic(rows):
    """400 answered requests of up to 4 s, and of each other kind some."""
    made: list[dict[str, Any]] = []
    for i in range(N):
        wait = SECOND + 3 * SECOND * (i * 37 % N) // N
        made.append({"ended": NOW - (600 - i) * SECOND, "e2e": 2 * wait, "ttft_ns": wait, "gap_ns": wait // 10})
    lately: dict[str, Any] = {"ended": NOW - 30 * SECOND, "output_tokens": 0, "ttft_ns": None}
    made += [{**lately, "e2e": 30 * SECOND, "status": "error", "error_type": "internal"}] * 3
    made += [{**lately, "e2e": SECOND // 100, "status": "error", "error_type": "bad_request"}] * 5
    made += [{**lately, "e2e": 20 * SECOND, "status": "cancelled"}] * 2
    made += [
        {**lately, "e2e": 2 * SECOND + i * 10**6, "status": "error", "error_type": "ReadTimeout"} for i in range(9)
    ]
    before = {"ended": NOW - 500 * SECOND, "e2e": 700 * SECOND, "ttft_ns": 650 * SECOND}
    rows.requests([{"tpot_ns": None, **one} for one in [*made, before]])
    rows.open(start=NOW - 3 * SECOND, seen=NOW - SECOND)
    rows.open(start=NOW - 100 * SECOND, seen=NOW - 90 * SECOND)


def waits(api, **asked):
    (group,) = api("timeouts", **asked)["groups"]
    return {wait["wait"]: wait for wait in group["waits"]}


def test_each_request_counts_where_it_belongs(api, traffic):
    found = waits(api, kill="5%")
    first, e2e = found["first_token"], found["e2e"]
    assert (first["answered"], first["censored"]) == (N, 9 + 1), "time-outs, and one in flight"
    assert first["dead"] == 3 + 2 + 1, "late errors, given up in silence, lost; errors at once cost no wait"
    assert first["longest_s"] < 4, "a request that began before the window is left out"
    assert (e2e["answered"], e2e["censored"], e2e["dead"]) == (N, 10, 6)
    assert found["gap"]["answered"] == N
    assert "first_visible" not in found


def test_a_time_out_that_is_suggested_cuts_no_more_and_the_shorter_one_does(api, traffic):
    wait = waits(api, kill="0.05")["first_token"]
    one = wait["suggested"]
    assert one["healthy_cut"]["share"] <= 0.05 <= one["healthy_cut"]["high"]
    at = waits(api, at=[f"{one['timeout_s'] * 0.97}s", "10s", "25s", "1h"])["first_token"]["curve"]
    assert at[0]["healthy_cut"]["share"] > 0.05
    assert [point["timeout_s"] for point in at[1:]] == [10, 25, 3600]
    assert [point["dead_caught"]["share"] for point in at] == [1, 1, 1, pytest.approx(3 / 6)]
    assert [point["beyond_observed"] for point in at] == [False, True, True, True]
    assert [point["healthy_cut"]["share"] for point in at[1:]] == [0, 0, 0]
    # Errors after 30 s, given up after 20 s, and lost 10 s after it began.
    assert at[1]["saved_s"] == pytest.approx((3 * 20 + 2 * 10 + 0) / 6)


def test_few_requests_do_not_decide(api, traffic):
    wait = waits(api)["first_token"]
    assert wait["suggested"] is None
    assert wait["more_requests"] > 3000
    assert "not decided which time-out cuts 0.1 %" in wait["summary"]


def test_a_clients_time_out_is_told(api, traffic):
    (is_set,) = waits(api)["first_token"]["evident"]
    assert (is_set["timeout_s"], is_set["requests"]) == (2, 9)
    assert is_set["would_have"]["low"] > 0.85
    assert is_set["within_s"] < 4.1


def test_models_and_filters(api, rows):
    for model, seconds in (("slow", 9), ("quick", 1)):
        times = [{"ended": NOW - (i + 1) * SECOND, "ttft_ns": seconds * SECOND, "e2e": 10 * SECOND} for i in range(20)]
        rows.requests([{**one, "model": model} for one in times])
    assert [group["model"] for group in api("timeouts")["groups"]] == ["quick", "slow"]
    assert [group["requests"] for group in api("timeouts", model="slow")["groups"]] == [20]
    assert api("timeouts", **{"not.model": ["slow", "quick"]})["groups"] == []


@pytest.mark.parametrize("asked", [{"kill": "0"}, {"kill": "100%"}, {"kill": "few"}, {"kill": "nan"}, {"at": "0s"}])
def test_what_can_be_none_is_refused(api, asked):
    answer = api.client.get("/api/v1/timeouts", params=asked)
    assert answer.status_code == 400, answer.text


def test_of_more_requests_than_are_read_each_stands_for_several(api, traffic, monkeypatch):
    monkeypatch.setattr("collector.timeouts.read.MOST_ROWS", 150)
    answer = api("timeouts")
    assert answer["read_one_in"] == 3
    assert sum(group["requests"] for group in answer["groups"]) == pytest.approx(N, rel=0.35)


def test_kinds_beyond_the_most_are_counted_as_left_out(api, rows, monkeypatch):
    monkeypatch.setattr("collector.timeouts.read.MOST_KINDS", 2)
    rows.requests([{"model": f"m{i}", "ttft_ns": SECOND // 2} for i in range(5)])
    answer = api("timeouts")
    assert (len(answer["groups"]), answer["left_out"]) == (2, 3)
