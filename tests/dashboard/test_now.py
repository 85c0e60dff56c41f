"""The page Now over answers that a test makes up, and its rules that need no browser."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

import httpx
import pytest
import streamlit

from dashboard import address
from dashboard.api import forget
from dashboard.components import small
from dashboard.filters import View, around
from dashboard.views import happened, now, slos
from tokentrail.shared.formatting import instant

START, END = "2026-11-21T09:00:00Z", "2026-11-21T10:00:00Z"
WINDOW = {"start": START, "end": END, "complete_until": END, "seconds": 3600.0, "covered_s": 3600.0}
VIEW = View(START, END, (("tenant", "acme"),), None, None, UTC)
NS = 1_000_000_000


def at_ns(text):
    return round(instant(text).timestamp()) * NS


def link(page="explore", url=None, **params):
    return {"title": f"to {page}", "page": page, "params": params, "url": url}


def box(kind="slo_burn", title="SLO burns", *, since="2026-11-21T09:30:00Z", until=None, firing=True, **more):
    known = {
        "kind": kind, "title": title, "sentence": "Since 09:30 UTC. 5 bad.", "why": None, "group": None,
        "dimension": None, "value": None, "slo": "chat", "bad": 5,
        "firing": firing, "severity": "page",
        "service": "s", "instance": "i", "requests": 1, "since_ns": at_ns(since), "until_ns": until and at_ns(until),
        "links": [], "inside": [],
    }  # fmt: skip
    return known | more


def burn(long_s=3600.0, long_burn=2.0, *, firing=False):
    return {
        "name": "page-fast", "severity": "page", "short_s": 300.0, "long_s": long_s, "threshold": 14.4,
        "short_burn": long_burn, "long_burn": long_burn, "firing": firing,
    }  # fmt: skip


def slo(name="chat", **more):
    known = {
        "name": name, "description": "Chat.", "objective": 0.95, "window_s": 604800.0, "select": {}, "attainment": 0.97,
        "budget_left": 0.4, "exhausted_in_s": None, "burn": [burn()], "firing": None, "errors": None, "warning": None,
        "thresholds": {"ttft_s": 0.5, "tpot_s": 0.1, "e2e_s": None}, "groups": [], "groups_total": 0,
        "requests": {"total": 9, "in_flight": 0, "in_flight_violations": 0},
    }  # fmt: skip
    return known | more


def verdict(state="kept", **more):
    known = {
        "window": WINDOW, "state": state, "sentence": "All 2 SLOs are kept.", "who": None, "why": None, "without": None,
        "slo": None, "since_ns": None, "last_request_ns": None, "links": [], "boxes": [], "odd": [], "slos": [slo()],
        "slo_file_problem": None,
        "firing_outside": 0,
    }  # fmt: skip
    return known | more


def series(*values, step_s=60.0):
    begin = instant(START)
    return {
        "step_s": step_s, "window": WINDOW,
        "points": [
            {"t": (begin + timedelta(seconds=i * step_s)).isoformat(), "value": v}
            for i, v in enumerate(values)
            if v is not None
        ],
    }  # fmt: skip


def answers(told, **others):
    def answer(path):
        if path == "verdict":
            return told
        known = {
            "heatmap": {"edges_s": [], "cells": []},
            "engines": {"engines": [{"engine": "vllm", "tells": []}]},
            "slos": {"slos": []},
            "labels": {"labels": {}},
        }
        return others.get(path) or known.get(path) or series(*[2.0] * 60)

    return answer


def html(shown):
    return "".join(element.proto.body for element in shown.get("html"))


def texts(shown):
    return re.sub(r"<[^>]*>", " ", html(shown))


def test_the_sentence_is_first_then_who_why_and_what_fires(show):
    told = verdict(
        "broken", sentence="chat is not kept: 86 % good.", who="93 % are v2.4.", why="Cause: KV.",
        without="Without it, 96 %.",
        links=[link(slo="chat", verdict="bad"), link("runbook", url="https://runbooks.example/#a")],
        boxes=[
            box("engine_hung", "a hangs", inside=[box(title="chat burns", why="Cause: stall.")]),
            box("cold_start", "b started", firing=False),
        ],
    )  # fmt: skip
    shown = show("", answers(told))
    assert (len(shown.exception), len(shown.error)) == (0, 0)
    words = texts(shown)
    order = [
        "chat is not kept",
        "93 % are v2.4.",
        "Cause: KV.",
        "Without it, 96 %.",
        "a hangs",
        "chat burns",
        "b started",
    ]
    assert [words.index(word) for word in order] == sorted(words.index(word) for word in order)
    fires = html(shown).split('class="tt-slos"')[0]
    assert "a hangs" in fires
    assert "b started" not in fires, "it is over, and stands below"
    assert 'href="https://runbooks.example/#a" target="_blank"' in fires


@pytest.mark.parametrize(("state", "title"), [("kept", "Kept, and odd"), ("broken", "Odd besides")])
def test_what_is_odd_stands_below_with_whose_and_its_list(monkeypatch, state, title):
    drawn = []
    monkeypatch.setattr(streamlit, "html", drawn.append)
    bounds = {"start": "2026-11-21T02:00:00Z", "end": "2026-11-21T04:00:00Z", "metric": "ttft", "at_least": "451000us"}
    one = {
        "sentence": "From 02:00 UTC to 04:00 UTC. 60 waited.", "who": "<b>globex</b>", "links": [link(**bounds)],
        "since_ns": at_ns(bounds["start"]), "until_ns": at_ns(bounds["end"]),
    }  # fmt: skip
    happened.odd(verdict(state, odd=[one, one | {"who": None}]), replace(VIEW, zone=ZoneInfo("Europe/Berlin")))
    (told,) = drawn
    assert (title in told, told.count('class="in"')) == (True, 2)
    assert "From 03:00 CET to 05:00 CET. 60 waited. &lt;b&gt;globex&lt;/b&gt;" in told
    asked = dict(parse_qsl(urlsplit(unescape(re.search(r'href="([^"]*)"', told)[1])).query))
    assert (asked["lo"], asked["metric"]) == ("0.451", "ttft")
    assert (asked["start"], asked["end"]) == (bounds["start"], bounds["end"])
    happened.odd(verdict(state), VIEW)
    assert len(drawn) == 1, "a quiet day has no such box"


def test_a_range_that_is_over_is_not_red_and_times_of_sentences_are_the_readers(monkeypatch):
    drawn = []
    monkeypatch.setattr(streamlit, "html", drawn.append)
    told = verdict("broken", sentence="chat is not kept. Since 09:30 UTC.", since_ns=at_ns("2026-11-21T09:30:00Z"))
    told["boxes"] = [box(until="2026-11-21T09:40:00Z", sentence="From 09:30 UTC to 09:40 UTC. At 09:35 UTC of others.")]
    zoned = replace(VIEW, zone=ZoneInfo("Europe/Berlin"))
    for now_s, first in ((30, "chat is not kept"), (600, "At 11:00: chat is not kept")):
        monkeypatch.setattr(address, "moment", lambda at=now_s: instant(END) + timedelta(seconds=at))
        happened.verdict(told, zoned, is_old=False)
        assert f"{first}. Since 10:30 CET." in drawn[-1]
        assert "From 10:30 CET to 10:40 CET. At 09:35 UTC of others." in drawn[-1]
        assert [" past" in part for part in drawn[-1].split("<div class=")[1:]] == [now_s == 600] * 2


def test_all_parts_of_the_page_are_of_one_moment(show):
    for page in ("", "tail"):
        show.asked.clear()
        show(page, answers(verdict()), range="1h")
        asked = [(path, params) for path, params in show.asked if params.get("end") not in (None, "now")]
        live = {(params["start"], params["end"]) for path, params in asked if params.get("step") != "7200s"}
        assert len(live) == 1, asked
        assert {"": "verdict", "tail": "explain"}[page] in {path for path, _ in asked}


def test_the_history_is_asked_in_steps_that_are_over(show):
    show("", answers(verdict()))
    ((path, params),) = [(path, params) for path, params in show.asked if params.get("step") == "7200s"]
    assert (path, params["metric"], params["slo"]) == ("timeseries", "attainment", "chat")
    assert (params["start"], params["end"]) == ("2026-11-14T10:00:00Z", "2026-11-21T10:00:00Z")


@pytest.mark.parametrize(
    ("state", "more", "is_old", "look"),
    [
        ("kept", {}, False, "good"),
        ("kept", {}, True, "quiet"),
        ("kept", {"firing_outside": 2}, False, "quiet"),
        ("broken", {}, True, "bad"),
        ("of a newer collector", {}, False, "quiet"),
    ],
)
def test_old_numbers_and_what_fires_outside_of_the_filters_are_no_all_clear(monkeypatch, state, more, is_old, look):
    drawn = []
    monkeypatch.setattr("dashboard.views.happened.st.html", drawn.append)
    happened.verdict(verdict(state, **more), VIEW, is_old=is_old)
    assert re.search(r"tt-verdict (\w+)", drawn[0])[1] == look
    assert ("outside of these filters" in drawn[0]) == bool(more)


def test_many_boxes_are_one_click_away_and_counted(monkeypatch, show):
    shown = show("", answers(verdict("broken", boxes=[box(title=f"fires {i}") for i in range(450)])))
    (more,) = [one for one in shown.expander if one.label.endswith("more")]
    assert more.label == "446 more"
    assert "Not drawn: 420." in [caption.value.split(" `")[0] for caption in more.caption]
    assert html(shown).count('class="tt-box') == happened.MOST_DRAWN


def test_what_happened_is_told_newest_first_with_past_burns(show):
    boxes = [
        box("engine_hung", "hangs", since="2026-11-21T09:50:00Z"),
        box("slo_burn", "burst", since="2026-11-21T09:10:00Z", until="2026-11-21T09:25:00Z", firing=False),
        box("change", "v2.4", since="2026-11-21T09:40:00Z", firing=False),
        box("cold_start", "yesterday", since="2026-11-20T23:00:00Z", until="2026-11-20T23:01:00Z", firing=False),
    ]
    listed = html(show("", answers(verdict("broken", boxes=boxes)), utc="true")).split('class="tt-past"')[1]
    words = re.sub(r"<[^>]*>", " ", listed)
    order = ["hangs", "v2.4", "burst", "yesterday"]
    assert [words.index(word) for word in order] == sorted(words.index(word) for word in order)
    assert "09:10 to 09:25" in words
    assert "Nov 20 23:00 to 23:01" in words


def test_names_of_others_are_text(show):
    evil = '"><img src=x onerror=alert(1)><a href="javascript:alert(1)">x</a>\u202e' + "n" * 500
    boxes = [
        box(
            "engine_hung",
            evil,
            instance=evil,
            sentence=evil,
            why=evil,
            inside=[box(title=evil)],
            links=[link(service=evil)],
        )
    ]
    bad = slo(evil, description=evil, groups=[{"tenant": evil, "attainment": 0.5}], groups_total=1)
    told = verdict(
        "broken",
        sentence=evil,
        who=evil,
        why=evil,
        boxes=boxes,
        slos=[bad],
        links=[link("runbook", url="javascript:alert(1)")],
    )
    drawn = html(show("", answers(told)))
    assert "<img" not in drawn
    assert "javascript:alert(1)&quot;&gt;x" in drawn
    assert not re.search(r'href="javascript', drawn)
    assert "\u202e" not in drawn
    assert "n" * 401 not in re.sub(r"<[^>]*>", "", drawn)


def test_a_typo_in_a_running_slo_file_is_said(show):
    shown = show("", answers(verdict("kept", slo_file_problem="slos.yaml: slos[0].windw: unknown *field*")))
    (said,) = [one.value.replace("\\", "") for one in shown.warning]
    assert said == "The newest SLO file is not in use: slos.yaml: slos[0].windw: unknown *field*"
    assert [one.value for one in show("", answers(verdict("kept"))).warning] == []


def test_an_empty_store_shows_how_to_connect_and_nothing_else(show):
    nothing = verdict("quiet", sentence="No request ended in this range. None has ended yet.", slos=[slo()])
    collector = {
        "listeners": {"otlp-http": "http://0.0.0.0:24318", "otlp-grpc": "http://[::1]:24317"}, "payloads_received": 3,
        "payloads_refused": {"unreadable": 2, "too_large": 0}, "spans_received": 1200, "spans_left_out": {},
    }  # fmt: skip
    shown = show("", answers(nothing, engines={"engines": [], "window": WINDOW}, collector=collector))
    how, arrived = (one.value for one in shown.markdown if "OTLP" in one.value or "Arrived" in one.value)
    assert "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:24318`" in how
    assert "`http://[::1]:24317` (gRPC)" in how
    assert arrived.replace("\\", "") == (
        "Arrived so far: 3 payloads, refused 2 (unreadable: 2); 1 200 spans, left out 0."
    )
    assert html(shown).count('tt-slos"') == 0
    shown = show(
        "", answers(nothing, engines={"engines": [], "window": WINDOW}, collector=collector | {"listeners": {}})
    )
    (how,) = (one.value for one in shown.markdown if "OTLP" in one.value)
    assert re.findall(r"http://[^:`]+:(\d+)`", how) == ["4318", "4318", "4317"], "the usual ones"
    seen = show("", answers(nothing))
    assert not any("OTEL_EXPORTER_OTLP_ENDPOINT" in one.value for one in seen.markdown)
    assert 'class="tt-slos"' in html(seen)


def test_a_range_without_requests_leads_to_the_last_one_and_draws_no_chart(show):
    quiet = verdict("quiet", sentence="No request ended in this range.", last_request_ns=at_ns("2026-11-21T06:44:00Z"))
    shown = show("", answers(quiet), utc="true")
    (jump,) = [button for button in shown.button if button.key == "jump"]
    assert jump.label == "Jump to the last data (Nov 21 06:44)"
    drawn = [element.key for element in shown.get("bidi_component")]
    assert drawn == ["keyboard"], "no chart, and no strip"
    shown = jump.click().run()
    assert shown.session_state["range"] == "custom"
    begin, until = (instant(shown.session_state[name]) for name in ("start", "end"))
    assert begin < datetime(2026, 11, 21, 6, 44, tzinfo=UTC) < until


def test_the_last_data_is_near_the_end_of_its_range_and_not_in_the_future():
    at = datetime(2026, 11, 21, 6, 44, tzinfo=UTC)
    assert around(at, VIEW) == (at - timedelta(minutes=57), at + timedelta(minutes=3))
    just_now = datetime.now(UTC)
    assert around(just_now, VIEW)[1] <= just_now


def test_an_engine_that_tells_little_is_one_line_and_no_empty_axes(show):
    tells = [
        {"what": what, "told": told, "ways": ["install the package beside vLLM"], "reason": "spans"}
        for what, told in (("itl", "none"), ("kv", "none"), ("queue", "full"), ("preemption", "none"))
    ]
    engines = {"engines": [{"engine": "vllm", "tells": tells}] * 3}

    def answer(path):
        return answers(verdict(), engines=engines)(path) if path != "timeseries" else series()

    shown = show("", answer)
    assert {params["metric"] for path, params in show.asked if path == "timeseries"} == {*now.CHARTED}
    lines = [caption.value for caption in shown.caption if "vllm" in caption.value]
    assert len(lines) == 1
    assert "ITL, KV cache, preemptions" in lines[0]
    assert "install the package" in lines[0]
    drawn = now.drawable({"requests": series(2.0), "running": series(), "kv_usage": series()}, WINDOW, None, None)
    assert [chart.title for chart in drawn if chart.is_known] == ["Requests"]


def test_a_panel_that_cannot_be_drawn_says_so_alone(show):
    broken = httpx.Response(503, json={"title": "The store is away", "detail": "wait"})
    shown = show("", lambda path: broken if path == "timeseries" else answers(verdict("broken"))(path))
    assert [error.value for error in shown.error] == ["**The store is away**\n\nwait"]
    assert 'class="tt-slos"' in html(shown)
    assert 'class="tt-verdict bad"' in html(shown)


def test_the_last_answer_stays_under_a_warning_while_the_collector_gives_none(show):
    told = [answers(verdict("broken", sentence="chat is not kept: 86 % good."))]
    shown = show("", lambda path: told[-1](path), utc="true", range="custom", start=START, end=END)
    assert not shown.warning
    told.append(lambda _: httpx.Response(503, json={"title": "The store is away", "detail": "wait"}))
    forget()
    shown.run()
    assert any("These are the numbers of" in one.value for one in shown.warning)
    assert "chat is not kept" in html(shown)
    shown.query_params["tenant"] = "acme"
    shown.run()
    assert "chat is not kept" not in html(shown), "of another selection"


def length_of(left):
    found = re.search(r"left:([\d.]+)%;width:([\d.]+)%", slos.budget(left))
    return float(found[1]), float(found[2])


def test_budgets_that_are_overspent_by_different_amounts_look_different():
    lengths = [length_of(left)[1] for left in (-0.05, -0.89, -1.8364, -7.15, -10.0, -16.18)]
    assert lengths == sorted(lengths)
    assert lengths[3] - lengths[1] > 20, "of 50"
    assert lengths[2] - lengths[1] > 5
    assert lengths[-1] == 50.0
    assert length_of(-1.0)[0] + length_of(-1.0)[1] == pytest.approx(50.0), "to the left"
    assert length_of(0.5) == (50.0, 25.0), "to the right"
    assert slos.budget(None) == ""


def test_colours_of_budgets_and_times_change_behind_their_bounds():
    colours = [re.search(r"background:(#\w+)", slos.budget(left))[1] for left in (0.26, 0.25, 0.0, -0.01)]
    assert colours == ["#64748b", "#f59e0b", "#f59e0b", "#e1323c"]
    window = {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T15:00:00Z"}
    points = [{"t": f"2026-11-21T1{n}:00:00Z", "value": value} for n, value in enumerate((0.75, 0.74, 0.25, 0.24))]
    told = slos.cells({"points": points, "step_s": 3600, "window": window}, 0.75, VIEW)
    drawn = re.findall(r"height:([\d.]+)(?:%|px);background:([^\"]+)", told)
    assert [colour for _, colour in drawn[:4]] == ["#94a3b8", "#f59e0b", "#f59e0b", "#e1323c"]
    assert [height for height, _ in drawn] == ["100", "98", "58", "57", "2"]
    assert "of 5 times 1 h: the lowest 24 %" in told
    (worst,) = re.findall(r"height:(\d+)%", slos.cells({
        "points": [{"t": window["start"], "value": 0.0}], "step_s": 18_000, "window": window}, 0.99, VIEW))  # fmt: skip
    assert worst == "18"


def test_a_budget_stands_in_a_cell_of_its_own():
    row = slos.row(slo(budget_left=-1.8364, exhausted_in_s=0.0), None, VIEW)
    (cell,) = re.findall(r'<td class="n" data-name="budget left">(.*?)</td>', row)
    assert re.sub(r"<[^>]*>", "", cell).split() == ["−183.64", "%", "gone"]
    assert "gone in 3 h" in slos.row(slo(exhausted_in_s=10_800.0), None, VIEW)
    assert not re.search(r"\d /[smhd]", re.sub(r"<[^>]*>", " ", row)), "no rate of a day from eight minutes"


def test_the_last_hour_and_the_burn_come_from_the_rules():
    assert slos.last_hour(slo()) == pytest.approx(0.90)
    assert slos.last_hour(slo(burn=[burn(long_s=21_600.0)])) is None
    assert slos.last_hour(slo(burn=[burn(long_burn=None)])) is None
    assert slos.burn(slo()) == "2.0×"
    assert "6.0×</b> page" in slos.burn(slo(burn=[burn(long_s=21_600.0, long_burn=6.0, firing=True), burn()]))
    assert slos.burn(slo(burn=[])) == "–"


def test_tenants_are_told_the_worst_first():
    groups = [
        {"tenant": name, "attainment": a} for name, a in (("a", 0.99), ("b", 0.5), ("c", None), ("d", 0.95), ("", 0.94))
    ]
    words = (
        re.sub(r"<[^>]*>", "", slos.tenants(slo(groups=groups, groups_total=9), VIEW))
        .replace("&nbsp;", " ")
        .split("   ")
    )
    assert [word.strip() for word in words] == ["b 50 % ✕", "(none) 94 % ✕", "d 95 % ✓", "a 99 % ✓ and 5 more"]
    assert "more" not in slos.tenants(slo(groups=groups[:2], groups_total=2), VIEW)
    assert "and 1 more" in slos.tenants(slo(groups=groups[:2], groups_total=3), VIEW)
    assert "tenant=b" in slos.tenants(slo(groups=groups[1:2]), VIEW)
    assert "acme" not in slos.tenants(slo(groups=groups[1:2]), VIEW), "and not the page's own tenant"


@pytest.mark.parametrize(("days", "step_h", "cells"), [(1, 1, 24), (7, 2, 84), (28, 8, 84), (30, 12, 60), (90, 48, 45)])
def test_a_history_has_a_cell_for_each_step_of_the_window(days, step_h, cells):
    asked = slo(window_s=days * 86400.0)
    assert slos.history_step_h(asked) == step_h
    assert days * 24 / step_h == cells


def test_a_history_marks_when_the_promise_was_not_kept():
    window = {"start": "2026-11-21T00:00:00Z", "end": "2026-11-21T10:00:00Z"}
    values = (("00", 1.0), ("02", 0.96), ("04", 0.90), ("08", 0.2))
    history = {
        "step_s": 7200.0, "window": window,
        "points": [{"t": f"2026-11-21T{hour}:00:00Z", "value": value} for hour, value in values],
    }  # fmt: skip
    drawn = slos.cells(history, 0.95, VIEW)
    colours = re.findall(r"background:([^\"]+)\"", drawn)
    assert colours == ["#94a3b8", "#94a3b8", "#f59e0b", "rgba(128,136,150,.35)", "#e1323c"]
    assert "Nov 21 08:00: 20 %" in drawn
    assert "attainment of 5 times 2 h: the lowest 20 %" in drawn


def test_an_incident_becomes_a_band_of_its_time_and_a_burn_inside_another_none():
    boxes = [
        box(
            "kv_eviction",
            "x",
            since="2026-11-21T08:00:00Z",
            until="2026-11-21T09:10:00Z",
            instance="vllm-a",
            firing=False,
        ),
        box("engine_hung", "y", inside=[box()]),
        box("change", "x", since="2026-11-21T09:40:00Z", firing=False, dimension="variant", value="v2.4"),
        box("slo_burn", "x", since="2026-11-21T09:41:00Z", until="2026-11-21T09:42:00Z", group="waiting for a place"),
        box("slo_burn", "x", since="2026-11-21T09:42:00Z", until="2026-11-21T09:43:00Z", bad=1, group="stall"),
        box("slo_burn", "x", since="2026-11-21T09:43:00Z", until="2026-11-21T09:44:00Z"),
        box("process", "a new one", since="2026-11-21T09:45:00Z", firing=False, instance="j"),
        box("cold_start", "z", since="2026-11-21T07:00:00Z", until="2026-11-21T07:10:00Z", firing=False),
    ]
    bands = now.bands(boxes, WINDOW)
    assert [band.text for band in bands] == [
        "KV storm vllm-a", "hang i", "s: variant v2.4", "waiting for a place", "chat burns", "a new one",
    ]  # fmt: skip
    assert [(band.start.minute, band.end.minute, band.end.hour) for band in bands] == [
        (0, 10, 9),
        (30, 0, 10),
        (40, 40, 9),
        (41, 42, 9),
        (43, 44, 9),
        (45, 45, 9),
    ]


def test_answers_that_are_bad_before_their_end_are_a_mark_at_the_end_of_the_time():
    def requests(n):
        return {"requests": {"total": 9, "in_flight": n, "in_flight_violations": n}}

    many = [slo("chat", **requests(3)), slo("all", **requests(7))]
    (mark,) = now.marks(verdict(slos=many, boxes=[]))
    assert mark.text == "7 bad now"
    assert (mark.start, mark.end) == (instant(END) - timedelta(minutes=1), instant(END))
    assert now.marks(verdict(slos=[slo("chat", **requests(0))], boxes=[])) == []
    assert now.marks(verdict(slos=[], boxes=[])) == []


def test_a_link_of_an_answer_keeps_its_times_and_the_pages_other_filters():
    from dashboard.links import of_answer

    told = of_answer(link(start="2026-11-21T09:10:00Z", verdict="bad", tenant="globex"), VIEW)
    (href,) = re.findall('href="([^"]*)"', told)
    assert href == (
        "/explore?range=custom&amp;start=2026-11-21T09%3A10%3A00Z&amp;end=2026-11-21T10%3A00%3A00Z&amp;verdict=bad&amp;tenant=globex"
    )
    assert "tenant=acme" in of_answer(link("engines", service="s"), VIEW)
    assert "sel=s%2Fi-1%2Facme" in of_answer(link("engines", service="s", instance="i-1", process_tenant="acme"), VIEW)
    assert of_answer(link("compare", at="2026-11-21T09:40:00Z", span="1h"), VIEW).count("range") == 0


def test_cold_starts_of_a_deployment_and_new_processes_are_told_once():
    v24 = box("change", "v2.4", since="2026-11-21T09:40:00Z", firing=False, instance=None)
    started = {"since": "2026-11-21T09:38:00Z", "until": "2026-11-21T09:40:00Z", "firing": False, "requests": 0}
    of_v24 = box("cold_start", "a started", **started, instance="a")
    waited = box("cold_start", "b started", **started | {"requests": 3}, instance="b")
    new = box("process", "new: b", firing=False, instance="b", inside=[box(title="burned", firing=False)])
    lone = box("process", "new: c", firing=False, instance="c")
    elsewhere = box("cold_start", "d started", **started, instance="d", service="other")
    later = box("cold_start", "e started", **started | {"since": "2026-11-21T09:10:00Z"}, instance="e")
    told = {one["title"]: one for one in happened.folded([v24, of_v24, waited, new, lone, elsewhere, later])}
    assert [*told] == ["v2.4", "b started", "new: c", "d started", "e started"]
    assert told["v2.4"]["also"] == ["a started"]
    assert [one["title"] for one in told["b started"]["inside"]] == ["burned"]
    storm = box("kv_eviction", "storm", since="2026-11-21T09:10:00Z", until="2026-11-21T09:20:00Z", firing=False)
    during = {"since": "2026-11-21T09:15:00Z", "until": "2026-11-21T09:25:00Z", "firing": False}
    waits = box("kv_wait", "waits", **during, inside=[box(title="burned", firing=False)])
    other, after = box("kv_wait", "x", **during, instance="j"), box("kv_wait", "y", **during | {"since": END})
    told = {one["title"]: one for one in happened.folded([waits, other, storm, after])}
    assert [*told] == ["x", "storm", "y"]
    assert (told["storm"]["also"], [one["title"] for one in told["storm"]["inside"]]) == (["waits"], ["burned"])
    firing = box("process", "new: b", instance="b", firing=True)
    assert len(happened.folded([waited, firing])) == 2, "what fires is never hidden"


def test_last_week_is_a_dotted_line_of_the_same_hours(show):
    shown = show("", answers(verdict(slos=[slo()])), week="true", range="1h", utc="true")
    assert (len(shown.exception), len(shown.error)) == (0, 0)
    asked = [params for path, params in show.asked if path == "timeseries" and params["step"] == "60s"]
    then = [params["metric"] for params in asked if params["start"] == "2026-11-14T09:00:00Z"]
    assert sorted(then) == ["attainment", "requests"]
    assert {params["end"] for params in asked if params["metric"] in then} >= {"2026-11-14T10:00:00Z"}
    line = small.Line("ended", "#000000", [1.0, 2.0])
    chart = small.Chart("Requests", "rate", [line, replace(line, name="good")])
    drawn = now.with_ghosts(chart, {"ended": [3.0, None], "good": [1.0]})
    assert [one.ghost for one in drawn.lines] == [[3.0, None], None], "one of other buckets is left out"


def test_a_range_has_charts_of_96_buckets_or_fewer():
    lengths = {300: 5, 900: 10, 3600: 60, 86_400: 900, 604_800: 7200, 2_592_000: 43_200, 10**9: 86_400}
    lengths |= {96 * step: step for step in now.STEPS_S}
    assert {length: now.step_s({"seconds": length}) for length in lengths} == lengths
    minutes, hours, days = ([one for one in now.STEPS_S if most / 60 <= one < most] for most in (60, 3600, 86_400))
    assert all(60 % one == 0 for one in minutes), "whole numbers of them are a minute, an hour and a day"
    assert all(3600 % one == 0 for one in hours)
    assert all(86_400 % one == 0 for one in days)
    assert all(1 < after / before <= 3 for before, after in pairwise(now.STEPS_S))
