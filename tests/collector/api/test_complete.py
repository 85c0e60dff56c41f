"""Each answer about a window says up to when it is complete, and rates divide by that time."""

import pytest

from collector.app.service import build_api
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND
from tests.support.api import NEEDED, windowed

COMPLETE = "2026-11-21T09:59:53Z"
OF_ANSWER = {"compare": "a"}
"""The part of an answer that has its window."""


@pytest.fixture
def waiting():
    return [NOW - 5 * SECOND]


@pytest.fixture
def app(rows, slos_file, clock, ingest_status, waiting):
    """An API whose log has data that was received five seconds ago."""
    slos = load_slos(slos_file)
    return build_api(rows.store, slos, ingest_status, lost_after_s=30.0, clock=clock, logs=[lambda: waiting[0]])[0]


@pytest.fixture
def traffic(rows):
    """Four good requests a second. Of those of the last seven seconds, every fourth has arrived."""
    ends = [NOW - k * SECOND // 4 for k in range(1, 240) if k > 28 or k % 4 == 0]
    rows.requests({"slo_class": "chat", "ttft_ns": 1, "tpot_ns": 1.0, "ended": end} for end in ends)


def test_each_answer_about_a_window_says_up_to_when_it_is_complete(api, app):
    paths = [*windowed(app.openapi()), "slos/chat"]
    assert {"summary", "slos/chat", "requests", "incidents", "engines", "samples", "spans/names"} <= {*paths}
    for path in paths:
        answer = api(path, **NEEDED.get(path, {}))
        of_window = answer[OF_ANSWER[path]] if path in OF_ANSWER else answer
        assert of_window["window"]["complete_until"] == COMPLETE, path
    past = api("summary", start="-15m", end="-1m")
    assert past["window"]["complete_until"] == "2026-11-21T09:59:00Z"


@pytest.mark.parametrize(("start", "covered_s", "total"), [("-10s", 3, 19), ("-30s", 23, 99), ("-7500ms", 0.5, 9)])
def test_rates_are_of_the_time_that_is_complete(start, covered_s, total, api, traffic):
    """Ten seconds of 40 requests/s read as 16 to 30."""
    summary = api("summary", start=start)
    assert (summary["window"]["covered_s"], summary["requests"]["total"]) == (covered_s, total)
    assert summary["throughput"]["requests_per_s"] == 4
    assert summary["throughput"]["output_tokens_per_s"] == 40
    assert summary["goodput"] == {"requests_per_s": 4, "output_tokens_per_s": 40}
    assert api("goodput", start=start, e2e="9s")["goodput"] == summary["goodput"]


@pytest.mark.parametrize("start", ["-7s", "-5s"])
def test_rates_of_a_time_of_which_nothing_is_complete_are_unknown(start, api, traffic):
    summary = api("summary", start=start)
    assert summary["requests"]["total"] == int(start[1])
    assert (summary["window"]["covered_s"], summary["throughput"]["requests_per_s"]) == (0, None)
    assert summary["throughput"]["output_tokens_per_s"] is None
    assert summary["goodput"] == {"requests_per_s": None, "output_tokens_per_s": None}
    for metric in ("requests", "output_tokens", "goodput", "attainment"):
        assert api("timeseries", metric=metric, step="1s", start=start)["points"] == []


@pytest.mark.parametrize("metric", ["requests", "goodput", "attainment"])
def test_a_partial_bucket_is_marked_and_no_rate_lies_behind_it(metric, api, traffic):
    points = api("timeseries", metric=metric, step="2s", start="-11s")["points"]
    told = [(point["t"][-4:], point["partial"], point["value"]) for point in points]
    value = 1.0 if metric == "attainment" else 4.0
    assert told == [(":48Z", True, value), (":50Z", False, value), (":52Z", True, value)]


def test_latencies_that_are_known_are_shown_as_partial(api, traffic):
    points = api("timeseries", metric="ttft", step="2s", start="-10s")["points"]
    assert [(point["t"][-4:], point["partial"], point["count"]) for point in points] == [
        (":50Z", False, 8), (":52Z", True, 5), (":54Z", True, 2), (":56Z", True, 2), (":58Z", True, 2),
    ]  # fmt: skip


def test_a_request_that_is_bad_before_it_ends_is_in_no_bucket(api, rows, traffic):
    rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND)
    found = api("timeseries", metric="attainment", step="2s", start="-10s")
    assert [(point["value"], point["covered_s"]) for point in found["points"]] == [(1, 2.0), (1, 1.0)]
    assert found["in_flight_violations"] == 1


def test_an_empty_log_is_complete_but_for_what_senders_collect(api, waiting, traffic):
    waiting[0] = None
    assert api("summary")["window"]["complete_until"] == "2026-11-21T09:59:58Z"


@pytest.mark.parametrize("metric", ["attainment", "goodput"])
def test_a_request_that_was_lost_behind_it_makes_no_point_yet(metric, api, rows, traffic):
    rows.open(start=NOW - 90 * SECOND, seen=NOW - 36_500_000_000)
    assert api("summary")["requests"]["lost"] == 1
    points = api("timeseries", metric=metric, step="1s", start="-10s")["points"]
    assert [point["t"][-4:] for point in points] == [":50Z", ":51Z", ":52Z"]


class TestUnselected:
    """The only SLO selects another class."""

    @pytest.fixture
    def app(self, rows, slos_file, clock, ingest_status, waiting):
        chat = [slo for slo in load_slos(slos_file) if slo.name == "chat"]
        return build_api(rows.store, chat, ingest_status, lost_after_s=30.0, clock=clock, logs=[lambda: waiting[0]])[0]

    @pytest.mark.parametrize("end", ["now", "-10s"])
    def test_a_lost_request_that_no_slo_selects_makes_no_goodput_known(self, end, api, rows):
        rows.open(start=NOW - 90 * SECOND, seen=NOW - 60 * SECOND, slo_class="batch")
        rows.request(slo_class="batch", ended=NOW - 20 * SECOND)
        summary = api("summary", start="-15m", end=end)
        assert (summary["requests"]["lost"], summary["requests"]["unselected"]) == (1, 2)
        assert summary["goodput"]["requests_per_s"] is None
