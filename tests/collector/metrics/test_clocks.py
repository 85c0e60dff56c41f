"""Clocks that are ahead of the collector's are told by service, and forgotten."""

from collector.exposition.clocks import KEEP_MINUTES, MOST, ClocksAhead
from tests.collector.rows import NOW, SECOND


def test_a_service_whose_requests_end_in_the_future_is_told(arrive, clock, scrape):
    def told():
        return {key[1]: n for key, n in scrape().items() if key[0] == "tokentrail_clock_ahead_seconds"}

    arrive({"service": "even", "ended": NOW}, {"service": "ahead", "ended": NOW + 3600 * SECOND})
    assert told() == {"service_name=ahead": 3600}
    clock.now += KEEP_MINUTES * 60 * SECOND
    assert told() == {}


def test_the_largest_lead_of_a_while_counts():
    clocks = ClocksAhead()
    for end_ns, now_ns in ((NOW + 9 * SECOND, NOW), (NOW + 5 * SECOND, NOW + SECOND), (NOW, NOW + SECOND)):
        clocks.note("s", end_ns, now_ns)
    clocks.note("almost", NOW + SECOND - 1, NOW)
    clocks.note("just", NOW + SECOND, NOW)
    assert clocks.seconds(NOW + SECOND) == {"s": 9, "just": 1}
    later = NOW + KEEP_MINUTES * 60 * SECOND
    clocks.note("s", later + 2 * SECOND, later)
    assert clocks.seconds(later) == {"s": 2}


def test_a_service_is_ahead_for_as_long_as_its_requests_are():
    """A smaller lead than the first had not counted, so the alert about a service with few requests came and went."""
    clocks, minute = ClocksAhead(), 60 * SECOND
    for after, seconds in ((0, 100), (10, 99), (20, 98)):
        clocks.note("s", NOW + after * minute + seconds * SECOND, NOW + after * minute)
    told = {after: clocks.seconds(NOW + after * minute).get("s") for after in (20, 24, 25, 34, 35)}
    assert told == {20: 99, 24: 99, 25: 98, 34: 98, 35: None}


def test_services_beyond_a_limit_and_long_names_are_one():
    clocks = ClocksAhead()
    for n in range(MOST + 5):
        clocks.note(f"s{n}", NOW + n * SECOND, NOW - SECOND)
    found = clocks.seconds(NOW)
    assert len(found) == MOST + 1
    assert found["other"] == MOST + 5
    clocks = ClocksAhead()
    for length in (1024, 1025):
        clocks.note("s" * length, NOW + 5 * SECOND, NOW)
    assert clocks.seconds(NOW) == {"s" * 1024: 5, "other": 5}
