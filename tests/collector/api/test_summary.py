import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collector.rows import NOW, SECOND

MS = 1_000_000


def test_an_empty_window_has_counts_of_zero_and_undefined_numbers(api):
    answer = api("summary")
    assert answer["window"] == {
        "start": "2026-11-21T09:45:00Z", "end": "2026-11-21T10:00:00Z", "seconds": 900.0,
        "complete_until": "2026-11-21T10:00:00Z", "covered_s": 900.0,
    }  # fmt: skip
    assert set(answer["requests"].values()) == {0}
    assert answer["attainment"] is None
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "gap_s"):
        assert answer[name] == dict.fromkeys(answer[name]) | {"count": 0}


def test_percentiles_are_numpys_and_come_with_their_count(api, rows):
    made = rows.requests(
        [
            {
                "ended": NOW - i * SECOND - 1,
                "e2e": (i * i % 37 + 1) * 13 * MS + i,
                "output_tokens": i % 4,
                "queue_ns": i * MS if i % 2 else None,
                "gap_ns": (None, 0, i * MS)[i % 3],
            }
            for i in range(1, 60)
        ]
        + [{"status": "error", "e2e": 500 * SECOND}, {"status": "cancelled", "e2e": 500 * SECOND}]
    )
    rows.tokens(made[0], [500_000, 10, 20, 30])
    rows.tokens(made[1], [500_000, 5_000])
    rows.tokens(made[-1], [500_000, 77_000])
    answer = api("summary")
    ok = [r for r in made if r["status"] == "ok"]
    expected = {
        name: [r[f"{name}_ns"] for r in ok if r[f"{name}_ns"] is not None] for name in ("ttft", "tpot", "e2e", "queue")
    }
    expected["gap"] = [r["gap_ns"] for r in ok if r["gap_ns"]]
    expected["itl"] = [10_000, 20_000, 30_000, 5_000_000]
    for name, values in expected.items():
        got = answer[f"{name}_s"]
        assert got["count"] == len(values)
        assert got["mean"] == pytest.approx(np.mean(values) / 1e9, rel=1e-12)
        assert got["max"] == max(values) / 1e9
        for key, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p999", 99.9)):
            assert got[key] == pytest.approx(np.percentile(values, q) / 1e9, rel=1e-12), (name, key)


def test_ttfts_that_are_the_e2e_are_counted(api, rows):
    """A whole answer has no other TTFT. Requests that failed or brought nothing are not in `ttft_s`."""
    whole = {"e2e": SECOND, "ttft_ns": SECOND}
    rows.requests([whole, whole | {"ttft_ns": SECOND - 2000}, whole | {"ttft_ns": None}, whole | {"status": "error"}])
    rows.requests([whole | {"ttft_ns": None, "output_tokens": 0, "e2e": 0}])
    answer = api("summary")
    assert (answer["ttft_s"]["count"], answer["ttft_is_e2e"]) == (2, 1)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=60))
def test_any_latencies_have_numpys_percentiles(api, rows, latencies):
    rows.clear()
    rows.requests([{"ttft_ns": ns} for ns in latencies])
    got = api("summary")["ttft_s"]
    for key, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p999", 99.9)):
        assert got[key] == pytest.approx(np.percentile(latencies, q) / 1e9, rel=1e-12)
    assert (got["count"], got["max"]) == (len(latencies), max(latencies) / 1e9)


def test_a_request_belongs_to_the_window_in_which_it_ended(api, rows):
    rows.requests(
        [{"ended": NOW - 900 * SECOND}, {"ended": NOW - 900 * SECOND - 1}, {"ended": NOW}, {"ended": NOW - 1}]
    )
    assert api("summary")["requests"]["total"] == 2
    exact = api("summary", start="2026-11-21T09:44:59.999999999Z", end="1795255200.000000001")
    assert exact["requests"]["total"] == 4
    assert exact["window"]["start"] == "2026-11-21T09:44:59.999999999Z"


def test_a_request_that_ended_with_the_window_was_in_flight_until_then(api, rows):
    rows.request(ended=NOW, e2e=61 * SECOND)
    counts = api("summary")["requests"]
    assert (counts["total"], counts["in_flight"], counts["in_flight_violations"]) == (0, 1, 1)
    counts = api("summary", end="1795255200.000000001")["requests"]
    assert (counts["total"], counts["in_flight"]) == (1, 0)


def test_good_means_every_threshold_of_every_slo_that_selects(api, rows):
    chat = {"slo_class": "chat", "e2e": SECOND, "tpot_ns": 10.0 * MS}
    rows.requests(
        [
            {**chat, "ttft_ns": 500 * MS},  # at the threshold: good
            {**chat, "ttft_ns": 500 * MS + 1},
            {**chat, "ttft_ns": 5 * MS, "tpot_ns": 100.0 * MS + 0.5},
            {**chat, "ttft_ns": 5 * MS, "tpot_ns": None, "output_tokens": 1},  # no TPOT to miss: good
            {**chat, "ttft_ns": None, "tpot_ns": None, "output_tokens": 0},  # nor TTFT: good
            {**chat, "ttft_ns": None},  # it had tokens and nobody measured the first: undetermined
            {**chat, "ttft_ns": 5 * MS, "tpot_ns": None},  # likewise
            {**chat, "ttft_ns": 5 * MS, "e2e": 61 * SECOND},  # past the threshold of `all`
            {"ttft_ns": 10 * SECOND, "e2e": 59 * SECOND},  # another class: only `all` counts
            {**chat, "ttft_ns": 5 * MS, "status": "error"},
            {**chat, "ttft_ns": 5 * MS, "status": "cancelled"},
        ]
    )
    answer = api("summary")
    assert answer["requests"] == {
        "total": 11, "ok": 9, "good": 4, "undetermined": 2, "failed": 1, "cancelled": 1, "unknown": 0, "excused": 1,
        "unselected": 0, "in_flight": 0, "in_flight_violations": 0, "lost": 0,
    }  # fmt: skip
    assert answer["attainment"] == 4 / 8
    assert answer["goodput"] == {"requests_per_s": 4 / 900, "output_tokens_per_s": 21 / 900}
    assert answer["throughput"] == {
        "requests_per_s": 11 / 900, "output_tokens_per_s": 91 / 900, "output_tokens_known": 11,
    }  # fmt: skip


NO_USAGE = {"input_tokens": None, "output_tokens": None, "ttft_ns": None, "tpot_ns": None}


class TestUnknown:
    """A value that its source did not report is neither 0 nor a missed threshold."""

    def test_ten_requests_without_a_latency_are_undetermined(self, api, rows):
        rows.requests([{"slo_class": "chat", **NO_USAGE}] * 10)
        answer = api("summary")
        counts = {name: n for name, n in answer["requests"].items() if n}
        assert counts == {"total": 10, "ok": 10, "undetermined": 10}
        assert answer["attainment"] is None
        chat, every = api("slos")["slos"]
        assert (chat["requests"]["undetermined"], chat["attainment"], chat["budget_left"]) == (10, None, None)
        assert (every["requests"]["undetermined"], every["attainment"]) == (0, 1.0)  # its E2E is known
        assert api("timeseries", metric="attainment")["points"] == []

    def test_the_threshold_that_is_missed_for_certain_decides(self, api, rows):
        chat = {"slo_class": "chat", "e2e": SECOND}
        rows.requests(
            [
                {**chat, "ttft_ns": None, "tpot_ns": 200.0 * MS},
                {**chat, "ttft_ns": 501 * MS, "tpot_ns": None},
                {**chat, **NO_USAGE, "e2e": 61 * SECOND},  # undetermined for `chat`, bad for `all`
                {**chat, **NO_USAGE, "status": "error"},
                {**chat, **NO_USAGE, "status": "cancelled"},
            ]
        )
        answer = api("summary")
        assert (answer["requests"]["undetermined"], answer["requests"]["good"], answer["attainment"]) == (0, 0, 0.0)

    @pytest.mark.parametrize(
        ("tokens", "ttft_ns", "undetermined"),
        [(0, None, 0), (1, None, 1), (None, MS, 1)],
    )
    def test_a_value_that_cannot_exist_is_not_needed(self, api, rows, tokens, ttft_ns, undetermined):
        rows.request(slo_class="chat", output_tokens=tokens, ttft_ns=ttft_ns, tpot_ns=None)
        assert api("summary")["requests"]["undetermined"] == undetermined
        answer = api("goodput", ttft="500ms", tpot="100ms")
        assert answer["requests"]["undetermined"] == undetermined
        expected = None if undetermined else 1.0
        assert answer["attainment"] == expected

    def test_sums_of_tokens_are_over_the_requests_that_report_them(self, api, rows):
        rows.requests([{}, {"input_tokens": None, "output_tokens": 7}, NO_USAGE])
        assert api("summary")["throughput"] == {
            "requests_per_s": 3 / 900, "output_tokens_per_s": 17 / 900, "output_tokens_known": 2,
        }  # fmt: skip

    def test_a_rate_of_unknown_tokens_is_undefined(self, api, rows):
        rows.requests([NO_USAGE])
        answer = api("summary")
        assert answer["throughput"] == {
            "requests_per_s": 1 / 900, "output_tokens_per_s": None, "output_tokens_known": 0,
        }  # fmt: skip
        assert answer["goodput"] == {"requests_per_s": 1 / 900, "output_tokens_per_s": None}
        assert api("timeseries", metric="output_tokens")["points"] == []

    def test_a_rate_without_requests_is_0(self, api):
        answer = api("summary")
        assert answer["throughput"]["output_tokens_per_s"] == answer["goodput"]["output_tokens_per_s"] == 0


class TestUnselected:
    """A request that no SLO selects is not judged. It is neither good nor bad."""

    @pytest.fixture
    def slos_file(self, tmp_path):
        path = tmp_path / "slos.yaml"
        path.write_text(
            """
slos:
  - {name: chat, objective: "0.9", window: 7d, select: {slo_class: [chat]}, thresholds: {ttft: 1s}}
  - {name: batch, objective: "0.9", window: 7d, select: {slo_class: [batch]}, thresholds: {e2e: 1h}}
"""
        )
        return path

    def test_it_is_not_in_attainment_however_it_ended(self, api, rows):
        rows.requests([{"slo_class": "chat", "ttft_ns": 2 * SECOND}, {"slo_class": "batch"}, {"slo_class": "batch"}])
        rows.requests([{"status": status} for status in ("ok", "ok", "ok", "error", "cancelled")])
        rows.open(start=NOW - 90 * SECOND, seen=NOW - 80 * SECOND)  # lost
        rows.open(start=NOW - 90 * SECOND, seen=NOW)
        answer = api("summary")
        assert answer["requests"] == {
            "total": 8, "ok": 6, "good": 2, "undetermined": 0, "failed": 1, "cancelled": 1, "unknown": 0, "excused": 0,
            "unselected": 6, "in_flight": 1, "in_flight_violations": 0, "lost": 1,
        }  # fmt: skip
        assert answer["attainment"] == 2 / 3
        assert answer["goodput"] == {"requests_per_s": 2 / 900, "output_tokens_per_s": 20 / 900}
        (point,) = api("timeseries", metric="attainment", step="15m")["points"]
        assert point["value"] == 2 / 3

    def test_attainment_and_goodput_are_not_known_when_none_is_judged(self, api, rows):
        rows.requests([{}, {"status": "error"}])
        answer = api("summary")
        assert answer["attainment"] is None
        assert answer["goodput"] == {"requests_per_s": None, "output_tokens_per_s": None}
        assert api("timeseries", metric="attainment")["points"] == []
        assert api("timeseries", metric="goodput")["points"] == []
        assert len(api("timeseries", metric="requests")["points"]) == 1

    def test_goodput_is_0_when_all_that_are_selected_are_bad_or_excused(self, api, rows):
        rows.request(slo_class="chat", status="cancelled", ttft_ns=MS)
        assert api("summary")["goodput"]["requests_per_s"] == 0
        assert [point["value"] for point in api("timeseries", metric="goodput")["points"]] == [0]
        rows.requests([{}, {"slo_class": "chat", "ttft_ns": 2 * SECOND}])
        assert api("summary")["goodput"]["requests_per_s"] == 0

    def test_goodput_of_undetermined_requests_is_not_known(self, api, rows):
        rows.request(slo_class="chat", ttft_ns=None)
        assert api("summary")["goodput"]["requests_per_s"] is None
        assert api("timeseries", metric="goodput", slo="chat")["points"] == []

    def test_thresholds_of_goodput_judge_every_request(self, api, rows):
        rows.requests([{}, {"slo_class": "chat"}])
        answer = api("goodput", e2e="1h")
        assert (answer["requests"]["good"], answer["requests"]["unselected"], answer["attainment"]) == (2, 0, 1.0)

    def test_sampled_ones_add_nothing_to_the_error_of_attainment(self, api, rows):
        judged = [{"weight": 4.0, "slo_class": "chat", "ttft_ns": ns} for ns in (MS, MS, 2 * SECOND)]
        rows.requests(judged)
        alone = api("summary")["errors"]["attainment"]
        rows.requests([{"weight": 50.0}, {"weight": 50.0, "status": "error"}])
        assert api("summary")["errors"]["attainment"] == pytest.approx(alone)
        assert api("summary")["requests"]["unselected"] == 100

    def test_rounded_sums_of_weights_leave_nothing_to_judge(self, api, rows):
        weights = [1 / 0.3, 1 / 0.07, 1 / 0.13] * 7
        rows.requests([{"weight": weight} for weight in weights])
        rows.requests([{"weight": weight, "slo_class": "chat", "ttft_ns": None} for weight in weights[1:]])
        rows.requests([{"weight": weight, "slo_class": "chat", "status": "cancelled"} for weight in weights[2:]])
        answer = api("summary")
        counts = answer["requests"]
        assert counts["total"] - counts["unselected"] - counts["undetermined"] - counts["excused"] != 0
        assert (answer["attainment"], answer["goodput"]["requests_per_s"]) == (None, None)
        for metric in ("attainment", "goodput"):
            assert api("timeseries", metric=metric, step="15m")["points"] == []


class TestWithoutSlos:
    @pytest.fixture
    def slos_file(self, tmp_path):
        path = tmp_path / "slos.yaml"
        path.write_text("slos: []")
        return path

    def test_nothing_is_judged(self, api, rows):
        rows.request()
        rows.open(start=NOW - 90 * SECOND, seen=NOW - 80 * SECOND)
        answer = api("summary")
        counts = {name: n for name, n in answer["requests"].items() if n}
        assert counts == {"total": 1, "ok": 1, "unselected": 2, "lost": 1}
        assert (answer["attainment"], answer["goodput"]["requests_per_s"]) == (None, None)
        assert [row["verdict"] for row in api("requests")["requests"]] == ["unselected"]
        assert [row["verdict"] for row in api("requests", status="lost")["requests"]] == ["unselected"]


def test_filters_are_any_of_and_all_of(api, rows):
    rows.requests(
        [
            {"model": m, "tenant": t, "variant": v}
            for m in ("a", "b", 'c\'s \\ "x"\n')
            for t in ("", "t")
            for v in ("v", "w")
        ]
    )
    assert api("summary", model="a")["requests"]["total"] == 4
    assert api("summary", model=["a", "b"], tenant="t")["requests"]["total"] == 4
    assert api("summary", model='c\'s \\ "x"\n', variant="w", tenant="")["requests"]["total"] == 1
    assert api("summary", **{"not.model": "a"})["requests"]["total"] == 8
    assert api("summary", **{"not.model": ["a", "b"], "tenant": "t"})["requests"]["total"] == 2
    assert api("summary", **{"not.model": "a", "not.tenant": "t"})["requests"]["total"] == 4
    compared = api("compare", **{"a.model": "a", "b.model": ["a", "b"], "not.tenant": "t"})
    assert [compared[side]["requests"]["total"] for side in "ab"] == [2, 4]
    assert api("summary", engine="vllm")["requests"]["total"] == 0


class TestVantage:
    """The spans of a server and of its client for the same requests."""

    @pytest.mark.parametrize(("vantage", "rows_of_it"), [("client", 3), (["server", "client"], 5)])
    def test_every_endpoint_about_requests_filters_by_it(self, api, rows, vantage, rows_of_it):
        rows.requests([{"vantage": "server"}] * 2 + [{"vantage": "client"}] * 3)
        assert api("summary", vantage=vantage)["requests"]["total"] == rows_of_it
        assert api("goodput", vantage=vantage, e2e="1s")["requests"]["good"] == rows_of_it
        judged = 0 if vantage == "client" else 2  # an SLO without a vantage judges what servers report
        assert api("slos/all", vantage=vantage)["requests"]["total"] == judged
        found = api("requests", vantage=vantage)
        assert found["total"] == rows_of_it
        points = api("timeseries", metric="requests", step="900s", vantage=vantage)["points"]
        assert sum(point["value"] for point in points) * 900 == pytest.approx(rows_of_it)
        assert api("engines", vantage=vantage)["engines"][0]["requests"] == rows_of_it

    def test_requests_in_flight_have_it_too(self, api, rows):
        rows.open(start=NOW - 5 * SECOND, seen=NOW)  # as an older collector stored it
        announced = rows.open(start=NOW - 5 * SECOND, seen=NOW, vantage="client")
        assert [api("summary", vantage=v)["requests"]["in_flight"] for v in ([], "server", "client")] == [2, 1, 1]
        assert api(f"requests/{announced['trace_id']}")["request"]["vantage"] == "client"


class TestInFlight:
    def test_what_is_known_to_be_past_a_threshold_is_bad_now(self, api, rows):
        rows.request(slo_class="chat", ttft_ns=5 * MS, tpot_ns=1.0 * MS)
        rows.open(start=NOW - 2 * SECOND, seen=NOW - SECOND, slo_class="chat")  # a second without a token
        rows.open(start=NOW - 2 * SECOND, seen=NOW - 1600 * MS, slo_class="chat")  # not known to be late
        rows.open(start=NOW - 20 * SECOND, seen=NOW, slo_class="chat", ttft_ns=499 * MS, output_tokens=5)
        rows.open(start=NOW - 20 * SECOND, seen=NOW, slo_class="chat", ttft_ns=501 * MS, output_tokens=5)
        rows.open(start=NOW - 61 * SECOND, seen=NOW, slo_class="batch")
        answer = api("summary")
        assert answer["requests"] == {
            "total": 1, "ok": 1, "good": 1, "undetermined": 0, "failed": 0, "cancelled": 0, "unknown": 0, "excused": 0,
            "unselected": 0, "in_flight": 5, "in_flight_violations": 3, "lost": 0,
        }  # fmt: skip
        assert answer["attainment"] == 1 / 4

    def test_only_the_latest_announcement_counts_and_none_after_the_end(self, api, rows):
        first = rows.open(start=NOW - 10 * SECOND, seen=NOW - 10 * SECOND)
        rows.insert("open_requests", [first | {"seen": NOW - SECOND, "ttft_ns": SECOND, "output_tokens": 3}])
        rows.request(trace_id=first["trace_id"], ended=NOW - SECOND // 2, e2e=9 * SECOND)
        assert api("summary")["requests"]["in_flight"] == 0
        assert api("summary", end="-1s")["requests"]["in_flight"] == 1
        assert api("summary", end="-11s")["requests"]["in_flight"] == 0

    @pytest.mark.parametrize(
        ("known", "late"),
        [
            ({}, 0),  # of its tokens nobody measured the first
            ({"output_tokens": None}, 0),
            ({"output_tokens": 0}, 1),  # it had none
            ({"ttft_ns": 400 * MS}, 0),
            ({"ttft_ns": 9 * SECOND}, 1),
        ],
    )
    def test_a_first_token_that_nobody_measured_was_not_late_while_its_request_ran(self, api, rows, known, late):
        rows.request(slo_class="chat", e2e=20 * SECOND, **{"ttft_ns": None, "tpot_ns": None, **known})
        asked = {"end": "-10s"}
        summary, goodput = api("summary", **asked), api("goodput", **asked, ttft="500ms")
        assert [one["requests"]["in_flight_violations"] for one in (summary, goodput)] == [late, late]
        assert [summary["attainment"], goodput["attainment"]] == [0.0 if late else None] * 2
        assert goodput["violations"]["ttft"] == late
        (row,) = api("requests", **asked, status="in_flight")["requests"]
        assert row["verdict"] == ("bad" if late else "pending")

    def test_the_silent_are_lost_in_the_window_in_which_they_were_given_up(self, api, rows):
        rows.open(start=NOW - 100 * SECOND, seen=NOW - 60 * SECOND)
        lost = api("summary")["requests"]
        assert (lost["in_flight"], lost["lost"], api("summary")["attainment"]) == (0, 1, 0.0)
        assert api("summary", end="-31s")["requests"]["in_flight"] == 1
        assert api("summary", start="-29s")["requests"]["lost"] == 0
        assert api("summary", start="-31s", end="-29s")["requests"]["lost"] == 1

    def test_a_request_that_came_back_is_not_lost(self, api, rows):
        back = rows.open(start=NOW - 200 * SECOND, seen=NOW - 190 * SECOND)
        rows.request(trace_id=back["trace_id"], ended=NOW - 10 * SECOND, e2e=190 * SECOND)
        assert api("summary")["requests"]["lost"] == 0
        assert api("summary", end="-60s")["requests"]["in_flight"] == 1

    def test_a_decode_that_stands_still_is_bad_although_its_tpot_could_recover(self, api, rows):
        hung = {
            "start": NOW - 50 * SECOND,
            "seen": NOW - SECOND,
            "slo_class": "chat",
            "ttft_ns": MS,
            "output_tokens": 4,
        }
        rows.open(**hung, instance="hung")
        rows.open(**hung, instance="alive")
        rows.open(**hung, instance="foreign")  # an engine without step spans: nothing is known
        rows.step(start=NOW - 45 * SECOND, instance="hung")
        rows.step(start=NOW - 2 * SECOND, instance="alive")
        assert api("summary")["requests"]["in_flight_violations"] == 1


def test_tokens_of_the_earliest_request_count_too(api, rows):
    """They are read since the first start, which may be in any of the groups that the store counts."""
    for minutes, slo_class in ((10, ""), (1, "chat")):
        made = rows.request(ended=NOW - minutes * 60 * SECOND, slo_class=slo_class)
        rows.tokens(made, [500_000, 10])
    assert api("summary")["itl_s"]["count"] == 2
