"""The counters of SLOs count a request that is bad before it has ended, and count it once."""

import pytest

from tests.collector.metrics.scraped import CHAT, MS, slo
from tests.collector.rows import NOW, SECOND, trace_id

pytestmark = pytest.mark.usefixtures("no_evaluation")


def test_an_announcement_gives_birth_to_the_counters_of_its_request(rows, scrape):
    rows.open(start=NOW - SECOND, seen=NOW, tenant="rare")
    found = [n for key, n in scrape().items() if key[0] == "tokentrail_requests_total" and "tenant=rare" in key]
    assert found == [0, 0, 0]


class TestInFlight:
    def test_a_hung_request_is_counted_when_it_turns_bad_and_once(self, scrape, arrive, rows, clock):
        assert slo(scrape()) == (0, 0)
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW - 2 * SECOND, slo_class="chat")
        assert slo(scrape()) == (0, 0)
        rows.insert("open_requests", [hung | {"seen": NOW}])
        samples = scrape()
        assert slo(samples) == (1, 0)
        assert samples["tokentrail_slo_in_flight_violations", "slo=chat"] == 1
        assert samples["tokentrail_slo_in_flight_violations", "slo=all"] == 0
        assert samples["tokentrail_requests_in_flight", "service_instance_id=i-1", "service_name=engine"] == 1
        assert slo(scrape()) == (1, 0)
        clock.now += 60 * SECOND
        rows.insert("open_requests", [hung | {"seen": clock.now}])
        samples = scrape()
        assert (slo(samples), slo(samples, "all")) == ((1, 0), (1, 0)), "it was bad for one SLO and is for two"
        clock.now += 3 * SECOND
        arrive(CHAT | {"trace_id": hung["trace_id"], "e2e": 65 * SECOND, "ttft_ns": 4 * SECOND}, CHAT)
        samples = scrape()
        assert slo(samples) == (2, 1)
        assert slo(samples, "all") == (2, 1)
        assert samples["tokentrail_slo_in_flight_violations", "slo=chat"] == 0
        assert samples["tokentrail_requests_in_flight", "service_instance_id=i-1", "service_name=engine"] == 0

    def test_one_whose_sender_has_a_clock_ahead_of_ours_is_counted_once(self, scrape, arrive):
        arrive(CHAT | {"ended": NOW + 5 * SECOND, "e2e": 7 * SECOND, "ttft_ns": SECOND})
        samples = scrape()
        assert slo(samples) == slo(scrape()) == (1, 0)
        assert sum(n for key, n in samples.items() if key[0] == "tokentrail_requests_in_flight") == 0

    def test_one_that_is_announced_by_a_clock_ahead_of_ours_is_in_flight_and_no_more(self, scrape, rows, clock):
        rows.open(start=NOW + 30 * SECOND, seen=NOW + 45 * SECOND, slo_class="chat")

        def gauges():
            samples, process = scrape(), ("service_instance_id=i-1", "service_name=engine")
            names = ("in_flight", "stuck", "lost_total")
            return tuple(samples[f"tokentrail_requests_{name}", *process] for name in names), slo(samples)

        assert gauges() == ((1, 0, 0), (0, 0))
        clock.now += 76 * SECOND
        assert gauges() == ((0, 0, 1), (1, 0))

    def test_a_request_that_ends_during_a_scrape_is_counted_once(self, scrape, arrive, rows, live):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        counters = live.counters
        count_segments = counters.count_segments

        def ends_first():
            counters.count_segments = count_segments
            arrive(CHAT | {"trace_id": hung["trace_id"], "e2e": 2 * SECOND, "ttft_ns": 2 * SECOND})
            count_segments()

        counters.count_segments = ends_first
        assert slo(scrape()) == (1, 0)
        assert slo(scrape()) == (1, 0)

    def test_a_counter_does_not_decrease_when_the_bad_one_is_cancelled(self, scrape, arrive, rows):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": hung["trace_id"], "status": "cancelled"})
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": trace_id(), "status": "cancelled"})
        assert slo(scrape()) == (1, 0)

    def test_one_that_ends_well_without_a_token_was_not_late(self, scrape, arrive, rows):
        """It had waited for a first token, and there is none to be late."""
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": hung["trace_id"], "output_tokens": 0, "ttft_ns": None, "tpot_ns": None})
        assert slo(scrape()) == slo(scrape()) == (1, 1), "none is bad, as in the API"

    def test_the_lost_are_bad_once_and_not_again_when_they_come_back(self, scrape, arrive, rows, clock):
        clock.now = NOW + 60 * SECOND
        assert slo(scrape()) == (0, 0)
        lost = rows.open(start=NOW + 30 * SECOND, seen=NOW + 31 * SECOND, slo_class="chat", ttft_ns=MS, output_tokens=1)
        assert slo(scrape()) == (0, 0)
        clock.now = NOW + 65 * SECOND
        samples = scrape()
        assert slo(samples) == slo(scrape()) == (1, 0)
        assert samples["tokentrail_requests_lost_total", "service_instance_id=i-1", "service_name=engine"] == 1
        at = "tokentrail_requests_last_lost_timestamp_seconds", "service_instance_id=i-1", "service_name=engine"
        assert samples[at] == NOW / SECOND + 65
        clock.now = NOW + 200 * SECOND
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": lost["trace_id"]})
        assert slo(scrape()) == (1, 1), "it was good after all: none is bad"
        arrive(CHAT | {"trace_id": lost["trace_id"]})
        assert slo(scrape()) == (1, 1)

    def test_one_that_was_lost_in_an_outage_is_news_when_it_is_found(self, scrape, rows, clock):
        """The alert on lost requests shows those that were given up in the last minutes."""
        scrape()
        at = "tokentrail_requests_last_lost_timestamp_seconds", "service_instance_id=i-1", "service_name=engine"
        for minutes in (1, 20, 40):
            clock.now = NOW + minutes * 60 * SECOND
            rows.open(start=NOW + SECOND, seen=NOW + 2 * SECOND)
            assert scrape()[at] == clock.now / SECOND
        clock.now += SECOND
        assert scrape()[at] == clock.now / SECOND - 1

    def test_an_end_that_arrives_in_two_payloads_is_counted_once(self, scrape, arrive, rows):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        end = CHAT | {"trace_id": hung["trace_id"], "ttft_ns": SECOND}
        arrive(end, end)
        arrive(end, CHAT)
        assert slo(scrape()) == (2, 1)

    def test_one_that_comes_back_late_stays_bad_when_its_end_does_not_say_so(self, scrape, arrive, rows, clock):
        clock.now = NOW + 60 * SECOND
        scrape()
        lost = rows.open(start=NOW + 30 * SECOND, seen=NOW + 30 * SECOND, slo_class="chat")
        clock.now = NOW + 65 * SECOND
        assert slo(scrape()) == (1, 0)
        rows.insert("open_requests", [lost | {"seen": clock.now}])
        assert slo(scrape()) == (1, 0)
        unknown = {"status": "cancelled", "ttft_ns": None, "tpot_ns": None, "output_tokens": None}
        arrive(CHAT | unknown | {"trace_id": lost["trace_id"]})
        assert slo(scrape()) == (1, 0)

    def test_one_that_comes_back_too_late_stays_bad(self, scrape, arrive, rows, clock):
        clock.now = NOW + 60 * SECOND
        scrape()
        lost = rows.open(start=NOW + 30 * SECOND, seen=NOW + 31 * SECOND, slo_class="chat", ttft_ns=MS, output_tokens=1)
        clock.now = NOW + 65 * SECOND
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": lost["trace_id"], "ttft_ns": SECOND})
        assert slo(scrape()) == (1, 0)

    def test_what_was_lost_before_the_counters_began_is_not_theirs(self, scrape, rows, clock):
        rows.open(start=NOW - 900 * SECOND, seen=NOW - 800 * SECOND)
        assert slo(scrape(), "all") == (0, 0)
        rows.open(start=NOW - 50 * SECOND, seen=NOW - 25 * SECOND)
        clock.now = NOW + 31 * SECOND
        assert slo(scrape(), "all") == (1, 0)

    def test_the_lost_are_neither_in_flight_nor_stuck(self, scrape, rows, clock):
        clock.now = NOW + 60 * SECOND
        scrape()
        rows.step(start=NOW - 60 * SECOND)
        rows.open(start=NOW - 40 * SECOND, seen=NOW + SECOND)
        rows.open(start=NOW, seen=NOW + 60 * SECOND)
        samples, process = scrape(), ("service_instance_id=i-1", "service_name=engine")
        assert [samples[f"tokentrail_requests_{kind}", *process] for kind in ("in_flight", "stuck", "lost_total")] == [
            1,
            1,
            1,
        ]

    def test_one_that_was_bad_in_flight_and_stands_for_several_is_not_counted_again(self, scrape, arrive, rows):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": hung["trace_id"], "ttft_ns": SECOND, "weight": 10.0})
        assert slo(scrape()) == (1, 0)

    def test_a_clock_that_was_ahead_when_the_counters_began_hides_none(self, live, scrape, rows, clock):
        rows.open(start=NOW - 50 * SECOND, seen=NOW - SECOND, slo_class="chat")
        clock.now = NOW + 2 * 86_400 * SECOND
        live.counters._born_ns = clock.now
        assert slo(scrape()) == (0, 0)
        clock.now = NOW
        assert slo(scrape()) == (1, 0)
