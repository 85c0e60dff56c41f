"""The page Tail over answers that a test makes up, and its rules that need no browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from dashboard import bars
from dashboard.bars import Palette
from dashboard.filters import View
from dashboard.views import tail
from tests.dashboard.test_now import END, START, WINDOW, html

VIEW = View(START, END, (), "chat", None, UTC)
COLOURS = {"waiting for KV": "#f97316", "own prompt": "#10b981", "stall": "#be123c", "unexplained": "#e2e8f0"}


def without(attainment, points, low=None, high=None):
    return {"causes": [], "attainment": attainment, "points": points, "kind": "first order", "low": low, "high": high}


def part(cause, time_s, *, culprits=(), exemplars=(), advice="", typical_s=0.1):
    return {
        "cause": cause, "time_s": time_s, "typical_s": typical_s, "culprits": list(culprits),
        "exemplars": list(exemplars), "advice": advice,
    }  # fmt: skip


def group(name, cause, time_s, told=None, **more):
    known = {
        "group": name, "colour": COLOURS[name], "causes": [cause], "time_s": time_s, "typical_s": 0.1, "share": 0.5,
        "requests": 3, "without": told, "start": "2026-11-21T09:08:00Z", "end": "2026-11-21T09:31:00Z",
    }  # fmt: skip
    return known | more


def explanation(**more):
    known = {
        "window": WINDOW, "slo": "chat", "metric": None, "value_s": None, "attainment": 0.86,
        "typical": {"text": "the middle half of good requests of the same model"},
        "selected": {"requests": 140, "explained": 140, "failed": 0, "time_s": 40.0}, "sentence": "Most was KV.",
        "without_hidden": None, "note": None, "levels": [], "slowest": [], "by_model": [],
        "groups": [
            group("waiting for KV", "wait_kv", 10.0, without(0.94, 8.0, 0.93, 0.95)),
            group("stall", "stall", 28.0, without(0.87, 1.0)),
            group("unexplained", "unexplained", 2.0),
        ],
        "parts": [
            part("stall", 28.0, advice="Look at the host."),
            part("wait_kv", 10.0, exemplars=[{"trace_id": "ab" * 16, "span_id": "cd" * 8, "time_s": 3.0}]),
            part("unexplained", 2.0),
        ],
    }  # fmt: skip
    return known | more


def slow(**more):
    one = {
        "trace_id": "12" * 16, "span_id": "34" * 8, "model": "llama", "tenant": "acme", "end": "2026-11-21T09:10:00Z",
        "time_s": 11.0, "parts": {"wait_kv": 10.0, "own_prompt": 1.0},
    }  # fmt: skip
    models = [
        {"model": name, "requests": n, "time_s": 9.0, "parts": {"wait_kv": 9.0}} for name, n in (("a", 3), ("b", 2))
    ]
    known = explanation(
        metric="ttft", value_s=4.0, slowest=[one], by_model=models,
        typical={"ttft_from_s": 0.06, "ttft_to_s": 0.19},
        groups=[group("waiting for KV", "wait_kv", 30.0), group("own prompt", "own_prompt", 1.0)],
        parts=[part("wait_kv", 30.0), part("own_prompt", 1.0, typical_s=1.4)],
        selected={"requests": 5, "explained": 5, "failed": 0, "time_s": 31.0},
    )  # fmt: skip
    return known | more


def heatmap(*bad):
    cells = [{"x": x, "y": None, "requests": 9, "bad": n, "failed": n} for x, n in enumerate(bad) if n]
    return {"window": WINDOW, "start": START, "column_s": 600.0, "cells": cells, "edges_s": []}


SLOS = [{"name": "chat", "objective": "0.95", "thresholds": {"ttft_s": 1.0, "tpot_s": None, "e2e_s": None}}]


@pytest.fixture
def shown(show):
    """Draw the page over an answer about bad requests, and one about slow ones."""

    def shown(bad=None, late=None, **query):
        def answer(path):
            if path == "explain":
                metric = show.asked[-1][1].get("metric")
                return (late or slow()) if metric else (bad or explanation())
            known = {"slos": {"slos": SLOS}, "labels": {"labels": {}}, "heatmap": heatmap(0, 5, 90, 0, 0, 2)}
            return known[path]

        return show("tail", answer, **{"slo": "chat", "utc": "true", **query})

    return shown


def test_the_sentence_says_what_was_kept_and_what_the_slowest_took(shown):
    page = shown(explanation(selected={"requests": 140, "explained": 140, "failed": 12, "time_s": 40.0}))
    assert (len(page.exception), len(page.error)) == (0, 0)
    (words,) = [one.value for one in page.markdown if "kept" in one.value]
    assert words == (
        "**chat kept 86 % of its requests; it promises 95 %.** The slowest 1 % (5) had a TTFT of 4.00 s or more, "
        "typical ones 60.0 ms to 190 ms. Most was KV. 12 of the bad requests failed."
    )
    assert "Typical: the middle half of good requests of the same model." in [one.value for one in page.caption]
    assert any(re.fullmatch(r"\*\*The slowest \d+\*\*, one bar each: a click .*", one.value) for one in page.markdown)


def test_causes_stand_in_the_order_of_the_answer_with_what_each_is_worth(shown):
    drawn = html(shown()).split('class="tt-causes"')[1].split("</table>")[0]
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in drawn.split("<tr>")[2:]]
    assert [" ".join(row)[:14] for row in rows] == ["waiting for KV", "stall 28.0 s 7", "unexplained 2."]
    assert " ".join(rows[0]).startswith("waiting for KV 10.0 s 25 % 94 % +8.00 points +7.00 to +9.00 3")
    assert "such as 3.00 s" in " ".join(rows[0])
    assert "09:08 to 09:31" in " ".join(rows[0])
    assert " ".join(rows[1]).startswith("stall 28.0 s 70 % 87 % +1.00 points 3 all bad requests of 09:08")
    assert "what to do Look at the host." in " ".join(rows[1])
    assert rows[2][:7] == ["unexplained", "2.00", "s", "5", "%", "–", "–"]
    widths = re.findall(r'class="worth" style="width:(\d+)%', drawn)
    assert widths == ["100", "12"]
    keys = re.findall(r'class="tt-key" style="background:([^(;"]+)', drawn)
    assert keys == ["#f97316", "#be123c", "repeating-linear-gradient"], "what is not explained looks like no cause"


def test_what_is_hidden_says_why(shown):
    groups = [group("waiting for KV", "wait_kv", 10.0)]
    page = shown(
        explanation(groups=groups, without_hidden="20 % of the time is not explained, which is more than 15 %")
    )
    assert any("20 % of the time is not explained" in caption.value for caption in page.caption)
    assert "points" not in html(page).split('class="tt-causes"')[1].split("</table>")[0]


def test_bars_of_the_slowest_their_models_and_typical_ones(shown):
    drawn = html(shown())
    labels = re.findall(r'class="tt-stack" role="img" aria-label="([^"]*)"', drawn)
    assert labels == [
        "slowest 1 %: waiting for KV 97%, own prompt 3%",
        "a: waiting for KV 100%",
        "b: waiting for KV 100%",
        "typical: waiting for KV 7%, own prompt 93%",
    ]
    assert "5 · mean 6.20 s" in drawn
    assert "P25 to P75 · mean 300 ms" in drawn


def test_one_bar_for_each_slow_request_leads_to_it(shown):
    (bar,) = re.findall(r'<a href="([^"]*)" target="_self" title="([^"]*)" aria-label', html(shown()))
    href, title = bar
    assert href.startswith("/request?")
    assert f"trace_id={'12' * 16}&amp;span_id={'34' * 8}" in href
    assert title == "09:10:00 llama acme: 11.0 s; 10.0 s waiting for KV, 1.00 s own prompt"
    heights = [float(h) for h in re.findall(r'style="height:([\d.]+)%', html(shown()).split('class="tt-many"')[1])]
    assert heights == [90.91, 9.09]
    assert 'class="limit" style="bottom:9.09%"' in html(shown()), "1 s of 11 s"


def test_stretches_that_are_left_out_are_asked_without_and_named(shown, show):
    stretch = "2026-11-21T09:10:00Z/2026-11-21T09:30:00Z"
    page = shown(out=[stretch, "nonsense", "2026-11-21T09:30:00Z/2026-11-21T09:10:00Z"])
    asked = [params.get("leave_out") for path, params in show.asked if path == "explain"]
    assert asked == [stretch, stretch]
    (back,) = [button for button in page.button if button.key == "take-back"]
    assert back.label == "Left out: 09:10 to 09:30. Take all back"
    assert "out" not in back.click().run().query_params


def minutes(*pairs):
    begin = datetime(2026, 11, 21, 9, tzinfo=UTC)
    return [(begin + timedelta(minutes=a), begin + timedelta(minutes=b)) for a, b in pairs]


@pytest.mark.parametrize(
    ("out", "chosen", "then"),
    [
        ([], (10, 20), [(10, 20)]),
        ([(10, 20)], (10, 20), []),
        ([(10, 30)], (15, 20), []),
        ([(10, 20)], (30, 40), [(10, 20), (30, 40)]),
        ([(30, 40)], (10, 20), [(10, 20), (30, 40)]),
        ([(10, 20)], (20, 30), [(10, 20), (20, 30)]),
        ([(10, 20), (25, 30)], (15, 40), [(10, 40)]),
        ([(10, 20), (50, 60)], (15, 40), [(10, 40), (50, 60)]),
    ],
)
def test_a_click_leaves_a_time_out_and_a_second_one_takes_it_back(out, chosen, then):
    assert tail.toggled(minutes(*out), minutes(chosen)[0]) == minutes(*then)


def test_the_strip_counts_the_bad_requests_of_each_column():
    series = tail.by_column(heatmap(0, 5, 90, 0, 0, 2))
    assert series.values["bad"] == [0, 5, 90, 0, 0, 2]
    assert series.times[2] - series.times[0] == timedelta(minutes=20)


def test_a_failed_part_leaves_the_others(show):
    broken = httpx.Response(503, json={"title": "The store is away", "detail": "wait"})

    def answer(path):
        if path == "explain":
            return broken if show.asked[-1][1].get("metric") else explanation()
        return {"slos": {"slos": SLOS}, "labels": {"labels": {}}, "heatmap": heatmap(1)}[path]

    page = show("tail", answer, slo="chat")
    assert [error.value for error in page.error] == ["**The store is away**\n\nwait"]
    assert any("kept 86 %" in one.value for one in page.markdown)


def test_names_of_others_are_text_and_culprits_have_links():
    evil = '"><img src=x>'
    culprits = [
        {"by": "tenant", "name": "globex", "trace_id": None, "span_id": None, "time_s": 9.0, "share": 0.5},
        {"by": "process", "name": evil, "trace_id": None, "span_id": None, "time_s": 9.0, "share": 0.3},
        {"by": "request", "name": evil, "trace_id": "ab" * 16, "span_id": "cd" * 8, "time_s": 9.0, "share": 0.2},
        {
            "by": "length",
            "name": "1024 to 2047 tokens",
            "trace_id": None,
            "span_id": None,
            "time_s": 9.0,
            "share": 0.1,
        },
        {"by": "tenant", "name": "fifth", "trace_id": None, "span_id": None, "time_s": 9.0, "share": 0.1},
        {"by": "model", "name": "little", "trace_id": None, "span_id": None, "time_s": 9.0, "share": 0.01},
    ]
    told = tail.where(group("stall", "stall", 9.0), [part("stall", 9.0, culprits=culprits)], VIEW)
    assert "<img" not in told
    assert "tenant=globex" in told
    assert f"trace_id={'ab' * 16}" in told
    assert "prompts of 1024 to 2047 tokens" in told
    assert "fifth" not in told, "four of them"
    assert "little" not in told, "less than a tenth"
    palette = Palette.of(explanation())
    assert "<img" not in bars.stacked([bars.Bar(evil, evil, {"stall": 1.0}, 1)], palette)
    assert "<img" not in bars.upright([bars.Column(evil, f"/request?{evil}", {"stall": 1.0})], palette, None)


def test_a_share_is_named_where_it_has_room_and_drawn_where_it_can_be_seen():
    parts = {"KV": 92.5, "stall": 7.0, "own prompt": 0.4, "alone": 0.1}
    drawn = bars.stacked([bars.Bar("bad", "", parts, 2), bars.Bar("none", "", {}, 1)], Palette.of(explanation()))
    assert re.findall(r'title="([^:"]+): [^"]*">([^<]*)<', drawn) == [
        ("KV", "92%"),
        ("stall", "7%"),
        ("own prompt", ""),
    ]
    assert "stall: 7%, 3.50 s on average" in drawn
    assert "alone 0%" in drawn, "for readers who do not see it"


def test_a_promise_is_drawn_up_to_the_slowest_of_the_bars():
    columns = [bars.Column("a", "/request", {"KV": 3.0, "stall": 1.0}), bars.Column("b", "/request", {"KV": 2.0})]
    drawn = [bars.upright(columns, Palette.of(explanation()), limit_s) for limit_s in (1.0, 4.0, 4.001, None)]
    assert [re.findall(r'class="limit" style="bottom:([^"]+)"', one) for one in drawn] == [
        ["25.00%"],
        ["100.00%"],
        [],
        [],
    ]
    assert re.findall(r'style="height:([^;]+);', drawn[0]) == ["75.00%", "25.00%", "50.00%"]
    assert re.findall(r"<b [^>]*>([^<]*)<", drawn[0]) == ["2.00 s", "4.00 s"]


def test_points_have_a_sign():
    assert [bars.signed(value) for value in (5.994, -0.2, 0.004, -0.004, 0.0)] == ["+5.99", "−0.20", "0", "0", "0"]
