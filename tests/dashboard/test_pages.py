"""Every page, in a browser, shows the numbers of the API."""

from __future__ import annotations

import re
import socket
from zoneinfo import ZoneInfo

import httpx
import pytest
from playwright.sync_api import Locator

from tests.dashboard.browser import finished
from tests.dashboard.feed import HOSTILE_TENANT, TRACEPARENT
from tokentrail.shared.formatting import clock, duration, instant, percent


def metrics(scope):
    """Label → value of the numbers in a part of the page, all read at one moment after the page has been drawn."""
    numbers = scope.locator('[data-testid="stMetric"]')
    numbers.first.wait_for()
    finished(scope.page)
    pairs = numbers.evaluate_all(
        """metrics => metrics.map(metric => ["Label", "Value"].map(
             name => metric.querySelector(`[data-testid=stMetric${name}]`).innerText.trim()))"""
    )
    return dict(pairs)


def rows(scope):
    """The rows of a table in a page or a part of it, from the table's description for screen readers."""
    scope.locator('[role="gridcell"]').first.wait_for(state="attached")
    finished(scope.page if isinstance(scope, Locator) else scope)
    grid = scope.locator('[data-testid="stDataFrame"] canvas [role="row"]').evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('[role=gridcell]')].map(cell => cell.textContent))"
    )
    return grid[1:]


def part(page, key):
    """A part of the page, once the page has been drawn to its end."""
    found = page.locator(f".st-key-{key}")
    found.wait_for()
    finished(page)
    return found


def problem(page):
    """The words of what went wrong, in place of what the page lacks."""
    found = page.get_by_test_id("stAlertContentError")
    found.wait_for()
    finished(page)
    return found.inner_text()


class TestNow:
    """The page of the last hour, which is opened once."""

    @pytest.fixture(scope="class")
    @classmethod
    def now(cls, page, dashboard, collector, api):
        collector.wait_until(lambda: api("slos")["slos"][0]["firing"] == "page")  # burns count what arrived a while ago
        page.goto(f"{dashboard}/?range=1h&utc=true")
        part(page, "charts").locator("canvas").nth(3).wait_for()
        return page

    def test_says_what_the_verdict_says(self, now, api):
        told = api("verdict")
        assert told["state"] == "broken"
        words = part(now, "verdict").inner_text()
        for sentence in (told["who"], told["why"]):
            assert sentence is None or sentence in words
        assert told["sentence"].split(":")[0] in words
        firing = [box for box in told["boxes"] if box["firing"]]
        assert firing
        assert all(box["title"] in words for box in firing)
        assert all(box["title"] in part(now, "happened").inner_text() for box in told["boxes"])

    def test_has_a_row_for_each_slo(self, now, api):
        slos = {slo["name"]: slo for slo in api("slos")["slos"]}
        rows = now.locator(".tt-slos tr:not(.head)").all_inner_texts()
        assert len(rows) == len(slos)
        for name, slo in slos.items():
            (row,) = [row for row in rows if row.startswith(name)]
            assert f"{percent(slo['attainment'])} of {percent(float(slo['objective']))}" in row
            assert percent(slo["budget_left"]) in row
        assert slos["chat"]["firing"] == "page"
        assert "page" in rows[0]
        assert "TTFT ≤ 180 ms, TPOT ≤ 100 ms" in rows[0]

    def test_has_four_charts_with_names_and_numbers(self, now):
        names = [canvas.get_attribute("aria-label") for canvas in part(now, "charts").locator("canvas").all()]
        assert [name.split(".")[0] for name in names] == ["Requests", "Attainment", "Requests in engines", "KV cache"]
        assert re.match(r"Attainment. all SLOs: last [\d.]+ %, least", names[1])

    def test_an_incident_leads_to_its_runbook_and_its_requests(self, now):
        fires = part(now, "verdict")
        assert fires.get_by_role("link", name="Runbook").first.get_attribute("href").endswith("#tokentrailsloburn")
        link = fires.get_by_role("link", name=re.compile(r"See the \d+ requests")).first
        bad = int(link.inner_text().split()[2])
        link.click()
        now.get_by_text(f"{bad} of {bad} requests").wait_for()


def test_a_brush_over_a_chart_becomes_the_range_and_is_in_the_url(page, dashboard):
    page.goto(f"{dashboard}/?range=1h&utc=true")
    canvas = part(page, "charts").locator("canvas").nth(1)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle)
    page.mouse.move(box["x"] + box["width"] * 0.8, middle)
    page.mouse.up()
    page.wait_for_url("**range=custom**")
    finished(page)
    start, end = (instant(httpx.URL(page.url).params[name]) for name in ("start", "end"))
    assert 10 * 60 < (end - start).total_seconds() < 30 * 60
    assert clock(httpx.URL(page.url).params["start"]) in page.locator('[data-testid="stMain"]').inner_text()


def test_engines_and_their_cold_starts_are_listed(page, dashboard):
    page.goto(f"{dashboard}/engines?range=1h")
    (engine,) = rows(part(page, "engines"))
    assert {"engine", "tokentrail", "baseline"} <= {*engine}
    (start,) = rows(part(page, "cold-starts"))
    assert start[1] == "3.00 s"
    assert start[-1] == "load_weights 2.00 s, warm_up 1.00 s"


def test_the_dashboard_listens_on_one_address_unless_told_otherwise(dashboard):
    """It has no login. All of 127.0.0.0/8 is this machine, so a server on every address would answer."""
    host, port = httpx.URL(dashboard).host, httpx.URL(dashboard).port
    socket.create_connection((host, port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


def test_a_filter_narrows_the_numbers_and_stays_in_the_url(page, dashboard, api):
    page.goto(f"{dashboard}/?tenant=umbrella&range=1h")
    expected = api("summary", tenant="umbrella", start="-1h")["requests"]["total"]
    assert 0 < expected < 45
    judged = {slo["name"]: slo["attainment"] for slo in api("slos", tenant="umbrella")["slos"]}
    assert all(percent(attained) in page.locator(".tt-slos").inner_text() for attained in judged.values())
    page.get_by_test_id("stTopNavLink").filter(has_text="Explore").click()
    page.get_by_text(f"{expected} of {expected} requests").wait_for()
    assert "tenant=umbrella" in page.url
    assert "range=1h" in page.url
    page.get_by_role("button", name="tenant: umbrella").click()
    page.get_by_text("45 of 45 requests").wait_for()
    assert "tenant" not in page.url
    page.get_by_role("combobox", name="Filter").click()
    page.get_by_role("option", name=f"tenant: umbrella ({expected})").click()
    page.get_by_text(f"{expected} of {expected} requests").wait_for()
    assert "tenant=umbrella" in page.url


def test_requests_are_listed_slowest_first_and_a_click_opens_one(page, dashboard, api):
    """The link is that of an older dashboard: its page is a part of Explore now."""
    page.goto(f"{dashboard}/requests?range=1h&sort=E2E&status=ok")
    page.get_by_text("43 of 43 requests").wait_for()
    assert "/explore?" in page.url
    listed = api("requests", sort="e2e", status="ok")["requests"]
    table = rows(page)
    assert [row[3] for row in table[:5]] == [duration(row["e2e_s"]) for row in listed[:5]]
    assert not [cell for row in table for cell in row if re.fullmatch(r"\d{5,}\.\d+", cell)]
    grid = page.locator('[data-testid="stDataFrame"]').bounding_box()
    page.mouse.click(grid["x"] + 200, grid["y"] + 52)  # the first row below the head
    page.wait_for_url("**/request?**")
    assert metrics(part(page, "request-numbers"))["E2E"] == duration(listed[0]["e2e_s"])
    assert f"trace_id={listed[0]['trace_id']}&span_id={listed[0]['span_id']}" in page.url


def test_the_waterfall_shows_every_token_and_what_disturbed_it(page, dashboard, api, disturbed):
    page.goto(f"{dashboard}/request?trace_id={disturbed}")
    trail = api(f"requests/{disturbed}")
    request = trail["request"]
    assert metrics(part(page, "request-numbers")) == {
        "TTFT": duration(request["ttft_s"]),
        "TPOT": duration(request["tpot_s"]),
        "E2E": duration(request["e2e_s"]),
        "Queue": duration(request["queue_s"]),
        "Input tokens": "40",
        "Cached tokens": "–",
        "Output tokens": "48",
        "Preemptions": "1",
    }
    part(page, "waterfall").get_by_role("img", name=re.compile("Waterfall of the request over")).wait_for()
    bars = part(page, "waterfall").locator("table tr:has(td)")
    assert bars.count() >= len(trail["phases"]), "for readers who do not see it"
    phases = {row[0]: row[1] for row in rows(part(page, "phases"))}
    assert phases["preempted"] == "300 ms"
    assert phases["queued"] == duration(request["queue_s"])
    longest, *others = rows(part(page, "waits"))
    assert longest[1:4] == ["400 ms", duration(trail["tokens"][40]["offset_s"]), "preempted"]
    assert [row[0] for row in others[:2]] == ["10", "20"]
    assert (
        "Prefill interference: 2 steps, 260 ms in all, prefilled 768 prompt tokens" in part(page, "waits").inner_text()
    )


def test_an_open_request_is_shown_as_far_as_it_is_known(page, dashboard, api, still_open):
    assert api(f"requests/{still_open}")["request"]["status"] == "in_flight"
    page.goto(f"{dashboard}/request?trace_id={still_open}")
    shown = metrics(part(page, "request-numbers"))
    assert (shown["TTFT"], shown["E2E"], shown["Input tokens"]) == ("–", "–", "40")
    page.get_by_text("in_flight").wait_for()
    page.get_by_text("No single tokens are recorded").wait_for()


def test_requests_of_one_trace_lead_to_each_other_and_a_typed_id_to_its_own(page, dashboard, api):
    (other,) = api("requests", request_id="req-3", start="-1h")["requests"]
    assert other["tpot_s"] is None, "it has one token"
    page.goto(f"{dashboard}/request?trace_id={TRACEPARENT.split('-')[1]}")
    assert metrics(part(page, "request-numbers"))["Output tokens"] == "3"
    link = page.get_by_text("1 more of this trace").get_by_role("link")
    page.goto(f"{dashboard}{link.get_attribute('href')}")
    assert metrics(part(page, "request-numbers"))["Output tokens"] == "2"
    assert "span_id" in page.url
    for typed, tokens, name in (
        ("req-twin-b", "3", "req-twin-b"),  # of the link's trace
        ("req-twin-a", "2", "req-twin-a"),
        (other["trace_id"][:8].upper(), "1", "req-3"),
    ):
        box = page.get_by_role("textbox", name="Go to id")
        box.fill(typed)
        box.press("Enter")
        page.get_by_text(f"{name} · arrived").wait_for()
        shown = metrics(part(page, "request-numbers"))
        assert shown["Output tokens"] == tokens
        assert "span_id" not in page.url
    assert (shown["E2E"], shown["TPOT"]) == (duration(other["e2e_s"]), "–")
    page.wait_for_function(f"document.title === 'Request {other['trace_id'][:8]} · tokentrail'")


def test_unknown_and_hostile_ids_are_answered_in_words(page, dashboard):
    for query, words in (
        ("trace_id=../../metrics", "No such request"),
        ("trace_id=<img src=x onerror=alert(1)>", "No such request"),
        ("trace_id=" + "a" * 32 + "&span_id=%27;drop", "That is not a span id"),
    ):
        page.goto(f"{dashboard}/request?{query}")
        assert words in problem(page)


def test_requests_are_narrowed_to_an_slo_and_a_verdict(page, dashboard, api):
    bad = api("requests", start="-1h", slo="chat", verdict="bad", sort="ttft")
    page.goto(f"{dashboard}/explore?range=1h&slo=chat&verdict=bad")
    page.get_by_text(f"{bad['total']} of {bad['total']} requests").wait_for()
    missed = next(row["verdicts"][0]["missed"][0] for row in bad["requests"] if row["verdicts"][0]["missed"])
    told = f"chat: TTFT +{duration(missed['over_s'])}"
    assert any(told in cell for row in rows(page) for cell in row)
    page.goto(f"{dashboard}/explore?range=1h&status=in_flight")
    page.get_by_text("1 of 1 requests").wait_for()
    assert [row[1:4] for row in rows(page)] == [["–", "–", "–"]]


def test_times_are_the_readers_or_utc(page, dashboard, api, disturbed):
    start = api(f"requests/{disturbed}")["request"]["start"]
    at_the_reader = f"arrived {clock(start, ZoneInfo('Asia/Kolkata'))}"
    browser = page.context.new_cdp_session(page)
    browser.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    page.goto(f"{dashboard}/request?trace_id={disturbed}")
    page.get_by_text(at_the_reader).wait_for()
    page.goto(f"{dashboard}/request?trace_id={disturbed}&utc=true")
    page.get_by_text(f"arrived {clock(start)}").wait_for()
    assert page.get_by_text(at_the_reader).count() == 0
    browser.send("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_a_request_shows_its_verdict_and_by_how_much_it_missed(page, dashboard, api):
    row = next(r for r in api("requests", slo="chat", verdict="bad", status="ok")["requests"])
    page.goto(f"{dashboard}/request?trace_id={row['trace_id']}&span_id={row['span_id']}")
    shown = part(page, "verdict").inner_text()
    (miss,) = row["verdicts"][0]["missed"]
    assert f"bad for chat: TTFT {duration(miss['value_s'])}, {duration(miss['limit_s'])} promised" in shown


def test_a_range_that_the_api_refuses_is_explained(page, dashboard):
    page.goto(f"{dashboard}/?range=custom&start=yesterday")
    assert re.search(r"start:", problem(page))


def test_names_from_outside_are_shown_as_they_are(page, dashboard, api):
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    (request,) = api("requests", request_id="req-7")["requests"]
    assert request["tenant"] == HOSTILE_TENANT
    page.goto(f"{dashboard}/request?trace_id={request['trace_id']}")
    metrics(part(page, "request-numbers"))
    assert HOSTILE_TENANT in page.locator('[data-testid="stMain"]').inner_text().replace("\u200b", "")
    assert page.locator('img[src="x"], a[href*="example.invalid"]').count() == 0
    assert dialogs == []


CUT = """() => [...document.querySelectorAll("[data-testid=stMetric], .tt-slos td.n")].filter(shown => {
  const texts = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT), place = shown.getBoundingClientRect();
  const range = document.createRange();
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    for (const word of text.textContent.matchAll(/[^ ]+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = [...range.getClientRects()];
      if (lines.length > 1 || lines.some(line => line.right > place.right + 1)) return true;
    }
  }
  return false;
}).map(shown => shown.innerText)"""
"""The numbers, labels and notes that are wider than their place, or have a word on two lines."""


WIDER = """() => { const main = document.querySelector("[data-testid=stMain]");
  return main.scrollWidth > main.clientWidth; }"""


def test_no_number_is_cut_on_a_narrow_screen(page, dashboard, disturbed):
    before = page.viewport_size
    try:
        for path, key in (("?range=1h", "happened"), (f"request?trace_id={disturbed}", "request-numbers")):
            page.goto(f"{dashboard}/{path}")
            for width in (1920, 1280, 1024, 390):
                page.set_viewport_size({"width": width, "height": 900})
                part(page, key)
                assert page.evaluate(CUT) == []
                assert key == "request-numbers" or page.evaluate(WIDER) is False
    finally:
        page.set_viewport_size(before)
