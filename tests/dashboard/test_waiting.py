"""What Explore says about time-outs, without a browser."""

from datetime import UTC

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.filters import View
from dashboard.views import waiting
from tokentrail.shared.formatting import kind_of_group

VIEW = View("2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z", (("tenant", "a"),), None, None, UTC)


def shares(share, low=0.0, high=0.1):
    return {"share": share, "low": low, "high": high}


def point(timeout_s, cut=0.01, caught=0.5, **more):
    dead = None if caught is None else shares(caught)
    told = {"timeout_s": timeout_s, "healthy_cut": shares(cut), "dead_caught": dead, "saved_s": 30.0}
    return {**told, "beyond_observed": False, **more}


def wait(name, *curve, suggested=None):
    return {"wait": name, "curve": [*curve], "suggested": suggested, "summary": f"said of {name.replace('_', ' ')}"}


def group(*waits, **more):
    return {"model": "m", "split": "", "value": "", "requests": 1200, "waits": [*waits], "hedging": [], **more}


def test_a_group_is_named_by_its_model_and_what_divides_it():
    assert kind_of_group(group()) == "m"
    assert kind_of_group(group(model="", split="operation", value="chat")) == "model not given, operation chat"
    assert kind_of_group(group(split="operation")) == "m, operation not given"


def test_sentences_are_of_the_wait_and_draw_no_markup():
    hedging = [{"wait": "gap", "summary": "model [x]"}, {"wait": "e2e", "summary": "other"}]
    assert waiting.sentences(group(hedging=hedging), wait("gap")) == ["- said of gap", "- model \\[x\\]"]


def test_a_row_says_what_is_not_known():
    assert dict(waiting.row(point(1.5, 0.05))) == {
        "time-out": "1.50 s", "healthy cut": "5 % (0 to 10 %)", "dead caught": "50 % (0 to 10 %)",
        "saved for each": "30.0 s", "": "",
    }  # fmt: skip
    unknown = waiting.row(point(90.0, None, None, saved_s=None, beyond_observed=True))
    assert [*unknown.values()][1:] == ["at most 10 %", "–", "–", "longer than any wait that was answered"]


@pytest.mark.parametrize("suggested", [None, point(2.0)])
@pytest.mark.parametrize("caught", [None, 0.5])
def test_the_figure_has_what_is_known(suggested, caught):
    drawn = waiting.figure(wait("e2e", point(1.0, 0.02, caught), point(4.0, None, caught), suggested=suggested))
    named = {trace["name"]: trace for trace in drawn["data"] if "name" in trace}
    assert [*named] == (["healthy cut"] if caught is None else ["healthy cut", "dead caught"])
    assert named["healthy cut"]["y"] == [2.0, None], "a bound is no point"
    assert [trace["y"] for trace in drawn["data"][:2]] == [[0.0, 0.0], [10.0, 10.0]]
    assert [one["x0"] for one in drawn["layout"]["shapes"]] == ([] if suggested is None else [2.0])


def test_nothing_is_asked_before_it_is_wanted(monkeypatch):
    asked = []

    def fetch(one):
        asked.append((one.path, dict(one.params)))
        waits = group(wait("first_token", point(1.0)), wait("e2e", point(9.0)))
        chats = group(wait("gap", point(1.0)), split="operation", value="chat")
        return {"summary": "one kind", "kill": 0.001, "groups": [waits, group(model="other"), chats]}

    monkeypatch.setattr(waiting, "fetch", fetch)

    def script(view):
        from dashboard.views import waiting as drawn

        drawn.draw(view)

    app = AppTest.from_function(script, kwargs={"view": VIEW}, default_timeout=300).run()
    assert not asked
    app.toggle(key="waits").set_value(True).run()
    assert not app.exception
    assert asked == [("timeouts", {"start": VIEW.start, "end": VIEW.end, "tenant": "a"})]
    assert [one.value for one in app.markdown] == ["- said of first token"], "a group without waits has no curve"
    assert app.selectbox(key="waits-of").options == ["m: 1 200", "m, operation chat: 1 200"]
    assert "healthy cut: 0.1 %" in app.caption[0].value
