"""The rules behind the pages that need no browser."""

import itertools
from datetime import UTC

import pytest

from dashboard import components
from dashboard.components import _crowds, _interval
from dashboard.filters import View
from dashboard.views import slos
from dashboard.views.events import behind, cold_start_row, lasted, worst_first
from dashboard.views.explore import table
from tokentrail.shared.formatting import instant


@pytest.mark.parametrize(
    ("every_s", "took_s", "interval_s"),
    [
        (10.0, 0.0, 10.0),
        (10.0, 0.2, 10.0),
        (10.0, 0.21, 15.0),
        (10.0, 0.4, 20.0),
        (2.0, 0.04, 2.0),
        (60.0, 0.1, 60.0),
        (5, 99, 120),
    ],
)
def test_a_slow_page_is_redrawn_less_often(every_s, took_s, interval_s):
    assert _interval(every_s, took_s) == interval_s


@pytest.mark.parametrize(
    ("interval_s", "took_s", "again"),
    [(15.0, 5.0, False), (15.0, 5.1, True), (60.0, 99.0, True), (120.0, 41.0, False)],
)
def test_a_redraw_that_crowds_its_interval_gets_a_longer_one(interval_s, took_s, again):
    assert _crowds(interval_s, took_s) == again


def test_a_slow_redraw_is_seen_before_the_page_is_drawn_again_with_a_longer_interval(monkeypatch):
    done, every = [], []

    def fragment(run, run_every):
        every.append(run_every)
        return run

    monkeypatch.setattr("dashboard.components.st.fragment", fragment)
    monkeypatch.setattr("dashboard.components.st.rerun", lambda: done.append("rerun"))
    monkeypatch.setattr("dashboard.components.time.sleep", lambda _: done.append("sent"))
    clock = itertools.count(0.0, 60.0)
    monkeypatch.setattr("dashboard.components.time.monotonic", lambda: next(clock))
    monkeypatch.setitem(components._last, "took_s", 0.1)
    for _ in range(2):
        components.refreshed(lambda _: done.append("the collector is too slow"), VIEW, 5.0)
    assert done == ["the collector is too slow", "sent", "rerun", "the collector is too slow"]
    assert every == [5.0, 120.0]


def test_an_error_is_called_one_in_lists_also_with_a_type():
    names = (
        "trace_id",
        "span_id",
        "verdict",
        "model",
        "tenant",
        "variant",
        "slo_class",
        "vantage",
        "service",
        "request_id",
    )
    row = dict.fromkeys(names, "x") | dict.fromkeys(
        ("end", "input_tokens", "output_tokens", "cached_tokens", "preemptions")
    )
    kinds = [("ok", ""), ("error", ""), ("error", "ok"), ("error", "timeout")]
    rows = [row | {"verdicts": [], "status": status, "error_type": kind} for status, kind in kinds]
    assert [shown["status"] for shown in table(rows)] == ["ok", "error", "error ok", "error timeout"]
    start = {"start": None, "duration_s": 1.0, "service": "s", "model": "m", "phases": []}
    results = [cold_start_row(start | {"status": s, "error_type": kind}, UTC)["result"] for s, kind in kinds]
    assert results == ["ok", "error", "error ok", "error timeout"]


VIEW = View("-15m", "now", (("tenant", "a"),), None, None, UTC)
SINCE = "start=2026-11-21T10%3A00%3A00Z"


def test_an_incident_leads_to_the_lists_that_it_counts():
    times = {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T10:05:00Z"}
    lists = [
        {"parameters": times | {"slo": "chat", "verdict": "bad"}, "total": 32},
        {"parameters": times | {"slo": "chat", "verdict": "bad", "status": "in_flight"}, "total": 2},
        {"parameters": times | {"instance": "i", "status": "lost"}, "total": 1},
    ]
    chat = f"/explore?range=custom&{SINCE}&end=2026-11-21T10%3A05%3A00Z&slo=chat&verdict=bad"
    assert behind({"cause": "slo_burn", "requests": lists}, VIEW) == [
        ("32 that ended", f"{chat}&sort=newest&tenant=a"),
        ("2 in flight", f"{chat}&status=in_flight&sort=newest&tenant=a"),
        ("1 lost", chat.replace("slo=chat&verdict=bad", "instance=i&status=lost") + "&sort=newest&tenant=a"),
    ]
    small = [{"parameters": times | {"tenant": "small"}, "total": 1}]
    ((_, url),) = behind({"cause": "slo_burn", "requests": small}, VIEW)
    assert url.endswith("&tenant=small&sort=newest")  # and no other tenant's, although the view has one
    nobody = [{"parameters": times | {"tenant": ""}, "total": 1}]
    ((text, _),) = behind({"cause": "slo_burn", "requests": nobody, **times}, VIEW)
    assert text == "Requests of that time"
    causes = {"cause": "kv_eviction", "cause_start": "2026-11-21T10:00:00Z"}
    kv = {"cause": "kv_eviction", "requests": [{"parameters": times | causes, "total": 3}]}
    ((text, url),) = behind(kv, VIEW)
    assert (text, url.partition("&cause=")[2]) == ("3 that ended", f"kv_eviction&cause_{SINCE}&sort=E2E&tenant=a")


def test_an_incident_of_a_process_leads_to_requests_of_this_process_alone():
    times = {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T10:05:00Z"}
    incident = {"cause": "engine_lost", **times}
    for tenant in ("", "acme"):
        process = {"service": "chat", "instance": "i", "process_tenant": tenant, "status": "lost"}
        ((_, url),) = behind(incident | {"requests": [{"parameters": times | process, "total": 1}]}, VIEW)
        assert f"service=chat&instance=i&process_tenant={tenant}&status=lost" in url
    unnamed = {"service": "chat", "instance": "", "process_tenant": "acme", "status": "lost"}
    ((text, _),) = behind(incident | {"requests": [{"parameters": times | unnamed, "total": 1}]}, VIEW)
    assert text == "Requests of that time"


@pytest.mark.parametrize(
    ("incident", "link"),
    [
        ({"cause": "engine_lost", "end": "2026-11-21T11:00:00Z"}, "end=2026-11-21T11%3A00%3A00Z&sort=newest&tenant=a"),
        ({"cause": "kv_eviction"}, "end=now&sort=E2E&tenant=a"),
        ({"cause": "cold_start"}, "end=now&sort=TTFT&tenant=a"),
    ],
)
def test_without_a_list_it_leads_to_the_requests_of_its_time(incident, link):
    found = behind({"start": "2026-11-21T10:00:00Z", "end": None, "requests": [], **incident}, VIEW)
    assert found == [("Requests of that time", f"/explore?range=custom&{SINCE}&{link}")]


def test_the_worst_incident_is_first():
    given = [("of a newer version", 95), ("info", 90), ("ticket", 5), ("page", None), ("ticket", 50), ("page", 2)]
    listed = worst_first([{"severity": severity, "requests_affected": n} for severity, n in given])
    assert [(i["severity"], i["requests_affected"]) for i in listed] == [
        ("page", 2),
        ("page", None),
        ("ticket", 50),
        ("ticket", 5),
        ("info", 90),
        ("of a newer version", 95),
    ]


def test_an_incident_that_goes_on_has_lasted_until_the_ranges_end():
    incident = {"start": "2026-11-21T10:00:00Z", "end": None}
    at = instant("2026-11-21T10:00:40Z")
    assert lasted(incident, at) == "40.0 s"
    assert lasted(incident | {"end": "2026-11-21T10:00:10Z"}, at) == "10.0 s"
    past = View("-2h", "2026-11-21T10:05:00Z", (), None, None, UTC)
    ((_, url),) = behind(incident | {"cause": "kv_eviction", "requests": []}, past)
    assert "end=2026-11-21T10%3A05%3A00Z" in url


def test_cards_of_slos_without_requests_are_drawn_behind_the_others(monkeypatch):
    drawn = []
    monkeypatch.setattr(slos, "card", lambda slo, _: drawn.append(slo["name"]))
    totals = {"a": 0, "b": 3, "c": 0, "d": 0, "e": 1}
    slos.cards(
        [
            {
                "name": name,
                "firing": None,
                "attainment": n or None,
                "budget_left": 1,
                "requests": {"total": n, "in_flight": 0},
            }
            for name, n in totals.items()
        ],
        None,
    )
    assert drawn == ["b", "e", "a", "c", "d"]
