"""Answers over many days, from memory and anew, are those of NumPy and of all rows."""

import numpy as np
import pytest

from collector.ask.queries import Queries
from collector.numbers import latencies
from tests.collector.rows import NOW, SECOND

HOUR = 3600 * SECOND
DAY = 24 * HOUR
MIDNIGHT = NOW // DAY * DAY


def numbers_of(values_ns):
    return {"count": len(values_ns), "max": max(values_ns) / 1e9} | {
        key: pytest.approx(np.percentile(values_ns, q) / 1e9, rel=1e-12)
        for key, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p999", 99.9))
    } | {"mean": pytest.approx(np.mean(values_ns) / 1e9, rel=1e-12)}  # fmt: skip


def put_tokens(rows, request, durations_us, back_ns=1, first_index=1):
    rows.insert("tokens", [
        {"minute": request["end"] - back_ns, "trace_id": request["trace_id"], "request_span_id": request["span_id"],
         "token_index": first_index + i, "duration_us": us, "step": 0}
        for i, us in enumerate(durations_us)
    ])  # fmt: skip


def population(rows, n=300, days=8):
    draw = np.random.default_rng(5)
    made = rows.requests(
        [
            {
                "ended": int(MIDNIGHT - draw.integers(-9 * HOUR, days * DAY)),
                "e2e": int(draw.choice([1, 10**6, 3 * 10**9, 10**13, 2 * HOUR])) + int(draw.integers(0, 3)),
                "ttft_ns": draw.choice([None, 0, 1, 999, 1000, 1001, 10**9, 4294967294000, 4294967294001, 10**15]),
                "queue_ns": draw.choice([None, 0, 1, 5 * 10**6]),
                "gap_ns": draw.choice([None, 0, 1, 10**6, 4294967294001]),
                "tpot_ns": draw.choice([None, 0.5, 1e6, 1e6 + 0.5, 3e9]),
                "status": str(draw.choice(["ok", "ok", "ok", "error", "cancelled"])),
                "tenant": str(draw.choice(["t", "u"])),
            }
            for _ in range(n)
        ]
    )
    durations = {
        r["trace_id"]: [int(us) for us in draw.choice([0, 10, 20_000, 2**20, 3 * 10**6], 6)] for r in made[:60]
    }
    for request in made[:60]:
        put_tokens(rows, request, durations[request["trace_id"]])
    return made, durations


def expected_of(made, durations, start, end, tenant=None):
    chosen = [
        r for r in made if start <= r["end"] < end and r["status"] == "ok" and (tenant is None or r["tenant"] == tenant)
    ]
    values = {
        name: [r[f"{name}_ns"] for r in chosen if r[f"{name}_ns"] is not None]
        for name in ("ttft", "tpot", "e2e", "queue")
    }
    values["gap"] = [r["gap_ns"] for r in chosen if r["gap_ns"]]
    values["itl"] = [us * 1000 for r in chosen for us in durations.get(r["trace_id"], ())]
    return {name: numbers_of(found) for name, found in values.items()}


def check(api, made, durations, start, end, **filters):
    answer = api("summary", start=str(start / SECOND), end=str(end / SECOND), **filters)
    for name, numbers in expected_of(made, durations, start, end, filters.get("tenant")).items():
        assert answer[f"{name}_s"] == numbers, name
    assert answer["requests"]["total"] == sum(
        start <= r["end"] < end and filters.get("tenant") in (None, r["tenant"]) for r in made
    )


@pytest.fixture
def asked(monkeypatch):
    """The queries that the store answers."""
    names = []
    result, array = Queries._result, Queries.array
    monkeypatch.setattr(Queries, "_result", lambda self, q, *a: (names.append(q), result(self, q, *a))[1])
    monkeypatch.setattr(Queries, "array", lambda self, q, *a, **k: (names.append(q), array(self, q, *a, **k))[1])
    return names


@pytest.fixture(params=[0, 10_000], ids=["many", "few"])
def few(request, monkeypatch):
    """Latencies are read in buckets, as those of many requests, or as they are."""
    monkeypatch.setattr(latencies, "_FEW", request.param)
    return request.param > 0


START = MIDNIGHT - 6 * DAY - 5 * HOUR - 60 * SECOND


def test_a_summary_of_many_days_is_that_of_numpy_first_and_again(api, rows, asked, few):
    made, durations = population(rows)
    late = NOW + 20 * 60 * SECOND
    made += rows.requests([{"ended": NOW + SECOND, "e2e": e2e, "tenant": "t"} for e2e in (10**14, 2 * 10**14)])
    for filters in ({}, {"tenant": "t"}, {}):
        check(api, made, durations, START, late, **filters)
    rows.store.client().command("OPTIMIZE TABLE requests FINAL")
    rows.store.client().command("OPTIMIZE TABLE tokens FINAL")
    asked.clear()
    check(api, made, durations, START, late)
    assert asked.count("first_start") == 2  # before the first whole hour, where no request is, and behind the last one
    assert asked.count("itl") == 1
    assert asked.count("latency_buckets") == 0
    assert asked.count("latency_rows") == 1
    assert "latencies" not in asked
    assert asked.count("cells") == 1


@pytest.mark.parametrize(("vantages", "times"), [(["server"], 1), (["client"], 1), (["server", "client"], 2)])
def test_a_short_window_tells_its_vantages_and_its_first_start_with_its_counts(api, rows, asked, vantages, times):
    made = rows.requests([{"vantage": vantage, "request_id": "r", "e2e": 90 * SECOND} for vantage in vantages])
    put_tokens(rows, made[0], [1_000])
    answer = api("summary")
    assert (answer["requests"]["total"], answer["itl_s"]["count"]) == (1, 1)
    assert [asked.count(name) for name in ("cells", "vantages", "first_start", "itl")] == [times, 0, 0, 1]


def test_a_caller_that_asks_for_vantages_gets_their_rows_as_they_are(api, rows, asked):
    rows.requests([{"vantage": vantage, "request_id": "r"} for vantage in ("server", "client")])
    assert api("summary", vantage=["server", "client"])["requests"]["total"] == 2
    assert asked.count("cells") == 1


def test_tokens_are_read_from_the_start_of_the_first_request_on(api, rows):
    long, short = rows.requests([{"e2e": 600 * SECOND}, {"e2e": SECOND}])
    put_tokens(rows, long, [1_000], back_ns=500 * SECOND)
    put_tokens(rows, short, [2_000])
    assert api("summary")["itl_s"]["count"] == 2


def test_a_table_that_had_rows_is_not_looked_at_again(api, rows, asked):
    (made,) = rows.requests([{}])
    rows.open(start=NOW - SECOND, seen=NOW)
    assert api("summary")["itl_s"]["count"] == 0
    put_tokens(rows, made, [1_000])
    for looks in (1, 0):
        asked.clear()
        assert api("summary")["itl_s"]["count"] == 1
        assert asked.count("day_versions") == looks
    rows.store.client().command("TRUNCATE TABLE tokens")
    assert api("summary")["itl_s"]["count"] == 0


def test_rows_are_counted_unless_one_page_has_all(api, rows, asked):
    rows.requests([{}, {}])
    for limit, counts in ((2, 0), (1, 1)):
        asked.clear()
        answer = api("requests", limit=limit)
        assert (answer["total"], asked.count("rows_in_window")) == (2, counts)
    last = api("requests", limit=1, cursor=answer["next"])
    assert (len(last["requests"]), last["total"], last["next"]) == (1, 2, None)


def test_late_rows_moved_requests_and_removed_days_are_seen(api, rows, monkeypatch):
    monkeypatch.setattr(latencies, "_FEW", 0)
    made, durations = population(rows)
    check(api, made, durations, START, NOW)

    late = rows.requests([{"ended": MIDNIGHT - 3 * DAY - HOUR, "e2e": 77 * SECOND, "queue_ns": 3, "tenant": "t"}])
    made += late
    check(api, made, durations, START, NOW, tenant="t")

    put_tokens(rows, late[0], [123_456])
    durations[late[0]["trace_id"]] = [123_456]
    check(api, made, durations, START, NOW)

    command = rows.store.client().command
    command(
        "DELETE FROM requests WHERE tenant = 'u' AND toDate(end) = '2026-11-18'",
        settings={"lightweight_deletes_sync": 2},
    )
    gone = [r for r in made if r["tenant"] == "u" and r["end"] // DAY == MIDNIGHT // DAY - 3]
    assert gone
    made = [r for r in made if r not in gone]
    check(api, made, durations, START, NOW)

    command("ALTER TABLE requests DROP PARTITION ID '20261119'")
    command("ALTER TABLE tokens DROP PARTITION ID '20261117'")
    made = [r for r in made if r["end"] // DAY != MIDNIGHT // DAY - 2]
    for request in made:
        if request["end"] // DAY == MIDNIGHT // DAY - 4:
            durations.pop(request["trace_id"], None)
    check(api, made, durations, START, NOW)


@pytest.mark.parametrize("times", [1, 2, 100])
def test_rows_that_come_between_two_queries_do_not_mix_them(api, rows, monkeypatch, times):
    rows.requests([{"ended": MIDNIGHT - day * DAY - HOUR, "e2e": 1000 + day} for day in range(5)])
    monkeypatch.setattr(latencies, "_FEW", 0)
    left = [times]
    array = Queries.array

    def with_arrivals(self, query, *args, **parameters):
        found = array(self, query, *args, **parameters)
        if query == "latency_buckets" and left[0] > 0:
            left[0] -= 1
            rows.requests([{"ended": NOW - 5 * HOUR, "e2e": 1002}])
        return found

    monkeypatch.setattr(Queries, "array", with_arrivals)
    e2e = api("summary", start="-6d")["e2e_s"]
    values = sorted([1000, 1001, 1002, 1003, 1004] + [1002] * (e2e["count"] - 5))
    assert e2e == numbers_of(values)


def test_an_id_that_ended_on_two_days_counts_its_tokens_on_each(api, rows):
    (made,) = rows.requests([{"ended": MIDNIGHT - 2 * DAY + HOUR, "e2e": HOUR}])
    rows.requests([{"ended": MIDNIGHT - DAY, "e2e": 40 * HOUR, "trace_id": made["trace_id"]}])
    put_tokens(rows, made, [10, 20])
    for _ in range(2):
        assert api("summary", start="-6d")["itl_s"]["count"] == 4
        assert api("summary", start="-6d")["e2e_s"]["count"] == 2


def test_a_window_that_begins_years_before_the_first_request_asks_nothing_of_these_years(api, rows, asked):
    (made,) = rows.requests([{"ended": MIDNIGHT - 2 * DAY}])
    put_tokens(rows, made, [10])
    assert api("summary", start="0")["itl_s"]["count"] == 1
    assert asked.count("first_start") == 2  # of its day, and of today
    rows.requests([{"ended": MIDNIGHT - 900 * DAY, "trace_id": made["trace_id"], "e2e": 1000 * DAY}])
    assert api("summary", start="0")["itl_s"]["count"] == 1


def test_requests_that_took_days_bring_the_tokens_of_these_days(api, rows):
    (made,) = rows.requests([{"ended": MIDNIGHT - 2 * DAY, "e2e": 30 * HOUR}])
    for i, back_ns in enumerate([29 * HOUR, 20 * HOUR, 1]):
        put_tokens(rows, made, [1000 * (i + 1)], back_ns, first_index=i + 1)
    for _ in range(2):
        assert api("summary", start="-6d")["itl_s"]["count"] == 3
    put_tokens(rows, made, [5], 28 * HOUR, first_index=9)
    assert api("summary", start="-6d")["itl_s"]["count"] == 4


def test_a_long_window_of_two_vantages_counts_each_request_once(api, rows):
    for days in (0, 2, 4):
        ended = MIDNIGHT - days * DAY - HOUR
        rows.requests([
            {"ended": ended, "request_id": f"r{days}", "vantage": "client"},
            {"ended": ended, "request_id": f"r{days}", "vantage": "server"},
            {"ended": ended, "request_id": "", "vantage": "client"},
        ])  # fmt: skip
    for _ in range(2):
        assert api("summary", start="-7d")["requests"]["total"] == 6
        assert api("summary", start="-7d", vantage="client")["requests"]["total"] == 6
    assert api("goodput", start="-7d", e2e="10s")["requests"]["good"] == 6


def test_engines_of_many_days_are_the_same_from_memory_and_from_all_rows(api, rows, monkeypatch):
    for day in range(6):
        at, process = MIDNIGHT - day * DAY - HOUR, {"service": f"s{day % 2}", "instance": f"i{day % 3}"}
        (made,) = rows.requests([{**process, "ended": at, "variant": f"v{day}", "model": f"m{day}", "weight": 1.5}])
        put_tokens(rows, made, [10, 20])
        rows.step(**process, start=at - day * HOUR, kv_blocks_used=None)
        rows.open(**process, start=at, seen=at + SECOND)
        rows.cold_start(**process, start=at - HOUR, duration=SECOND)

    def engines():
        return api("engines", start="-6d")

    first = engines()
    assert engines() == first
    assert sum(engine["requests"] for engine in first["engines"]) > 0
    rows.requests([{"service": "late", "ended": MIDNIGHT - 3 * DAY - HOUR}])
    rows.step(start=MIDNIGHT - 4 * DAY, service="s0", instance="i9")
    late = engines()
    assert late != first
    (one,) = api("engines", start="-6d", model="m3")["engines"]
    assert [process["instance"] for process in one["processes"]] == ["i0"]  # a filter reads the window's requests
    monkeypatch.setattr(Queries, "remembers", False)
    assert engines() == late
