"""Every link of Now and Tail over a day: the page that it opens asks for as many requests as stand beside the link."""

from __future__ import annotations

import re
from datetime import UTC
from html import unescape
from pathlib import Path
from typing import get_args
from urllib.parse import parse_qsl, urlsplit

import pytest

from dashboard import address, links
from dashboard.filters import View
from dashboard.views import slos, tail
from tests.dashboard.test_engines import process
from tests.dashboard.test_explore import cell, grid
from tests.dashboard.test_now import link

VIEW = View("2026-11-21T09:00:00Z", "2026-11-21T10:00:00Z", (("tenant", "acme"),), "chat", None, UTC)
SECOND = 1_000_000_000
OF_PAGE = {"limit", "sort", "explained"}
"""What Explore asks of a list besides which requests it has."""


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """What the collector's API says of the synthetic day."""
    from tests.support.day_api import day_api  # late: the collector takes a second

    with day_api(tmp_path_factory.mktemp("day") / "store") as (_, ask):
        yield ask


@pytest.fixture
def view(day):
    window = day("slos")["window"]
    return View(window["start"], window["end"], (), "chat", None, UTC)


@pytest.fixture
def follow(show):
    """Open a link: what its page asks of one path."""
    window = {"start": VIEW.start, "end": VIEW.end, "complete_until": VIEW.end}

    def asked(href: str, path: str) -> dict[str, str]:
        url = urlsplit(unescape(href))
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        service, instance, *of = query.get("sel", "/").split("/")
        answers = {
            "heatmap": grid(cell(0, 1, 3)), "requests": {"requests": [], "total": 0, "explained": [], "next": None},
            "engines": {"engines": []}, "cold_starts": {"cold_starts": []},
            "differences": {"selected": 0, "others": 0, "differences": [], "not_asked": []},
            "processes": {
                "window": window, "processes_total": 1,
                "processes": [process(service=service, instance=instance, process_tenant="/".join(of))],
            },
        }  # fmt: skip
        show.asked.clear()
        show(url.path.strip("/"), lambda name: answers.get(name, {"slos": [], "labels": {}}), **query)
        return next(params for name, params in show.asked if name == path)

    return asked


def hrefs(html: str) -> list[str]:
    return re.findall(r'href="(/[^"]*)"', html)


def test_the_links_of_now_open_what_they_say(day, view, follow):
    told = day("verdict")
    shown = [one for box in told["boxes"] for one in (box, *box["inside"])]
    assert {one["kind"] for one in shown} >= {"slo_burn", "engine_hung", "kv_eviction", "cold_start", "change"}
    by_kind = {(one["kind"], each["page"]): each for one in shown for each in one["links"] if not each["url"]}
    counts = 0
    for one in [*by_kind.values(), *(each for each in told["links"] if not each["url"])]:
        (href,) = hrefs(links.of_answer(one, view))
        params = dict(one["params"])
        if one["page"] == "explore":
            asked = follow(href, "requests")
            assert {*asked} - OF_PAGE == {*params}, one
            listed = day("requests", **{name: asked[name] for name in {*asked} - OF_PAGE}, limit=1)["total"]
            said = re.search(r"\d[\d\u202f]*", one["title"])
            if said:
                counts += 1
                assert listed == int(said[0].replace("\u202f", "")), one
        elif one["page"] == "engines":
            asked = follow(href, "processes/timeline")
            assert {name: asked[name] for name in ("service", "instance", "process_tenant")} == params, one
        else:
            asked = follow(href, {"tail": "explain", "compare": "compare"}[one["page"]])
            assert {name: asked.get(name) for name in params} == params, one
    assert counts >= 4


def test_the_links_of_the_table_of_slos_list_the_requests_of_its_numbers(day, view, follow):
    each = next(one for one in day("slos")["slos"] if one["groups"])
    first, *of_tenants = hrefs(slos.row(each, None, view))
    asked = follow(first, "requests")
    assert (asked["slo"], asked["start"], asked["end"]) == (each["name"], view.start, view.end)
    groups = {group["tenant"]: group["requests"]["total"] for group in each["groups"]}
    assert len(of_tenants) == len(groups)
    for href in of_tenants:
        asked = follow(href, "requests")
        listed = day("requests", **{name: asked[name] for name in {*asked} - OF_PAGE}, limit=1)["total"]
        assert listed == groups[asked["tenant"]]
        assert asked["start"] < view.start, "of the SLO's whole window"


def test_the_links_of_tail_list_bad_requests_of_a_time_and_open_examples(day, view, follow):
    bad = day("explain", slo="chat")
    parts = {part["cause"]: part for part in bad["parts"]}
    group = max(bad["groups"], key=lambda one: one["requests"])
    html = tail.where(group, [parts[cause] for cause in group["causes"]], view)
    found = hrefs(html)
    assert ">all bad requests of " in html, "they are more than those of the cause"
    assert len(found) > 1
    assert any("verdict=bad" in href for href in found)
    for href in found:
        if href.startswith("/request"):
            trace_id = dict(parse_qsl(urlsplit(unescape(href)).query))["trace_id"]
            assert day("requests", trace_id=trace_id)["total"] == 1
        elif "verdict=bad" in href:
            asked = follow(href, "requests")
            listed = day("requests", **{name: asked[name] for name in {*asked} - OF_PAGE}, limit=1)["total"]
            bad_then = day("explain", slo="chat", start=asked["start"], end=asked["end"])["selected"]["requests"]
            assert (asked["slo"], asked["verdict"], listed) == ("chat", "bad", bad_then)


def test_all_links_are_made_by_one_function():
    own = {"address.py", "linked.py", "links.py"}
    files = [path for path in Path(links.__file__).parent.rglob("*.py") if path.name not in own]
    pattern = re.compile(r"address\.link\(|\]\(/|href=\"/|urlencode")
    assert [str(path) for path in files if pattern.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("page", get_args(links.Page))
def test_a_link_has_absolute_times_the_clock_and_the_filters_of_its_page(monkeypatch, page):
    monkeypatch.setattr(address, "get", {"utc": "true"}.get)
    at = {"start": VIEW.start, "end": VIEW.end}
    told = dict(parse_qsl(urlsplit(links.to(page, VIEW)).query))
    assert told == {"range": "custom", **at, "utc": "true", "tenant": "acme"}
    assert "tenant" not in links.to(page, VIEW, filtered=False)
    assert links.to(page, VIEW, {"tenant": "globex", "slo": None}).count("tenant") == 1
    later = links.to(page, VIEW, {"start": "2026-11-21T09:10:00Z"})
    assert (later.count("start="), "09%3A10" in later) == (1, True)


@pytest.mark.parametrize(
    ("page", "params", "query"),
    [
        ("explore", {"slo": "chat"}, {"slo": "chat"}),
        ("explore", {"not.label.region": "eu"}, {"not.label.region": "eu"}),
        (
            "explore",
            {"metric": "ttft", "at_least": "451ms", "at_most": "2s"},
            {"metric": "ttft", "lo": "0.451", "hi": "2"},
        ),
        (
            "explore",
            {"metric": "tpot", "at_most": "5us"},
            {"metric": "tpot", "hi": "0.000005"},
        ),
        ("engines", {"service": "s", "instance": "i/1", "process_tenant": "acme"}, {"sel": "s/i%2F1/acme"}),
        ("engines", {"service": "s"}, {"service": "s"}),
        ("request", {"trace_id": "a", "span_id": "b"}, {"trace_id": "a", "span_id": "b"}),
    ],
)
def test_parameters_of_the_api_are_those_of_a_page(monkeypatch, page, params, query):
    monkeypatch.setattr(address, "get", {}.get)
    told = dict(parse_qsl(urlsplit(links.to(page, VIEW, params, filtered=False)).query))
    assert told == {"range": "custom", "start": VIEW.start, "end": VIEW.end} | query


@pytest.mark.parametrize(
    ("page", "params"), [("tail", {"verdict": "bad"}), ("explore", {"missed": "ttft"}), ("now", {"at": "12:00"})]
)
def test_a_link_that_a_page_would_not_follow_is_none(page, params):
    with pytest.raises(links.LeadsAstray, match=f"the page {page} reads no {next(iter(params))}"):
        links.to(page, VIEW, params)
    assert links.of_answer(link(page, **params), VIEW) == ""
    assert links.of_answer(link("of a newer collector"), VIEW) == ""
