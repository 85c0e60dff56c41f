"""The pages Engines and Request on the synthetic day, in a real browser."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from tests.dashboard.browser import finished


@pytest.fixture(scope="module")
def get(running_day):
    """Ask the API of the day."""

    def get(path, **asked):
        answer = httpx.get(f"{running_day[0].urls['api']}/api/v1/{path}", params=asked, timeout=120)
        answer.raise_for_status()
        return answer.json()

    return get


def trail(page):
    """The frame of the component, and its view of time."""
    return page.locator(".wrap[data-view]")


def seen(page):
    return [float(edge) for edge in trail(page).get_attribute("data-view").split()]


def test_the_process_that_hangs_is_the_first_tile_and_shows_its_last_step(page, day_url, get):
    page.goto(f"{day_url}/engines?range=24h")
    page.get_by_role("heading", name=re.compile("sglang-a-91ee makes no step, 18 requests open")).wait_for()
    finished(page)
    found = get("processes", start="-24h")["processes"]
    tiles = page.locator("a.tt-tile")
    texts = tiles.all_inner_texts()
    assert sorted(text.splitlines()[0] for text in texts) == sorted(one["instance"] for one in found)
    assert texts[0].startswith("sglang-a-91ee\n✕ HANGS ")
    assert not any(one["beside"]["is_slow"] for one in found if one["beside"]), "no process of the day has a slow host"
    tiles.first.click()
    page.wait_for_url(re.compile("sel="))
    trail(page).wait_for()
    page.get_by_text("paused while you look").wait_for()
    page.get_by_role("img", name=re.compile(r"\d+ steps, 19 requests|\d+ steps, 18 requests")).wait_for()
    begin, end = seen(page)
    assert (begin, end) == pytest.approx((0, 120))
    page.get_by_role("button", name="close").click()
    trail(page).wait_for(state="detached")


def test_a_request_says_what_was_missed_and_why_and_its_waterfall_zooms_and_leads_on(page, day_url, get):
    slow = get("requests", start="-90m", slo="chat", verdict="bad", sort="ttft", status="ok", variant="v2.4", limit=1)
    (one,) = slow["requests"]
    page.goto(f"{day_url}/request?range=24h&trace_id={one['trace_id']}")
    head = page.get_by_role("heading", name=re.compile(r"bad for chat: TTFT .*, 1\.00 s promised\. Why: "))
    head.wait_for()
    assert re.search("own prompt|others' prompts", head.inner_text())
    page.get_by_text(re.compile("Typical of its model and class in the hour before: TTFT")).wait_for()
    trail(page).wait_for()
    finished(page)
    whole = seen(page)
    box = trail(page).locator("canvas").bounding_box()
    middle = box["x"] + box["width"] / 2
    page.mouse.move(middle, box["y"] + 60)
    tip = trail(page).locator(".tip")
    assert re.search(r"(queued|prefill|decode) ", tip.inner_text())
    assert re.search(r"step \d+ .*: .*decoded", tip.inner_text()), "one cursor goes through all tracks"
    page.mouse.wheel(0, -300)
    page.locator('.wrap[data-view]:not([data-view^="0.00000 "])').wait_for()
    near = seen(page)
    assert near[1] - near[0] < 0.5 * (whole[1] - whole[0])
    page.mouse.down()
    page.mouse.move(middle + 200, box["y"] + 60, steps=4)
    page.mouse.up()
    moved = seen(page)
    assert moved[0] < near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0], rel=0.01)
    trail(page).focus()
    page.keyboard.press("0")
    assert seen(page) == pytest.approx(whole)
    with page.expect_download() as perfetto:
        page.get_by_role("button", name="Perfetto").click()
    events = json.loads(perfetto.value.path().read_text())["traceEvents"]
    assert sum(event["name"].startswith("token ") for event in events) == one["output_tokens"]
    page.get_by_role("button", name="faster ›").click()
    page.wait_for_url(re.compile(f"trace_id=(?!{one['trace_id']})"))
    faster = re.search("trace_id=([0-9a-f]{32})", page.url)[1]
    assert get(f"requests/{faster}")["request"]["ttft_s"] < one["ttft_s"]


def test_a_click_on_a_neighbour_opens_it(page, day_url, get):
    stormy = get("requests", start="-24h", sort="e2e", model="llama-3.3-70b", variant="v2.3", limit=1)["requests"][0]
    page.goto(f"{day_url}/request?range=24h&trace_id={stormy['trace_id']}")
    trail(page).wait_for()
    finished(page)
    others = page.locator(".wrap[data-view] table tr", has_text="others here")
    assert others.count() > 3
    box = trail(page).locator("canvas").bounding_box()
    for down in range(60, int(box["height"]), 6):  # the lanes lie somewhere below the steps
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + down)
        if "click opens this request" in trail(page).locator(".tip").inner_text():
            break
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(re.compile(f"trace_id=(?!{stormy['trace_id']})"))
    opened = re.search("trace_id=([0-9a-f]{32})", page.url)[1]
    assert get(f"requests/{opened}")["request"]["instance"] == stormy["instance"]


def test_pages_are_no_wider_than_their_window_and_drawn_in_the_dark(page, day_url, get):
    stuck = get("requests", start="-90m", status="in_flight", limit=1)["requests"][0]
    page.emulate_media(color_scheme="dark")
    try:
        for path in (f"request?trace_id={stuck['trace_id']}", "engines?range=24h&sel=qwen-8b/sglang-a-91ee"):
            page.goto(f"{day_url}/{path}")
            for width in (1024, 390):
                page.set_viewport_size({"width": width, "height": 900})
                trail(page).wait_for()
                finished(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                canvas = trail(page).locator("canvas").bounding_box()
                assert canvas["x"] + canvas["width"] <= width
    finally:
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1440, "height": 1200})
