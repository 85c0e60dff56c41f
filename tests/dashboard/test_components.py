"""The rules behind the pages that need no browser."""

import itertools
from datetime import UTC

import pytest

from dashboard import components
from dashboard.components import _crowds, _interval
from dashboard.filters import View
from dashboard.views.events import cold_start_row
from dashboard.views.requests import table
from tests.dashboard.rows import LISTED


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
        view = View("-15m", "now", (), None, None, UTC)
        components.refreshed(lambda _: done.append("the collector is too slow"), view, 5.0)
    assert done == ["the collector is too slow", "sent", "rerun", "the collector is too slow"]
    assert every == [5.0, 120.0]


def test_an_error_is_called_one_in_lists_also_with_a_type():
    kinds = [("ok", ""), ("error", ""), ("error", "ok"), ("error", "timeout")]
    rows = [LISTED | {"status": status, "error_type": kind} for status, kind in kinds]
    assert [shown["status"] for shown in table(rows, [None] * 4)] == ["ok", "error", "error ok", "error timeout"]
    start = {"start": None, "duration_s": 1.0, "service": "s", "model": "m", "phases": []}
    results = [cold_start_row(start | {"status": s, "error_type": kind}, UTC)["result"] for s, kind in kinds]
    assert results == ["ok", "error", "error ok", "error timeout"]
