from __future__ import annotations

import pytest

from dashboard.filters import refresh_s
from dashboard.tracks import extent
from dashboard.transform import (
    goodput,
    missed,
    missed_by,
    on_grid,
    phase_totals,
    placed,
    slo_state,
    thresholds,
    worst_first,
)

WINDOW = {"start": "2026-11-21T10:00:03Z", "end": "2026-11-21T10:00:40Z", "complete_until": "2026-11-21T10:00:40Z"}


def token(index, offset, wait, step=0, phase="decode"):
    return {"index": index, "offset_s": offset, "duration_s": wait, "step": step, "phase": phase}


def phase(name, offset, length):
    return {"name": name, "offset_s": offset, "duration_s": length}


PHASES = [
    phase("queued", 0.0, 0.1),
    phase("prefill", 0.1, 0.2),
    phase("decode", 0.3, 0.2),
    phase("preempted", 0.5, 0.5),
]
TOKENS = [token(0, 0.3, 0.3, 1), token(1, 0.5, 0.2, 2), token(2, 0.5, 0.0, 2), token(3, 1.0, 0.5, 9)]


def test_buckets_that_are_left_out_are_gaps_or_zeros():
    answer = {
        "step_s": 10.0,
        "points": [{"t": "2026-11-21T10:00:00Z", "p99": 2.0}, {"t": "2026-11-21T10:00:20Z", "p99": None}],
    }
    gaps = on_grid(answer, ("p99",), WINDOW)
    assert [time.second for time in gaps.times] == [0, 10, 20, 30]
    assert gaps.values == {"p99": [2.0, None, None, None]}
    assert on_grid(answer, ("p99",), WINDOW, missing=0.0).values == {"p99": [2.0, 0.0, None, 0.0]}
    assert (gaps.latest("p99"), gaps.top("p99")) == (2.0, 2.0)
    for until, last in ((39.999, None), (40, 0.0)):
        complete = WINDOW | {"end": "2026-11-21T10:00:40Z", "complete_until": f"2026-11-21T10:00:{until}Z"}
        assert on_grid(answer, ("p99",), complete, missing=0.0).values == {"p99": [2.0, 0.0, None, last]}


def test_a_bucket_that_is_not_over_is_not_drawn():
    """Nine requests a second, and one in the last second until now: the rate of that would be a cliff."""
    answer = points(9.0, 9.0, 9.0, 1.0)
    for until, last in ((30, 3), (39, 3), (40, 4)):
        window = WINDOW | {"end": "2026-11-21T10:00:40Z", "complete_until": f"2026-11-21T10:00:{until}Z"}
        for missing in (None, 0.0):
            known = on_grid(answer, ("value",), window, missing).values["value"]
            assert known == [9.0, 9.0, 9.0, 1.0][:last] + [None] * (4 - last)


def test_a_bucket_that_begins_where_the_window_ends_is_not_invented():
    answer = {"step_s": 10.0, "points": []}
    window = {**WINDOW, "end": "2026-11-21T10:00:30Z"}
    assert [time.second for time in on_grid(answer, ("value",), window).times] == [0, 10, 20]


def test_goodput_is_0_without_a_request_and_not_known_where_none_is_judged():
    requests = on_grid(points(1.0, None, 2.0, None), ("value",), WINDOW, missing=0.0)
    assert goodput(points(0.5, None, None, None), requests, WINDOW).values == {"value": [0.5, 0.0, None, 0.0]}
    complete = WINDOW | {"complete_until": "2026-11-21T10:00:19Z"}
    requests = on_grid(points(1.0, None, 2.0), ("value",), complete, missing=0.0)
    assert goodput(points(0.5, None, None), requests, complete).values == {"value": [0.5, None, None, None]}


def points(*values):
    """An answer about WINDOW. None: the bucket has no point."""
    made = [{"t": f"2026-11-21T10:00:{10 * i:02}Z", "value": v} for i, v in enumerate(values) if v is not None]
    return {"step_s": 10.0, "points": made}


def test_phase_totals_add_up():
    totals = phase_totals([*PHASES, phase("decode", 1.0, 1.0)])
    assert [(total.name, total.stretches) for total in totals][:2] == [("decode", 2), ("preempted", 1)]
    assert sum(total.share for total in totals) == pytest.approx(1)
    assert phase_totals([]) == []
    assert phase_totals([phase("queued", 0.0, 0.0)])[0].share == 0.0


def slo(name="chat", **more):
    limits = {"ttft_s": 0.5, "tpot_s": 0.1, "e2e_s": None}
    return {"name": name, "thresholds": limits, "firing": None, "attainment": 0.99, "budget_left": 0.8} | more


def test_thresholds_of_one_slo_or_of_all():
    slos = [slo(), slo("other"), slo("all", thresholds={"ttft_s": 9.0, "tpot_s": None, "e2e_s": 60.0})]
    allowed = thresholds(slos, "ttft", None)
    assert allowed == {"chat": 0.5, "other": 0.5, "all": 9.0}
    assert thresholds(slos, "ttft", "all") == {"all": 9.0}
    assert thresholds(slos, "e2e", "chat") == {}


def test_missed_thresholds_in_words():
    miss = {"threshold": "ttft", "limit_s": 0.5, "value_s": 0.75, "over_s": 0.25}
    verdicts = [{"slo": "chat", "missed": [miss]}, {"slo": "all", "missed": []}]
    assert missed(verdicts) == ["TTFT 750 ms, 250 ms more than chat's 500 ms"]
    late = {"threshold": "e2e", "over_s": 2.0}
    assert missed_by([*verdicts, {"slo": "batch", "missed": [miss, late]}]) == (
        "chat: TTFT +250 ms; batch: TTFT +250 ms, E2E +2.00 s"
    )
    assert missed_by(verdicts[1:]) is None


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"firing": "ticket"}, "ticket"),
        ({"attainment": None, "budget_left": None, "requests": {"total": 0, "in_flight": 0}}, "idle"),
        ({"attainment": None, "budget_left": None, "requests": {"total": 3, "in_flight": 0}}, "unjudged"),
        ({"attainment": None, "budget_left": None, "requests": {"total": 0, "in_flight": 1}}, "unjudged"),
        ({"budget_left": -0.2}, "exhausted"),
        ({}, "ok"),
    ],
)
def test_slo_state(given, state):
    assert slo_state(slo(**given)) == state


def test_slos_stand_by_how_urgent_they_are():
    nothing = {"attainment": None, "requests": {"total": 0, "in_flight": 0}}
    unjudged = {"attainment": None, "requests": {"total": 1, "in_flight": 0}}
    slos = [slo("a", **nothing), slo("c"), slo("b", **nothing), slo("e", **unjudged), slo("d", firing="page")]
    slos += [slo("f", budget_left=-0.1), slo("g", firing="ticket"), slo("h")]
    assert [s["name"] for s in worst_first(slos)] == ["d", "g", "f", "c", "h", "e", "a", "b"]


def test_a_range_is_refreshed_when_its_charts_have_a_new_bucket():
    assert [refresh_s(name) for name in ("5m", "15m", "1h", "30d", "custom")] == [5.0, 10.0, 40.0, 60.0, 30.0]


GAP = [TOKENS[0], token(3, None, 0.7, 5)]


def test_a_token_behind_a_missing_one_is_not_drawn():
    assert placed(GAP) == TOKENS[:1]
    assert extent({"phases": [], "tokens": GAP, "request": {"e2e_s": None}}) == 0.3
