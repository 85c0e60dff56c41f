"""What Compare asks for its two sides, and what it says of them."""

import re
from base64 import b64decode
from datetime import UTC, timedelta

import pytest

from dashboard import curves, forest
from dashboard.filters import View
from dashboard.views import sides
from dashboard.views.compare import counts, interval, latencies, mix, says

VIEW = View("2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z", (("tenant", "a"), ("variant", "v3")), None, None, UTC)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1.2, 1.5, "B is slower"),
        (1.2, None, "B is slower"),
        (0.5, 0.8, "B is faster"),
        (None, 0.8, "B is faster"),
        (0.95, 1.05, "the same, within 10 %"),
        (1.01, 1.05, "the same, within 10 %"),
        (1 / 1.1, 1.1, "the same, within 10 %"),
        (0.9, 1.0, "not decided"),
        (0.95, 1.2, "not decided"),
        (None, None, "not decided"),
        (1.0, 1.2, "not decided"),
    ],
)
def test_a_ratio_says_no_more_than_its_interval(low, high, words):
    assert says({"estimate": 1.0, "low": low, "high": high}, 0.1) == words


def test_what_has_no_ratio_or_no_bound_is_not_known():
    assert says(None, 0.1) == "nothing to compare"
    assert interval(None, str) == "–"
    assert interval({"low": None, "high": None}, str) == "–"
    assert interval({"low": 1.5, "high": None}, str) == "1.5 to ∞"
    assert interval({"low": None, "high": 1.5}, str) == "0 to 1.5"


NOTHING = {"p50": None, "p90": None, "p99": None}


def compared(**more):
    side = {
        "requests": {"total": 1204, "failed": 4}, "attainment": 0.9, "requests_per_s": 1.5, "output_tokens_per_s": None,
        "goodput_per_s": 1.0, "running": 2.26,
        **dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s", "gap_s"), NOTHING),
    }  # fmt: skip
    return {
        "a": side,
        "b": side | {"attainment": 0.7},
        "ratios": {},
        "relevant": 0.1,
        "mix": {},
        "attainment": None,
    } | more


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(-0.25, -0.15, "B is worse"), (0.1, 0.2, "B is better"), (-0.1, 0.1, "not decided"), (0.0, 0.1, "not decided"),
     (None, -0.1, "not decided")],
)  # fmt: skip
def test_a_difference_of_attainments_says_no_more_than_its_interval(low, high, words):
    row, *_ = counts(compared(attainment={"estimate": -0.2, "low": low, "high": high}))
    assert (row["A"], row["B"], row["B ÷ A"], row["says"]) == ("90 %", "70 %", "−20.0 points", words)


def test_a_table_has_units_and_nothing_for_what_is_not_known():
    attainment, requests, failed, rate, tokens, good, running = counts(compared())
    assert attainment["says"] == "no SLO judges both"
    assert (requests["A"], failed["A"], rate["A"], tokens["A"], good["A"]) == ("1\u202f204", "4", "1.50", "–", "1.00")
    assert running["A"] == "2.3"
    told = compared(ratios={"ttft": {"p99": {"estimate": 3.78, "low": 3.53, "high": 4.05}}})
    told["a"] |= {"ttft_s": NOTHING | {"p99": 1.9}}
    row = next(row for row in latencies(told) if row.name == "TTFT P99")
    assert (row.a, row.interval, row.says) == ("1.90 s", "3.53 to 4.05", "B is slower")
    assert [row.says for row in latencies(told)].count("nothing to compare") == 14
    (prompt,) = mix(compared(mix={"input": {"a": 601.0, "b": 3585.0, "differs": True}}))
    assert list(prompt.values()) == ["prompt tokens, median", "601", "3\u202f585", "", "", "another mix"]


@pytest.mark.parametrize(
    ("chosen", "a", "b"),
    [
        (
            {"a.variant": "v1", "b.variant": "v2"},
            {"start": VIEW.start, "end": VIEW.end, "tenant": "a", "variant": "v1"},
            {"start": VIEW.start, "end": VIEW.end, "tenant": "a", "variant": "v2"},
        ),
        (
            {"a.instance": "i", "b.instance": "k"},
            {"start": VIEW.start, "end": VIEW.end, "tenant": "a", "variant": "v3", "instance": "i"},
            {"start": VIEW.start, "end": VIEW.end, "tenant": "a", "variant": "v3", "instance": "k"},
        ),
        (
            {"at": "2026-11-21T10:30:00Z", "span": "15m"},
            {"start": "2026-11-21T10:15:00Z", "end": "2026-11-21T10:30:00Z", "tenant": "a", "variant": "v3"},
            {"start": "2026-11-21T10:30:00Z", "end": "2026-11-21T10:45:00Z", "tenant": "a", "variant": "v3"},
        ),
        (
            {"at": "2026-11-21T10:30:00Z", "span": "2h", "b.variant": "v4"},  # of a link that somebody has changed
            {"start": "2026-11-21T09:30:00Z", "end": "2026-11-21T10:30:00Z", "tenant": "a", "variant": "v3"},
            {"start": "2026-11-21T10:30:00Z", "end": "2026-11-21T11:30:00Z", "tenant": "a", "variant": "v4"},
        ),
        (
            sides.times(VIEW, timedelta(days=1)),
            {"start": "2026-11-20T10:00:00Z", "end": "2026-11-20T11:00:00Z", "tenant": "a", "variant": "v3"},
            {"start": VIEW.start, "end": VIEW.end, "tenant": "a", "variant": "v3"},
        ),
    ],
)
def test_the_curves_are_of_the_same_requests_as_the_comparison(chosen, a, b):
    asked = [sides.params(VIEW, chosen, side) for side in "ab"]
    assert [sorted(one) for one in asked] == [sorted(one.items()) for one in (a, b)]  # each of them once


def test_the_time_before_a_range_ends_where_it_begins():
    assert sides.times(VIEW, None) == {
        "a.start": "2026-11-21T09:00:00Z", "a.end": VIEW.start, "b.start": VIEW.start, "b.end": VIEW.end,
    }  # fmt: skip


def change(value, before, dimension="variant", at="2026-11-21T10:30:00Z"):
    return {"dimension": dimension, "value": value, "before": before, "at": at, "service": "s"}


def test_without_a_choice_the_newest_value_stands_beside_the_one_before():
    values = {"variant": [{"value": "v3", "requests": 9}, {"value": "", "requests": 5}, {"value": "v1", "requests": 3}]}
    changes = [change("v2", ["v1"]), change("v3", ["v1", "v2"]), change("m", ["l"], "model"), change("v0", [])]
    assert sides.suggested("variant", VIEW, values, changes) == {"a.variant": "v2", "b.variant": "v3"}
    assert sides.suggested("variant", VIEW, values, []) == {"a.variant": "v3", "b.variant": "v1"}
    assert sides.suggested("tenant", VIEW, values, changes) == {}
    assert sides.suggested("change", VIEW, values, changes) == {"at": changes[-1]["at"], "span": "1h"}
    assert sides.suggested("change", VIEW, values, []) == {}
    assert [sides.first_choice(values, []), sides.first_choice({}, changes), sides.first_choice({}, [])] == [
        "variant", "change", "time",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "by"),
    [
        ({"at": "-1h"}, "change"),
        ({"a.start": "-2h", "b.model": "m"}, "time"),
        ({"b.model": "m"}, "model"),
        ({"a.instance": "i"}, "instance"),
        ({}, None),
    ],
)
def test_a_link_says_what_the_sides_differ_in(given, by):
    assert sides.compared_by(given) == by


def grid(*rows):
    edges = [0.001 * 10**i for i in range(len(rows) + 1)]
    cells = [{"x": 0, "y": y, "requests": n} for y, n in enumerate(rows) if n]
    return {"edges_s": edges, "cells": [*cells, {"x": 0, "y": None, "requests": 99}]}


def test_a_curve_begins_at_none_and_ends_at_all_of_those_with_the_latency():
    assert [share for _, share in curves.shares(grid(1, 0, 3))] == [0.0, 0.25, 0.25, 1.0]
    assert curves.shares({"edges_s": [], "cells": []}) == []
    assert curves.at(curves.shares(grid(1, 0, 3)), 0.5) == 1.0


def test_curves_share_a_logarithmic_axis_and_names_of_others_are_no_markup():
    told = {"A: <b>": curves.shares(grid(1, 1)), "B": curves.shares(grid(2)), "C": []}
    image = curves.drawn("TTFT", told, ["#111111", "#222222", "#333333"])
    assert 'alt="TTFT, share of requests below. A: &lt;b&gt;: half below 10.0 ms; B: half below 10.0 ms"' in image
    svg = b64decode(re.search(r"base64,([^\"]+)", image)[1]).decode()
    (a, b, *_) = (
        [float(point.split(",")[0]) for point in line.split()] for line in re.findall(r'points="([^"]+)"', svg)
    )
    assert a[1] - a[0] == pytest.approx(a[2] - a[1], abs=0.2)  # tenfold is as far as tenfold
    assert b == a[:2]
    assert (a[0], a[-1]) == (curves.LEFT, curves.WIDTH - 8)
    ticks = re.findall(r'<text x="([^"]+)"[^>]*>([^<]*)', svg)
    assert [told for _, told in ticks] == ["0%", "50%", "90%", "100%", "1.00 ms", "10.0 ms", "100 ms"]
    assert [float(x) for x, _ in ticks[-3:]] == a
    assert curves.drawn("TTFT", {"A": []}, ["#111111"]) == ""
    assert "&lt;i&gt; (1\u202f204)" in curves.legend(["<i>"], [1204], ["#111111"])


def test_a_cell_begins_with_no_sign_that_a_spreadsheet_takes_for_a_formula():
    for low, high in ((0.000459, 0.2), (-0.1, 0.1), (0.1, None)):
        row, *_ = counts(compared(attainment={"estimate": 0.12, "low": low, "high": high}))
        assert {text[:1] for text in row.values()} & {"+", "-", "=", "@"} == set()
    assert row["B ÷ A"] == "12.0 points"


def row(estimate=2.0, low=1.8, high=2.2, says="B is slower"):
    return forest.Row("TTFT P50", "1 s", "2 s", {"estimate": estimate, "low": low, "high": high}, "1.8 to 2.2", says)


def plotted(*rows):
    """Of each row the left end, the width, the arrows and the place of the estimate, in percent of the axis."""
    html = forest.drawn(rows, 0.1)
    cells = re.findall(r'<td class="plot" aria-hidden="true">(.*?)</td>', html)
    place = r"<b style=.left:([\d.]+)%;width:([\d.]+)%"
    return [
        (
            *(tuple(map(float, found[0])) if (found := re.findall(place, cell)) else (None, None)),
            "".join({"from": "◀", "to": "▶"}[way] for way in re.findall(r'<i class="(from|to)">', cell)),
            *(map(float, re.findall(r'class="at" style="left:([\d.]+)%', cell))),
        )
        for cell in cells
    ]


def test_a_forest_plot_has_a_line_from_bound_to_bound_and_an_arrow_where_there_is_none():
    assert plotted(row(1.0, 2**-0.5, 2**0.5)) == [(25.0, 50.0, "", 50.0)], "half to twice, by factors"
    assert plotted(row(1.0, None, 2**0.5)) == [(0.0, 75.0, "◀", 50.0)]
    assert plotted(row(1.0, 0.0, 2**0.5)) == [(0.0, 75.0, "◀", 50.0)]
    assert plotted(row(1.0, 2**-0.5, None)) == [(25.0, 75.0, "▶", 50.0)]
    assert plotted(row(1.0, None, None)) == [(None, None, "", 50.0)]
    assert plotted(forest.Row("x", "–", "–", None, "–", "nothing to compare")) == [(None, None, "")]


def test_a_bound_that_is_far_off_does_not_squeeze_the_others():
    assert forest.span([row(), row(3.0, 2.5, 40.0)]) == (0.5, 4.0)
    assert forest.span([row(0.2, 0.15, 0.3)]) == (0.125, 2.0)
    assert forest.span([row(0.04, None, None)]) == (0.5, 2.0), "nobody knows how good it is"
    assert plotted(row(0.04, None, None)) == [(None, None, "")]
    assert forest.span([row(900.0, 800.0, 950.0)]) == (0.5, 32.0)
    assert plotted(row(1.0, 0.001, 900.0)) == [(0.0, 100.0, "◀▶", 50.0)]
    assert plotted(row(900.0, 800.0, 950.0)) == [(100.0, 0.0, "▶", 100.0)]


def test_a_forest_plot_is_a_table_with_the_band_of_the_same():
    html = forest.drawn([row(), row(1.0, 0.97, 1.03, "the same, within 10 %"), row(0.5, 0.4, 0.6, "B is faster")], 0.1)
    assert re.findall(r'<tr class="(\w+)">', html) == ["bad", "same", "good"]
    assert re.findall(r"<em[^>]*>(.*?)</em>", html) == ["×0.25", "×0.5", "×1", "×2", "×4"]
    assert "<td>1 s</td><td>2 s</td>" in html
    assert "<td>× 2.00</td><td>1.8 to 2.2</td><td>B is slower</td>" in html
    left, width = map(float, re.search(r'<u style="left:([\d.]+)%;width:([\d.]+)%', html).groups())
    assert left + width / 2 == pytest.approx(50.0, abs=0.1)
    assert "<script" not in forest.drawn([forest.Row("<script>", "", "", None, "", "<script>")], 0.1)
