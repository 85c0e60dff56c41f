"""Answers over sampled requests are estimates with a standard error; over unsampled ones they are exact."""

import math
from math import sqrt

import numpy as np
import pytest

from collector.count.answers import LEVELS
from collector.numbers.latencies import share_error
from collector.otlp.signals import TRACES
from collector.slo.burn import Tally
from collector.slo.counts import Counts
from collector.slo.estimate import Errors
from collector.store.insert import insert_otlp
from tests.collector.rows import NOW, SECOND
from tests.support.otlp import Request
from tokentrail import Sampling, Thresholds, semconv
from tokentrail.testing import ManualClock, MemoryTrail

MS = 1_000_000
GIVEN = {"ttft": "500ms"}


@pytest.fixture
def sample(rows):
    """Sends a population through the SDK's sampler and the store's views, and returns the latencies of all of it."""

    def send(n, sampling, *, seed):
        generator = np.random.default_rng(seed)
        first = generator.lognormal(19, 0.6, n)
        each = generator.lognormal(16.5, 0.4, n)
        trail = MemoryTrail(clock=ManualClock(NOW), sampling=sampling)
        for ttft, tpot in zip(first.astype(int) // 1000 * 1000, each.astype(int) // 1000 * 1000, strict=True):
            arrival = NOW - 30 * SECOND
            request = trail.start_request(
                operation="chat", model="m", arrival_ns=arrival, slo_class="chat", input_tokens=7
            )
            request.token(at_ns=arrival + int(ttft))
            for i in range(4):
                request.token(at_ns=arrival + int(ttft) + (i + 1) * int(tpot))
            request.end(arrival + int(ttft) + 4 * int(tpot))
        trail.flush(0)
        insert_otlp(rows.store, TRACES, b"".join(trail.transport.bodies), str(seed))
        return first.astype(int) // 1000 * 1000, each.astype(int) // 1000 * 1000

    return send


@pytest.mark.parametrize("seed", [1, 2])
def test_ten_percent_of_a_known_population_gives_its_numbers_within_their_errors(api, sample, seed):
    n = 3_000
    ttft, tpot = sample(n, Sampling(rate=0.1, thresholds=[Thresholds(ttft_s=0.5)]), seed=seed)
    good = int(np.count_nonzero(ttft <= 500 * MS))
    answer = api("goodput", **GIVEN)
    assert answer["estimated"] is True
    errors = answer["errors"]
    assert abs(answer["requests"]["total"] - n) <= 3 * errors["requests_total"]
    assert abs(answer["requests"]["good"] - good) <= 3 * errors["requests_good"]
    assert abs(answer["attainment"] - good / n) <= 3 * errors["attainment"]
    assert 0 < errors["attainment"] < 0.02
    assert answer["goodput"]["output_tokens_per_s"] == pytest.approx(5 * answer["requests"]["good"] / 900)
    assert answer["violations"]["ttft"] == n - good  # they are all kept

    summary = api("summary")
    # An error needs some ten requests beyond the percentile. The slow ones are all kept, so those of TTFT are enough.
    for name, values, levels in (("ttft_s", ttft, LEVELS), ("tpot_s", tpot, ("p50", "p90"))):
        for level, share in ((level, LEVELS[level]) for level in levels):
            true, error = np.quantile(values, share) / 1e9, summary["errors"]["percentiles"][name][level]
            assert abs(summary[name][level] - true) <= 3.5 * error + 2e-3 * true, (name, level)
    assert summary["ttft_s"]["count"] == answer["requests"]["total"]
    assert summary["throughput"]["output_tokens_known"] == answer["requests"]["total"]


def test_the_stated_errors_are_those_of_repeated_samples():
    """The sampler of the SDK, drawn 2,000 times: the spread of the estimates is the error that each of them states."""
    generator = np.random.default_rng(5)
    is_bad = np.arange(1000) % 8 == 0
    estimates, errors = [], []
    for _ in range(2000):
        kept_good = int(generator.binomial(np.count_nonzero(~is_bad), 0.1))
        bad = int(np.count_nonzero(is_bad))
        counts = Counts(total=10 * kept_good + bad, ok=0, good=10 * kept_good, undetermined=0, failed=0, cancelled=0,
                        unknown=0, excused=0, unselected=0, in_flight=0, in_flight_violations=0, lost=0)  # fmt: skip
        variance = 10 * 9 * kept_good
        stated = Errors.of(counts, total_variance=variance, good_variance=variance, judged_variance=variance)
        estimates.append(counts.attainment)
        errors.append(stated.attainment)
    assert np.std(estimates) == pytest.approx(np.mean(errors), rel=0.06)


def test_the_error_of_an_attainment_counts_good_and_bad_by_their_distance_from_it():
    counts = Counts(total=100, ok=0, good=80, undetermined=0, failed=0, cancelled=0, unknown=0, excused=0,
                    unselected=0, in_flight=0, in_flight_violations=0, lost=0)  # fmt: skip
    errors = Errors.of(counts, total_variance=90.0, good_variance=50.0, judged_variance=90.0)
    assert errors.attainment == pytest.approx(sqrt(0.2**2 * 50 + 0.8**2 * 40) / 100)
    assert (errors.requests_total, errors.requests_good) == (sqrt(90), sqrt(50))


def test_nothing_to_judge_has_no_error():
    nothing = Counts(**dict.fromkeys(Counts.model_fields, 0))
    assert Errors.of(nothing, total_variance=0, good_variance=0, judged_variance=0).attainment is None


def test_the_error_of_a_share():
    assert share_error(0.9, below=30.0, total=40.0, weight=100.0) == pytest.approx(sqrt(30 * 0.01 + 10 * 0.81) / 100)


def test_weighted_numbers_are_sums_of_weights(api, rows):
    ended = [
        {"weight": 10.0, "ttft_ns": 100 * MS, "output_tokens": 4, "slo_class": "chat", "tpot_ns": 1.0},
        {"weight": 4.0, "ttft_ns": 900 * MS, "output_tokens": 3, "slo_class": "chat"},
        {"weight": 1.0, "status": "error", "slo_class": "chat"},
        {"weight": 2.0, "status": "cancelled", "slo_class": "chat"},
        {"weight": 5.0, "ttft_ns": None, "output_tokens": None, "tpot_ns": None, "slo_class": "chat"},
    ]
    rows.requests(ended)
    answer = api("goodput", **GIVEN)
    assert answer["requests"] == {
        "total": 22, "ok": 19, "good": 10, "undetermined": 5, "failed": 1, "cancelled": 2, "unknown": 0, "excused": 2,
        "unselected": 0, "in_flight": 0, "in_flight_violations": 0, "lost": 0,
    }  # fmt: skip
    assert answer["attainment"] == 10 / 15
    assert answer["violations"] == {"ttft": 4, "tpot": 0, "e2e": 0, "gap": 0, "first_visible": 0, "failed": 1}
    assert answer["goodput"]["output_tokens_per_s"] == 40 / 900
    assert answer["errors"] == {
        "requests_total": sqrt(90 + 12 + 0 + 2 + 20),
        "requests_good": sqrt(90),
        "attainment": pytest.approx(sqrt((1 / 3) ** 2 * 90 + (2 / 3) ** 2 * 12) / 15),
    }
    (slo, _) = api("slos")["slos"]
    assert (slo["estimated"], slo["requests"]["good"], slo["attainment"]) == (True, 10, 10 / 15)
    assert slo["errors"] == answer["errors"]
    series = api("timeseries", metric="attainment", step="15m")
    assert (series["estimated"], series["points"][0]["value"]) == (True, 10 / 15)
    (row, *_) = api("requests", sort="ttft")["requests"]
    assert row["weight"] == 4.0


def test_a_percentile_is_the_smallest_value_that_holds_the_share_of_the_weight(api, rows):
    rows.requests([{"weight": w, "ttft_ns": t * MS} for w, t in ((6.0, 10), (3.0, 20), (1.0, 30))])
    ttft = api("summary")["ttft_s"]
    assert (ttft["count"], ttft["p50"], ttft["p90"], ttft["p95"], ttft["max"]) == (10, 0.01, 0.02, 0.03, 0.03)
    assert ttft["mean"] == pytest.approx((60 + 60 + 30) / 10 / 1e3)
    (point,) = api("timeseries", metric="ttft", step="15m")["points"]
    assert (point["count"], point["p50"], point["p95"]) == (10, 0.01, 0.03)


def test_the_error_of_a_percentile_is_half_of_what_lies_within_the_error_of_its_share(api, rows):
    rows.requests([{"weight": 10.0, "ttft_ns": n * MS} for n in range(1, 101)])
    # Of 1,000 requests, sqrt(4,500 / 4 + 4,500 / 4) ÷ 1,000 = 4.74 % around the half: from the 46th to the 55th value.
    assert api("summary")["errors"]["percentiles"]["ttft_s"]["p50"] == pytest.approx(0.0045, abs=1e-6)


def test_without_a_sampled_request_nothing_is_estimated(api, rows):
    rows.requests([{"ttft_ns": t * MS} for t in (10, 20)])
    summary = api("summary")
    assert (summary["estimated"], summary["errors"]) == (False, None)
    assert summary["ttft_s"]["p50"] == 0.015  # interpolated, as exact percentiles are
    assert isinstance(summary["requests"]["total"], int)
    assert api("goodput", **GIVEN)["errors"] is None
    assert api("timeseries", metric="ttft")["estimated"] is False
    assert [slo["estimated"] for slo in api("slos")["slos"]] == [False, False]


def test_an_slo_is_estimated_only_where_its_own_requests_were_sampled(api, rows):
    """The first SLO selects the class chat, the second all."""
    rows.requests([{"slo_class": "chat", "ttft_ns": MS, "tpot_ns": 1.0}] * 3 + [{"slo_class": "batch", "weight": 4.0}])
    chat, everything = api("slos")["slos"]
    assert (chat["estimated"], chat["errors"], chat["attainment"]) == (False, None, 1.0)
    assert {type(n) for n in chat["requests"].values()} == {int}
    assert (chat["requests"]["total"], everything["requests"]["total"]) == (3, 7)
    assert everything["estimated"]
    assert everything["errors"]["requests_total"] == sqrt(4 * 3)
    rows.requests([{"slo_class": "chat", "ttft_ns": MS, "tpot_ns": 1.0, "weight": 2.0}])
    assert [slo["estimated"] for slo in api("slos")["slos"]] == [True, True]


def test_requests_that_stand_for_none_are_estimates_too(api, rows):
    rows.requests([{"slo_class": "chat", "weight": 0.0}])
    assert [slo["estimated"] for slo in api("slos")["slos"]] == [True, True]


def test_a_weight_that_cannot_be_one_is_not_used(rows):
    weights = [
        (10.0, 10.0), (1, 1.0), (1e6, 1e6), (None, 1.0), (0.5, 1.0), (0, 0.0), (0.0, 0.0), (-3.0, 1.0),
        (1_000_001.0, 1.0), (1e18, 1.0), (math.nan, 1.0), (math.inf, 1.0), ("ten", 1.0),
    ]  # fmt: skip
    request = Request()
    for trace, (sent, _) in enumerate(weights, start=1):
        attributes = {semconv.OPERATION_NAME: "chat"} | ({} if sent is None else {semconv.SAMPLING_WEIGHT: sent})
        request.span("chat m", trace=trace, kind=2, attributes=attributes)
    insert_otlp(rows.store, TRACES, request.body(), "weights")
    found = rows.store.query("SELECT weight FROM requests ORDER BY trace_id").result_rows
    assert found == [(weight,) for _, weight in weights]


def test_counters_add_weights(api, rows, on_segment, live):
    rows.requests(
        [{"weight": 10.0, "ttft_ns": 100 * MS, "tpot_ns": 1.0, "slo_class": "chat", "segment": "a", "ingested_at": NOW},
         {"weight": 2.5, "ttft_ns": 900 * MS, "slo_class": "chat", "segment": "a", "ingested_at": NOW}]
    )  # fmt: skip
    on_segment("a")
    live.refresh()
    api.client.get("/metrics")
    live.refresh()
    page = api.client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))

    def value(name, *labels):
        return [float(n) for key, n in lines.items() if key.startswith(name) and all(label in key for label in labels)]

    assert value("tokentrail_requests_total", 'status="ok"') == [12.5]
    assert value("tokentrail_tokens_total", 'type="output"') == [125.0]
    assert value("tokentrail_slo_requests_total", "chat") == [12.5]
    assert value("tokentrail_slo_good_requests_total", "chat") == [10.0]
    assert value("gen_ai_server_time_to_first_token_seconds_count") == [12.5]
    assert value("gen_ai_server_time_to_first_token_seconds_sum") == [pytest.approx(10 * 0.1 + 2.5 * 0.9)]
    assert value("gen_ai_server_time_to_first_token_seconds_bucket", 'le="0.5"') == [10.0]


def test_a_burn_of_weights_is_a_ratio():
    assert float(Tally(12.5, 2.5).burn(0.05)) == pytest.approx(4.0)


@pytest.mark.parametrize("weight", [0.0, 1.5, 2.0])
def test_one_weight_that_is_not_1_makes_an_estimate(api, rows, weight):
    rows.requests([{"weight": weight}, {}])
    answer = api("goodput", **GIVEN)
    assert (answer["estimated"], answer["requests"]["total"]) == (True, weight + 1)
