"""Explore and Compare in a browser, on the day of five faults: brush, click a difference, share a link, come back."""

from __future__ import annotations

import re
import time
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.dashboard.browser import finished

LEFT, RIGHT, BELOW = 54, 10, 37
"""Pixels of the map beside its cells, and below them."""
LABELS = ("model", "variant", "tenant", "engine", "instance")


def parameters(page):
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def listed(page, more=""):
    """The number of requests of which the list has a page."""
    text = page.get_by_text(re.compile(rf"\d+ of [\d\u202f]+ requests{more}"))
    text.wait_for()
    return int(text.inner_text().split(" of ")[1].split(" requests")[0].replace("\u202f", ""))


def asked(collector, page, **more):
    """How many requests the API has of what the page's URL says."""
    told = parameters(page)
    params = {name: told[name] for name in ("slo", "min_input_tokens", *LABELS) if name in told}
    params |= {"start": told["t0"], "end": told["t1"], "metric": "ttft", "limit": 1}
    params |= {name: f"{float(told[at]):.9f}s" for name, at in (("at_least", "lo"), ("at_most", "hi"))}
    return collector.get(f"/api/v1/requests?{urlencode(params | more)}").json()["total"]


def drawn(page):
    """Whether the map has cells on it: its canvas is not blank."""
    return page.locator(".st-key-map canvas").evaluate(
        "map => map.getContext('2d').getImageData(0, 0, map.width, map.height).data.some(byte => byte)"
    )


def test_a_brush_a_click_and_a_link_lead_to_the_same_requests(page, day_url, running_day):
    collector, plan = running_day
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{day_url}/explore?range=24h&slo=chat")
    heat = page.locator(".st-key-map canvas")
    heat.wait_for()
    finished(page)
    assert re.search(r"TTFT over time: [\d\u202f]+ requests, .* failed", heat.get_attribute("aria-label"))
    whole = listed(page)

    # From before v2.4 was deployed until it had served for an hour, what took a second and more.
    answer = collector.get("/api/v1/heatmap?start=-24h&slo=chat&rows=36").json()
    edges = answer["edges_s"]
    area = heat.bounding_box()
    across = [1 - (time.time() - plan.at(*at) / 1e9) / 86400 for at in ((11, 10), (12, 58))]
    x0, x1 = (area["x"] + LEFT + (area["width"] - LEFT - RIGHT) * share for share in across)
    row = next(i for i, edge in enumerate(edges) if edge > 1.0)
    tall = (area["height"] - BELOW - 66) / (len(edges) - 1)  # four rows of names above at most
    bottom = area["y"] + area["height"] - BELOW - tall * (row + 0.6)
    page.mouse.move(x0, bottom)
    page.mouse.down()
    page.mouse.move((x0 + x1) / 2, bottom - 20, steps=3)
    page.mouse.move(x1, area["y"] + 70, steps=3)
    page.mouse.up()
    page.wait_for_url("**t0=*")
    page.get_by_text("paused while you look").wait_for()
    finished(page)
    told = parameters(page)
    assert abs(float(told["t0"]) - plan.at(11, 10) / 1e9) < 700
    assert 0.7 < float(told["lo"]) < 3
    slow = listed(page)
    assert 0 < slow < whole
    assert slow == asked(collector, page)

    # The day's plan says what differs, wherever the brush's columns begin: v2.4 computes long prompts slowly, and
    # before it long prompts were quick. A click keeps both.
    assert (plan.at(12) / 1e9) - float(told["t0"]) > 1800
    first = page.locator(".st-key-difference-0")
    assert re.search(r"variant = v2\.4", first.inner_text())
    first.get_by_role("button", name="is", exact=True).click()
    page.wait_for_url(re.compile("[?&]variant="))
    chip, long = page.locator(".st-key-chip-0").get_by_role("button"), page.locator(".st-key-chip-min_input_tokens")
    chip.wait_for()
    name, value = chip.inner_text().splitlines()[0].split(": ")
    assert (name, value, parameters(page)[name]) == ("variant", "v2.4", "v2.4")
    at_least = parameters(page)["min_input_tokens"]
    assert "".join(filter(str.isdigit, long.inner_text())) == at_least
    assert int(at_least) > 500
    finished(page)
    kept = listed(page)
    assert 0 < kept <= slow
    assert kept == asked(collector, page)
    assert parameters(page)["t0"] == told["t0"]

    # The link has absolute times; the page that it was copied from goes on.
    page.get_by_role("button", name="Copy a link to this").click()
    page.get_by_role("button", name="resume").click()
    page.get_by_text("paused while you look").wait_for(state="detached")
    finished(page)
    assert "t0" not in parameters(page)
    assert listed(page) > kept
    link = page.evaluate("navigator.clipboard.readText()")
    page.goto(link)
    chip.wait_for()
    heat.wait_for()
    finished(page)
    shared = parameters(page)
    assert (shared["range"], shared["t0"], shared["lo"]) == ("custom", told["t0"], told["lo"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", shared["start"])
    assert listed(page) == kept
    assert drawn(page)

    # Without a pointer: Escape, then a cell by arrows and Enter.
    page.locator(".st-key-map .wrap").focus()
    page.keyboard.press("Escape")
    page.wait_for_function("!location.search.includes('t0=')")
    finished(page)
    page.locator(".st-key-map .wrap").focus()
    for key in ("ArrowRight", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url("**t0=*")
    # Keys lead to other pages, which have the filters and not the selection.
    finished(page)
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("5")
    page.wait_for_url("**/compare?**")
    chip.wait_for()
    assert parameters(page)[name] == value
    assert "t0" not in parameters(page)


WIDER = "() => document.scrollingElement.scrollWidth - window.innerWidth"
COLOUR = """map => {
  const {data} = map.getContext("2d").getImageData(0, 0, 50, map.height);
  let most = 0, sum = 0;
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > most) [most, sum] = [data[i + 3], data[i] + data[i + 1]];
  return sum;
}"""
"""Red and green of the strongest pixel of the axis: dark on a light page, light on a dark one."""


def test_the_pages_fit_narrow_screens_in_light_and_dark(page, day_url):
    before = page.viewport_size
    heat = page.locator(".st-key-map canvas")
    try:
        page.set_viewport_size({"width": 1024, "height": 900})
        page.emulate_media(color_scheme="light")
        page.goto(f"{day_url}/explore?range=24h&slo=chat")
        heat.wait_for()
        finished(page)
        assert (page.evaluate(WIDER) <= 0, heat.evaluate(COLOUR) < 200) == (True, True)
        page.set_viewport_size({"width": 390, "height": 900})
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(1_000)  # the map follows Streamlit's colours
        finished(page)
        assert drawn(page)
        assert heat.bounding_box()["width"] < 390
        assert (page.evaluate(WIDER) <= 0, heat.evaluate(COLOUR) > 300) == (True, True)
        page.goto(f"{day_url}/compare?range=24h&a.variant=v2.3&b.variant=v2.4")
        page.locator(".st-key-ecdf-e2e img").wait_for()
        finished(page)
        assert re.search(r"v2\.4 is slower than v2\.3", page.locator(".st-key-comparison").inner_text())
        assert page.evaluate(WIDER) <= 0
        image = page.locator(".st-key-ecdf-ttft img")
        assert re.search(r"v2\.3: half below .*v2\.4: half below", image.get_attribute("alt"))
        assert image.evaluate("image => image.naturalWidth") > 0
    finally:
        page.set_viewport_size(before)
        page.emulate_media(color_scheme="no-preference")
