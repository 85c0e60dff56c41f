"""Incidents: what happened, to which requests, and since when."""

import pytest

from collector.ask.times import rfc3339
from tests.collector.conftest import SLOS
from tests.collector.rows import NOW, SECOND

MS = 1_000_000
T0 = NOW - 60 * SECOND


@pytest.fixture
def slos_file(tmp_path):
    """Without an SLO, of which each answer would look for burns."""
    path = tmp_path / "slos.yaml"
    path.write_text("slos: []")
    return path


def test_nothing_happened(api, rows):
    rows.requests([{} for _ in range(20)])
    assert api("incidents")["incidents"] == []


def test_a_run_of_evictions_is_one_incident(api, rows):
    for age in (300, 299, 250, 20, 19):
        rows.kv_event(start=NOW - age * SECOND, trace_id=f"{age:032x}", request_span_id="00000000000000aa")
    rows.kv_event(start=NOW - SECOND, reason="cache_full")
    now, before = api("incidents")["incidents"]
    assert (now["cause"], now["firing"], now["end"], now["requests_affected"]) == ("kv_eviction", True, None, 2)
    assert (before["firing"], before["start"], before["end"]) == (
        False,
        "2026-11-21T09:55:00Z",
        "2026-11-21T09:55:50Z",
    )
    assert before["detail"] == "3 preemptions took 12 blocks, to be computed again."
    assert now["instance"] == "i-1"


def test_two_services_with_one_instance_name_have_runs_of_their_own(api, rows):
    for service, ages in (("a", (30, 20)), ("b", (29, 25, 21)), ("a", (900,))):
        for age in ages:
            rows.kv_event(start=NOW - age * SECOND, service=service, instance="0", trace_id=f"{age:032x}")
    found = [(i["start"][11:], i["requests_affected"]) for i in api("incidents")["incidents"]]
    assert sorted(found) == [("09:45:00Z", 1), ("09:59:30Z", 2), ("09:59:31Z", 3)]


def test_a_run_of_evictions_that_is_older_than_the_window_begins_when_it_did(api, rows):
    def evict(age, instance):
        rows.kv_event(
            start=NOW - age * SECOND, instance=instance, trace_id=f"{age:032x}", request_span_id="0" * 15 + "a"
        )

    for age in range(1800, 840, -60):  # the last one is in the window
        evict(age, "goes on")
    for age in (961, 900):  # a minute and a second between them
        evict(age, "began anew")
    for age in (1000, 901):
        evict(age, "is over")
    for age in range(90_000, 0, -60):
        evict(age, "for days")
    evict(0, "behind")
    ended = rows.request(trace_id=f"{1800:032x}", span_id="0" * 15 + "a", instance="goes on", ended=NOW - SECOND)
    found = {i["instance"]: i for i in api("incidents")["incidents"]}
    assert {name: (i["start"], i["requests_affected"]) for name, i in found.items()} == {
        "goes on": ("2026-11-21T09:30:00Z", 16),
        "began anew": ("2026-11-21T09:45:00Z", 1),
        "for days": ("2026-11-20T09:45:00Z", 1455),
    }
    (behind,) = found["goes on"]["requests"]
    assert [r["trace_id"] for r in api("requests", **behind["parameters"])["requests"]] == [ended["trace_id"]]


@pytest.mark.parametrize(
    ("kinds", "detail"),
    [
        (["evict"], "1 preemption took 4 blocks, to be computed again."),
        (["offload"] * 2, "2 preemptions took 8 blocks, which were copied to the host's memory."),
        (
            ["evict", "offload", "evict"],
            "3 preemptions took 12 blocks: 1 copied them to the host's memory, those of 2 are to be computed again.",
        ),
    ],
)
def test_blocks_that_were_copied_to_the_host_are_not_said_to_be_computed_again(api, rows, kinds, detail):
    for n, kind in enumerate(kinds):
        rows.kv_event(start=NOW - (n + 1) * SECOND, kind=kind, trace_id=f"{n:032x}", request_span_id="00000000000000aa")
    rows.kv_event(start=NOW - SECOND, kind="restore", reason="resumed")
    (found,) = api("incidents")["incidents"]
    assert found["detail"] == detail


def test_a_cold_start_fires_for_a_while_and_knows_who_waited(api, rows):
    rows.cold_start(start=NOW - 10 * SECOND, duration=3 * SECOND)
    rows.cold_start(start=NOW - 500 * SECOND, duration=3 * SECOND, instance="i-2", status="error")
    rows.cold_start(start=NOW - 10 * SECOND, duration=50 * MS, instance="quick")
    rows.requests(
        [
            {"cold_start_ns": SECOND, "e2e": 9 * SECOND},
            {"cold_start_ns": 0, "e2e": 9 * SECOND},
            {"cold_start_ns": 1},
        ]
    )
    new, old = api("incidents")["incidents"]
    assert (new["cause"], new["severity"], new["firing"], new["requests_affected"]) == (
        "cold_start",
        "info",
        True,
        1,
    )
    assert new["end"] == "2026-11-21T09:59:53Z"
    assert (old["firing"], old["requests_affected"]) == (False, 0)
    assert "failed (no reason given)" in old["detail"]


def test_bounds_of_incidents(api, rows):
    """A loss is shown for five minutes behind the last lost request, preemptions for one, a cold start for two."""
    for instance, seen_ago in (("edge", 330), ("died", 400), ("died", 360)):
        rows.open(start=NOW - 800 * SECOND, seen=NOW - seen_ago * SECOND, instance=instance)
    for began_ago in (100, 90):
        rows.open(start=NOW - began_ago * SECOND, seen=NOW - SECOND, instance="hung")
    rows.step(start=NOW - 95 * SECOND, instance="hung")
    rows.kv_event(start=NOW - 60 * SECOND, instance="evicts")
    rows.cold_start(start=NOW - 120 * SECOND - 100 * MS, duration=100 * MS, instance="starts")
    rows.cold_start(start=NOW - 100 * SECOND, duration=100 * MS - 1, instance="starts quickly")
    incidents = api("incidents")["incidents"]
    assert [i["firing"] for i in incidents] == [True] + [False] * 4, "those that fire are first"
    found = {i["instance"]: (i["start"][11:], (i["end"] or "")[11:], i["firing"]) for i in incidents}
    assert found == {
        "edge": ("09:54:30Z", "10:00:00Z", False), "died": ("09:54:00Z", "09:59:30Z", False),
        "hung": ("09:58:25Z", "", True), "evicts": ("09:59:00Z", "09:59:00Z", False),
        "starts": ("09:57:59.900Z", "09:58:00Z", False),
    }  # fmt: skip


def test_the_newest_losses_are_those_that_are_named(api, rows, monkeypatch):
    monkeypatch.setattr("collector.incidents.incidents.MOST_OF_A_KIND", 1)
    for instance, seen_ago in (("a", 200), ("new", 50), ("z", 100)):
        rows.open(start=NOW - 300 * SECOND, seen=NOW - seen_ago * SECOND, instance=instance)
    assert [i["instance"] for i in api("incidents")["incidents"] if i["cause"] == "engine_lost"] == ["new"]


def test_a_cause_with_many_incidents_lists_those_that_fire_and_counts_the_others(api, rows, monkeypatch):
    """A platform of 400 processes has more than 500 of a kind in a day, and the oldest of them may go on."""
    monkeypatch.setattr("collector.incidents.incidents.MOST_OF_A_KIND", 2)
    for age in range(0, 800, 40):
        rows.kv_event(start=NOW - age * SECOND, instance="goes on", trace_id=f"{age:032x}")
    for instance, age in (("a", 100), ("b", 200), ("c", 300)):
        rows.kv_event(start=NOW - age * SECOND, instance=instance, trace_id=f"{age:032x}")
    rows.cold_start(start=NOW - 100 * SECOND, duration=60 * SECOND)
    found = api("incidents")
    assert [i["instance"] for i in found["incidents"] if i["cause"] == "kv_eviction"] == ["goes on", "a"]
    assert (len(found["incidents"]), found["left_out"]) == (3, {"kv_eviction": 2})
    monkeypatch.setattr("collector.incidents.process_incidents.MOST_FOUND", 1)  # a query keeps what was seen last
    assert [i["instance"] for i in api("incidents")["incidents"] if i["cause"] == "kv_eviction"] == ["goes on"]


def test_short_cold_starts_hide_no_long_one(api, rows):
    rows.cold_start(start=NOW - 800 * SECOND, duration=60 * SECOND, instance="long")
    for age in range(550):
        rows.cold_start(start=NOW - (age + 1) * SECOND, duration=MS)
    assert [i["instance"] for i in api("incidents")["incidents"]] == ["long"]


def test_the_number_of_a_process_in_trouble_is_that_of_its_list(api, rows):
    for instance in ("dead", "hung"):
        for age in range(3):
            seen = NOW - (SECOND if instance == "hung" else (50 + 100 * age) * SECOND)
            rows.open(start=NOW - (90 + 100 * age) * SECOND, seen=seen, instance=instance)
    rows.open(start=NOW - 2 * SECOND, seen=NOW - SECOND, instance="hung")  # it waits too, and not for long
    rows.open(start=NOW - 2 * SECOND, seen=NOW - SECOND, instance="other", vantage="client")
    rows.step(start=NOW - 80 * SECOND, instance="hung")
    rows.requests([{"vantage": "client"}, {}])
    found = {i["instance"]: i for i in api("incidents")["incidents"] if i["instance"]}
    assert {name: i["requests_affected"] for name, i in found.items()} == {"dead": 3, "hung": 4}
    for incident in found.values():
        (one,) = incident["requests"]
        listed = api("requests", **one["parameters"])
        assert listed["total"] == one["total"] == incident["requests_affected"]
        assert {row["instance"] for row in listed["requests"]} == {incident["instance"]}


def test_preempted_requests_are_listed_by_their_run(api, rows):
    def preempted(seconds_ago, **fields):
        given = {"instance": "i-1", "ended": NOW - SECOND, "e2e": 400 * SECOND} | fields
        row = rows.request(**given)
        event = {"trace_id": row["trace_id"], "request_span_id": row["span_id"], "instance": "i-1"}
        rows.kv_event(start=NOW - seconds_ago * SECOND, **event)
        return row["trace_id"]

    early, late = {preempted(300), preempted(299)}, {preempted(20), preempted(19, tenant="a")}
    moved = rows.request()  # its blocks were copied, and not taken away
    its = {"trace_id": moved["trace_id"], "request_span_id": moved["span_id"]}
    rows.kv_event(start=NOW - 19 * SECOND, reason="cache_full", **its)
    preempted(18, instance="elsewhere")  # the event of another process
    still_open = rows.open(start=NOW - 60 * SECOND, seen=NOW - SECOND)
    rows.open(start=NOW - 60 * SECOND, seen=NOW - SECOND)
    rows.kv_event(start=NOW - 19 * SECOND, trace_id=still_open["trace_id"], request_span_id=still_open["span_id"])
    lost = rows.open(start=NOW - 200 * SECOND, seen=NOW - 100 * SECOND)
    rows.kv_event(start=NOW - 19 * SECOND, trace_id=lost["trace_id"], request_span_id=lost["span_id"])
    now, before = [i for i in api("incidents")["incidents"] if i["cause"] == "kv_eviction"]
    assert (now["requests_affected"], [one["total"] for one in now["requests"]]) == (5, [2, 1])
    assert [one["total"] for one in before["requests"]] == [2]
    for incident, ids in ((now, late), (before, early)):
        listed = api("requests", **incident["requests"][0]["parameters"])
        assert ({row["trace_id"] for row in listed["requests"]}, listed["total"]) == (ids, 2)
    (row,) = api("requests", **now["requests"][1]["parameters"])["requests"]
    assert (row["trace_id"], row["status"]) == (still_open["trace_id"], "in_flight")
    of_a = next(i for i in api("incidents", tenant="a")["incidents"] if i["firing"] and i["cause"] == "kv_eviction")
    assert [one["total"] for one in of_a["requests"]] == [1]
    assert api("requests", tenant="a", **of_a["requests"][0]["parameters"])["total"] == 1
    assert api("requests", cause="kv_eviction")["total"] == 4, "without times, those of the window"


def test_requests_that_waited_for_a_cold_start_are_listed(api, rows):
    rows.cold_start(start=NOW - 10 * SECOND, duration=3 * SECOND)
    waited = rows.request(cold_start_ns=SECOND, e2e=9 * SECOND)
    rows.request(cold_start_ns=SECOND, e2e=9 * SECOND, instance="elsewhere")
    rows.request(cold_start_ns=SECOND, e2e=2 * SECOND)  # of another start
    rows.request(cold_start_ns=SECOND, e2e=SECOND, ended=NOW - 10 * SECOND)
    rows.request(cold_start_ns=0, e2e=9 * SECOND)
    (start,) = [i for i in api("incidents")["incidents"] if i["cause"] == "cold_start"]
    (one,) = start["requests"]
    listed = api("requests", **one["parameters"])
    assert [row["trace_id"] for row in listed["requests"]] == [waited["trace_id"]]
    assert listed["total"] == one["total"] == start["requests_affected"] == 1
    assert api("requests", cause="cold_start", status="in_flight")["total"] == 0


def test_processes_of_two_tenants_with_one_name_fire_as_two(api, rows):
    for tenant in ("acme", "bolt"):
        lost = {"instance": "dead", "process_tenant": tenant, "tenant": tenant}
        rows.open(start=NOW - 90 * SECOND, seen=NOW - 50 * SECOND, **lost)
    found = [(one["cause"], one["process_tenant"]) for one in api("incidents")["incidents"] if one["firing"]]
    assert {("engine_lost", "acme"), ("engine_lost", "bolt")} <= {*found}
    of_one = api("incidents", tenant="acme")
    assert [one["process_tenant"] for one in of_one["incidents"] if one["instance"]] == ["acme"]
    assert of_one["firing_outside"] == len(found) - sum(one["firing"] for one in of_one["incidents"])


def test_an_engine_that_died_in_an_outage_is_lost_for_as_long_as_its_alert_fires(api, rows, clock, live):
    """The alert asks when requests were given up. In an outage nobody gives them up, and the incident says the same."""
    live.counters.heard_until_ns = NOW  # a collector before this one has heard until then
    clock.now = NOW + 3600 * SECOND
    for seen_ago in (10, 9):
        rows.open(start=NOW - 20 * SECOND, seen=NOW - seen_ago * SECOND, instance="dead")
    rows.open(start=NOW - 3500 * SECOND, seen=NOW - 3200 * SECOND, instance="died before")
    live.refresh()
    given_up = clock.now

    def lost(after_s, window_s):
        clock.now = given_up + after_s * SECOND
        times = {"start": rfc3339(clock.now - window_s * SECOND), "end": rfc3339(clock.now)}
        found = [i for i in api("incidents", **times)["incidents"] if i["cause"] == "engine_lost"]
        for incident in found:
            (one,) = incident["requests"]
            assert api("requests", **one["parameters"])["total"] == one["total"] == incident["requests_affected"]
        return [(i["instance"], i["start"], i["end"], i["firing"]) for i in found]

    began = rfc3339(NOW - 9 * SECOND)
    assert lost(299, 300) == [("dead", began, None, True)]
    dead, before = lost(299, 7200)
    assert (dead, before[0]) == (("dead", began, None, True), "died before"), "that was lost before these counters"
    over = rfc3339(given_up + 300 * SECOND)
    for after_s in (300, 4000):
        assert ("dead", began, over, False) in lost(after_s, 7200)
    assert lost(4000, 300) == []
    assert lost(-1, 300) == []


class TestBesideSlos:
    @pytest.fixture
    def slos_file(self, tmp_path):
        path = tmp_path / "slos.yaml"
        path.write_text(SLOS)
        return path

    def test_engines_that_hang_or_die(self, api, rows):
        rows.open(start=NOW - 90 * SECOND, seen=NOW - 50 * SECOND, instance="dead")
        rows.open(start=NOW - 800 * SECOND, seen=NOW - 700 * SECOND, instance="died")
        rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND, instance="hung")
        rows.step(start=NOW - 80 * SECOND, instance="hung")
        found = {i["instance"]: i for i in api("incidents")["incidents"]}
        assert {k: (i["cause"], i["severity"], i["firing"]) for k, i in found.items()} == {
            "dead": ("engine_lost", "page", True), "died": ("engine_lost", "page", False),
            "hung": ("engine_hung", "page", True), None: ("slo_burn", "ticket", True),
        }  # fmt: skip
        assert (found[None]["slo"], found[None]["requests_affected"]) == ("all", 3)
        assert found["dead"]["start"] == "2026-11-21T09:59:10Z"
        assert found["hung"]["start"] == "2026-11-21T09:58:40Z"

    @pytest.mark.parametrize("params", [{"slo_class": "completion"}, {"end": "-2h", "start": "-3h"}])
    def test_only_what_was_asked_about(self, api, rows, params):
        rows.requests([{"slo_class": "chat", "status": "error"} for _ in range(40)])
        assert api("incidents")["incidents"] != []
        assert api("incidents", **params)["incidents"] == []

    def test_a_filter_says_how_many_fire_outside_of_it(self, api, rows):
        assert api("incidents", tenant="other")["firing_outside"] == 0
        rows.requests([{"slo_class": "chat", "status": "error"} for _ in range(40)])
        rows.open(start=NOW - 90 * SECOND, seen=NOW - 50 * SECOND, instance="dead")
        rows.open(start=NOW - 800 * SECOND, seen=NOW - 700 * SECOND, instance="died")
        everything = api("incidents")
        assert everything["firing_outside"] == 0
        firing = [(i["cause"], i["slo"], i["instance"]) for i in everything["incidents"] if i["firing"]]
        assert {("slo_burn", "chat", None), ("engine_lost", None, "dead")} < set(firing)
        assert api("incidents", tenant="other")["firing_outside"] == len(firing)
        chat = api("incidents", slo_class="chat")
        inside = [(i["cause"], i["slo"], i["instance"]) for i in chat["incidents"]]
        assert ("slo_burn", "chat", None) in inside
        assert ("engine_lost", None, "dead") not in inside
        assert chat["firing_outside"] == len(set(firing) - set(inside))
