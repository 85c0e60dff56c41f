"""Requests in flight, judged by arrays: each bound, and processes that stand still."""

import dataclasses

import numpy as np
import pytest

from collector.ask.queries import Queries
from collector.base.process import Process
from collector.count.in_flight import InFlight, judge_in_flight, known_ns, read_in_flight
from collector.slo.model import LabelRule, Promise, Slo, Thresholds
from collector.sql.fragment import TRUE
from tests.collector.rows import NOW, SECOND

DAY = 86_400 * SECOND
OF_ONE = {
    "service": ["s"], "instance": ["i"], "process_tenant": [""], "unmeasured": [False], "last_token_ns": [None],
    "gap_ns": [None],
}  # fmt: skip


def in_flight(*, elapsed, ttft=-1, unmeasured=False, later=1, stuck=False, lost=False, tenant="t", gap=-1):
    one = np.array([elapsed], np.int64)
    return InFlight(
        columns={"tenant": [tenant], "service": ["s"], "instance": ["i"], "process_tenant": [""]},
        began_ns=one * 0, seen_ns=one,
        elapsed_ns=one,
        ttft_ns=np.array([ttft]), unmeasured=np.array([unmeasured]), later_tokens=np.array([later]), last_step_ns=one,
        gap_ns=np.array([gap]), lost_at_ns=one, is_lost=np.array([lost]), no_progress=np.array([stuck]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "thresholds", "bad"),
    [
        (in_flight(elapsed=100), {"e2e": 100}, False),
        (in_flight(elapsed=101), {"e2e": 100}, True),
        (in_flight(elapsed=101, lost=True), {"e2e": 100}, False),
        (in_flight(elapsed=100), {"ttft": 100}, False),
        (in_flight(elapsed=101), {"ttft": 100}, True),
        (in_flight(elapsed=900, ttft=100), {"ttft": 100}, False),
        (in_flight(elapsed=900, ttft=101), {"ttft": 100}, True),
        (in_flight(elapsed=900, ttft=0), {"ttft": 100}, False),
        (in_flight(elapsed=50, ttft=101), {"ttft": 60}, False),  # its announcement cannot know that
        (in_flight(elapsed=110, ttft=10, later=3, stuck=True), {"tpot": 33}, True),
        (in_flight(elapsed=100, ttft=0, later=3, stuck=True), {"tpot": 33}, True),
        (in_flight(elapsed=110, ttft=10, later=3, stuck=True), {"tpot": 34}, False),
        (in_flight(elapsed=112, ttft=10, later=3, stuck=True), {"tpot": 34}, False),
        (in_flight(elapsed=113, ttft=10, later=3, stuck=True), {"tpot": 34}, True),
        (in_flight(elapsed=113, ttft=10, later=3), {"tpot": 34}, False),
        (in_flight(elapsed=113, stuck=True), {"tpot": 34}, False),
        (in_flight(elapsed=900, unmeasured=True, stuck=True), {"ttft": 100, "tpot": 100}, False),
        (in_flight(elapsed=900, unmeasured=True), {"ttft": 100, "e2e": 800}, True),
        (in_flight(elapsed=900, ttft=10, gap=100), {"gap": 100}, False),
        (in_flight(elapsed=900, ttft=10, gap=101), {"gap": 100}, True),
        (in_flight(elapsed=900, ttft=10), {"gap": 1}, False),  # not known
        (in_flight(elapsed=900, ttft=10, gap=500, lost=True), {"gap": 100}, False),
        (in_flight(elapsed=101), {"first_visible": 100}, True),
        (in_flight(elapsed=101, ttft=100), {"first_visible": 100}, False),  # nobody knows
        (in_flight(elapsed=900, ttft=101), {"first_visible": 100}, True),
    ],
)
def test_a_request_is_bad_once_it_is_past_a_threshold(request_, thresholds, bad):
    given = Thresholds.model_construct(None, **dict.fromkeys(Thresholds.model_fields) | thresholds)
    assert request_.judged([Promise.to_all(given)]).outcomes(0).in_flight_violations.tolist() == [bad]
    slo = Slo.model_construct(None, name="n", select={"tenant": ("other",)}, thresholds=given)
    assert request_.judged([slo]).of_all_slos().in_flight_violations.tolist() == [False]
    both = [slo, slo.model_copy(update={"select": {"tenant": ("t",)}})]
    assert request_.judged(both).of_all_slos().in_flight_violations.tolist() == [bad]


def test_a_question_that_finds_no_request_in_flight_changes_no_other_answer(rows, api):
    for _ in range(3):
        rows.open(start=NOW - 10 * SECOND, seen=NOW - SECOND)
    asked = [{}, {"vantage": "client"}, {}, {"vantage": "server"}]
    found = [api("summary", **filters)["requests"]["in_flight"] for filters in asked]
    assert found == [3, 0, 3, 3]


@pytest.mark.parametrize(
    ("end", "heard_until", "lost"), [(100, 100, False), (101, 101, True), (120, 100, False), (100, 120, False)]
)
def test_only_silence_before_the_watermark_and_the_end_makes_a_request_lost(end, heard_until, lost):
    columns = {
        "began_ns": [0],
        "seen_ns": [9 * SECOND],
        "heard_ns": [70 * SECOND],
        "ttft_ns": [None],
        "output_tokens": [None],
    }
    columns |= OF_ONE
    times = {"end_ns": end * SECOND, "lost_after_ns": 30 * SECOND, "heard_until_ns": heard_until * SECOND}
    assert judge_in_flight(columns, {}, **times).is_lost.tolist() == [lost]


def test_silence_begins_when_an_announcement_was_heard(rows):
    """The clock of its sender may be behind. The age of the request is told by that clock alone."""
    for age, heard in ((100, 31), (90, 30), (80, 0)):
        rows.open(start=NOW - age * SECOND, seen=NOW - 70 * SECOND, heard=NOW - heard * SECOND)
    found = read_in_flight(
        Queries(rows.store), TRUE, start_ns=NOW - SECOND, end_ns=NOW, lost_after_ns=30 * SECOND, heard_until_ns=NOW
    )
    by_age = sorted(zip(found.elapsed_ns.tolist(), found.lost_at_ns.tolist(), found.is_lost.tolist(), strict=True))
    assert by_age == [
        (10 * SECOND, NOW + 30 * SECOND, False),
        (20 * SECOND, NOW, False),
        (30 * SECOND, NOW - SECOND, True),
    ]


def test_a_request_whose_sender_is_behind_is_shown_in_flight(rows, api):
    one = rows.open(start=NOW - 80 * SECOND, seen=NOW - 70 * SECOND, heard=NOW)
    assert api(f"requests/{one['trace_id']}")["request"]["status"] == "in_flight"
    assert [row["status"] for row in api("requests", status="in_flight")["requests"]] == ["in_flight"]


@pytest.mark.parametrize(("heard_ago", "status"), [(-60, "in_flight"), (29, "in_flight"), (31, "lost")])
def test_a_request_whose_sender_is_hours_ahead_is_shown_and_is_lost_when_it_falls_silent(rows, api, heard_ago, status):
    start = NOW + 3 * 3600 * SECOND
    rows.open(start=start, seen=start + 5 * SECOND, heard=NOW - heard_ago * SECOND, instance="ahead")
    assert [row["instance"] for row in api("requests", status=status)["requests"]] == ["ahead"]
    lost = [i["requests_affected"] for i in api("incidents")["incidents"] if i["cause"] == "engine_lost"]
    assert lost == ([1] if status == "lost" else [])
    assert api("summary")["requests"]["in_flight_violations"] == 0, "how long it has run is not known"


def test_a_request_that_is_announced_after_the_end_is_not_in_flight_then(rows, api):
    rows.open(start=NOW + SECOND, seen=NOW + 5 * SECOND, heard=NOW + 5 * SECOND)
    rows.open(start=NOW + 3600 * SECOND, seen=NOW + 3605 * SECOND, heard=NOW + 61 * SECOND)
    assert api("summary")["requests"]["in_flight"] == 0


def test_a_request_that_begins_after_the_end_has_run_for_no_time():
    """Its sender's clock is ahead."""
    columns = {"began_ns": [130], "seen_ns": [131], "heard_ns": [131], "ttft_ns": [None], "output_tokens": [None]}
    columns |= OF_ONE
    found = judge_in_flight(columns, {}, end_ns=120, lost_after_ns=30, heard_until_ns=120)
    assert found.elapsed_ns.tolist() == [0]


@pytest.mark.parametrize(("began", "stuck"), [(90, True), (91, False)])
def test_a_process_that_rested_before_a_request_came_is_not_stuck(began, stuck):
    columns = {"began_ns": [began], "seen_ns": [120], "heard_ns": [120], "ttft_ns": [None], "output_tokens": [None]}
    columns |= OF_ONE
    found = judge_in_flight(columns, {Process("s", "i"): 10}, end_ns=120, lost_after_ns=30, heard_until_ns=120)
    assert found.no_progress.tolist() == [stuck]


def test_a_rule_gives_its_label_to_requests_that_have_a_listed_value_in_every_column():
    two = {
        "tenant": ["", ""],
        "model": ["m", "m"],
        "variant": ["v", "w"],
        "service": ["s", "s"],
        "instance": ["i", "i"],
        "process_tenant": ["", ""],
    }
    both = InFlight.nothing()
    both = dataclasses.replace(both, columns=two, is_lost=np.zeros(2, bool))
    rule = LabelRule(when={"model": ("m",), "variant": ("v",)}, tenant="acme")
    slo = Slo.model_construct(None, name="n", select={"tenant": ("acme",)}, labels=(rule,))
    assert both.selected(slo).tolist() == [True, False]


def test_the_last_step_is_looked_for_in_minutes_and_then_in_a_day(rows):
    for instance, ago in (("new", SECOND), ("old", 7200 * SECOND), ("ancient", DAY), ("later", -SECOND)):
        rows.step(start=NOW - ago, instance=instance)
        rows.open(start=NOW - 60 * SECOND, seen=NOW, instance=instance)
    rows.open(start=NOW - 60 * SECOND, seen=NOW, instance="none")
    found = read_in_flight(
        Queries(rows.store), TRUE, start_ns=NOW, end_ns=NOW, lost_after_ns=30 * SECOND, heard_until_ns=NOW
    )
    last = {process[1]: int(ns) for process, ns in zip(found.processes, found.last_step_ns, strict=True)}
    assert last == {"new": NOW - SECOND, "old": NOW - 7200 * SECOND, "ancient": 0, "later": 0, "none": 0}
    stuck = {found.processes[i][1] for i in np.flatnonzero(found.no_progress)}
    assert stuck == {"old"}


def test_steps_are_asked_for_processes_whose_requests_have_run_for_long_enough(rows):
    for instance, age in (("young", 29), ("old", 30)):
        rows.step(start=NOW - 31 * SECOND, instance=instance)
        rows.open(start=NOW - age * SECOND, seen=NOW, instance=instance)
    found = read_in_flight(
        Queries(rows.store), TRUE, start_ns=NOW, end_ns=NOW, lost_after_ns=30 * SECOND, heard_until_ns=NOW
    )
    last = {process[1]: int(ns) for process, ns in zip(found.processes, found.last_step_ns, strict=True)}
    assert last == {"young": 0, "old": NOW - 31 * SECOND}
    assert {found.processes[i][1] for i in np.flatnonzero(found.no_progress)} == {"old"}


def test_an_announcement_is_taken_back_by_an_end_that_is_stored_apart_from_it(rows):
    """Also by one of another start, since two spans round it, and only by an end of the same request."""
    left = [rows.open(start=NOW - 100 * SECOND, seen=NOW - i) for i in range(3)]
    rows.request(trace_id=left[1]["trace_id"], ended=NOW - SECOND, e2e=101 * SECOND)
    rows.request(trace_id=left[2]["trace_id"], span_id="00000000000000bb", ended=NOW - SECOND)
    found = read_in_flight(
        Queries(rows.store), TRUE, start_ns=NOW, end_ns=NOW, lost_after_ns=30 * SECOND, heard_until_ns=NOW
    )
    assert sorted(key.hex() for key in found.columns["trace_id"]) == [left[0]["trace_id"], left[2]["trace_id"]]


def test_the_end_of_a_long_request_is_found_beside_a_young_one(rows):
    hours = 3_600 * SECOND
    long, young = (rows.open(start=NOW - age, seen=NOW - SECOND) for age in (3 * hours, SECOND))
    rows.request(trace_id=long["trace_id"], span_id=long["span_id"], ended=NOW - SECOND, e2e=3 * hours - SECOND)
    found = read_in_flight(
        Queries(rows.store), TRUE, start_ns=NOW, end_ns=NOW, lost_after_ns=30 * SECOND, heard_until_ns=NOW
    )
    assert [key.hex() for key in found.columns["trace_id"]] == [young["trace_id"]]


def test_nothing_in_flight_asks_for_no_steps(rows):
    found = read_in_flight(Queries(rows.store), TRUE, start_ns=NOW, end_ns=NOW, lost_after_ns=1, heard_until_ns=NOW)
    assert (found.size, found.processes) == (0, [])
    assert found.judged([Promise.to_all(Thresholds(ttft="1s"))]).outcomes(0).bad.tolist() == []


@pytest.mark.parametrize(
    ("last_token", "gap", "seen", "longest"),
    [
        (40, 5, 100, 60),  # it waits for its next token
        (40, 70, 100, 70),  # it waited longer before
        (100, 0, 100, 0),
        (None, 5, 100, -1),
        (40, None, 100, 60),
        (40, 5, 121, -1),  # announced after the end of the window: nobody knows how long it had waited by then
        (40, 5, 120, 80),
    ],
)
def test_a_silence_is_a_gap_up_to_the_announcement(last_token, gap, seen, longest):
    columns = OF_ONE | {"began_ns": [0], "seen_ns": [seen], "heard_ns": [seen], "ttft_ns": [10], "output_tokens": [3]}
    columns |= {"last_token_ns": [last_token], "gap_ns": [gap]}
    found = judge_in_flight(columns, {}, end_ns=120, lost_after_ns=SECOND, heard_until_ns=120)
    assert found.gap_ns.tolist() == [longest]
    assert known_ns(found.gap_ns[0]) == (None if longest < 0 else longest)
