"""Requests that wait for KV blocks: found by the thresholds of the alert, with the list of those that waited."""

import pytest

from tests.collector.rows import NOW, SECOND

MS = 1_000_000
WAITS = {"ttft_wait_kv_us": 600_000, "ttft_own_prompt_us": 200_000}
RUNS = {"ttft_own_prompt_us": 800_000}
MINUTE = 60 * SECOND


@pytest.fixture
def slos_file(tmp_path):
    """Without an SLO, of which each answer would look for burns."""
    path = tmp_path / "slos.yaml"
    path.write_text("slos: []")
    return path


@pytest.fixture
def store(rows):
    """Store so many requests with their causes, one a second, the last one ended so long ago."""

    def store(causes, n, *, ago=SECOND, apart=SECOND, **fields):
        if not n:
            return []
        found = rows.requests(
            [{"ttft_ns": 800 * MS, "e2e": 2 * SECOND, "ended": NOW - ago - i * apart, **fields} for i in range(n)]
        )
        rows.causes([(row, causes) for row in found])
        return found

    return store


@pytest.fixture
def waits(api):
    return lambda **asked: [one for one in api("incidents", **asked)["incidents"] if one["cause"] == "kv_wait"]


def test_requests_that_wait_for_kv_blocks_are_an_incident_although_nothing_is_evicted(store, waits, api, rows):
    rows.step(start=NOW - SECOND, kv_blocks_used=62, kv_blocks_total=100)
    waited = store(WAITS, 20, apart=2 * SECOND)
    store(RUNS, 5)
    (found,) = waits()
    assert (found["severity"], found["firing"], found["end"], found["requests_affected"]) == ("ticket", True, None, 20)
    assert (found["service"], found["instance"], found["process_tenant"]) == ("engine", "i-1", "")
    assert found["title"] == "Requests wait for KV blocks at engine i-1"
    assert found["detail"].startswith(
        "60 % of the time until first tokens was a wait for KV blocks. 20 requests waited"
    )
    (listed,) = found["requests"]
    answer = api("requests", **listed["parameters"])
    assert answer["total"] == listed["total"] == 20
    assert {one["trace_id"] for one in answer["requests"]} == {row["trace_id"] for row in waited}
    assert found["start"] < answer["requests"][-1]["end"]


def test_a_few_or_a_little_are_none(store, waits):
    little, batch = {"ttft_wait_kv_us": 399_000, "ttft_own_prompt_us": 401_000}, {"ttft_wait_batch_us": 800_000}
    of_each = {"few": (WAITS, 9, 0), "enough": (WAITS, 10, 0), "most run": (WAITS, 10, 20), "half": (WAITS, 10, 19)}
    for instance, (causes, n, others) in {**of_each, "little": (little, 40, 0), "batch": (batch, 40, 0)}.items():
        store(causes, n, instance=instance)
        store(RUNS, others, instance=instance)
    assert {one["instance"] for one in waits()} == {"enough", "half"}


def test_it_lasts_from_the_first_that_waited_to_the_last(store, waits):
    store(WAITS, 60, ago=10 * MINUTE)
    store(RUNS, 300, apart=4 * SECOND)
    (found,) = waits(start="-30m")
    assert (found["firing"], found["requests_affected"]) == (False, 60)
    assert found["end"] == "2026-11-20T23:50:00Z" if NOW == 1_795_132_800 * SECOND else found["end"]
    assert waits(start="-9m") == [], "it was over"
    assert waits(end="-10m")[0]["firing"]


def test_processes_and_times_are_apart(store, waits):
    store(WAITS, 20, instance="a")
    store(WAITS, 20, instance="b", ago=12 * MINUTE)
    store(WAITS, 20, instance="b", ago=40 * MINUTE)
    store(WAITS, 6, instance="c")
    found = waits(start="-1h")
    assert [(one["instance"], one["firing"]) for one in found] == [("a", True), ("b", False), ("b", False)]


def test_filters_choose_the_requests(store, waits):
    store(WAITS, 20, model="m")
    store(RUNS, 40, model="n")
    assert (waits(), len(waits(model="m")), waits(model="n")) == ([], 1, [])


def test_sampled_requests_count_by_weight_and_are_listed_once_each(store, waits, api):
    store(WAITS, 3, weight=5.0)
    (found,) = waits()
    assert found["requests_affected"] == 3
    assert api("requests", **found["requests"][0]["parameters"])["total"] == 3


def test_a_request_that_has_not_ended_has_no_cause_yet(store, api, rows):
    store(WAITS, 20)
    rows.open(start=NOW - 5 * SECOND, seen=NOW)
    assert api("requests", cause="kv_wait", status="in_flight")["total"] == 0
    assert api("requests", cause="kv_wait")["total"] == 20
    answer = api.client.get("/api/v1/requests", params={"cause_start": "-5m"})
    assert "kv_wait" in answer.json()["detail"]
