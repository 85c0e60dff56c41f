"""The present state of engine processes: steps, samples, KV caches."""

import pytest
from fastapi.testclient import TestClient

from collector.base.process import Process
from tests.collector.metrics.scraped import running_now
from tests.collector.rows import NOW, SECOND

pytestmark = pytest.mark.usefixtures("no_evaluation")


def test_the_last_steps_of_a_bounded_number_of_processes_are_remembered(rows, live, monkeypatch):
    """An engine that names its instance anew with each step had its names remembered for a day."""
    monkeypatch.setattr("collector.metrics.present._MOST_REMEMBERED", 2)
    for n in range(1, 5):
        rows.step(start=NOW - n * SECOND, service="s", instance=f"i-{n}")
    rows.open(start=NOW - 5 * SECOND, seen=NOW - SECOND, service="s", instance="i-4")
    live.refresh()
    assert live._processes._began_ns == {Process("s", f"i-{n}"): NOW - n * SECOND for n in (1, 2, 4)}


def test_processes_with_samples_beyond_a_limit_are_counted_and_not_exposed(rows, live, clock, monkeypatch):
    monkeypatch.setattr("collector.metrics.present._MOST_SAMPLED", 2)
    process = {"service": "s", "engine": "vllm", "time": NOW // 10**6 - 1, "value": 3.0}
    samples = [process | {"instance": f"i-{n}", "name": "running", "kind": "gauge"} for n in range(2)]
    dropped = "tokentrail_collector_engine_processes_dropped"

    def exposed(name):
        live.refresh()
        return [sample for f in live.families[1] if f.name == name for sample in f.samples]

    rows.insert("samples", samples)
    assert [sample.value for sample in exposed(dropped)] == [0]
    live.on_samples("m-1")
    clock.now += 10 * SECOND
    scraped = process | {"instance": "z", "kind": "gauge"}
    rows.insert("samples", [scraped | {"name": "running"}, scraped | {"name": "up", "value": 1.0}])
    assert [sample.value for sample in exposed(dropped)] == [1]
    running = exposed("tokentrail_engine_requests_running")
    assert {sample.labels["instance"] for sample in running} == {"z", "i-0"}, "the scraped one first"


def test_a_step_that_is_stored_late_is_found(rows, live, clock):
    rows.step(start=NOW - SECOND, instance="early", running=3)
    assert running_now(live) == {"early": 3}
    clock.now += 20 * SECOND
    rows.step(start=NOW - 39 * SECOND, instance="late", running=4)
    assert running_now(live) == {"early": 3, "late": 4}


def test_an_engine_that_has_hung_for_more_than_a_day_is_stuck(scrape, rows, clock):
    """Its last step is remembered while it has requests in flight: the store is asked for steps of the last day."""
    rows.step(start=NOW - 2 * SECOND)
    hung = rows.open(start=NOW - 3 * SECOND, seen=NOW - SECOND)
    stuck = "tokentrail_requests_stuck", "service_instance_id=i-1", "service_name=engine"
    assert scrape()[stuck] == 0
    clock.now += 25 * 3600 * SECOND
    for _ in range(2):
        rows.insert("open_requests", [hung | {"seen": clock.now}])
        clock.now += SECOND
        assert scrape()[stuck] == 1


def test_engine_state_events_and_cold_starts(scrape, arrive, rows, clock):
    process = ("service_instance_id=i-1", "service_name=engine")
    rows.step(start=NOW - SECOND, running=3, waiting=2, kv_blocks_used=32, kv_blocks_total=64)
    samples = scrape()
    assert [
        samples[f"tokentrail_requests_{k}", *process]
        for k in ("running", "waiting", "in_flight", "stuck", "lost_total")
    ] == [3, 2, 0, 0, 0]
    assert samples["tokentrail_kv_usage_ratio", *process] == 0.5
    assert (
        samples["tokentrail_kv_evicted_blocks_total", "reason=preemption", *process] == 0
    )  # so that the first is an increase
    segment = arrive()
    rows.kv_event(start=NOW - 5 * SECOND, segment=segment, blocks=7)
    rows.kv_event(start=NOW - 3 * SECOND, segment=segment, blocks=2)
    rows.kv_event(start=NOW - SECOND, segment=segment, blocks=11, reason="cache_full")
    rows.kv_event(start=NOW - SECOND, segment=segment, blocks=5, kind="restore", reason="")
    rows.cold_start(start=NOW - 9 * SECOND, duration=2 * SECOND, segment=segment)
    rows.cold_start(start=NOW - 99 * SECOND, duration=9 * SECOND, segment=segment, status="error")
    samples = scrape()
    assert samples["tokentrail_kv_evicted_blocks_total", "reason=preemption", *process] == 9
    assert samples["tokentrail_kv_evicted_blocks_total", "reason=cache_full", *process] == 11
    assert samples["tokentrail_preemptions_total", *process] == 2
    assert samples["tokentrail_kv_last_preemption_timestamp_seconds", *process] == NOW / SECOND - 3
    assert samples["tokentrail_cold_starts_total", *process] == 2
    assert samples["tokentrail_cold_starts_failed_total", *process] == 1
    assert samples["tokentrail_cold_start_last_duration_seconds", *process] == 2
    assert samples["tokentrail_cold_start_last_end_timestamp_seconds", *process] == NOW / SECOND - 7
    segment = arrive()  # what it brings was before
    rows.kv_event(start=NOW - 4 * SECOND, segment=segment)
    rows.cold_start(start=NOW - 50 * SECOND, duration=3 * SECOND, segment=segment)
    last = ("kv_last_preemption_timestamp", "cold_start_last_duration", "cold_start_last_end_timestamp")
    later = scrape()
    assert [later[f"tokentrail_{name}_seconds", *process] for name in last] == [NOW / SECOND - 3, 2, NOW / SECOND - 7]
    assert later["tokentrail_preemptions_total", *process] == 3


def test_a_step_that_began_five_minutes_ago_is_no_present_state(app, rows, live, clock):
    rows.step(start=NOW - SECOND, running=3)
    live.counters.on_segment("a segment")
    for seconds, running in ((0, True), (299 - 1, True), (299, False)):
        clock.now = NOW + seconds * SECOND
        live.refresh()
        page = TestClient(app).get("/metrics").text
        assert ("\ntokentrail_requests_running{" in page) == running


def test_a_process_that_is_idle_for_an_hour_leaves_the_page_though_nothing_comes(app, rows, live, clock):
    rows.kv_event(start=NOW - SECOND, segment="s-1")
    live.counters.on_segment("s-1")
    for seconds, is_there in ((0, True), (3599, True), (3661, False)):
        clock.now = NOW + seconds * SECOND
        for _ in range(2):
            live.refresh()
        page = TestClient(app).get("/metrics").text
        assert ("\ntokentrail_preemptions_total{" in page) == is_there


def test_processes_beyond_the_limit_add_up(rows, scrape, monkeypatch, live):
    monkeypatch.setattr(live.counters._processes, "limit", 2)
    for i in range(5):
        blocks = {"kv_blocks_used": 90 - 10 * i, "kv_blocks_total": 100}
        rows.step(start=NOW - SECOND, instance=f"i-{i}", running=3, **blocks)
        rows.open(start=NOW - SECOND, seen=NOW, instance=f"i-{i}")
    samples = scrape()
    for name, n in (("running", 9), ("in_flight", 3)):
        assert (
            samples[
                f"tokentrail_requests_{name}", "process_tenant=other", "service_instance_id=other", "service_name=other"
            ]
            == n
        )
    fullest = samples[
        "tokentrail_kv_usage_ratio", "process_tenant=other", "service_instance_id=other", "service_name=other"
    ]
    assert fullest == 0.7
