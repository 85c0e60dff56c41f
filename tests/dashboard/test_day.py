"""The pages Now and Tail over a day of five faults, in a browser: at three sizes, in light and in dark."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.dashboard.browser import finished
from tests.dashboard.test_pages import CUT, WIDER, part

PHONE = 390
LONGEST = 2500
"""Pixels of the page Now on a phone."""
FAULTS = {
    "cold start": ((3, 0), r"cold start.*sglang-b-5e77"),
    "burst": ((8, 30), r"burn.*chat.*Cause: waiting for a place"),
    "KV storm": ((10, 20), r"KV storm.*vllm-a-7f9c"),
    "deploy": ((12, 2), r"change.*llama-70b has a new variant: v2\.4"),
    "hang": ((13, 2), r"hang.*sglang-a-91ee makes no progress"),
}
"""By the name of a fault: when it begins on the day's clock, and how the page must name it."""
READABLE = 4.5
"""By WCAG, level AA."""
MINUTES_OFF = 20
"""A fault begins when the first request feels it, and a small day has few."""
CONTRAST = """() => {
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * x + .7152 * y + .0722 * z;
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > .5) return colour;
    }
    return [255, 255, 255];
  };
  const texts = ".tt-verdict :is(p, a), .tt-box, .tt-box a, .tt-past a, .tt-slos td";
  return [...document.querySelectorAll(texts)].map(element => {
    const pair = [light(rgb(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    return [element.innerText.slice(0, 40), (pair[0] + .05) / (pair[1] + .05)];
  });
}"""
"""Texts, and how many times as light or dark they are as what is behind them."""


@pytest.fixture(scope="module")
def now(page, day_url):
    page.goto(f"{day_url}/?range=24h&utc=true&refresh=false")
    part(page, "charts").locator("canvas").nth(3).wait_for()
    part(page, "happened")
    return page


def listed(page):
    """Time and words of what happened, as the page lists it."""
    cells = page.locator(".st-key-happened .tt-past > span").all_inner_texts()
    return [(cells[i], " ".join(cells[i + 1 : i + 3])) for i in range(0, len(cells), 3)]


def minutes_apart(text, at):
    """Minutes between a time of the list, `Nov 25 03:00` or `03:00`, and a moment."""
    hour, minute = map(int, re.findall(r"(\d\d):(\d\d)", text)[0])
    found = at.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return min(abs((found + timedelta(days=days) - at).total_seconds()) for days in (-1, 0, 1)) / 60


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_screen_names_each_fault_at_its_time(now, running_day, fault):
    (hour, minute), words = FAULTS[fault]
    at = datetime.fromtimestamp(running_day[1].at(hour, minute) / 1e9, UTC)
    found = [time for time, said in listed(now) if re.search(words, said) and minutes_apart(time, at) < MINUTES_OFF]
    assert found, listed(now)


def test_what_fires_is_above_with_its_cause_first(now):
    boxes = now.locator(".st-key-verdict .tt-box").all_inner_texts()
    assert "sglang-a-91ee makes no progress" in boxes[0]
    (deploy,) = [box for box in boxes if "v2.4" in box]
    assert re.search(r'SLO "chat" burns its error budget', deploy), "the burn stands inside"
    assert now.locator(".tt-verdict.bad").count() == 1
    assert "is not kept" in now.locator(".tt-verdict .said").inner_text()
    assert now.locator(".st-key-happened").bounding_box()["y"] < 1300, (
        "on one screen of 1,440 × 1,300 begins what happened"
    )


@pytest.mark.parametrize("width", [PHONE, 1024, 1280, 1440, 1920])
def test_it_fits_a_phone_a_tablet_and_a_screen(now, width):
    before = now.viewport_size
    try:
        now.set_viewport_size({"width": width, "height": 900})
        now.wait_for_timeout(500)
        assert now.evaluate(CUT) == []
        assert now.evaluate(WIDER) is False
        height = now.evaluate("document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight")
        assert height <= LONGEST
    finally:
        now.set_viewport_size(before)


def test_texts_are_readable_in_light_and_dark(now):
    assert len(texts := now.evaluate(CONTRAST)) > 20
    assert [text for text in texts if text[1] < READABLE] == []
    now.emulate_media(color_scheme="dark")
    try:
        now.wait_for_function(
            "getComputedStyle(document.querySelector('.stApp')).backgroundColor === 'rgb(15, 18, 24)'"
        )
        assert [text for text in now.evaluate(CONTRAST) if text[1] < READABLE] == []
    finally:
        now.emulate_media(color_scheme="light")


def test_the_tail_says_what_each_cause_costs_and_leaves_out_a_time(page, day_url, running_day):
    page.goto(f"{day_url}/tail?range=24h&utc=true&refresh=false&slo=chat")
    first = page.locator(".tt-causes tr").nth(1)
    first.wait_for()
    finished(page)
    told = running_day[0].get("/api/v1/explain?start=-24h&slo=chat").json()
    assert told["without_hidden"] is None
    assert first.inner_text().startswith(told["groups"][0]["group"])
    assert told["groups"][0]["group"] == "waiting for a place", "the burst"
    assert 10 <= page.locator(".tt-many a").count() <= 40
    canvas = page.locator(".st-key-tail-strip canvas")
    box = canvas.bounding_box()
    start, end = (datetime.fromisoformat(told["window"][name][:19] + "+00:00") for name in ("start", "end"))
    when = datetime.fromisoformat(told["groups"][0]["start"][:19] + "+00:00")
    x = box["x"] + 46 + (box["width"] - 54) * ((when - start) / (end - start))
    page.mouse.move(x - 15, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(x, box["y"] + 30)
    page.mouse.move(x + 15, box["y"] + 30)
    page.mouse.up()
    page.get_by_text("Take all back").wait_for()
    finished(page)
    assert "out" in httpx.URL(page.url).params
    assert not page.locator(".tt-causes tr").nth(1).inner_text().startswith("waiting for a place")
    page.get_by_text("Take all back").click()
    page.wait_for_function("!location.search.includes('out=')")
    page.wait_for_function("document.querySelectorAll('.tt-causes tr')[1].innerText.startsWith('waiting for a place')")
    href = page.locator(".tt-many a").first.get_attribute("href")
    page.goto(f"{day_url}{href}")
    trace = httpx.URL(href).params["trace_id"]
    page.wait_for_function(f"document.title === 'Request {trace[:8]} · tokentrail'")
