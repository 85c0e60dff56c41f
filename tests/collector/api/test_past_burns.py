"""Burns that are over are incidents of the window in which they were."""

import pytest
import yaml
from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.ask.times import rfc3339
from collector.incidents import slo_burns
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


def traffic(begin_ns, end_ns, n, *, bad=0.0, **fields):
    """`n` requests at equal distances, of which this share fails, at equal distances too."""
    fails = {int(i / bad) for i in range(int(n * bad))}
    return [
        {"slo_class": "chat", "e2e": SECOND, "ttft_ns": SECOND // 10, "tpot_ns": 1.0, **fields,
         "ended": begin_ns + i * (end_ns - begin_ns) // n, "status": "error" if i in fails else "ok"}
        for i in range(n)
    ]  # fmt: skip


@pytest.fixture
def burns(api):
    """The burns of a day, or of another window, the oldest first; their lists have as many rows as they say."""

    def burns(slo="chat", **asked):
        asked = {"start": "-24h"} | asked
        found = [one for one in api("incidents", **asked)["incidents"] if one["slo"] == slo]
        for one in found:
            totals = [api("requests", **listed["parameters"])["total"] for listed in one["requests"]]
            assert totals == [listed["total"] for listed in one["requests"]]
            assert sum(totals) == one["requests_affected"]
        return sorted(found, key=lambda one: (one["start"], one["severity"]))

    return burns


def told(found):
    return [(one["start"][11:16], (one["end"] or "")[11:16], one["severity"], one["firing"]) for one in found]


def test_a_burst_of_the_morning_is_an_incident_in_the_evening_and_after_a_restart(
    burns, rows, clock, slos_file, ingest_status
):
    rows.requests(traffic(NOW - 20 * HOUR, NOW, 6000))
    began = NOW - 13 * HOUR - 30 * MINUTE
    rows.requests(traffic(began, began + 22 * MINUTE, 4180, bad=1))
    (burn,) = burns()
    assert told([burn]) == [("20:30", "20:51", "page", False)]
    assert (burn["start"], burn["requests_affected"]) == ("2026-11-20T20:30:00Z", 4180)
    assert burn["rule"] == "page-outage"
    assert burn["peak_burn"] == pytest.approx(20, rel=0.05)
    assert burn["title"] == f'SLO "chat" burned its error budget up to {burn["peak_burn"]:.1f} times as fast as allowed'
    assert burn["detail"] == (
        "97.4 % of its requests were bad; the SLO allows 5 %. page-outage fired: more than 10 times the allowed share "
        "over 5 min and over 1 min."
    )
    app, _ = build_api(rows.store, load_slos(slos_file), ingest_status, lost_after_s=30.0, clock=clock)
    with TestClient(app) as client:
        again = client.get("/api/v1/incidents", params={"start": "-24h"}).json()["incidents"]
    assert [one for one in again if one["slo"] == "chat"] == [burn]
    assert burns(start="-15m") == []
    assert burns(start="2026-11-20T20:52:00Z") == [burn], "its pages still fire"
    assert burns(start="2026-11-20T21:23:00Z") == []
    by_night = told(burns(start="2026-11-20T20:51:30Z", end="2026-11-20T23:30:00Z", model="m"))
    assert by_night == [*told([burn]), ("20:30", "", "ticket", True)]
    assert burns(model="another") == []
    clock.now += 40 * 24 * HOUR
    (later,) = burns(start="-41d", end="-40d")
    assert later == burn


@pytest.mark.parametrize(
    ("bursts", "expected"),
    [
        ([(600, 8), (570, 8)], ["page", "page"]),
        ([(600, 8), (589, 8)], ["page"]),  # three minutes apart
    ],
)
def test_two_bursts_that_are_near_are_one(bursts, expected, burns, rows):
    rows.requests(traffic(NOW - 20 * HOUR, NOW, 6000))
    for minutes_ago, length in bursts:
        began = NOW - minutes_ago * MINUTE
        rows.requests(traffic(began, began + length * MINUTE, 20 * length, bad=1))
    found = burns()
    assert [one["severity"] for one in found] == expected
    assert sum(one["requests_affected"] for one in found) == 20 * sum(length for _, length in bursts)


def test_a_slow_leak_is_a_ticket_from_its_change_on_and_a_burst_in_it_has_an_incident_of_its_own(burns, rows):
    rows.requests(traffic(NOW - 96 * HOUR, NOW, 9600, bad=0.005))
    rows.requests(traffic(NOW - 20 * HOUR, NOW - 9 * HOUR, 6000, bad=0.25))
    rows.requests(traffic(NOW - 15 * HOUR, NOW - 15 * HOUR + 20 * MINUTE, 1000, bad=1))
    leak, burst = burns()
    assert (leak["severity"], leak["rule"], burst["severity"]) == ("ticket", "ticket-fast", "page")
    assert (leak["start"][:15], leak["end"][:15]) == ("2026-11-20T14:0", "2026-11-21T00:5")
    assert (burst["start"], burst["end"][:17]) == ("2026-11-20T19:00:00Z", "2026-11-20T19:19:")


def test_a_short_window_is_judged_by_all_that_its_rules_look_at(burns, rows):
    """A quarter fails for an hour, after days of good requests: no rule has fired, also if that hour is asked about."""
    rows.requests(traffic(NOW - 70 * HOUR, NOW, 7000))
    rows.requests(traffic(NOW - 2 * HOUR, NOW - HOUR, 300, bad=0.24))
    assert burns(start="-110m") == burns() == []


def test_a_burst_that_still_keeps_a_ticket_open_has_both_incidents(burns, rows):
    rows.requests(traffic(NOW - 20 * HOUR, NOW, 2000))
    rows.requests(traffic(NOW - 3 * HOUR, NOW - 150 * MINUTE, 1500, bad=1))
    assert told(burns()) == [("07:00", "07:29", "page", False), ("07:00", "", "ticket", True)]
    # Two minutes after its beginning, and as long as it pages, there is one.
    assert told(burns(end="2026-11-21T07:20:00Z")) == [("07:00", "", "page", True)]


def test_a_page_of_the_last_minutes_stays_where_a_ticket_alone_fires_at_this_second(burns, rows, clock):
    """By whole minutes the page fires again, in one that has just begun; over the last 60 s a third is bad."""
    clock.now = NOW + 20 * SECOND
    rows.requests(traffic(NOW - 20 * HOUR, NOW, 6000, bad=0.22))
    rows.requests(traffic(NOW - 20 * MINUTE, NOW - 5 * MINUTE, 300))
    rows.requests(traffic(NOW - 5 * MINUTE, NOW - MINUTE, 200, bad=1))
    rows.requests(traffic(NOW - MINUTE, NOW, 100))
    rows.requests(traffic(NOW, NOW + 20 * SECOND, 30, bad=1))
    assert told(burns()) == [("14:00", "", "ticket", True), ("09:55", "10:00", "page", False)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_page_that_was_over_before_a_minute_ended_has_an_incident(lost, burns, rows, clock):
    """All are bad from 0:30 to 1:30, after a quiet hour: at most half of those of each whole minute."""
    began = NOW - 3 * HOUR
    rows.requests(traffic(NOW - 20 * HOUR, NOW - 4 * HOUR, 4000))
    rows.requests(traffic(began, began + 30 * SECOND, 14))
    if not lost:
        rows.requests(traffic(began + 30 * SECOND, began + 90 * SECOND, 20, bad=1))
    for given_up in range(began + 30 * SECOND, began + 90 * SECOND, 3 * SECOND) if lost else ():
        rows.open(start=given_up - 90 * SECOND, seen=given_up - 30 * SECOND, slo_class="chat")
    rows.requests(traffic(began + 90 * SECOND, began + 240 * SECOND, 100))
    clock.now = began + 90 * SECOND
    (paged,) = burns()
    assert (paged["firing"], paged["severity"], paged["rule"]) == (True, "page", "page-outage")
    clock.now = NOW
    (burn,) = burns()
    assert (burn["severity"], burn["rule"], burn["firing"]) == ("page", "page-outage", False)
    assert burn["requests_affected"] == 20
    assert burn["start"] == "2026-11-21T07:00:30Z"
    assert {listed["parameters"].get("status") for listed in burn["requests"]} == {"lost" if lost else None}


def test_sampled_requests_burn_by_their_weight_and_count_once_each(burns, rows):
    rows.requests(traffic(NOW - 20 * HOUR, NOW, 1200, weight=10.0))
    rows.requests(traffic(NOW - 16 * HOUR, NOW - 16 * HOUR + 9 * MINUTE, 30, bad=1, weight=2.5))
    rows.requests(traffic(NOW - 10 * HOUR, NOW - 10 * HOUR + 9 * MINUTE, 30, bad=1, weight=40.0))
    (burn,) = burns()
    assert told([burn]) == [("00:00", "00:08", "page", False)]
    assert burn["requests_affected"] == 30


def test_lost_requests_burn_when_they_are_given_up(burns, rows):
    rows.requests(traffic(NOW - 20 * HOUR, NOW, 2000))
    for i in range(60):
        given_up = NOW - 7 * HOUR + i * 5 * SECOND
        rows.open(start=given_up - 90 * SECOND, seen=given_up - 30 * SECOND, slo_class="chat")
    (burn,) = burns()
    assert told([burn]) == [("03:00", "03:04", "page", False)]
    assert [listed["parameters"]["status"] for listed in burn["requests"]] == ["lost"]
    assert burn["requests_affected"] == 60


def test_what_was_sent_late_burned_when_it_came_and_is_listed_by_its_end(burns, rows):
    rows.requests(traffic(NOW - 20 * HOUR, NOW, 2000))
    came = NOW - 7 * HOUR
    late = traffic(NOW - 12 * HOUR, NOW - 11 * HOUR, 300, bad=1)
    rows.requests([one | {"ingested_at": came} for one in late])
    ahead = traffic(came, came + HOUR, 100, bad=1)
    rows.requests([one | {"ingested_at": came} for one in ahead])
    assert burns(start="-12h", end="-8h") == []
    (burn,) = burns(start="-7h")
    assert (burn["start"], burn["requests_affected"]) == (rfc3339(NOW - 12 * HOUR), 400)


def test_the_newest_burns_have_lists(api, rows, monkeypatch):
    monkeypatch.setattr(slo_burns, "MOST_PAST", 1)
    rows.requests(traffic(NOW - 20 * HOUR, NOW, 2000))
    for hours_ago, n in ((15, 300), (11, 200), (7, 100)):
        began = NOW - hours_ago * HOUR
        rows.requests(traffic(began, began + 9 * MINUTE, n, bad=1))
    found = [one for one in api("incidents", start="-24h")["incidents"] if one["slo"] == "chat"]
    assert [one["requests_affected"] for one in found] == [100, 200, 300]
    assert [len(one["requests"]) for one in found] == [1, 0, 0]
    assert [one["start"][11:16] for one in found] == ["03:00", "23:00", "19:00"]


class TestAPromiseToEachTenant:
    @pytest.fixture
    def slos_file(self, tmp_path):
        path = tmp_path / "slos.yaml"
        each = {"name": "each", "objective": "0.9", "window": "30d", "group_by": ["tenant"]}
        path.write_text(yaml.safe_dump({"slos": [each | {"thresholds": {"e2e": "60s"}}]}))
        return path

    def test_a_burn_of_one_has_its_name_and_one_of_all_has_none(self, burns, rows):
        for tenant, n in (("big", 20_000), ("small", 1200)):
            rows.requests(traffic(NOW - 20 * HOUR, NOW, n, tenant=tenant))
        burst = NOW - 12 * HOUR
        rows.requests(traffic(burst, burst + 15 * MINUTE, 60, bad=1, tenant="small"))
        burst = NOW - 7 * HOUR
        for tenant in ("big", "small"):
            rows.requests(traffic(burst, burst + 15 * MINUTE, 2000, bad=1, tenant=tenant))
        alone, together = burns("each")
        assert (alone["tenant"], alone["requests_affected"], alone["title"][-9:]) == ("small", 60, "for small")
        assert (together["tenant"], together["requests_affected"]) == (None, 4000)
        own = burns("each", tenant="small")
        assert [(one["tenant"], one["requests_affected"]) for one in own] == [("small", 60), ("small", 2000)]
        assert [one["tenant"] for one in burns("each", tenant="big")] == ["big"]
