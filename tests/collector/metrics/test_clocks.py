"""Clocks that are ahead of the collector's, or behind it, are told by service, and forgotten."""

import pytest

from collector.base.process import Process
from collector.metrics.clocks import KEEP_MINUTES, MOST, Clocks
from tests.collector.rows import NOW, SECOND

pytestmark = pytest.mark.usefixtures("no_evaluation")

MINUTE = 60 * SECOND


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def told(scrape):
    """The services that a scrape tells to be ahead, or behind."""

    def told(word):
        return {k[1]: n for k, n in scrape().items() if k[0] == f"tokentrail_clock_{word}_seconds"}

    return told


def test_a_service_whose_requests_end_in_the_future_is_told(arrive, clock, told):
    arrive({"service": "even", "ended": NOW}, {"service": "ahead", "ended": NOW + 3600 * SECOND})
    assert told("ahead") == {"service_name=ahead": 3600}
    clock.now += KEEP_MINUTES * MINUTE
    assert told("ahead") == {}


def test_a_service_is_told_of_which_a_process_is_behind(rows, on_segment, clock, told):
    """The largest lag would tell of a request that was sent again, and the smallest of all processes of none."""
    segment = f"{NOW:020d}-a"
    lags = {("slow", "i-1"): (601, 640), ("slow", "i-2"): (605,), ("slow", "i-3"): (0,), ("late", "i-1"): (90, 29)}
    rows.requests(
        {"service": service, "instance": instance, "ended": NOW - lag * SECOND, "segment": segment}
        for (service, instance), of_process in lags.items()
        for lag in of_process
    )
    on_segment(segment)
    assert told("behind") == {"service_name=slow": 605}
    clock.now += KEEP_MINUTES * MINUTE
    assert told("behind") == {}


def test_time_in_the_log_is_no_lag(rows, on_segment, clock, told):
    """The store was away for an hour."""
    segment = f"{NOW:020d}-a"
    clock.now += 3600 * SECOND
    rows.request(ended=NOW - SECOND, ingested_at=clock.now, segment=segment)
    on_segment(segment)
    assert told("behind") == {}


def test_the_largest_lead_of_a_while_counts(clocks):
    for end_ns, now_ns in ((NOW + 9 * SECOND, NOW), (NOW + 5 * SECOND, NOW + SECOND), (NOW, NOW + SECOND)):
        clocks.note_end(("s", ""), end_ns, now_ns)
    clocks.note_end(("almost", ""), NOW + SECOND - 1, NOW)
    clocks.note_end(("just", ""), NOW + SECOND, NOW)
    assert clocks.ahead_s(NOW + SECOND) == {("s", ""): 9, ("just", ""): 1}
    later = NOW + KEEP_MINUTES * MINUTE
    clocks.note_end(("s", ""), later + 2 * SECOND, later)
    assert clocks.ahead_s(later) == {("s", ""): 2}


def test_a_service_is_ahead_for_as_long_as_its_requests_are(clocks):
    """A smaller lead than the first had not counted, so the alert about a service with few requests came and went."""
    for after, seconds in ((0, 100), (10, 99), (20, 98)):
        clocks.note_end(("s", ""), NOW + after * MINUTE + seconds * SECOND, NOW + after * MINUTE)
    told = {after: clocks.ahead_s(NOW + after * MINUTE).get(("s", "")) for after in (20, 24, 25, 34, 35)}
    assert told == {20: 99, 24: 99, 25: 98, 34: 98, 35: None}


def test_the_smallest_lag_of_a_while_counts(clocks):
    for after, seconds in ((0, 100), (10, 101), (20, 102)):
        clocks.note_lag(Process("s", "i"), seconds * SECOND, NOW + after * MINUTE)
    clocks.note_lag(Process("almost", "i"), 30 * SECOND - 1, NOW)
    clocks.note_lag(Process("just", "i"), 30 * SECOND, NOW)
    assert clocks.behind_s(NOW) == {("s", ""): 100, ("just", ""): 30}
    told = {after: clocks.behind_s(NOW + after * MINUTE).get(("s", "")) for after in (20, 24, 25, 34, 35)}
    assert told == {20: 101, 24: 101, 25: 102, 34: 102, 35: None}


def test_one_request_in_time_ends_a_lag_of_its_own_process_alone(clocks):
    for instance in ("a", "b"):
        clocks.note_lag(Process("s", instance), 99 * SECOND, NOW)
    clocks.note_lag(Process("s", "a"), SECOND, NOW)
    assert clocks.behind_s(NOW) == {("s", ""): 99}
    clocks.note_lag(Process("s", "b"), SECOND, NOW)
    assert clocks.behind_s(NOW) == {}


def test_services_beyond_a_limit_and_long_names_are_one(clocks):
    for n in range(MOST + 5):
        clocks.note_end((f"s{n}", ""), NOW + n * SECOND, NOW - SECOND)
        clocks.note_lag(Process(f"s{n}", "i"), (1000 - n) * SECOND, NOW)
    for found, other in ((clocks.ahead_s(NOW), MOST + 5), (clocks.behind_s(NOW), 1000 - MOST - 4)):
        assert len(found) == MOST + 1
        assert found["other", "other"] == other


@pytest.mark.parametrize(("length", "name"), [(1024, ("s" * 1024, "")), (1025, ("other", "other"))])
def test_a_long_name_is_in_no_label(length, name, clocks):
    clocks.note_end(("s" * length, ""), NOW + 5 * SECOND, NOW)
    clocks.note_lag(Process("s" * length, "i"), 50 * SECOND, NOW)
    assert (clocks.ahead_s(NOW), clocks.behind_s(NOW)) == ({name: 5}, {name: 50})


def test_a_tenant_with_many_services_leaves_room_for_those_of_others(clocks):
    for n in range(MOST + 5):
        clocks.note_end((f"s{n}", "acme"), NOW + 9 * SECOND + n, NOW + n)
        clocks.note_lag(Process(f"s{n}", "i", "acme"), 60 * SECOND, NOW + n)
    for tenant, seconds in (("bolt", 2), ("", 3)):
        clocks.note_end(("s", tenant), NOW + seconds * SECOND, NOW)
        clocks.note_lag(Process("s", "i", tenant), 30 * seconds * SECOND, NOW)
    for found, unit in ((clocks.ahead_s(NOW), 1), (clocks.behind_s(NOW), 30)):
        assert (found["s", "bolt"], found["s", ""]) == (2 * unit, 3 * unit)
        assert found.keys() > {("other", "other")}
        assert sum(tenant == "acme" for _, tenant in found) == MOST - 2


def test_a_name_that_cannot_be_printed_is_behind_until_its_process_is_in_time(clocks):
    process = Process("a\nb", "i")
    clocks.note_lag(process, 60 * SECOND, NOW)
    assert clocks.behind_s(NOW) == {("a\ufffdb", ""): 60}
    clocks.note_lag(process, SECOND, NOW)
    assert clocks.behind_s(NOW) == {}
