"""Promises per token: longest gaps and first visible tokens are stored, judged, listed and explained."""

import pytest

from tests import gaps
from tests.collector.rows import NOW, SECOND

MS = 1_000_000
SLOS = """
slos:
  - name: chat
    objective: "0.95"
    window: 7d
    select: {slo_class: [chat]}
    thresholds: {ttft: 1s, tpot: 100ms, gap: 2s}
  - name: reader
    objective: "0.9"
    window: 7d
    select: {slo_class: [reader]}
    thresholds: {first_visible: 1s}
"""


@pytest.fixture
def slos_file(tmp_path):
    path = tmp_path / "slos.yaml"
    path.write_text(SLOS)
    return path


def chat(**fields):
    return {
        "slo_class": "chat",
        "e2e": 10 * SECOND,
        "ttft_ns": SECOND,
        "tpot_ns": 50.0 * MS,
        "output_tokens": 181,
    } | fields


def test_random_trails_are_stored_and_judged_as_brute_force_says(rows, api):
    gaps.check(lambda sql: rows.store.query(sql).result_rows, rows.store, api, trails=3000, seed=11)


def test_requests_are_listed_by_their_gap_and_by_the_threshold_that_they_missed(rows, api):
    rows.requests(
        [chat(request_id=f"gap-{s}", gap_ns=s * SECOND, gap_index=7) for s in (1, 2, 3)]
        + [chat(request_id="late", ttft_ns=2 * SECOND, gap_ns=0), chat(request_id="unknown")]
        + [chat(request_id="reader", slo_class="reader", first_visible_ns=3 * SECOND, gap_ns=9 * SECOND)]
    )

    def ids(**asked):
        return [row["request_id"] for row in api("requests", **asked)["requests"]]

    assert ids(sort="gap") == ["reader", "gap-3", "gap-2", "gap-1", "late", "unknown"]
    assert ids(sort="first_visible", limit=1) == ["reader"]
    assert (ids(missed="gap"), ids(missed="ttft"), ids(missed="e2e")) == (["gap-3"], ["late"], [])
    assert (ids(missed="gap", slo="reader"), ids(missed="first_visible")) == ([], ["reader"])
    assert (ids(missed="gap", verdict="bad"), ids(missed="gap", verdict="good")) == (["gap-3"], [])
    assert ids(verdict="undetermined") == ["unknown"]
    assert sorted(ids(metric="gap", at_least="1.5s")) == ["gap-2", "gap-3", "reader"]
    (row,) = api("requests", missed="gap")["requests"]
    assert (row["gap_s"], row["gap_index"]) == (3.0, 7)
    assert row["verdicts"] == [
        {
            "slo": "chat",
            "verdict": "bad",
            "missed": [{"threshold": "gap", "limit_s": 2.0, "value_s": 3.0, "over_s": 1.0}],
        }
    ]
    first = api("requests", sort="gap", limit=2)
    assert [row["request_id"] for row in api("requests", sort="gap", cursor=first["next"])["requests"]] == ids(
        sort="gap"
    )[2:]
    heat = api("heatmap", metric="gap", slo="chat")
    assert heat["thresholds_s"] == [2.0]
    assert sum(cell["bad"] for cell in heat["cells"] if cell["y"] is not None and heat["edges_s"][cell["y"]] > 2) == 1


def test_a_request_in_flight_that_stands_still_is_bad_and_listed(rows, api):
    began = NOW - 60 * SECOND
    still = {"slo_class": "chat", "start": began, "seen": NOW, "ttft_ns": SECOND, "output_tokens": 900}
    rows.open(**still, request_id="frozen", last_token_ns=57 * SECOND, gap_ns=SECOND)
    rows.open(**still, request_id="was", last_token_ns=60 * SECOND, gap_ns=5 * SECOND)
    rows.open(**still, request_id="runs", last_token_ns=59 * SECOND, gap_ns=2 * SECOND)
    rows.open(**still, request_id="silent about it")
    (slo,) = [slo for slo in api("slos")["slos"] if slo["name"] == "chat"]
    assert (slo["requests"]["in_flight"], slo["requests"]["in_flight_violations"]) == (4, 2)
    found = api("requests", status="in_flight", missed="gap")["requests"]
    assert {row["request_id"]: row["gap_s"] for row in found} == {"frozen": 3.0, "was": 5.0}
    assert {row["verdicts"][0]["missed"][0]["over_s"] for row in found} == {1.0, 3.0}
    assert api("requests", status="in_flight", verdict="pending")["total"] == 2
    detail = api(f"requests/{found[0]['trace_id']}")["request"]
    assert (detail["gap_s"], detail["verdict"]) == (found[0]["gap_s"], "bad")


@pytest.mark.parametrize(("metric", "value_s"), [("gap", 4.0), ("first_visible", 5.0)])
def test_the_slowest_by_a_gap_are_explained(rows, api, metric, value_s):
    typical = [chat(gap_ns=100 * MS, first_visible_ns=SECOND) for _ in range(20)]
    frozen = chat(e2e=14 * SECOND, tpot_ns=72.0 * MS, gap_ns=4 * SECOND, first_visible_ns=5 * SECOND)
    made = rows.requests([*typical, frozen])
    rest = {"rest_alone_us": 9_000_000, "rest_unexplained_us": 0}
    explained = [(one, {**rest, "ttft_alone_us": 1_000_000, "ttft_unexplained_us": 0}) for one in made]
    explained[-1][1]["rest_stall_us"] = 4_000_000
    rows.causes(explained)
    answer = api("explain", metric=metric, quantile=1 - 1e-6)
    assert (answer["selected"]["requests"], answer["value_s"]) == (1, pytest.approx(value_s, rel=1e-3))
    assert answer["parts"][0]["cause"] == "stall"
    answer = api("explain", slo="chat")
    top = answer["parts"][0]
    assert (top["cause"], top["excess_s"]) == ("stall", pytest.approx(4.0))
    assert (answer["attainment"], top["without"]["attainment"]) == (pytest.approx(20 / 21), 1.0)
    assert top["without"]["low"] == pytest.approx(20 / 21)  # it may have lain anywhere between the tokens
    assert "no replay: a replay tells no gap" in api("explain", slo="chat", replay="true")["note"]
