"""`/differences` while nearly all requests are bad."""

import pytest

from tests.collector.rows import NOW, SECOND

MS = 10**6
GOOD = {"slo_class": "chat", "ttft_ns": 100 * MS, "tpot_ns": 20.0 * MS, "e2e": 2 * SECOND}
BAD = GOOD | {"ttft_ns": 900 * MS}


def of_model(answer, model):
    return [one for one in answer["differences"] if [c["value"] for c in one["conditions"]] == [model]]


def test_a_total_fault_is_compared_with_the_good_ones_of_before_and_says_so(rows, api):
    before = [GOOD | {"ended": NOW - (1800 + i) * SECOND, "model": "old"} for i in range(60)]
    rows.requests([*before, *[BAD | {"ended": NOW - (1 + i) * SECOND, "model": "new"} for i in range(60)]])
    answer = api("differences", slo="chat")
    assert (answer["selected"], answer["others"]) == (60, 60)
    assert answer["summary"].startswith("Nearly all were bad: they are compared with the good ones since 09:15 UTC. ")
    assert answer["window"]["start"] == "2026-11-21T09:45:00Z"
    (found,) = of_model(answer, "new")
    assert (found["selected"]["share"], found["others"]["share"]) == (1.0, 0.0)


@pytest.mark.parametrize(("asked", "good"), [({}, 20), ({"verdict": "bad"}, 0)])
def test_other_questions_stay_in_their_window(rows, api, asked, good):
    rows.requests([GOOD | {"ended": NOW - 1800 * SECOND}] * 60)
    rows.requests([GOOD | {"ended": NOW - SECOND}] * good + [BAD | {"ended": NOW - SECOND}] * 60)
    answer = api("differences", slo="chat", **asked)
    assert (answer["others"], "Nearly all" in answer["summary"]) == (good, False)


def test_without_good_ones_of_before_nothing_is_said_of_them(rows, api):
    rows.requests([BAD | {"ended": NOW - SECOND}] * 60)
    assert "Nearly all" not in api("differences", slo="chat")["summary"]
