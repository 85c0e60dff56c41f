"""The pages, run without a browser, over answers that a test makes up."""

import httpx
import pytest
from streamlit.testing.v1 import AppTest

from tests.dashboard.rows import LISTED


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
def test_an_unknown_number_of_tokens_is_not_called_few(components_found, emitted, words):
    def script(emitted):
        from dashboard.views import request

        told = {"longest_waits": [], "interference": None, "tokens": []}
        told["request"] = {"output_tokens": emitted, "status": "ok"}
        request.waits(told)

    shown = AppTest.from_function(script, kwargs={"emitted": emitted}, default_timeout=300).run()
    assert len(shown.exception) == 0
    assert shown.caption[0].value.startswith(words)


SUMMARY = {
    "window": {"start": "2026-11-21T10:00:00Z", "end": "2026-11-21T10:15:00Z",
               "complete_until": "2026-11-21T10:14:54Z"},
    "requests": {"total": 1}, "ttft_s": {"p50": 0.1, "p99": 0.1, "count": 1}, "ttft_is_e2e": 0,
    "tpot_s": {"p50": 0.1, "p99": 0.1}, "attainment": 1.0,
    "throughput": {"output_tokens_per_s": 3.0}, "goodput": {"requests_per_s": 1.0},
}  # fmt: skip


def sided(**more):
    """An answer of `/compare` without any latency."""
    nothing = {"p50": None, "p90": None, "p99": None}
    side = {
        "name": "v1", "requests": {"total": 4, "failed": 1}, "attainment": 0.5, "requests_per_s": 1.0,
        "output_tokens_per_s": None, "goodput_per_s": None, "running": None,
        **dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s", "gap_s"), nothing),
    }  # fmt: skip
    return {
        "verdict": "not decided", "kind": "not decided", "relevant": 0.1, "a": side, "b": side | {"name": "v2"},
        "ratios": {}, "attainment": None, "like_for_like_by": [], "mix": {}, "warnings": ["the *load* differs"],
        "more_requests": {"a": 1000, "b": None}, **more,
    }  # fmt: skip


def compared(path):
    told = {
        "compare": sided(),
        "labels": {"labels": {"variant": [{"value": v, "requests": 4} for v in ("v2", "", "v1", "v0")]}},
        "changes": {"changes": []},
        "heatmap": {"edges_s": [], "cells": []},
        "summary": grouped(int8=0.1, baseline=0.2, int4=0.3),
        "slos": {"slos": []},
    }
    return told[path]


def test_two_sides_are_compared_as_the_link_says_or_the_commonest_variants(show):
    asked = []

    def answer(path):
        asked.append(path)
        return compared(path)

    shown = show("compare", answer)
    assert (len(shown.exception), len(shown.error)) == (0, 0)
    assert [shown.selectbox(key=f"pick {side}.variant").value for side in "ab"] == ["v2", "v1"]
    assert asked.count("compare") == 1
    assert {"**not decided.**", r"The \*load\* differs."} <= {one.value for one in shown.warning}
    shown = show("compare", compared, **{"a.variant": "v0", "b.variant": "gone"})
    assert [shown.selectbox(key=f"pick {side}.variant").value for side in "ab"] == ["v0", "gone"]
    shown = show("compare", compared, at="2026-11-21T10:00:00Z", span="6h")
    assert (shown.selectbox(key="by").value, shown.selectbox(key="pick span").value) == ("change", "6h")


def test_a_side_that_is_missing_is_asked_for(show):
    shown = show("compare", compared, **{"a.variant": "v0"})
    assert "Choose an A and a B" in shown.info[0].value
    shown.selectbox(key="by").select("model").run()
    assert "Choose an A and a B" in shown.info[0].value
    assert dict(shown.query_params) == {}


def test_a_chosen_label_is_a_filter_of_the_link(show):
    given = {"label.region": "eu", "not.label.app": "2.4", "label.9": "no label's name"}
    shown = show("compare", compared, **given)
    assert len(shown.exception) == 0
    asked = [params for path, params in show.asked if path == "summary"]
    assert asked
    assert all({name: params.get(name) for name in given} == {**given, "label.9": None} for params in asked)
    shown.button(key="chip-0").click().run()
    assert "label.region" not in shown.query_params
    assert shown.query_params["not.label.app"] in ("2.4", ["2.4"])


def grouped(total=None, **tpot_s):
    groups = [SUMMARY | {"value": name, "tpot_s": {"p50": s, "p99": s}} for name, s in tpot_s.items()]
    return SUMMARY | {"groups": groups, "groups_total": total or len(groups)}


@pytest.mark.parametrize(("total", "left_out"), [(3, None), (7, "4")])
def test_more_than_two_variants_have_a_table_and_a_curve_and_others_are_counted(show, total, left_out):
    told = {"summary": grouped(total=total, a=0.1, b=0.2, c=0.3)}
    shown = show("compare", lambda path: told.get(path) or compared(path))
    assert list(shown.dataframe[-1].value["variant"]) == ["a", "b", "c"]
    assert [one.value for one in shown.subheader][-2:] == ["All variants", "Throughput against latency"]
    words = [one.value for one in shown.caption if "not shown" in one.value]
    assert words == (
        [] if left_out is None else [f"Variants that are not shown: {left_out}. Choose some with a filter."]
    )


@pytest.mark.parametrize("tpot_s", [(0.1, 0.2), (0.1,), ()])
def test_two_variants_are_no_curve(show, tpot_s):
    told = {"summary": grouped(**{f"v{n}": s for n, s in enumerate(tpot_s)})}
    shown = show("compare", lambda path: told.get(path) or compared(path))
    assert len(shown.exception) == 0
    assert "All variants" not in [one.value for one in shown.subheader]


def test_the_page_of_an_empty_collector_does_not_show_its_password(monkeypatch, components_found):
    def script():
        from dashboard import components

        components.no_data()

    monkeypatch.setenv("TOKENTRAIL_API_URL", "http://user:secret@collector:8080")
    (words,) = AppTest.from_function(script, default_timeout=300).run().markdown
    assert "collector\\:8080 answers" in words.value
    assert "secret" not in words.value


def listed(path):
    """Answers of a range with one request on the first of several pages, in which nothing differs."""
    told = {
        "heatmap": {
            "window": SUMMARY["window"], "metric": "ttft", "start": SUMMARY["window"]["start"], "column_s": 60.0,
            "edges_s": [0.1, 1.0], "thresholds_s": [],
            "cells": [{"x": 0, "y": 0, "requests": 1, "bad": 0, "failed": 0}],
        },
        "requests": {"requests": [LISTED], "explained": [None], "total": 120, "next": "after-50"},
        "differences": {"selected": 1, "others": 9, "differences": [], "not_asked": []},
    }  # fmt: skip
    return told.get(path) or {"slos": [], "labels": {}, "incidents": [], "changes": []}


def test_pages_of_the_list_follow_each_other_and_another_list_begins_anew(show):
    """So does a list from which a filter of the link was removed."""
    app = show(
        "explore", listed, range="custom", start="2026-11-21T10:00:00Z", end="2026-11-21T10:15:00Z", process_tenant="i"
    )

    def asked():
        return [params for path, params in show.asked if path == "requests"][-1]

    def button(label):
        return next(button for button in app.button if button.label == label)

    assert "1 of 120 requests. A click opens one." in [one.value for one in app.caption]
    assert ("cursor" in asked(), asked()["process_tenant"], asked()["sort"]) == (False, "i", "ttft")
    assert button("First page").disabled
    app = button("Next page").click().run()
    assert asked()["cursor"] == "after-50"
    app = app.selectbox(key="pick-sort").select("newest").run()
    assert ("cursor" in asked(), asked()["sort"], app.query_params["sort"]) == (False, "end", "newest")
    app = app.button(key="chip-process_tenant").click().run()
    assert {"process_tenant", "cursor"}.isdisjoint(asked())
    assert any("None of the recorded dimensions differs" in one.value for one in app.caption)


@pytest.mark.parametrize(("path", "others"), [("requests", "differences"), ("differences", "requests")])
def test_a_part_that_fails_leaves_the_others(show, path, others):
    refusal = httpx.Response(503, json={"title": "It takes too long", "status": 503})
    app = show("explore", lambda asked: refusal if asked == path else listed(asked))
    (problem,) = app.error
    assert "It takes too long" in problem.value
    assert [len(app.dataframe), len([one for one in app.markdown if "What is different" in one.value])] == (
        [1, 0] if others == "requests" else [0, 1]
    )


def test_a_collector_that_is_away_is_told_once(show):
    def away(path):
        raise httpx.ConnectError(f"nobody answers {path}")

    app = show("explore", away)
    (problem,) = app.error
    assert "The collector cannot be reached" in problem.value


def test_two_labels_that_differ_together_are_kept_together_and_not_left_out_one_by_one(show):
    def difference(*labels):
        conditions = [{"dimension": name, "value": value} for name, value in labels]
        share = {"requests": 1, "share": 0.5}
        return {"conditions": conditions, "selected": share, "others": share, "lift": 2.0, "also": []}

    found = [difference(("tenant", "a"), ("model", "m")), difference(("variant", "v"))]
    told = {"differences": {"selected": 1, "others": 9, "differences": found, "not_asked": ["kv_usage_at_arrival"]}}
    app = show("explore", lambda path: told.get(path) or listed(path))
    keys = [button.key for button in app.button if (button.key or "").startswith(("keep-", "leave-out-"))]
    assert keys == ["keep-0", "keep-1", "leave-out-1"]
    assert "Not compared in so long a time: KV usage at arrival." in [one.value for one in app.caption]
    app = app.button(key="keep-0").click().run()
    app = app.button(key="leave-out-1").click().run()
    told_by_url = {name: app.query_params[name] for name in ("tenant", "model", "not.variant")}
    assert told_by_url == {"tenant": "a", "model": "m", "not.variant": "v"}
