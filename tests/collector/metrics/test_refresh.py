"""When the store is asked, what the page shows while it is away, and clocks that are set."""

from unittest.mock import Mock

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from fastapi.testclient import TestClient

from collector.metrics.present import expose_samples
from tests.collector.metrics.scraped import CHAT, OPENMETRICS, running_now, samples_of, slo
from tests.collector.rows import NOW, SECOND


def test_a_store_that_was_never_asked_is_not_up(app, live):
    assert samples_of(TestClient(app).get("/metrics", headers=OPENMETRICS))["tokentrail_collector_store_up",] == 0
    live.refresh()
    assert samples_of(TestClient(app).get("/metrics", headers=OPENMETRICS))["tokentrail_collector_store_up",] == 1


def test_a_store_that_fails_costs_no_scrape_and_no_count(rows, arrive, live, client, scrape, monkeypatch):
    arrive({"slo_class": "chat"} | CHAT)
    before = scrape()
    arrive(CHAT)
    monkeypatch.setattr(rows.store, "query", lambda *_: (_ for _ in ()).throw(DatabaseError("memory")))
    live.try_refresh()
    assert live.store_up is False
    monkeypatch.undo()
    assert (slo(before), slo(scrape())) == ((1, 1), (2, 2))


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [
        (DatabaseError("HTTP status 502, bad gateway"), False),
        (ConnectionResetError(104, "reset"), False),
        (KeyError("n"), True),
    ],
)
def test_a_store_that_is_away_is_a_line_of_the_log_without_a_traceback(
    error, has_traceback, rows, live, monkeypatch, caplog
):
    monkeypatch.setattr(rows.store, "query", lambda *_: (_ for _ in ()).throw(error))
    live.try_refresh()
    live.try_refresh()
    (record,) = caplog.records
    assert bool(record.exc_info) is has_traceback


def test_while_the_store_is_away_the_page_keeps_the_last_state_and_says_its_age(app, rows, arrive, live, scrape, clock):
    arrive(CHAT)
    scrape()
    arrive(CHAT)
    rows.store.refuse("away")
    try:
        clock.now += 90 * SECOND
        live.try_refresh()
        samples = samples_of(TestClient(app).get("/metrics", headers=OPENMETRICS))
    finally:
        rows.store.admit()
    assert slo(samples) == (1, 1)
    assert samples["tokentrail_collector_store_up",] == 0
    assert samples["tokentrail_collector_state_timestamp_seconds",] == NOW / SECOND
    samples = scrape()
    assert slo(samples) == (2, 2)
    assert samples["tokentrail_collector_store_up",] == 1
    assert samples["tokentrail_collector_state_timestamp_seconds",] == NOW / SECOND + 90


def test_an_idle_refresh_and_a_scrape_ask_the_store_for_nothing(app, rows, arrive, scrape, live, clock, monkeypatch):
    rows.step(start=NOW - SECOND, running=3)
    arrive(CHAT)
    first = scrape()
    asked = []
    ask = rows.store.query
    monkeypatch.setattr(rows.store, "query", lambda *a: (asked.append(a[0]), ask(*a))[1])
    clock.now += 10 * SECOND
    live.refresh()
    assert samples_of(TestClient(app).get("/metrics", headers=OPENMETRICS)).keys() == first.keys()
    assert asked == []
    clock.now += 60 * SECOND
    live.refresh()
    assert asked, "the numbers of SLOs move with time"
    clock.now += 300 * SECOND
    live.refresh()
    process = ("service_instance_id=i-1", "service_name=engine")
    assert ("tokentrail_requests_running", *process) in first
    assert ("tokentrail_requests_running", *process) not in scrape()


def test_samples_are_read_again_when_a_segment_of_metrics_was_stored_or_they_may_be_old(rows, arrive, live, clock):
    def running():
        live.refresh()
        families = live.families[1]
        return [s.value for f in families if f.name == "tokentrail_engine_requests_running" for s in f.samples]

    assert running() == []
    process = {"service": "s", "instance": "i", "engine": "vllm", "time": NOW // 10**6, "value": 3.0}
    rows.insert("samples", [process | {"name": "running", "kind": "gauge"}])
    clock.now += 10 * SECOND
    assert running() == [], "nothing was stored, so the store was not asked"
    arrive(CHAT)
    assert running() == [], "a segment of requests brings no samples"
    live.on_samples("m-1")
    assert running() == [3]
    clock.now += 289 * SECOND
    assert running() == [3]
    clock.now += 10 * SECOND
    assert running() == [], "it is older than 300 s, though nothing was stored since"


def test_samples_that_are_stored_while_others_are_read_are_read_next(rows, live, clock, monkeypatch):
    def overtaken(*read, **until):
        dropped = expose_samples(*read, **until)
        process = {"service": "s", "instance": "i", "engine": "vllm", "time": NOW // 10**6, "value": 3.0}
        rows.insert("samples", [process | {"name": "running", "kind": "gauge"}])
        live.on_samples("m-1")
        return dropped

    with monkeypatch.context() as patched:
        patched.setattr("collector.metrics.live.expose_samples", overtaken)
        live.refresh()
    clock.now += 10 * SECOND
    live.refresh()
    assert [[s.value for s in f.samples] for f in live.families[1] if "engine_requests_running" in f.name] == [[3]]


def test_a_slow_store_is_asked_again_after_15_s_and_once_more_at_the_end(live, monkeypatch):
    """A refresh of 10 ms is followed by 1 s, one of 100 ms by 10 s, one of 10 s by 15 s."""
    now_s, pauses, refreshed = [0.0], [], []
    monkeypatch.setattr("collector.metrics.live.time", Mock(monotonic=lambda: now_s[0]))
    took_s = [0.01, 0.1, 10.0, 1.0]

    def refresh():
        refreshed.append(now_s[0])
        now_s[0] += took_s[len(refreshed) - 1]
        if len(refreshed) == 3:
            live._stopping.set()

    monkeypatch.setattr(live, "try_refresh", refresh)
    monkeypatch.setattr(live._stopping, "wait", pauses.append)
    live._run()
    assert (pauses, len(refreshed)) == ([1, pytest.approx(10), 15], 4)


def test_a_clock_that_is_set_back_stops_no_number(rows, arrive, live, clock):
    """The numbers of SLOs and of the store's tables stood still until the clock showed the old time again."""

    def gauges():
        live.refresh()
        return {(f.name, *s.labels.values()): s.value for f in live.families[1] for s in f.samples}

    evaluated, stored = ("tokentrail_slo_evaluation_timestamp_seconds",), ("tokentrail_store_rows", "requests")
    running = ("tokentrail_engine_requests_running", "vllm", "s", "i", "")
    process = {"service": "s", "instance": "i", "engine": "vllm", "name": "running", "kind": "gauge"}
    arrive(CHAT)
    rows.insert("samples", [process | {"time": NOW // 10**6 - 1, "value": 3.0}])
    clock.now = NOW + 2 * 86_400 * SECOND
    assert gauges()[evaluated] == clock.now / SECOND
    clock.now = NOW
    arrive(CHAT)
    live.on_samples("m-1")
    found = gauges()
    assert (found[evaluated], found[stored], found[running]) == (NOW / SECOND, 2, 3)


def test_a_clock_that_is_set_back_stops_no_number_of_an_engine(rows, live, clock):
    """A process that says nothing more had its numbers of the later time for as long as the clock was set back."""
    clock.now = NOW + 2 * 86_400 * SECOND
    for instance in ("works", "silent"):
        rows.step(start=clock.now - SECOND, instance=instance, running=3)
    assert running_now(live) == {"works": 3, "silent": 3}
    clock.now = NOW
    rows.step(start=NOW - SECOND, instance="works", running=5)
    assert running_now(live) == {"works": 5}


def test_while_the_store_is_away_the_api_says_so_and_when_to_come_again(app, rows):
    rows.store.refuse("the store is away")
    answer = TestClient(app).get("/api/v1/summary")
    rows.store.admit()
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert answer.json()["detail"] == "the store is away"
    assert int(answer.headers["retry-after"]) > 0


def test_a_disk_that_does_not_take_the_counters_is_a_line_a_minute(live, arrive, monkeypatch, caplog):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live.counters._checkpoint, "save", fails)
    for _ in range(2):
        arrive({})
        live.refresh()
    (line,) = caplog.messages
    assert line.startswith("the counters of /metrics are not kept for the next process: [Errno 28]")
