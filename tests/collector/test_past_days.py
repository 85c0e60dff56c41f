"""Answers about whole days are remembered until a row of these days changes, and equal those that are read anew."""

from itertools import pairwise

import numpy as np
import pytest

from collector.api import latencies
from collector.api.itl import added, stretches
from collector.api.latencies import _first_us, bucket_of
from collector.api.sums import narrow
from collector.sql.fragment import Fragment
from collector.sql.past_days import PastDays
from collector.sql.queries import Queries, part, size_of_columns
from tests.collector.rows import NOW, SECOND

MS = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
MIDNIGHT = NOW // DAY * DAY


class Asked:
    """A question whose answers are counted."""

    def __init__(self, past, versions):
        self.past = past
        self.versions = versions
        self.answers = 0

    def __call__(self, question="q", reads=(("requests", "20261120"),), size=8):
        def answer():
            self.answers += 1
            return f"answer {self.answers}"

        return self.past.get(question, reads, answer, lambda _: size, dict(self.versions))


@pytest.fixture
def versions():
    return {("requests", "20261120"): (1, 5, 1, 10), ("tokens", "20261120"): (1, 9, 1, 90)}


@pytest.fixture
def ask(versions):
    return Asked(PastDays(most_bytes=10_000), versions)


class TestPastDays:
    def test_an_answer_is_read_once_while_its_days_are_the_same(self, ask, versions):
        assert [ask(), ask()] == ["answer 1", "answer 1"]
        versions["tokens", "20261120"] = (1, 10, 1, 91)  # the question does not read tokens
        assert ask() == "answer 1"

    @pytest.mark.parametrize("version", [(1, 6, 1, 11), (2, 5, 1, 10), (1, 5, 7, 10), (1, 5, 1, 9), None])
    def test_any_change_of_a_day_reads_it_again(self, ask, versions, version):
        ask()
        versions["requests", "20261120"] = version
        assert ask() == "answer 2"

    def test_a_day_that_appears_reads_again(self, ask, versions):
        reads = (("requests", "20261120"), ("requests", "20261121"))
        ask(reads=reads)
        versions["requests", "20261121"] = (6, 6, 6, 1)
        assert ask(reads=reads) == "answer 2"

    def test_an_answer_is_read_again_when_its_day_changed_meanwhile(self, versions):
        past = PastDays()

        def answer():
            versions["requests", "20261120"] = (1, versions["requests", "20261120"][1] + 1, 1, 11)
            return versions["requests", "20261120"]

        reads = [("requests", "20261120")]
        first = past.get("q", reads, answer, lambda _: 1, dict(versions))
        assert past.get("q", reads, answer, lambda _: 1, dict(versions)) != first

    def test_an_answer_that_is_read_again_takes_the_place_of_the_old_one(self, ask, versions):
        for block in range(5):
            versions["requests", "20261120"] = (1, block, 1, 10)
            ask(size=4000)
        assert ask(size=4000) == "answer 5"

    def test_the_answers_asked_least_recently_go_first(self, ask):
        ask("a", size=4000)
        ask("b", size=4000)
        ask("a", size=4000)
        ask("c", size=4000)  # drops b
        assert ask.answers == 3
        ask("a", size=4000)
        assert ask.answers == 3
        ask("b", size=4000)
        assert ask.answers == 4

    def test_an_answer_that_is_too_large_is_not_kept(self, ask):
        ask("a", size=100_000)
        ask("a", size=100_000)
        assert ask.answers == 2
        ask("b")
        ask("b")
        assert ask.answers == 3


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ({}, 0),
        ({"a": [], "b": ()}, 0),
        ({"a": [1, 2], "b": ["x" * 9, "y"]}, 4),
        ({"lists": [["x", "y"], []]}, 4),
        ({"tuples": [[("x", 1), ("y", 2)]] * 3, "n": [1, 2, 3]}, 3 + 6 + 12 + 3),
    ],
)
def test_the_size_of_an_answer_counts_the_values_inside_its_lists(columns, values):
    assert size_of_columns(columns) == 80 * values


class Told(Queries):
    """Queries of a store that tells these versions and these rows by hour."""

    def __init__(self, now, by_hour):
        self.now = now
        self.by_hour = by_hour
        self.asked = 0
        self._past = PastDays()
        self._settings = dict

    remembers = True

    def versions(self):
        return dict(self.now)

    def columns(self, query, fragments=None, /, **parameters):
        self.asked += 1
        assert (query, parameters) == ("requests_by_hour", {"partition": "20261121"})
        return {"hour": [*self.by_hour], "n": [*self.by_hour.values()]}


TODAY = MIDNIGHT // HOUR
NEWEST = ("requests", "20261121")


class TestVersionsOfHours:
    @pytest.fixture
    def told(self):
        now = {NEWEST: (7, 912, 90, 7), ("requests", "20261120"): (1, 6, 50, 1), ("tokens", "20261122"): (1, 1, 1, 1)}
        return Told(now, {TODAY - 1: 1000, TODAY: 20, TODAY + 8: 30, TODAY + 9: 40})

    def test_those_of_the_newest_day_have_its_rows_in_these_hours(self, told):
        found = told.versions_of("requests", TODAY, TODAY + 9)
        assert found == {("requests", f"20261121 {TODAY}-{TODAY + 9}"): (7, 7, 50)}
        assert [*told.versions_of("requests", TODAY + 9, TODAY + 10).values()] == [(7, 7, 40)]
        assert told.asked == 1

    @pytest.mark.parametrize(
        ("version", "hour", "is_same"),
        [
            ((7, 913, 91, 7), TODAY + 9, True),  # a row of the present hour
            ((7, 913, 91, 7), TODAY + 8, False),  # a late one
            ((7, 912, 90, 8), None, False),  # a deletion
            ((8, 912, 90, 7), None, False),  # the day was dropped, and filled again
        ],
    )
    def test_a_row_of_these_hours_changes_them_and_another_does_not(self, told, version, hour, is_same):
        before = told.versions_of("requests", TODAY, TODAY + 9)
        told.now[NEWEST] = version
        if hour:
            told.by_hour[hour] += 1
        assert (told.versions_of("requests", TODAY, TODAY + 9) == before) is is_same

    def test_those_of_other_days_and_whole_days_have_the_versions_of_the_days(self, told):
        past = ("requests", "20261120")
        assert told.versions_of("requests", TODAY - 9, TODAY - 1) == {past: told.now[past]}
        assert told.versions_of("requests", TODAY - 24, TODAY + 24) == {day: told.now[day] for day in (past, NEWEST)}
        assert told.versions_of("requests", TODAY + 24, TODAY + 30) == {("requests", "20261122"): ()}
        assert told.versions_of("requests", TODAY, TODAY) == {}
        assert told.asked == 0


@pytest.mark.parametrize(
    ("values", "kind"),
    [([0, 255], "u1"), ([0.0, 256.0], "u2"), ([0.5, 1.0], "f8"), ([-1.0, 2.0], "f8"), ([2.0**40], "u8"), ([], "f8")],
)
def test_numbers_are_kept_in_few_bytes_and_stay_the_same(values, kind):
    found = narrow(np.array(values))
    assert found.dtype == np.dtype(kind)
    assert found.tolist() == values


class TestStretches:
    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR, [(1, 2, False)]),
            (MIDNIGHT - 2 * HOUR - 1, MIDNIGHT, [(-2 - 1 / HOUR, -2, False), (-2, -1, True), (-1, 0, True)]),
            (MIDNIGHT - DAY, MIDNIGHT + HOUR, [(-24, 0, True), (0, 1, False)]),
            (MIDNIGHT - DAY, MIDNIGHT + 4 * HOUR + 1, [(-24, 0, True), (0, 4, True), (4, 4 + 1 / HOUR, False)]),
            (MIDNIGHT + HOUR, MIDNIGHT + 5 * HOUR, [(1, 5, True)]),
            (MIDNIGHT + HOUR - 1, MIDNIGHT + 4 * HOUR, [(1 - 1 / HOUR, 4, False)]),
            (MIDNIGHT - DAY - HOUR, MIDNIGHT, [(-25, -24, True), (-24, 0, True)]),
            (MIDNIGHT - 1, MIDNIGHT + 1, [(-1 / HOUR, 0, False), (0, 1 / HOUR, False)]),
        ],
    )
    def test_days_and_the_hours_before_them_are_whole(self, start, end, expected):
        ns = [(MIDNIGHT + round(a * HOUR), MIDNIGHT + round(b * HOUR), whole) for a, b, whole in expected]
        assert [*stretches(start, end)] == ns

    def test_they_leave_no_gap(self):
        divided = [*stretches(NOW - 9 * DAY - 7 * HOUR - 5, NOW)]
        assert divided[0][0] == NOW - 9 * DAY - 7 * HOUR - 5
        assert divided[-1][1] == NOW
        assert all(a[1] == b[0] for a, b in pairwise(divided))


def test_counts_are_added_by_duration():
    parts = [(np.array([7, 2**20 - 1, 2**20, 2**40]), np.array([1, 2, 3, 4])), (np.array([2**40, 7]), np.array([5, 6]))]
    us, n = added(parts)
    assert us.tolist() == [7, 2**20 - 1, 2**20, 2**40]
    assert n.tolist() == [7, 2, 3, 9]
    assert [a.size for a in added([])] == [0, 0]


@pytest.mark.parametrize("us", [1, 2, 3, 1023, 1025, 2**24 - 1, 2**24 + 1, 2**31 + 127, 4294967294])
def test_buckets_begin_where_their_number_does(us):
    first = _first_us(bucket_of(us))
    assert bucket_of(first) == bucket_of(us)
    assert first <= max(us, 1)
    assert first == 0 or bucket_of(first - 1) < bucket_of(us)


def test_buckets_of_the_store_are_those_of_python(module_store):
    numbers = [0, 1, 2, 999, 2**20 + 3, 2**24 + 1, 2**24 + 3, 2**31 + 127, 4294967294, 4294967295]
    us = "arrayJoin({numbers:Array(UInt32)})"
    sql = part("latency_bucket", {"us": Fragment("number")}).sql
    found = module_store.query(f"SELECT {sql} FROM (SELECT {us} AS number)", {"numbers": numbers}).result_rows
    assert [bucket for (bucket,) in found] == [bucket_of(n) for n in numbers]


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
        assert (answer["total"], asked.count("requests_count")) == (2, counts)
    last = api("requests", limit=1, cursor=answer["next"])
    assert (len(last["requests"]), last["total"], last["next"]) == (1, 2, None)


def test_late_rows_moved_requests_and_removed_days_are_seen(api, rows, monkeypatch):
    monkeypatch.setattr(latencies, "_FEW", 0)
    made, durations = population(rows)
    check(api, made, durations, START, NOW)

    late = rows.requests([{"ended": MIDNIGHT - 3 * DAY - HOUR, "e2e": 77 * SECOND, "queue_ns": 3, "tenant": "t"}])
    made += late
    check(api, made, durations, START, NOW)
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
    assert api("goodput", start="-7d", e2e="10s", surface=1)["requests"]["good"] == 6


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
