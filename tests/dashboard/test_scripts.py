"""The pages, run without a browser, over answers that a test makes up."""

from datetime import UTC, datetime

import httpx
import pytest
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from dashboard import api
from dashboard.filters import View
from dashboard.views import events, now
from tests.dashboard.browser import PAGES

TRACE = "a" * 32


@pytest.fixture
def show(monkeypatch):
    """Run a page over the answer to each path of the API; the last page that it drew."""

    def show(page, answers, address="http://127.0.0.1:8080", **query):
        def answer(request):
            told = answers(request.url.path.removeprefix("/api/v1/"))
            return told if isinstance(told, httpx.Response) else httpx.Response(200, json=told)

        monkeypatch.setenv("TOKENTRAIL_API_URL", address)
        client = httpx.Client(base_url="http://collector/api/v1/", transport=httpx.MockTransport(answer))
        monkeypatch.setattr(api, "_client", lambda *_: client)
        api._fetched.clear()
        api._found.clear()
        app = AppTest.from_file(str(PAGES), default_timeout=300)
        app._page_hash = calc_hash(page)
        if page == "request":
            app.query_params["trace_id"] = TRACE
        for name, value in query.items():
            app.query_params[name] = value
        return app.run()

    yield show
    api._fetched.clear()
    api._found.clear()


@pytest.mark.parametrize("page", ["", "explore", "tail", "engines", "compare", "request"])
def test_an_answer_that_lacks_something_is_explained(show, page, caplog):
    """A collector of another version answers so. Nothing of it is offered by the filters either."""
    shown = show(page, lambda _: {"slos": [{}], "engines": [{}], "requests": [{}]}, "http://user:secret@collector:8080")
    assert len(shown.exception) == 0
    (problem,) = shown.error
    assert "The collector's answer cannot be drawn" in problem.value
    assert "KeyError" in problem.value
    assert "collector\\:8080/healthz" in problem.value
    assert "secret" not in problem.value
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(("firing", "drawn", "rest"), [(3, 3, ""), (30, 30, ""), (31, 30, "1"), (450, 30, "420")])
def test_a_page_of_many_incidents_draws_the_worst_and_counts_the_others(firing, drawn, rest):
    def script(firing):
        from datetime import UTC, datetime

        from dashboard.filters import View
        from dashboard.views import events

        incident = {
            "cause": "slo_burn", "severity": "page", "title": "chat burns", "detail": "", "firing": True, "end": None,
            "start": "2026-11-21T10:00:00Z", "requests_affected": None, "requests": [], "runbook_url": "",
        }  # fmt: skip
        answer = {"incidents": [incident] * firing, "firing_outside": 0}
        view = View("-15m", "now", (), None, None, UTC)
        events.firing(answer, view, datetime(2026, 11, 21, 11, tzinfo=UTC), is_heard=True, is_judged=True)

    shown = AppTest.from_function(script, kwargs={"firing": firing}, default_timeout=300).run()
    assert len(shown.exception) == 0
    captions = [caption.value for caption in shown.caption]
    assert sum("since 2026" in text for text in captions) == drawn
    assert [text.split()[2] for text in captions if text.startswith("Not drawn")] == ([rest] if rest else [])


@pytest.mark.parametrize(("end", "text"), [("2026-11-21T10:01:30Z", "1 min 30 s"), (None, "1 h")])
def test_an_incident_lasted_until_its_end_or_that_of_the_range(end, text):
    incident = {"start": "2026-11-21T10:00:00Z", "end": end}
    assert events.lasted(incident, datetime(2026, 11, 21, 11, tzinfo=UTC)) == text


@pytest.mark.parametrize("top", [None, {"sentence": "What 4 bad requests took was 100 % *waiting*."}])
def test_an_incident_says_which_cause_took_most_time(top):
    def script(top):
        from datetime import UTC, datetime

        from dashboard.filters import View
        from dashboard.views import events

        incident = {
            "cause": "slo_burn", "severity": "page", "title": "chat burns", "detail": "", "firing": True, "end": None,
            "start": "2026-11-21T10:00:00Z", "requests_affected": 4, "requests": [], "runbook_url": "",
            "top_cause": top,
        }  # fmt: skip
        events.row(incident, View("-15m", "now", (), None, None, UTC), datetime(2026, 11, 21, 11, tzinfo=UTC))

    shown = AppTest.from_function(script, kwargs={"top": top}, default_timeout=300).run()
    assert len(shown.exception) == 0
    told = [text.value for text in shown.markdown if text.value.startswith("**Why:**")]
    assert told == ([] if top is None else [r"**Why:** What 4 bad requests took was 100 % \*waiting\*."])


@pytest.mark.parametrize(
    ("unselected", "goodput", "notes"),
    [(0, 0.5, ["of all SLOs, in this range", "5 good"]), (7, None, ["7 are in no SLO", "– good"])],
)
def test_the_traffic_says_how_many_requests_no_slo_selects(unselected, goodput, notes):
    def script(unselected, goodput):
        from datetime import UTC

        from dashboard.filters import View
        from dashboard.views import now

        counts = dict.fromkeys(("ok", "undetermined", "failed", "cancelled", "excused", "in_flight", "lost"), 0)
        summary = {
            "requests": {**counts, "total": 7, "good": 5, "in_flight_violations": 0, "unselected": unselected},
            "throughput": {"requests_per_s": 0.7, "output_tokens_per_s": None},
            "goodput": {"requests_per_s": goodput, "output_tokens_per_s": None},
            "attainment": None, "errors": None,
            "window": {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T10:00:10Z", "seconds": 10.0,
                       "complete_until": "2026-11-21T10:00:10Z"},
        }  # fmt: skip
        series = {name: {"step_s": 10.0, "points": []} for name in ("requests", "goodput", "attainment")}
        answer = {"summary": summary, "timeseries": series, "slos": {"slos": []}, "engines": {"engines": []}}
        now.traffic(answer, View("-15m", "now", (), None, None, UTC))

    kwargs = {"unselected": unselected, "goodput": goodput}
    shown = AppTest.from_function(script, kwargs=kwargs, default_timeout=300).run()
    assert len(shown.exception) == 0
    drawn = " ".join(str(one.value) for one in (*shown.caption, *shown.markdown))
    assert [note for note in notes if note in drawn] == notes, drawn


@pytest.mark.parametrize(
    ("found", "counts", "drawn"),
    [
        ({}, (5, 0, 4), "success"),
        ({}, (0, 0, 0), "success"),
        ({}, (5, 0, 5), "info"),
        ({}, (5, 1, 5), "success"),
        ({}, (5, 1, 6), "info"),
        (api.Problem("The collector cannot be reached", ""), (5, 0, 4), ""),
        (api.Problem("The collector cannot be reached", ""), (5, 0, 5), ""),
    ],
)
def test_old_numbers_and_requests_that_nobody_judges_are_no_all_clear(monkeypatch, found, counts, drawn):
    def script():
        from datetime import UTC

        from dashboard.filters import View
        from dashboard.views import now

        now.body(View("-15m", "now", (), None, None, UTC))

    known = {
        "summary": {
            "window": {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T10:15:00Z",
                       "complete_until": "2026-11-21T10:15:00Z"},
            "requests": {"in_flight": 0} | dict(zip(("total", "lost", "unselected"), counts, strict=True)),
        },
        "incidents": {"incidents": [], "firing_outside": 0}, "slos": {"slos": []}, "engines": None,
    }  # fmt: skip
    monkeypatch.setattr(now, "fetch", lambda _: found)
    monkeypatch.setattr("dashboard.components.last_known", lambda *_: known)
    for part in ("latencies", "traffic"):
        monkeypatch.setattr(now, part, lambda *_: None)
    shown = AppTest.from_function(script, default_timeout=300).run()
    assert len(shown.exception) == 0
    found = {
        "success": [one.value for one in shown.success],
        "info": [i.value for i in shown.info if "firing" in i.value],
    }
    assert [name for name, texts in found.items() if texts] == ([drawn] if drawn else [])


@pytest.mark.parametrize(
    ("total", "in_flight", "engines", "is_empty"),
    [
        (0, 0, {"engines": []}, True),
        (1, 0, {"engines": []}, False),
        (0, 1, {"engines": []}, False),
        (1, 1, {"engines": []}, False),
        (0, 0, {"engines": [{}]}, False),
        (0, 0, None, False),
    ],
)
def test_a_collector_is_called_empty_only_when_nothing_was_ever_sent(monkeypatch, total, in_flight, engines, is_empty):
    drawn = []
    requests = {"unselected": 0, "lost": 0, "total": total, "in_flight": in_flight}
    summary = {"window": SUMMARY["window"], "requests": requests}
    answer = {"summary": summary, "incidents": {}, "slos": {"slos": []}, "engines": engines,
              "cold_starts": {"cold_starts": []}}  # fmt: skip
    monkeypatch.setattr(now, "fetch", lambda _: answer)
    monkeypatch.setattr("dashboard.components.last_known", lambda *_: answer)
    monkeypatch.setattr("dashboard.components.no_data", lambda: drawn.append("no data"))
    monkeypatch.setattr("dashboard.views.events.firing", lambda *_, is_heard, **__: drawn.append(is_heard))
    for part in ("latencies", "traffic", "saturation"):
        monkeypatch.setattr(now, part, lambda *_: None)
    for part in ("dashboard.views.events.table", "dashboard.views.slos.cards"):
        monkeypatch.setattr(part, lambda *_: None)
    now.body(View("-15m", "now", (), None, None, UTC))
    assert drawn == (["no data", False] if is_empty else [True])


@pytest.mark.parametrize(
    ("emitted", "words"), [(None, "No single tokens"), (2, "No single tokens"), (1, "Fewer than two"), (0, "Fewer")]
)
def test_an_unknown_number_of_tokens_is_not_called_few(emitted, words):
    def script(emitted):
        from dashboard.views import request

        told = {"longest_waits": [], "interference": None, "tokens": [], "request": {"output_tokens": emitted}}
        request.waits(told)

    shown = AppTest.from_function(script, kwargs={"emitted": emitted}, default_timeout=300).run()
    assert len(shown.exception) == 0
    assert shown.caption[0].value.startswith(words)


SUMMARY = {
    "window": {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T10:15:00Z",
               "complete_until": "2026-11-21T10:14:54Z"},
    "requests": {"total": 1}, "ttft_s": {"p50": 0.1, "p99": 0.1}, "tpot_s": {"p50": 0.1, "p99": 0.1}, "attainment": 1.0,
    "throughput": {"output_tokens_per_s": 3.0}, "goodput": {"requests_per_s": 1.0},
}  # fmt: skip


def test_the_variants_are_one_question_that_a_key_of_one_tenant_may_ask(show):
    asked = []

    def answer(path):
        asked.append(path)
        if path == "engines":
            return httpx.Response(403, json={"title": "Forbidden", "detail": "engine processes serve all tenants"})
        return {"slos": []} if path == "slos" else grouped(int8=0.1, baseline=0.2)

    shown = show("compare", answer)
    assert (len(shown.exception), len(shown.error), len(shown.info)) == (0, 0, 0)
    assert list(shown.dataframe[0].value["variant"]) == ["baseline", "int8"]
    assert asked.count("summary") == 1
    assert "data until 10:14:54 UTC" in " ".join(one.value for one in shown.caption)


def grouped(total=None, **tpot_s):
    groups = [SUMMARY | {"value": name, "tpot_s": {"p50": s, "p99": s}} for name, s in tpot_s.items()]
    return SUMMARY | {"groups": groups, "groups_total": total or len(groups)}


def test_a_range_without_variants_says_so_and_others_are_counted(show):
    assert "has a variant" in show("compare", lambda _: grouped() | {"slos": [], "engines": []}).info[0].value
    shown = show("compare", lambda _: grouped(total=7, a=0.1) | {"slos": [], "engines": []})
    assert "Variants that are not shown: 6. Choose some with a filter." in [one.value for one in shown.caption]


@pytest.mark.parametrize(("tpot_s", "curves"), [((0.1, 0.2), 1), ((0.1, None), 0), ((0.1,), 0)])
def test_a_curve_needs_two_points(show, tpot_s, curves):
    """A variant with requests of one token has no TPOT, and so no point."""
    told = grouped(**{f"v{n}": s for n, s in enumerate(tpot_s)}) | {"slos": [], "engines": []}
    shown = show("compare", lambda _: told)
    assert (len(shown.exception), len(shown.error)) == (0, 0)
    assert len(shown.dataframe[0].value) == len(tpot_s)
    assert len(shown.subheader) == curves


def test_the_page_of_an_empty_collector_does_not_show_its_password(monkeypatch):
    def script():
        from dashboard import components

        components.no_data()

    monkeypatch.setenv("TOKENTRAIL_API_URL", "http://user:secret@collector:8080")
    (words,) = AppTest.from_function(script, default_timeout=300).run().markdown
    assert "collector\\:8080 answers" in words.value
    assert "secret" not in words.value
