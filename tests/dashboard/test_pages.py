"""Every page shows the numbers of the API: in a browser, where that matters, else as its script draws them."""

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


@pytest.fixture
def shown(show, collector, lived):
    """Run a page over the answers of the collector, without a browser."""
    return lambda page, **query: show(page, None, collector.urls["api"], **query)


def words(elements):
    """The texts of a page, without the signs that keep Markdown from reading them."""
    return [re.sub(r"[\\\u200b]", "", one.value) for one in elements]


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

    def test_an_incident_leads_to_its_runbook_and_its_requests(self, now, shown):
        fires = part(now, "verdict")
        assert fires.get_by_role("link", name="Runbook").first.get_attribute("href").endswith("#tokentrailsloburn")
        link = fires.get_by_role("link", name=re.compile(r"See the \d+ requests")).first
        bad = int(link.inner_text().split()[2])
        asked = httpx.URL(link.get_attribute("href"))
        assert asked.path == "/explore"
        assert f"{bad} of {bad} requests. A click opens one." in words(shown("explore", **asked.params).caption)

    def test_a_brush_over_a_chart_becomes_the_range_and_is_in_the_url(self, now):
        canvas = part(now, "charts").locator("canvas").nth(1)
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        middle = box["y"] + box["height"] / 2
        now.mouse.move(box["x"] + box["width"] * 0.5, middle)
        now.mouse.down()
        now.mouse.move(box["x"] + box["width"] * 0.6, middle)
        now.mouse.move(box["x"] + box["width"] * 0.8, middle)
        now.mouse.up()
        now.wait_for_url("**range=custom**")
        finished(now)
        start, end = (instant(httpx.URL(now.url).params[name]) for name in ("start", "end"))
        assert 10 * 60 < (end - start).total_seconds() < 30 * 60
        assert clock(httpx.URL(now.url).params["start"]) in now.locator('[data-testid="stMain"]').inner_text()


def test_engines_and_their_cold_starts_are_listed(shown):
    engines, starts = (one.value.values.tolist() for one in shown("engines", range="1h").dataframe)
    (engine,), (start,) = engines, starts
    assert all(name in engine for name in ("engine", "tokentrail", "baseline"))
    assert start[1] == "3.00 s"
    assert start[-1] == "load_weights 2.00 s, warm_up 1.00 s"


def test_the_dashboard_listens_on_one_address_unless_told_otherwise(dashboard):
    """It has no login. All of 127.0.0.0/8 is this machine, so a server on every address would answer."""
    host, port = httpx.URL(dashboard).host, httpx.URL(dashboard).port
    socket.create_connection((host, port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


def test_a_filter_narrows_the_numbers_and_goes_along_to_another_page(page, dashboard, api, shown):
    expected = api("summary", tenant="umbrella", start="-1h")["requests"]["total"]
    assert 0 < expected < 45
    judged = {slo["name"]: slo["attainment"] for slo in api("slos", tenant="umbrella")["slos"]}
    drawn = "".join(one.proto.body for one in shown("", tenant="umbrella", range="1h").get("html"))
    assert all(percent(attained) in drawn for attained in judged.values())
    page.goto(f"{dashboard}/request?tenant=umbrella&range=1h")
    page.get_by_text("Type an id into the box above").wait_for()
    finished(page)
    page.get_by_test_id("stTopNavLink").filter(has_text="Explore").click()
    page.get_by_text(f"{expected} of {expected} requests").wait_for()
    page.wait_for_url(lambda url: {"tenant": "umbrella", "range": "1h"}.items() <= httpx.URL(url).params.items())


def test_requests_are_listed_slowest_first_and_a_click_opens_one(page, dashboard, api):
    page.goto(f"{dashboard}/explore?range=1h&sort=E2E&status=ok")
    page.get_by_text("43 of 43 requests").wait_for()
    listed = api("requests", sort="e2e", status="ok")["requests"]
    table = rows(page)
    assert [row[3] for row in table[:5]] == [duration(row["e2e_s"]) for row in listed[:5]]
    assert not [cell for row in table for cell in row if re.fullmatch(r"\d{5,}\.\d+", cell)]
    grid = page.locator('[data-testid="stDataFrame"]').bounding_box()
    page.mouse.click(grid["x"] + 200, grid["y"] + 52)  # the first row below the head
    page.wait_for_url("**/request?**")
    assert metrics(part(page, "request-numbers"))["E2E"] == duration(listed[0]["e2e_s"])
    assert f"trace_id={listed[0]['trace_id']}&span_id={listed[0]['span_id']}" in page.url


def test_the_waterfall_shows_what_disturbed_each_token_and_no_number_is_cut(page, dashboard, api, disturbed):
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
    before = page.viewport_size
    try:
        for width in (1920, 1280, 1024, 390):
            page.set_viewport_size({"width": width, "height": 900})
            part(page, "request-numbers")
            assert page.evaluate(CUT) == []
    finally:
        page.set_viewport_size(before)


def test_an_open_request_is_shown_as_far_as_it_is_known(shown, api, still_open):
    assert api(f"requests/{still_open}")["request"]["status"] == "in_flight"
    app = shown("request", trace_id=still_open)
    numbers = {one.label: one.value for one in app.metric}
    assert (numbers["TTFT"], numbers["E2E"], numbers["Input tokens"]) == ("–", "–", "40")
    assert any(told.endswith("in_flight") for told in words(app.caption))
    assert any(told.startswith("No token is known yet") for told in words(app.caption))


def test_requests_of_one_trace_lead_to_each_other_and_a_typed_id_to_its_own(shown, api):
    def numbers():
        return {one.label: one.value for one in app.metric}

    (other,) = api("requests", request_id="req-3", start="-1h")["requests"]
    assert other["tpot_s"] is None, "it has one token"
    app = shown("request", trace_id=TRACEPARENT.split("-")[1])
    assert numbers()["Output tokens"] == "3"
    (link,) = re.findall(r"1 more of this trace: \[\w+\]\((\S+)\)", "".join(words(app.caption)))
    app = shown("request", **httpx.URL(link).params)
    assert numbers()["Output tokens"] == "2"
    assert "span_id" in app.query_params
    for typed, tokens, name in (
        ("req-twin-b", "3", "req-twin-b"),  # of the link's trace
        ("req-twin-a", "2", "req-twin-a"),
        (other["trace_id"][:8].upper(), "1", "req-3"),
    ):
        app.text_input(key="go").input(typed).run()
        assert any(told.startswith(f"{name} · arrived") for told in words(app.caption))
        assert numbers()["Output tokens"] == tokens
        assert "span_id" not in app.query_params
    assert (numbers()["E2E"], numbers()["TPOT"]) == (duration(other["e2e_s"]), "–")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"trace_id": "../../metrics"}, "No such request"),
        ({"trace_id": "<img src=x onerror=alert(1)>"}, "No such request"),
        ({"span_id": "';drop"}, "That is not a span id"),
    ],
)
def test_unknown_and_hostile_ids_are_answered_in_words(shown, query, told):
    (problem,) = shown("request", **query).error
    assert told in problem.value


def test_requests_are_narrowed_to_an_slo_and_a_verdict(shown, api):
    bad = api("requests", start="-1h", slo="chat", verdict="bad", sort="ttft")
    app = shown("explore", range="1h", slo="chat", verdict="bad")
    assert f"{bad['total']} of {bad['total']} requests. A click opens one." in words(app.caption)
    missed = next(row["verdicts"][0]["missed"][0] for row in bad["requests"] if row["verdicts"][0]["missed"])
    told = f"chat: TTFT +{duration(missed['over_s'])}"
    assert any(told in cell for cell in app.dataframe[0].value["missed"])
    app = shown("explore", range="1h", status="in_flight")
    assert "1 of 1 request. A click opens one." in words(app.caption)
    assert app.dataframe[0].value[["TTFT", "TPOT", "E2E"]].values.tolist() == [["–", "–", "–"]]


def test_names_from_outside_are_shown_as_they_are_and_times_are_the_readers_or_utc(page, dashboard, api):
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    (request,) = api("requests", request_id="req-7")["requests"]
    assert request["tenant"] == HOSTILE_TENANT
    at_the_reader = f"arrived {clock(request['start'], ZoneInfo('Asia/Kolkata'))}"
    browser = page.context.new_cdp_session(page)
    browser.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    page.goto(f"{dashboard}/request?trace_id={request['trace_id']}")
    page.get_by_text(at_the_reader).wait_for()
    metrics(part(page, "request-numbers"))
    assert HOSTILE_TENANT in page.locator('[data-testid="stMain"]').inner_text().replace("\u200b", "")
    assert page.locator('img[src="x"], a[href*="example.invalid"]').count() == 0
    assert dialogs == []
    page.goto(f"{dashboard}/request?trace_id={request['trace_id']}&utc=true")
    page.get_by_text(f"arrived {clock(request['start'])}").wait_for()
    assert page.get_by_text(at_the_reader).count() == 0
    browser.send("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_a_request_shows_its_verdict_and_by_how_much_it_missed(shown, api):
    row = next(r for r in api("requests", slo="chat", verdict="bad", status="ok")["requests"])
    app = shown("request", trace_id=row["trace_id"], span_id=row["span_id"])
    (miss,) = row["verdicts"][0]["missed"]
    told = f"bad for chat: TTFT {duration(miss['value_s'])}, {duration(miss['limit_s'])} promised"
    assert told in words(app.markdown)[0]


def test_a_range_that_the_api_refuses_is_explained(shown):
    (problem,) = words(shown("", range="custom", start="yesterday").error)
    assert "start:" in problem


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
