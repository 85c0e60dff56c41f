from fractions import Fraction

import pytest

from collector.app.service import build_api
from collector.slo.burn import InfeasibleSlo
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND

MS = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR


def test_an_slo_without_requests_promises_nothing_false(api):
    chat, everything = api("slos")["slos"]
    assert (chat["name"], chat["objective"], chat["window_s"]) == ("chat", 0.95, 30 * 86400.0)
    assert chat["select"] == {"slo_class": ["chat"], "vantage": ["server"]}
    assert chat["thresholds"] == {"ttft_s": 0.5, "tpot_s": 0.1, "e2e_s": None, "gap_s": None, "first_visible_s": None}
    assert (chat["attainment"], chat["budget_left"], chat["firing"]) == (None, None, None)
    assert [(b["name"], b["threshold"], b["short_burn"]) for b in chat["burn"]] == [
        ("page-outage", 10.0, None), ("page-outage-few", 10.0, None), ("page-fast", 14.4, None),
        ("page-slow", 6.0, None), ("ticket-fast", 3.0, None), ("ticket-slow", 1.0, None),
    ]  # fmt: skip
    assert everything["burn"][2]["threshold"] == 8.0  # 14.4 can never be reached when the budget is 10 %
    answer = api("slos/all")
    assert answer.pop("window")["complete_until"] == "2026-11-21T10:00:00Z"
    assert answer == everything


def test_counts_by_window_attainment_and_budget(api, rows):
    made = rows.requests(
        [
            {
                "ended": NOW - age,
                "slo_class": "chat",
                "e2e": SECOND,
                "ttft_ns": ttft,
                "tpot_ns": MS * 1.0,
                "status": status,
            }
            for age in (MS, 4 * 60 * SECOND, 20 * 60 * SECOND, 3 * HOUR, 20 * HOUR, 2 * DAY, 10 * DAY, 31 * DAY)
            for ttft, status in ((100 * MS, "ok"), (100 * MS, "ok"), (600 * MS, "ok"), (1, "error"), (1, "cancelled"))
        ]
    )
    rows.open(start=NOW - 9 * SECOND, seen=NOW - SECOND, slo_class="chat")
    rows.open(start=NOW - 5 * HOUR, seen=NOW - 4 * HOUR, slo_class="chat")
    rows.requests([{"slo_class": "other", "ttft_ns": 9 * SECOND}])
    slo = api("slos/chat")

    def judged(window):
        inside = [r for r in made if NOW - window <= r["end"] < NOW and r["status"] != "cancelled"]
        bad = [r for r in inside if r["status"] != "ok" or r["ttft_ns"] > 500 * MS]
        lost = window > 4 * HOUR
        return Fraction(len(bad) + 1 + lost, len(inside) + 1 + lost)

    budget = Fraction(5, 100)
    assert slo["requests"] == {
        "total": 35, "ok": 21, "good": 14, "undetermined": 0, "failed": 7, "cancelled": 7, "unknown": 0, "excused": 7,
        "unselected": 0, "in_flight": 1, "in_flight_violations": 1, "lost": 1,
    }  # fmt: skip
    assert slo["attainment"] == pytest.approx(float(1 - judged(30 * DAY)))
    assert slo["budget_left"] == pytest.approx(float(1 - judged(30 * DAY) / budget))
    for burn in slo["burn"]:
        for length in ("short", "long"):
            window = round(burn[f"{length}_s"]) * SECOND
            assert burn[f"{length}_burn"] == pytest.approx(float(judged(window) / budget)), (burn["name"], length)


def test_what_fires_says_how_urgent_it_is(api, rows):
    rows.requests([{"ended": NOW - i * SECOND - 1, "status": "error"} for i in range(11)])
    # eight bad requests page in an hour, three are a ticket; eleven are too few for an outage, and for six hours
    assert [b["firing"] for b in api("slos/all")["burn"]] == [False, False, True, False, True, True]
    rows.requests([{"status": "error"}])
    slo = api("slos/all")
    assert slo["firing"] == "page"
    assert [b["firing"] for b in slo["burn"]] == [True] * 6
    rows.requests([{"ended": NOW - 2 * HOUR} for _ in range(30)])
    slo = api("slos/all")
    assert [b["firing"] for b in slo["burn"]] == [True, True, True, False, False, True]
    assert [b["firing"] for b in api("slos/all", end="2026-11-21T10:05:00Z")["burn"][:3]] == [False] * 3


def test_a_window_that_no_rule_can_watch_is_refused_at_the_start(rows, tmp_path, ingest_status):
    path = tmp_path / "short.yaml"
    path.write_text('slos: [{name: quick, objective: "0.9", window: 1h, thresholds: {e2e: 1s}}]')
    with pytest.raises(InfeasibleSlo, match=r"'quick'.*window of 1h is too short.*Use 50h or more"):
        build_api(rows.store, load_slos(path), ingest_status, lost_after_s=30)
