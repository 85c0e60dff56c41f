"""The row above all pages, without a browser: range, filters, ids, and what pauses the refresh."""

import itertools
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from dashboard import address
from tokentrail.shared.formatting import instant

WINDOW = {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T10:15:00Z", "complete_until": "2026-11-21T10:15:00Z"}
RANGE = {"range": "custom", "start": "2026-11-21T10:00:00Z", "end": "2026-11-21T11:00:00Z"}


def told(path):
    """An answer of each path for a range in which nothing ended."""
    known = {
        "slos": {"slos": [{"name": "chat"}]},
        "labels": {"labels": {"tenant": [{"value": "acme", "requests": 1204}, {"value": "", "requests": 2}]}},
        "heatmap": {"window": WINDOW, "cells": [], "edges_s": []},
        "verdict": {"last_request_ns": None, "boxes": [{}], "window": WINDOW, "state": "quiet"},
    }
    return known.get(path) or httpx.Response(404, json={"title": "No such request", "status": 404})


def shown_range(app):
    return app.session_state["start"], app.session_state["end"]


@pytest.mark.parametrize(
    ("key", "start", "end"),
    [
        ("back", "2026-11-21T09:00:00Z", "2026-11-21T10:00:00Z"),
        ("forward", "2026-11-21T11:00:00Z", "2026-11-21T12:00:00Z"),
        ("out", "2026-11-21T09:30:00Z", "2026-11-21T11:30:00Z"),
    ],
)
def test_the_range_moves_by_its_length_and_doubles_around_its_middle(show, key, start, end):
    app = show("explore", told, t0="1795255200", t1="1795255800", **RANGE)
    app.button(key=key).click().run()
    assert shown_range(app) == (start, end)
    assert app.query_params["start"] == start
    assert "t0" not in app.query_params
    (asked,) = [params for path, params in show.asked if path == "heatmap" and params["start"] == start]
    assert asked["end"] == end


@pytest.mark.parametrize("key", ["forward", "out"])
def test_a_range_does_not_move_into_the_future(show, key):
    app = show("explore", told, range="1h")
    app.button(key=key).click().run()
    start, end = (instant(text) for text in shown_range(app))
    assert abs(end - datetime.now(UTC)) < timedelta(minutes=5)
    assert end - start == timedelta(hours=1) * (1.5 if key == "out" else 1)


def test_a_time_that_is_none_stays_for_the_collector_to_refuse(show):
    app = show("explore", told, range="custom", start="yesterday")
    app.button(key="back").click().run()
    assert len(app.exception) == 0
    assert app.query_params["start"] == "yesterday"


def chips(app):
    return [button.label for button in app.button if (button.key or "").startswith("chip-")]


def test_filters_are_offered_typed_in_turned_round_and_removed(show):
    app = show("explore", told, **RANGE)
    box = app.selectbox(key="add")
    assert box.options == ["tenant: acme (1\u202f204)"]
    box.select("tenant: acme (1\u202f204)").run()
    assert app.query_params["tenant"] == "acme"
    assert [params.get("tenant") for path, params in show.asked if path == "heatmap"] == [None, "acme"]
    assert len(chips(app)) == 1
    app = show("explore", told, **{"not.tenant": "acme", "model": "a"}, **RANGE)
    assert [label.replace("\\", "") for label in chips(app)] == ["model: a", "tenant ≠ acme"]
    app.button(key="chip-0").click().run()
    assert "model" not in app.query_params
    assert app.query_params["not.tenant"] == "acme"
    app.selectbox(key="add").select("tenant: acme (1\u202f204)").run()
    assert chips(app) == [r"tenant\: acme"]  # in place of its opposite
    assert "not.tenant" not in app.query_params


def test_what_is_selected_stops_the_refresh_and_keeps_its_time_until_the_reader_resumes(show, monkeypatch):
    seconds = itertools.count()
    now = datetime(2026, 11, 21, 11, tzinfo=UTC)
    monkeypatch.setattr(address, "moment", lambda: now + timedelta(seconds=next(seconds)))
    app = show("explore", told, range="15m", t0="1795255200", t1="1795255800")
    assert "paused while you look" in [one.value for one in app.caption]
    assert [app.session_state["view"].every_s] == [None]
    first = [params for path, params in show.asked if path == "heatmap"][-1]
    app.run()
    assert [params for path, params in show.asked if path == "heatmap"][-1] == first
    app.button(key="resume").click().run()
    assert "paused while you look" not in [one.value for one in app.caption]
    assert [params for path, params in show.asked if path == "heatmap"][-1]["end"] > first["end"]
    assert app.session_state["view"].every_s == 10
    assert {"t0", "t1"}.isdisjoint(app.query_params)
    still = show("explore", told, range="15m", refresh="false", t0="1795255200", t1="1795255800")
    assert "paused while you look" not in [one.value for one in still.caption]


def test_an_id_that_is_typed_in_opens_its_request(show):
    app = show("explore", told, tenant="acme", t0="1795255200", t1="1795255800", **RANGE)
    app.text_input(key="go").input(f" {'b' * 32} ").run()
    assert f"requests/{'b' * 32}" in [path for path, _ in show.asked]
    assert app.query_params["trace_id"] == "b" * 32
    assert app.text_input(key="go").value.startswith("tenant:acme ")
    assert app.query_params["tenant"] == "acme"  # filters are for all pages, a selection is for its own
    assert "t0" not in app.query_params


def test_times_are_chosen_from_a_calendar_on_the_clock_of_the_page(show):
    app = show("explore", told, **RANGE)
    (begin, until) = (one for one in app.datetime_input)
    assert [one.value.isoformat() for one in (begin, until)] == ["2026-11-21T10:00:00", "2026-11-21T11:00:00"]
    begin.set_value(datetime(2026, 11, 21, 8, 30)).run()
    app.button(key="picked").click().run()
    assert shown_range(app) == ("2026-11-21T08:30:00Z", "2026-11-21T11:00:00Z")
