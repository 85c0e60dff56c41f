"""The line of the header, without a browser: what it says, what it does, and links that have one."""

import asyncio
import re
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlencode

import pytest

from dashboard import filters
from dashboard.linked import LinkedLines
from tests.dashboard.test_header import RANGE, chips, shown_range, told

HOUR = "2026-11-21T10:00:00Z/2026-11-21T11:00:00Z"


def line(app):
    return app.text_input(key="go")


@pytest.mark.parametrize(
    ("page", "query", "text"),
    [
        ("explore", {}, "-15m"),
        ("explore", RANGE, HOUR),
        ("explore", {"range": "6h", "tenant": ["a b", "c"], "not.model": "m", "slo": "chat"},
         'tenant:"a b" tenant:c -model:m -6h slo:chat'),
        ("explore", {**RANGE, "lo": "0.451", "hi": "2", "verdict": "bad", "min_input_tokens": "9"},
         f"ttft>0.451s ttft<2s input_tokens>9 {HOUR} verdict:bad"),
        ("explore", {**RANGE, "metric": "e2e", "t0": "1795255200", "t1": "1795255800", "lo": "1"},
         "e2e>1s 2026-11-21T10:00:00Z/2026-11-21T10:10:00Z"),
        ("explore", {**RANGE, "metric": "e2e"}, HOUR),
        ("explore", {"verdict": "odd", "range": "custom", "start": "yesterday"}, ""),
        ("tail", {**RANGE, "verdict": "bad", "label.region": "eu"}, f"label.region:eu {HOUR}"),
    ],
)  # fmt: skip
def test_the_line_says_what_is_shown(show, page, query, text):
    assert line(show(page, told, **query)).value == text


def asked(show, path="heatmap"):
    return [params for name, params in show.asked if name == path][-1]


def test_the_line_is_what_is_shown_next(show):
    app = show("explore", told, tenant="acme", verdict="bad", sort="E2E", slo="chat", **RANGE)
    line(app).input("-model:llama ttft>451ms 2026-11-21T09:00:00Z/2026-11-21T10:00:00Z status:error").run()
    assert {"tenant", "slo", "verdict", "sort", "t0"}.isdisjoint(app.query_params)
    one = {"start": "2026-11-21T09:00:00Z", "end": "2026-11-21T10:00:00Z", "not.model": "llama"}
    assert one.items() <= asked(show).items()
    assert app.query_params["lo"] == "0.451"
    assert app.query_params["status"] == "error"
    assert (chips(app), shown_range(app)) == ([r"model ≠ llama"], (one["start"], one["end"]))
    line(app).input("slo:chat -1h").run()
    assert (app.session_state["range"], app.session_state["slo"], chips(app)) == ("1h", "chat", [])
    assert {"lo", "status", "not.model"}.isdisjoint(app.query_params)
    line(app).input("tenant:acme").run()
    assert line(app).value == "tenant:acme -1h", "a line without a time keeps the range"
    line(app).input("-1h/-30m").run()
    assert (app.session_state["range"], shown_range(app)) == ("custom", ("-1h", "-30m"))


def test_a_wrong_word_is_named_and_stays_to_be_mended(show):
    app = show("explore", told, tenant="acme", **RANGE)
    line(app).input("tenat:globex slo:chat").run()
    assert line(app).value == "tenat:globex slo:chat"
    assert [r"'tenat\:globex'" in one.value for one in app.error] == [True]
    assert chips(app) == [r"tenant\: acme"]
    line(app).input("tenant:globex").run()
    assert (len(app.error), chips(app)) == (0, [r"tenant\: globex"])
    app = show("tail", told, q="verdict:bad", **RANGE)
    assert (line(app).value, "takes no verdict" in app.error[0].value) == ("verdict:bad", True), (
        "of a link, on a page that has no use for it"
    )
    line(app).input("slo:chat").run()
    assert not [one for one in app.error if "takes no" in one.value]
    assert ("q" in app.query_params, app.session_state["slo"]) == (False, "chat")


def test_filters_are_typed_in_words_into_the_box_too(monkeypatch):
    added, told = [], []
    monkeypatch.setattr(filters, "add", lambda *pair: added.append(pair))
    for text in ("tenant:acme -model:llama", "llama: m (3)", "colour:red", "slo:chat", None):
        monkeypatch.setattr(filters, "st", SimpleNamespace(session_state={"add": text}, toast=told.append))
        filters._added({"llama: m (3)": ("model", "m")})
    assert added == [("tenant", "acme"), ("not.model", "llama"), ("model", "m")]
    assert [re.search(r"no \w+", one)[0] for one in told] == ["no colour", "no slo"]


def follow(path, query):
    """Where a link leads; None where it is its page's to answer."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "page"})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "query_string": urlencode(query).encode()}
    asyncio.run(LinkedLines(app)(scope, None, send))
    if sent[0]["type"] == "page":
        return None
    assert sent[0]["status"] == 307
    location = dict(sent[0]["headers"])[b"location"].decode()
    assert location.startswith("?"), "of this server and this page"
    return parse_qsl(location[1:], keep_blank_values=True)


@pytest.mark.parametrize(
    ("path", "query", "leads"),
    [
        ("/explore", {"q": "tenant:globex ttft>2s 14:00-15:00 slo:chat", "utc": "true"},
         {"utc": "true", "tenant": "globex", "metric": "ttft", "lo": "2", "range": "custom", "start": "14:00",
          "end": "15:00", "slo": "chat"}),
        ("/slo/tail", {"q": 'tenant:"a&b é" -1h'}, {"tenant": "a&b é", "range": "1h"}),
        ("/", {"q": "-90m"}, {"range": "custom", "start": "-90m", "end": "now"}),
        ("/now", {"q": "-1h/-30m"}, {"range": "custom", "start": "-1h", "end": "-30m"}),
        ("/explore", {"q": "ttft<5us"}, {"metric": "ttft", "hi": "0.000005"}),
        ("/explore", {"q": "tenat:globex"}, None),
        ("/tail", {"q": "ttft>2s"}, None),
        ("/explore", {"tenant": "globex"}, None),
        ("/static/app.js", {"q": "tenant:globex"}, None),
    ],
)  # fmt: skip
def test_a_link_with_a_line_leads_to_the_address_of_what_it_says(path, query, leads):
    found = follow(path, query)
    assert (found and dict(found)) == leads


def test_a_link_keeps_all_values_of_a_filter():
    assert follow("/explore", {"q": "tenant:a tenant:b"}) == [("tenant", "a"), ("tenant", "b")]
