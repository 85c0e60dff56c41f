"""What Explore asks and draws, without a browser."""

import re
from base64 import b64decode
from datetime import UTC

import httpx
import pytest
import streamlit as st

from collector.causes.split.names import load_causes
from dashboard import address
from dashboard.api import Query
from dashboard.components import heat
from dashboard.components.heat import Selection, columns, in_words, marks, percentile_line
from dashboard.filters import View
from dashboard.views import differing, explore
from dashboard.views.requests import bar, mostly, parts, query
from dashboard.views.variants import is_series

VIEW = View("2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z", (("tenant", "a"),), "chat", None, UTC)
T0 = 1795255200.0  # 10:00
AREA = Selection(T0 + 600, T0 + 1200, lo=0.5, hi=2.0)
OF_AREA = {"start": "2026-11-21T10:10:00Z", "end": "2026-11-21T10:20:00Z", "tenant": "a"}
BOUNDS = {"metric": "ttft", "at_least": "0.5s", "at_most": "2s"}


def cell(x, y, requests, bad=0, failed=0):
    return {"x": x, "y": y, "requests": requests, "bad": bad, "failed": failed}


def grid(*cells):
    return {
        "window": {"start": VIEW.start, "end": VIEW.end}, "metric": "ttft", "start": VIEW.start, "column_s": 600.0,
        "edges_s": [0.25, 0.5, 1.0, 2.0], "thresholds_s": [1.0], "cells": list(cells),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "status", "params"),
    [
        (None, None, {"start": VIEW.start, "end": VIEW.end, "tenant": "a"}),
        (AREA, None, OF_AREA | BOUNDS),
        (AREA, "error", OF_AREA | BOUNDS | {"status": "error"}),
        (AREA, "in_flight", OF_AREA | {"status": "in_flight"}),
        (Selection(T0 + 600, T0 + 1200), None, OF_AREA),
        (Selection(T0 + 600, T0 + 1200, failed=True), "error", OF_AREA | {"status": "error"}),
    ],
)
def test_the_list_is_of_what_is_selected(chosen, status, params):
    asked = query(VIEW, chosen, "ttft", {"sort": "ttft", "status": status})
    assert dict(asked.params) == params | {"slo": "chat", "sort": "ttft", "limit": "50"}


@pytest.mark.parametrize(
    ("chosen", "others", "asked", "basis"),
    [
        (None, 5, [{"start": VIEW.start, "end": VIEW.end}], "the good ones"),
        (AREA, 200, [{**OF_AREA, **BOUNDS}], "the others of the same time"),
        (
            AREA,
            199,
            [
                {**OF_AREA, **BOUNDS},
                {"select.start": OF_AREA["start"], "select.end": OF_AREA["end"], "start": VIEW.start, **BOUNDS},
            ],
            "all others of the range",
        ),
        (
            Selection(AREA.t0, AREA.t1),
            5000,
            [{"select.start": OF_AREA["start"], "select.end": OF_AREA["end"], "start": VIEW.start}],
            "all others of the range",
        ),
        (
            Selection(AREA.t0, AREA.t1, failed=True),
            500,
            [{**OF_AREA, "select.status": "error"}],
            "the others of the same time",
        ),
    ],
)
def test_the_selected_are_compared_with_the_others_of_their_time_or_with_all(monkeypatch, chosen, others, asked, basis):
    questions = []

    def fetch(one: Query):
        questions.append(dict(one.params))
        return {"others": others}

    monkeypatch.setattr(explore, "fetch", fetch)
    assert explore.compared(VIEW, "ttft", chosen) == ({"others": others}, basis)
    assert len(questions) == len(asked)
    for question, expected in zip(questions, asked, strict=True):
        assert expected.items() <= question.items()
        assert ("metric" in question) == ("metric" in expected)
        assert question["slo"] == "chat"


def test_a_bound_of_nothing_is_no_bound():
    times = (T0, T0 + 600)
    assert Selection(*times, 0.0, 0.5).bounds("ttft") == {"metric": "ttft", "at_most": "0.5s"}
    assert Selection(*times, 0.0, None).bounds("ttft") == Selection(*times).bounds("ttft") == {}


def test_the_sentence_counts_the_cells_whose_middle_is_selected():
    answer = grid(
        cell(0, 1, 5, bad=5),
        cell(1, 0, 8),
        cell(1, 1, 3, bad=1),
        cell(1, 2, 1, bad=1),
        cell(1, None, 4, bad=4, failed=3),
    )
    assert explore.sentence(answer, "ttft", None, VIEW) == "**21 requests** of the range · 52.38 % bad"
    told = explore.sentence(answer, "ttft", AREA, VIEW)
    assert told.startswith("**4 requests** · Nov 21 10:10:00 – 10:20:00 · TTFT 500 ms – 2.00 s · 50 % bad")
    assert explore.sentence(answer, "ttft", Selection(AREA.t0, AREA.t1), VIEW).startswith("**16 requests** ")
    above = explore.sentence(answer, "ttft", Selection(AREA.t0, AREA.t1, 0.6), VIEW)
    assert re.match(r"\*\*≈ \d+ requests\*\* .* TTFT ≥ 600 ms · ", above), "a bound within cells, and no other"
    failed = explore.sentence(answer, "ttft", Selection(AREA.t0, AREA.t1, failed=True), VIEW)
    assert failed == "**3 failed requests** · Nov 21 10:10:00 – 10:20:00"


def test_percentiles_follow_the_cells_and_an_empty_column_has_none():
    answer = grid(cell(0, 0, 10), cell(1, 0, 8), cell(1, 2, 2), cell(3, None, 7), cell(6, 0, 9))
    assert columns(answer) == 6
    line = percentile_line(answer, 0.5, "#000")["values_s"]
    assert line[:2] == pytest.approx([0.25 * 2**0.5, 0.25 * 2**0.625], abs=1e-4)
    assert line[2:] == [None] * 4
    assert percentile_line(answer, 1.0, "#000")["values_s"][:2] == pytest.approx([0.5, 2.0])
    assert percentile_line(grid() | {"edges_s": []}, 0.5, "#000")["values_s"] == [None] * 6


def test_a_reader_who_does_not_see_the_map_is_told_its_worst_time():
    words = in_words(grid(cell(0, 1, 6, bad=1), cell(2, 1, 3, bad=3), cell(2, None, 1, bad=1, failed=1)))
    assert words.startswith(
        "TTFT over time: 10 requests, 50 % bad, most of them at 2026-11-21 10:20 UTC (4), 1 failed."
    )
    assert "most of them" not in in_words(grid(cell(0, 1, 6)))


def test_events_stand_above_the_map_what_fires_first_then_the_shortest_and_those_that_last_end_with_it():
    incident = {"cause": "slo_burn", "slo": "chat", "instance": None, "start": "2026-11-21T10:00:00Z", "end": None}
    lost = incident | {"cause": "engine_lost", "slo": None, "instance": "host-1", "end": "2026-11-21T10:00:30Z"}
    change = {"at": "2026-11-21T10:30:00Z", "service": "s", "dimension": "variant", "value": "v" * 60, "kind": "new"}
    (whole,) = marks([], [change | {"value": "v" * 29}], VIEW.end)
    assert whole["label"] == f"s: variant {'v' * 29}"
    found = marks([incident, lost], [change, change | {"dimension": "process"}], VIEW.end)
    assert [one["label"] for one in found] == ["chat burns", f"s: variant {'v' * 28}…", "host-1 lost"]
    assert [one["t1"] - one["t0"] for one in found] == [3600, 0, 30]
    (gone,) = marks([], [change | {"kind": "gone", "value": "v2.3"}], VIEW.end)
    assert gone["label"] == "s: variant v2.3 is gone"


def test_a_selection_goes_through_the_url(monkeypatch):
    held: dict[str, str] = {}
    monkeypatch.setattr(st, "query_params", held)
    for chosen in (AREA, Selection(T0, T0 + 60, failed=True), Selection(T0, T0 + 60)):
        held.clear()
        address.put(**chosen.in_url())
        assert Selection.of_url() == chosen
    address.put(**heat.cleared())
    assert (held, Selection.of_url()) == ({}, None)
    held.update(t0="10", t1="10")
    assert Selection.of_url() is None
    held.update(t0="soon", t1="later")
    assert Selection.of_url() is None


ROW = {
    "verdicts": [], "queue_s": 3.0, "cold_start_s": None, "prefill_s": 1.0, "decode_s": 4.0, "preempted_s": 0.0,
    "kv_transfer_s": None, "stalled_s": None, "wait_batch_s": 2.0, "wait_kv_s": 0.4,
}  # fmt: skip


def missing(**over):
    missed = [{"threshold": name, "over_s": s, "limit_s": limit} for name, (s, limit) in over.items()]
    return ROW | {"verdicts": [{"slo": "chat", "missed": missed}]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW, "decode 4.00 s"),
        (missing(ttft=(1.0, 1.0)), "queued 3.00 s (batch full)"),
        (missing(ttft=(1.0, 1.0)) | {"wait_batch_s": 1.5}, "queued 3.00 s"),
        (missing(tpot=(1.0, 1.0)), "decode 4.00 s"),
        (missing(ttft=(1.0, 1.0), tpot=(0.2, 0.1)), "decode 4.00 s"),
        (missing(ttft=(9.0, 1.0), tpot=(0.2, 0.1)), "queued 3.00 s (batch full)"),
        (missing(e2e=(1.0, 9.0)), "decode 4.00 s"),
        (dict.fromkeys(ROW) | {"verdicts": []}, None),
    ],
)
def test_a_row_without_causes_says_which_phase_took_most_of_the_latency_that_it_missed(row, words):
    for told in (None, explained("none", stall=(9.0, 9.0)), explained("phases", stall=(9.0, 9.0))):
        assert mostly(row, told) == (words and f"phase {words}")


def explained(level="steps", **causes):
    """An answer's causes of a row, with their seconds before the first token and after it."""
    told = [
        {"group": name.replace("_", " "), "colour": f"#00000{i}", "ttft_s": first, "rest_s": rest}
        for i, (name, (first, rest)) in enumerate(causes.items())
    ]
    return {"level": level, "causes": told}


SLOW = {"own_prompt": (3.0, 0.0), "others_prompts": (2.0, 4.0), "alone_(the_floor)": (0.0, 5.0)}


@pytest.mark.parametrize(
    ("row", "causes", "words"),
    [
        (ROW, SLOW, "others prompts 6.00 s"),
        (missing(ttft=(1.0, 1.0)), SLOW, "own prompt 3.00 s"),
        (missing(ttft=(1.0, 1.0), tpot=(0.2, 0.1)), SLOW, "others prompts 4.00 s"),
        (missing(gap=(1.0, 1.0)), SLOW, "others prompts 4.00 s"),
        (missing(e2e=(1.0, 9.0)), SLOW, "others prompts 6.00 s"),
        (missing(tpot=(1.0, 1.0)), {"alone_(the_floor)": (0.1, 5.0), "stall": (1.0, 0.0)}, "alone (the floor) 5.00 s"),
        (missing(ttft=(1.0, 1.0)), {}, None),
    ],
)
def test_a_row_says_which_cause_took_most_of_the_latency_that_it_missed(row, causes, words):
    for level in ("steps", "estimated"):
        assert mostly(row, explained(level, **causes)) == words
    assert "alone (the floor)" in {cause.group for cause in load_causes().values()}


def test_a_bar_has_a_part_for_each_cause_or_else_for_each_phase():
    def drawn(told):
        image = b64decode(bar(parts(ROW, told)).partition(",")[2]).decode()
        return re.findall(r'<rect [^>]* width="([^"]*)"[^>]* fill="([^"]*)"', image)

    assert drawn(explained("phases", stall=(9.0, 9.0))) == drawn(None)
    assert [wide for wide, _ in drawn(None)] == ["36.0", "12.0", "48.0"]
    assert drawn(explained(stall=(1.0, 2.0), own_prompt=(1.0, 0.0))) == [("72.0", "#000000"), ("24.0", "#000001")]
    assert bar(parts(dict.fromkeys(ROW), None)) is None


def test_differences_are_shown_with_both_shares_and_names_of_others_are_no_markup():
    conditions = [("tenant", "<b>a</b>"), ("input_tokens", "at least 9")]
    one = {
        "conditions": [{"dimension": name, "value": value} for name, value in conditions],
        "selected": {"share": 0.62}, "others": {"share": 0.0}, "lift": None, "also": ["x", "y", "z", "w", "v"],
    }  # fmt: skip
    text = differing.row(one)
    assert "tenant = &lt;b&gt;a&lt;/b&gt; and input tokens at least 9" in text
    assert "also: x, y, z and 2 more" in text
    assert "62 % / 0 %" in text
    assert "only here" in text
    assert "width:62.0%" in text
    assert "3.1 ×" in differing.row(one | {"lift": 3.07, "also": []})
    assert differing.words({"dimension": "variant", "value": ""}) == "variant = (none)"


@pytest.mark.parametrize(
    ("names", "joined"),
    [(("batch 1", "batch 16"), True), (("v2.3", "v2.4", "main"), False), (("int8", "int4"), True), (("a", "b"), False)],
)
def test_a_line_joins_variants_whose_names_differ_in_numbers_alone(names, joined):
    assert is_series(names) is joined


@pytest.mark.parametrize(
    ("conditions", "also", "filters"),
    [
        ([("tenant", "a"), ("model", "m")], [], [("tenant", "a"), ("model", "m")]),
        ([("input_tokens", "at least 9"), ("model", "m")], [], [("input_tokens", "at least 9"), ("model", "m")]),
        ([("output_tokens", "at least 9"), ("model", "m")], ["variant v2"], [("model", "m")]),
        ([("input_tokens", "not known")], ["model m", "instance i", "variant v 2", "service s"], [("variant", "v 2")]),
        (
            [("output_tokens", "at least 9")],
            ["tenant a and b", "engine vllm", "output_tokens less than 5"],
            [("engine", "vllm")],
        ),
        ([("output_tokens", "at least 9")], ["service s", "x"], []),
    ],
)
def test_a_difference_is_kept_by_its_labels_or_by_the_most_telling_one_that_goes_with_it(conditions, also, filters):
    one = {"conditions": [{"dimension": name, "value": value} for name, value in conditions], "also": also}
    assert [(found["dimension"], found["value"]) for found in differing.usable(one)] == filters


@pytest.mark.parametrize(
    ("dimension", "value", "kept", "left_out"),
    [
        ("input_tokens", "at least 3\u202f718", {"min_input_tokens": 3718}, {"max_input_tokens": 3717}),
        ("input_tokens", "less than 120", {"max_input_tokens": 119}, {"min_input_tokens": 120}),
        ("input_tokens", "not known", {}, {}),
        ("output_tokens", "at least 9", {}, {}),
    ],
)
def test_a_length_of_prompts_is_a_bound_that_is_kept_or_left_out(dimension, value, kept, left_out):
    condition = {"dimension": dimension, "value": value}
    assert differing.length(condition) == kept
    assert differing.length(condition, leave_out=True) == left_out


def test_the_map_and_last_weeks_are_of_the_prompts_whose_length_is_chosen(show):
    def answers(path):
        return grid(cell(0, 0, 5)) if path == "heatmap" else httpx.Response(404, json={"title": "no"})

    page = show("explore", answers, week="true", min_input_tokens="120", max_input_tokens="3717", tenant="a")
    assert not page.exception, "two parts are told that there is no such thing"
    assert len(page.error) == 2
    assert any("requests** of the range" in one.value for one in page.markdown)
    maps = [asked for path, asked in show.asked if path == "heatmap"]
    assert [one["start"] for one in maps] != [maps[0]["start"]] * 2, "of the range, and of a week before"
    for one in maps:
        assert (one["min_input_tokens"], one["max_input_tokens"], one["tenant"]) == ("120", "3717", "a")


@pytest.mark.parametrize(
    ("given", "metric"), [({"slo": "slow"}, "tpot"), ({}, "ttft"), ({"slo": "slow", "metric": "gap"}, "gap")]
)
def test_the_map_is_of_what_the_chosen_slo_promises(show, given, metric):
    promised = {"ttft_s": None, "tpot_s": 0.06, "e2e_s": 9.0, "gap_s": None, "first_visible_s": None}

    def answers(path):
        slos = {"slos": [{"name": "slow", "thresholds": promised}]}
        return slos if path == "slos" else httpx.Response(404, json={"title": "no"})

    show("explore", answers, **given)
    assert {asked["metric"] for path, asked in show.asked if path == "heatmap"} == {metric}
