"""Answers about whole days and hours are remembered until a row of these changes."""

from itertools import pairwise

import numpy as np
import pytest

from collector.ask.past_days import PastDays, size_of_columns
from collector.ask.queries import Queries
from collector.ask.slices import narrow
from collector.ask.template import part
from collector.numbers.itl import added, stretches
from collector.numbers.latencies import _first_us, bucket_of
from collector.sql.fragment import Fragment, Table
from tests.collector.rows import NOW, SECOND

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
        assert (query, parameters) == ("rows_by_hour", {"partition": "20261121"})
        assert fragments == {"table": Table("requests"), "time": Fragment("end")}
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
    [
        ([0, 255], "u1"),
        ([0.0, 256.0], "u2"),
        ([0.5, 1.0], "f8"),
        ([-1.0, 2.0], "f8"),
        ([2.0**40], "u8"),
        ([1e30], "f8"),
        ([], "u1"),
    ],
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
            (MIDNIGHT - 4 * HOUR - 1, MIDNIGHT, [(-4 - 1 / HOUR, -4, False), (-4, 0, True)]),
            (MIDNIGHT - 3 * HOUR - 1, MIDNIGHT, [(-3 - 1 / HOUR, 0, False)]),
            (MIDNIGHT - DAY, MIDNIGHT + HOUR, [(-24, 0, True), (0, 1, False)]),
            (MIDNIGHT - DAY, MIDNIGHT + 4 * HOUR + 1, [(-24, 0, True), (0, 4, True), (4, 4 + 1 / HOUR, False)]),
            (MIDNIGHT + HOUR, MIDNIGHT + 5 * HOUR, [(1, 5, True)]),
            (MIDNIGHT + HOUR - 1, MIDNIGHT + 4 * HOUR, [(1 - 1 / HOUR, 4, False)]),
            (MIDNIGHT - DAY - HOUR, MIDNIGHT, [(-25, -24, False), (-24, 0, True)]),
            (MIDNIGHT - 2 * DAY - 5 * HOUR, MIDNIGHT, [(-53, -48, True), (-48, -24, True), (-24, 0, True)]),
            (MIDNIGHT - 9 * DAY, MIDNIGHT, [(-24 * day, -24 * (day - 1), True) for day in range(9, 0, -1)]),
            (MIDNIGHT - 1, MIDNIGHT + 1, [(-1 / HOUR, 1 / HOUR, False)]),
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
