"""The present state of scraped processes, from the newest samples."""

import pytest

from collector.ask.queries import Queries
from collector.count.sampled import processes
from tests.collector.rows import NOW, SECOND
from tests.collector.scrape.scrapes import Scrapes


@pytest.fixture
def sampled(rows):
    """A function that stores scrapes, and the processes that they show at a moment."""

    def sampled(add, *, ago_s=900, **asked):
        add(scrapes := Scrapes(rows.store))
        scrapes.store()
        found = processes(Queries(rows.store), start_ns=NOW - ago_s * SECOND, end_ns=NOW, **asked)
        return {one.process.instance: one for one in found}

    return sampled


def page(running, model="m"):
    return (
        f'vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}\n'
        f'vllm:num_requests_running{{engine="1",model_name="{model}"}} 2\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0.25\n'
        f'vllm:kv_cache_usage_perc{{engine="1",model_name="{model}"}} 0.75\n'
    )


def test_the_newest_scrape_tells_the_values_or_why_there_are_none(sampled):
    def add(scrapes):
        scrapes.add(page(7), NOW - 20 * SECOND, instance="up").add(page(3), NOW - 10 * SECOND, instance="up")
        scrapes.add(page(3), NOW - 20 * SECOND, instance="down").down(NOW - 10 * SECOND, instance="down")

    found = sampled(add)
    up, down = found["up"], found["down"]
    assert (up.up, up.reason, up.engine, up.models) == (True, "", "vllm", {"m"})
    assert (up.count("running"), up.values["kv_usage"], up.count("waiting")) == (5, 0.75, None)
    assert (up.first_answer_ns, up.last_answer_ns, up.seen_ns) == (
        NOW - 20 * SECOND, NOW - 10 * SECOND, NOW - 10 * SECOND,
    )  # fmt: skip
    assert (down.up, down.reason, down.engine, down.values) == (False, "timeout", "vllm", {})
    assert (down.last_answer_ns, down.seen_ns) == (NOW - 20 * SECOND, NOW - 10 * SECOND)


def test_a_series_that_the_newest_scrape_lacks_is_gone(sampled):
    def add(scrapes):
        scrapes.add(page(7), NOW - 20 * SECOND).add("vllm:kv_cache_usage_perc 0.5\n", NOW - 10 * SECOND)

    assert sampled(add)["i:1"].values == {"up": 1.0, "kv_usage": 0.5}


def test_a_process_that_is_scraped_and_sends_too_is_counted_once(sampled):
    def add(scrapes):
        scrapes.add(page(7), NOW - 12 * SECOND).add(page(3), NOW - 10 * SECOND, scraper="", engine="vllm")

    found = sampled(add)["i:1"]
    assert (found.up, found.count("running")) == (None, 5)
