"""Burns count requests when they arrive: the clock of a sender hides no outage, and repeats none."""

from datetime import UTC, datetime

import pytest

from tests.collector.rows import NOW, SECOND

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
FAILED = {"slo_class": "chat", "status": "error"}


@pytest.fixture
def arrive(rows):
    """Failed requests arrive at a time; their sender's clock is so far ahead, or behind."""

    def arrive(arrived, ahead_ns, n=20, **fields):
        one = FAILED | {"ended": arrived + ahead_ns - SECOND, "ingested_at": arrived} | fields
        return rows.requests([one] * n)

    return arrive


@pytest.fixture
def firing(api):
    """The rules of an SLO that fire at a moment, and its incident."""

    def firing(**asked):
        rules = {burn["name"] for burn in api("slos/chat", **asked)["burn"] if burn["firing"]}
        found = [one for one in api("incidents", **asked)["incidents"] if one["slo"] == "chat"]
        assert [one["firing"] for one in found] == [True] * bool(rules)
        return rules, *found

    return firing


@pytest.mark.parametrize("ahead_ns", [0, -10 * MINUTE, -3 * DAY, 30 * SECOND, 20 * HOUR])
def test_an_outage_fires_when_it_arrives_whatever_the_senders_clock_says(ahead_ns, arrive, firing):
    """A clock that was ten minutes behind hid a total outage from page-outage and page-fast."""
    arrive(NOW - 30 * SECOND, ahead_ns)
    rules, incident = firing()
    assert rules >= {"page-outage", "page-fast", "page-slow", "ticket-fast", "ticket-slow"}
    assert incident["severity"] == "page"
    assert "100 % of the requests of the last 5 min were bad" in incident["detail"]


@pytest.mark.parametrize("ahead_ns", [HOUR, -HOUR])
def test_an_outage_does_not_fire_again_when_its_time_comes(ahead_ns, arrive, firing, clock, rows):
    arrive(NOW - 30 * SECOND, ahead_ns)
    clock.now += HOUR
    rows.requests([{"slo_class": "chat", "ended": clock.now - s * SECOND} for s in range(10, 600, 10)])
    rules, *_ = firing()
    assert not rules & {"page-outage", "page-fast"}


def test_the_past_is_told_as_it_was_known_then(arrive, firing):
    """The sender was cut off, and sends its queue now."""
    arrive(NOW - 30 * SECOND, -2 * HOUR)
    assert firing(start="-2h", end="-90m") == (set(),)


@pytest.mark.parametrize("ahead_ns", [0, -2 * HOUR])
def test_the_number_of_an_incident_is_that_of_its_list(ahead_ns, api, arrive, firing):
    arrive(NOW - 30 * SECOND, ahead_ns)
    arrive(NOW - 50 * SECOND, ahead_ns - MINUTE, n=3)
    _, incident = firing()
    (listed,) = incident["requests"]
    assert incident["requests_affected"] == listed["total"] == 23
    assert api("requests", **listed["parameters"])["total"] == 23


def test_a_burn_began_when_its_requests_arrived_whatever_the_senders_clock_says(api, arrive, firing):
    """Good requests ended between the times that the two clocks tell, and arrived before all of these."""
    arrive(NOW - 30 * SECOND, -10 * HOUR)
    arrive(NOW - 30 * SECOND, 0)
    for minutes in range(60, 600, 30):
        arrive(NOW - minutes * MINUTE, 0, status="ok")
    _, incident = firing()
    assert incident["start"] == "2026-11-20T23:59:29Z"
    assert incident["requests_affected"] == 40


def test_attainment_and_budget_are_of_the_window_in_which_requests_ended(api, arrive):
    arrive(NOW - 30 * SECOND, -29 * DAY, n=5)
    arrive(NOW - 30 * SECOND, -31 * DAY, n=7)
    slo = api("slos/chat")
    assert (slo["requests"]["failed"], slo["attainment"], slo["selected_last_day"]) == (5, 0.0, 0)
    assert [burn["long_burn"] for burn in slo["burn"]] == [pytest.approx(20)] * 6


def test_long_windows_remember_what_arrived_whatever_its_day(api, arrive, rows):
    """The end of the retention of another day changes what these hours have."""

    def burns():
        return {burn["name"]: burn["long_burn"] for burn in api("slos/all")["burn"]}

    for hours in (20, 60):
        arrive(NOW - hours * HOUR, -9 * DAY, n=10)
        arrive(NOW - hours * HOUR, -12 * DAY, n=10, status="ok")  # so that none of these hours has a request that ended
    first = burns()
    assert (first["ticket-fast"], first["ticket-slow"]) == (5.0, 5.0)
    assert burns() == first
    arrive(NOW - SECOND, -9 * DAY, n=20)
    assert [burns()[name] for name in ("page-outage", "ticket-fast", "ticket-slow")] == [
        10.0,
        7.5,
        pytest.approx(20 / 3),
    ]
    for hours in (0, 20, 60):
        day = f"{datetime.fromtimestamp((NOW - hours * HOUR - 9 * DAY) // SECOND, UTC):%Y%m%d}"
        rows.store.client().command(f"ALTER TABLE requests DROP PARTITION ID '{day}'")
    assert burns()["ticket-slow"] == 0.0


def test_an_insert_that_took_minutes_counts_though_the_first_that_was_seen_began_later(api, arrive, clock):
    """Six hours later, the window of page-slow begins between the two: only the longer ones have the slow insert."""
    arrive(NOW + MINUTE, 0, n=10)
    clock.now += 5 * MINUTE
    assert {burn["long_burn"] for burn in api("slos/all")["burn"]} == {10.0}
    arrive(NOW - SECOND, 0, n=10, status="ok")
    clock.now = NOW + 6 * HOUR
    burns = {burn["name"]: burn["long_burn"] for burn in api("slos/all")["burn"]}
    assert (burns["page-slow"], burns["ticket-fast"], burns["ticket-slow"]) == (10.0, 5.0, 5.0)
    arrive(NOW - 2 * DAY, 0, n=20, status="ok")  # a day comes back from a backup
    assert [burn["long_burn"] for burn in api("slos/all")["burn"]][-2:] == [5.0, 2.5]


@pytest.mark.parametrize("ahead_s", [11, 86_000])
def test_what_ended_in_the_future_is_of_the_time_at_which_it_arrived(ahead_s, api, arrive, clock):
    """It was in no window until its time came, and was then played as if it happened in the present."""
    made = arrive(NOW - SECOND, ahead_s * SECOND + SECOND, n=3, status="ok")

    def seen(**asked):
        buckets = api("timeseries", metric="requests", step="10s", **asked)["points"]
        summary = api("summary", **asked)
        assert summary["requests"]["total"] == summary["e2e_s"]["count"] == api("requests", **asked)["total"]
        return summary["requests"]["total"], {point["t"]: point["value"] * 10 for point in buckets}

    now = api("requests")["requests"]
    assert {row["trace_id"] for row in now} == {row["trace_id"] for row in made}
    assert seen(start="-10s") == (3, {"2026-11-21T09:59:50Z": 3})
    clock.now += ahead_s * SECOND
    assert seen(start="-10s") == (0, {})
    assert seen(start="2026-11-21T09:59:50Z", end="2026-11-21T10:00:00Z") == (3, {"2026-11-21T09:59:50Z": 3})
    assert seen(start="2026-11-21T09:59:00Z", end="2026-11-21T09:59:59Z") == (0, {})


def test_clocks_that_differ_by_seconds_move_no_request(api, arrive):
    arrive(NOW - 15 * SECOND, 11 * SECOND, n=3)
    assert api("summary", start="-10s")["requests"]["total"] == 3
