"""The pages, run without a browser, over answers that a test makes up."""

import httpx
import pytest
from streamlit.testing.v1 import AppTest


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
