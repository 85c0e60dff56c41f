"""The small charts, in a browser without Streamlit: what they draw, say and send."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from dashboard.components import small
from dashboard.components.small import Band, Board, Chart, Line

START = datetime(2026, 11, 21, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
N = 60
WINDOW = {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T11:00:00Z"}
MOUNT = """async ({source, css, data, dark}) => {
  const {default: mount} = await import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
  window.source ??= mount;
  document.body.innerHTML = `<style>body {width: 640px; background: var(--st-background-color);
    --st-background-color: ${dark ? '#0f1218' : '#ffffff'};
    --st-text-color: ${dark ? '#e6e9ef' : '#161b26'}}${css}</style>
    <div class="small" tabindex="0"></div>`;
  window.sent = [];
  const send = (name, value) => window.sent.push([name, value]);
  window.draw = data => mount({data, setTriggerValue: send, parentElement: document.body});
  window.draw(data);
}"""
PIXEL = """([k, x, y]) => {
  const canvas = document.querySelectorAll('canvas')[k], dpr = canvas.width / canvas.clientWidth;
  return [...canvas.getContext('2d').getImageData(x * dpr, y * dpr, 1, 1).data];
}"""
"""The colour of a place of a chart."""


def board(*charts, bands=(), zone=UTC, clicks=False):
    return Board([START + i * MINUTE for i in range(N)], 60.0, WINDOW, zone, charts, bands, clicks)


def steady(name="requests", value=2.0, **more):
    return Line(name, "#3b82f6", [value] * N, **more)


@pytest.fixture
def draw(page):
    def draw(board, *, dark=False):
        page.goto("about:blank")
        css, source = ((small._FILES / f"small.{kind}").read_text() for kind in ("css", "js"))
        page.evaluate(MOUNT, {"source": source, "css": css, "data": board.data(110), "dark": dark})
        return page

    return draw


def heads(page):
    return page.locator("figcaption").all_inner_texts()


def test_one_crosshair_runs_through_all_charts_and_says_their_values(draw):
    rising = Line("waiting", "#f59e0b", [float(i) for i in range(N - 1)] + [None])
    page = draw(board(Chart("Requests", "rate", [steady()]), Chart("Queue", "count", [rising])))
    assert [head.split("\n") for head in heads(page)] == [["Requests", "requests 2 /s"], ["Queue", "waiting 58"]]
    first = page.locator("canvas").first.bounding_box()
    page.mouse.move(first["x"] + 46 + (first["width"] - 54) * 20.5 / N, first["y"] + 40)
    assert "waiting 20" in heads(page)[1]
    both = [page.evaluate(PIXEL, [k, 46 + (first["width"] - 54) * 20.5 / N, 50])[3] for k in (0, 1)]
    assert all(both), "a line in each"
    page.mouse.move(first["x"] + 5, first["y"] + 300)
    assert "waiting 58" in heads(page)[1]


def test_a_brush_sends_its_time_and_a_click_sends_none_unless_it_is_asked_for(draw):
    for clicks, sent in ((False, []), (True, [["brush", [10, 11]]])):
        page = draw(board(Chart("Requests", "rate", [steady()]), clicks=clicks))
        box = page.locator("canvas").bounding_box()

        def at(minute, box=box):
            return box["x"] + 46 + (box["width"] - 54) * (minute + 0.5) / N, box["y"] + 50

        page.mouse.click(*at(10))
        minutes = [
            [name, [(ms - START.timestamp() * 1000) / 60_000 for ms in value]]
            for name, value in page.evaluate("window.sent")
        ]
        assert minutes == sent
    page.evaluate("window.sent = []")
    page.mouse.move(*at(40))
    page.mouse.down()
    page.mouse.move(*at(30))
    page.mouse.move(*at(20))
    page.mouse.up()
    ((name, value),) = page.evaluate("window.sent")
    assert name == "brush"
    assert value == [round((START + i * MINUTE).timestamp() * 1000) for i in (20, 41)], "backwards, to the bucket's end"


def test_keys_move_the_cursor_choose_a_time_and_are_read_out(draw):
    page = draw(
        board(
            Chart("Attainment", "ratio", [steady("chat", 0.95)], top=1.0),
            bands=[Band(START, START + 3 * MINUTE, "KV storm vllm-a", "#ef4444")],
        )
    )
    page.locator(".small").focus()
    for key in ("ArrowRight", "ArrowRight", " ", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    said = page.locator(".live").inner_text()
    assert said == "10:03. Attainment: chat 95 %. KV storm vllm-a"
    page.keyboard.press(" ")
    ((_, value),) = page.evaluate("window.sent")
    assert value == [round((START + i * MINUTE).timestamp() * 1000) for i in (1, 4)]
    page.keyboard.press("Escape")
    assert page.locator(".live").inner_text() == ""
    assert page.locator("canvas").get_attribute("aria-label") == "Attainment. chat: last 95 %, least 95 %, most 95 %"


def test_a_burst_does_not_flatten_a_latency_and_a_far_threshold_is_named(draw):
    burst = [300.0 if 30 <= i < 33 else 0.2 if i < 15 else 2.0 for i in range(N)]
    lines, limits = [Line("p99", "#8b5cf6", burst)], [("chat", 1.0), ("batch", 86400.0)]
    apart = []
    for log in (False, True):
        page = draw(board(Chart("TTFT", "s", lines, log=log, limits=limits)))
        box = page.locator("canvas").bounding_box()
        first, then = (
            min(y for y in range(6, 96) if page.evaluate(PIXEL, [0, 46 + (box["width"] - 54) / N * minute, y])[2] > 200)
            for minute in (7.5, 22.5)
        )
        apart.append(first - then)
    assert apart[0] < 3, "one burst flattens a linear axis"
    assert apart[1] > 15
    assert "batch 1440 min: above" in heads(page)[0]


def test_an_incident_of_the_whole_range_paints_no_chart(draw):
    short = Band(START + 30 * MINUTE, START + 33 * MINUTE, "storm", "#ff0000")
    whole = Band(START, START + 60 * MINUTE, "hang", "#ff0000")
    for band, painted in ((short, True), (whole, False)):
        page = draw(board(Chart("Requests", "rate", [steady()]), bands=[band]))
        box = page.locator("canvas").bounding_box()
        middle = 46 + (box["width"] - 54) * 31.2 / N
        assert (page.evaluate(PIXEL, [0, middle, 75])[3] > 0) is painted
        assert page.evaluate(PIXEL, [0, middle, 2])[0] > 200, "it is marked above the curves in any case"


def test_what_is_not_known_is_a_gap_and_a_point_alone_is_seen(draw):
    values = [2.0 if i < 20 or i == 40 else None for i in range(N)]
    page = draw(board(Chart("Requests", "rate", [Line("ended", "#3b82f6", values)], top=4.0)))
    box = page.locator("canvas").bounding_box()

    def blue(minute):
        x = 46 + (box["width"] - 54) * (minute + 0.5) / N
        return any(page.evaluate(PIXEL, [0, x, 49 + dy])[2] > 200 for dy in (-2, -1, 0, 1, 2))

    assert [blue(minute) for minute in (10, 30, 40, 50)] == [True, False, True, False]


def test_times_are_on_the_readers_clock_and_names_of_others_are_text(draw):
    hostile = "<img src=x onerror=alert(1)>" + "x" * 100 + "\u202e"
    page = draw(board(Chart("Requests", "rate", [steady(hostile)]), zone=ZoneInfo("Asia/Kolkata")), dark=True)
    page.locator(".small").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".live").inner_text().startswith("15:30")
    assert page.locator("img").count() == 0
    assert "…" in heads(page)[0]
    assert "\u202e" not in page.content()


def test_a_label_is_cut_only_where_it_is_too_long(draw):
    longest = "m" * small.LABEL
    head = heads(draw(board(Chart("Requests", "rate", [steady(longest), steady("n" * (small.LABEL + 1))]))))[0]
    assert longest in head
    assert "n" * (small.LABEL - 1) + "…" in head


def test_a_chart_of_nothing_is_known_to_be_one():
    assert not Chart("KV cache", "ratio", [Line("fullest", "#3b82f6", [None] * N)]).is_known
    assert not Chart("KV cache", "ratio", []).is_known
    assert Chart("KV cache", "ratio", [Line("fullest", "#3b82f6", [None, 0.0])]).is_known
