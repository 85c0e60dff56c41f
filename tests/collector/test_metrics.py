import re
import subprocess
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Exemplar

from collector.exposition import metrics, store_counters
from collector.exposition.early import KEEP_NS, EarlyRequests
from collector.exposition.filled import FilledTables
from collector.exposition.present import expose_samples
from collector.exposition.series import Histogram, LabelSets
from collector.exposition.store_counters import StoreCounters
from collector.in_flight import InFlight
from collector.signals import TRACES
from collector.slo.durations import format_duration
from collector.sql.queries import Queries
from collector.store.insert import insert_otlp
from tests.collector.rows import NOW, SECOND, trace_id
from tests.support.otlp import Request
from tests.support.recordings import join

MS = 1_000_000
OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
CHAT = {"slo_class": "chat", "e2e": SECOND, "ttft_ns": 100 * MS, "tpot_ns": 10.0 * MS}


@pytest.fixture
def client(app, live):
    """Everything that was stored by now is exposed, and an earlier scrape has seen all series."""
    client = TestClient(app)
    get = client.get
    serial = count()

    def refreshed(*args, **kwargs):
        live.counters.on_segment(f"rows-{next(serial)}")
        live.refresh()
        get(*args, **kwargs)
        live.refresh()
        return get(*args, **kwargs)

    client.get = refreshed
    return client


def samples_of(answer):
    """Samples by name and labels, through the independent parser."""
    assert answer.status_code == 200, answer.text
    return {
        (s.name, *(f"{k}={v}" for k, v in sorted(s.labels.items()))): s.value
        for family in parse_openmetrics(answer.text)
        for s in family.samples
    }


@pytest.fixture
def scrape(client):
    return lambda: samples_of(client.get("/metrics", headers=OPENMETRICS))


@pytest.fixture
def arrive(rows, on_segment, clock):
    """Rows arrive in a segment, as the writer says they did."""
    serial = iter(range(10**6))

    def arrive(*requests, **many):
        segment = f"segment-{next(serial)}"
        if requests:
            rows.requests(
                [{"segment": segment, "ingested_at": clock.now, "ended": clock.now - 1, **r} for r in requests]
            )
        on_segment(segment)
        return segment

    return arrive


def slo(samples, name="chat"):
    return tuple(
        samples[f"tokentrail_slo_{kind}_total", f"slo={name}", "tenant="] for kind in ("requests", "good_requests")
    )


def test_slo_counters_start_at_zero_and_grow_by_what_arrives(scrape, arrive, clock):
    assert slo(scrape()) == (0, 0)
    arrive(
        CHAT, CHAT | {"ttft_ns": SECOND}, CHAT | {"status": "error"}, CHAT | {"status": "cancelled"}, {"slo_class": "x"}
    )
    assert slo(scrape()) == (3, 1)
    assert slo(scrape(), "all") == (4, 3)
    clock.now += 5 * SECOND
    arrive(CHAT)
    arrive(CHAT)
    arrive()
    assert slo(scrape()) == (5, 3)
    samples = scrape()
    assert slo(samples) == (5, 3)
    assert samples["tokentrail_slo_objective_ratio", "slo=chat"] == 0.95


def test_a_segment_that_was_stored_days_before_it_is_counted_is_counted(rows, on_segment, scrape, clock):
    """Its collector died in between, and the server's clock was behind."""
    scrape()
    stored = {"ended": NOW - SECOND, "ingested_at": NOW - 3600 * SECOND}
    rows.requests([CHAT | stored | {"segment": f"{NOW:020d}-a"}, CHAT | stored | {"segment": f"{NOW:020d}-b"}])
    clock.now += 3 * 86_400 * SECOND
    on_segment(f"{clock.now:020d}-of-today")
    on_segment(f"{NOW:020d}-a")
    assert slo(scrape()) == (1, 1)


def test_what_is_stored_is_counted_by_a_collector_whose_clock_is_days_ahead_of_the_servers(
    rows, on_segment, scrape, clock
):
    scrape()
    stored_ns = time.time_ns()
    clock.now = stored_ns + 3 * 86_400 * SECOND
    segment = f"{clock.now:020d}-a"
    rows.request(**CHAT, ended=stored_ns, ingested_at=stored_ns, segment=segment)
    rows.kv_event(start=stored_ns, segment=segment)
    rows.cold_start(start=stored_ns, duration=SECOND, segment=segment)
    on_segment(segment)
    samples = scrape()
    process = ("service_instance_id=i-1", "service_name=engine")
    assert slo(samples) == (1, 1)
    assert samples[("tokentrail_preemptions_total", *process)] == 1
    assert samples[("tokentrail_cold_starts_total", *process)] == 1


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
        patched.setattr("collector.exposition.live.expose_samples", overtaken)
        live.refresh()
    clock.now += 10 * SECOND
    live.refresh()
    assert [[s.value for s in f.samples] for f in live.families[1] if "engine_requests_running" in f.name] == [[3]]


def test_the_last_steps_of_a_bounded_number_of_processes_are_remembered(rows, live, monkeypatch):
    """An engine that names its instance anew with each step had its names remembered for a day."""
    monkeypatch.setattr("collector.exposition.present._MOST_REMEMBERED", 2)
    for n in range(1, 5):
        rows.step(start=NOW - n * SECOND, service="s", instance=f"i-{n}")
    rows.open(start=NOW - 5 * SECOND, seen=NOW - SECOND, service="s", instance="i-4")
    live.refresh()
    assert live._processes._began_ns == {("s", f"i-{n}"): NOW - n * SECOND for n in (1, 2, 4)}


def test_processes_with_samples_beyond_a_limit_are_counted_and_not_exposed(rows, live, clock, monkeypatch):
    monkeypatch.setattr("collector.exposition.present._MOST_SAMPLED", 2)
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


def test_a_slow_store_is_asked_again_after_15_s_and_once_more_at_the_end(live, monkeypatch):
    """A refresh of 10 ms is followed by 1 s, one of 100 ms by 10 s, one of 10 s by 15 s."""
    now_s, pauses, refreshed = [0.0], [], []
    monkeypatch.setattr("collector.exposition.live.time", Mock(monotonic=lambda: now_s[0]))
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
    running = ("tokentrail_engine_requests_running", "vllm", "s", "i")
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


def running_now(live):
    """Running requests by instance, after a segment was stored."""
    live.counters.on_segment(f"a segment of {live._clock()}")
    live.refresh()
    (samples,) = ([*f.samples] for f in live.families[1] if f.name == "tokentrail_requests_running")
    return {s.labels["service_instance_id"]: s.value for s in samples}


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


def test_a_series_is_0_in_the_first_scrape_that_has_it(app, arrive, live):
    def seen():
        live.refresh()
        samples = samples_of(TestClient(app).get("/metrics", headers=OPENMETRICS))
        names = (
            "tokentrail_requests_total",
            "tokentrail_requests_created",
            "gen_ai_server_request_duration_seconds_count",
            "gen_ai_server_request_duration_seconds_sum",
        )
        return [max((n for key, n in samples.items() if key[0] == name), default=None) for name in names]

    live.refresh()
    assert seen() == [None] * 4
    arrive(CHAT, CHAT)
    assert seen() == [0, NOW / SECOND, 0, 0]
    assert seen() == [2, NOW / SECOND, 2, 2]


def test_a_page_of_before_has_not_seen_the_series_of_now(arrive, live):
    live.refresh()
    before = live.families[0]
    arrive(CHAT)
    live.refresh()
    live.scraped(before)
    live.refresh()
    assert ended_of("", live) == [0]


def ended_of(tenant, live):
    """Requests of a tenant that ended well, as they are published."""
    (samples,) = ([*f.samples] for f in live.families[0] if f.name == "tokentrail_requests")
    asked = {"tenant": tenant, "status": "ok"}
    return [s.value for s in samples if s.name.endswith("_total") and asked.items() <= s.labels.items()]


def test_a_series_that_went_and_comes_back_is_0_in_the_first_scrape_that_has_it(arrive, live, clock):
    def scraped():
        live.refresh()
        live.scraped(live.families[0])
        return ended_of("rare", live)

    for _ in range(2):
        arrive({"tenant": "rare"})
        assert [scraped(), scraped()] == [[0], [1]]
        clock.now += 31 * 86_400 * SECOND
        assert scraped() == [], "an idle collector drops it too"
        scraped()


def test_many_segments_are_counted_some_at_a_time(live, monkeypatch):
    monkeypatch.setattr(store_counters, "MOST_AT_ONCE", 2)
    read, parts = live.counters._read, []
    monkeypatch.setattr(live.counters, "_read", lambda segments: (parts.append([*segments]), read(segments))[1])
    for segment in "121345":
        live.counters.on_segment(segment)
    live.refresh()
    assert parts == [["1", "2"], ["3", "4"], ["5"]]


def test_an_announcement_gives_birth_to_the_counters_of_its_request(rows, scrape):
    rows.open(start=NOW - SECOND, seen=NOW, tenant="rare")
    found = [n for key, n in scrape().items() if key[0] == "tokentrail_requests_total" and "tenant=rare" in key]
    assert found == [0, 0, 0]


def test_while_the_store_is_away_the_api_says_so_and_when_to_come_again(app, rows):
    rows.store.refuse("the store is away")
    answer = TestClient(app).get("/api/v1/summary")
    rows.store.admit()
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert answer.json()["detail"] == "the store is away"
    assert int(answer.headers["retry-after"]) > 0


def test_a_server_and_its_client_count_apart(scrape, arrive):
    arrive({"vantage": "server"}, {"vantage": "client"}, {"vantage": "client"})
    samples = scrape()
    ended = {key: n for key, n in samples.items() if key[0] == "tokentrail_requests_total"}
    counts = {v: sum(n for key, n in ended.items() if f"vantage={v}" in key) for v in ("server", "client")}
    assert counts == {"server": 1, "client": 2}


class TestUnknown:
    NO_USAGE = dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "ttft_ns", "tpot_ns"))
    UNDETERMINED = "tokentrail_slo_undetermined_requests_total"

    def test_an_undetermined_request_is_counted_apart(self, scrape, arrive):
        assert scrape()[self.UNDETERMINED, "slo=chat", "tenant="] == 0
        arrive(CHAT, *[CHAT | self.NO_USAGE] * 10, CHAT | self.NO_USAGE | {"status": "cancelled"})
        samples = scrape()
        assert (slo(samples), samples[self.UNDETERMINED, "slo=chat", "tenant="]) == ((1, 1), 10)
        assert (slo(samples, "all"), samples[self.UNDETERMINED, "slo=all", "tenant="]) == ((11, 11), 0)

    def test_one_that_was_bad_in_flight_is_not_counted_again(self, scrape, arrive, rows):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | self.NO_USAGE | {"trace_id": hung["trace_id"]})
        samples = scrape()
        assert (slo(samples), samples[self.UNDETERMINED, "slo=chat", "tenant="]) == ((1, 0), 0)

    def test_tokens_that_nobody_reports_have_no_series(self, scrape, arrive):
        def tokens(model):
            mine = f"gen_ai_request_model={model}"
            of_model = {key: n for key, n in scrape().items() if mine in key and "tokens_total" in key[0]}
            return {key[0]: n for key, n in of_model.items() if "gen_ai_token_type=input" not in key}

        arrive(self.NO_USAGE | {"model": "silent"}, self.NO_USAGE | {"model": "m", "output_tokens": 7}, {"model": "m"})
        assert tokens("silent") == {}
        assert tokens("m") == {"tokentrail_tokens_total": 17, "tokentrail_cached_input_tokens_total": 0}


class TestInFlight:
    def test_a_hung_request_is_counted_when_it_turns_bad_and_once(self, scrape, arrive, rows, clock):
        assert slo(scrape()) == (0, 0)
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW - 2 * SECOND, slo_class="chat")
        assert slo(scrape()) == (0, 0)
        rows.insert("open_requests", [hung | {"seen": NOW}])
        samples = scrape()
        assert slo(samples) == (1, 0)
        assert samples["tokentrail_slo_in_flight_violations", "slo=chat"] == 1
        assert samples["tokentrail_slo_in_flight_violations", "slo=all"] == 0
        assert samples["tokentrail_requests_in_flight", "service_instance_id=i-1", "service_name=engine"] == 1
        assert slo(scrape()) == (1, 0)
        clock.now += 3 * SECOND
        arrive(CHAT | {"trace_id": hung["trace_id"], "e2e": 5 * SECOND, "ttft_ns": 4 * SECOND}, CHAT)
        samples = scrape()
        assert slo(samples) == (2, 1)
        assert slo(samples, "all") == (2, 2)
        assert samples["tokentrail_slo_in_flight_violations", "slo=chat"] == 0
        assert samples["tokentrail_requests_in_flight", "service_instance_id=i-1", "service_name=engine"] == 0

    def test_one_whose_sender_has_a_clock_ahead_of_ours_is_counted_once(self, scrape, arrive):
        arrive(CHAT | {"ended": NOW + 5 * SECOND, "e2e": 7 * SECOND, "ttft_ns": SECOND})
        samples = scrape()
        assert slo(samples) == slo(scrape()) == (1, 0)
        assert sum(n for key, n in samples.items() if key[0] == "tokentrail_requests_in_flight") == 0

    def test_a_request_that_ends_during_a_scrape_is_counted_once(self, scrape, arrive, rows, live):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        counters = live.counters
        count_segments = counters.count_segments

        def ends_first():
            counters.count_segments = count_segments
            arrive(CHAT | {"trace_id": hung["trace_id"], "e2e": 2 * SECOND, "ttft_ns": 2 * SECOND})
            count_segments()

        counters.count_segments = ends_first
        assert slo(scrape()) == (1, 0)
        assert slo(scrape()) == (1, 0)

    def test_a_counter_does_not_decrease_when_the_bad_one_is_cancelled(self, scrape, arrive, rows):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": hung["trace_id"], "status": "cancelled"})
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": trace_id(), "status": "cancelled"})
        assert slo(scrape()) == (1, 0)

    def test_one_that_ends_well_without_a_token_was_not_late(self, scrape, arrive, rows):
        """It had waited for a first token, and there is none to be late."""
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": hung["trace_id"], "output_tokens": 0, "ttft_ns": None, "tpot_ns": None})
        assert slo(scrape()) == slo(scrape()) == (1, 1), "none is bad, as in the API"

    def test_the_lost_are_bad_once_and_not_again_when_they_come_back(self, scrape, arrive, rows, clock):
        clock.now = NOW + 60 * SECOND
        assert slo(scrape()) == (0, 0)
        lost = rows.open(start=NOW + 30 * SECOND, seen=NOW + 31 * SECOND, slo_class="chat", ttft_ns=MS, output_tokens=1)
        assert slo(scrape()) == (0, 0)
        clock.now = NOW + 65 * SECOND
        samples = scrape()
        assert slo(samples) == slo(scrape()) == (1, 0)
        assert samples["tokentrail_requests_lost_total", "service_instance_id=i-1", "service_name=engine"] == 1
        at = "tokentrail_requests_last_lost_timestamp_seconds", "service_instance_id=i-1", "service_name=engine"
        assert samples[at] == NOW / SECOND + 61
        clock.now = NOW + 200 * SECOND
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": lost["trace_id"]})
        assert slo(scrape()) == (1, 1), "it was good after all: none is bad"
        arrive(CHAT | {"trace_id": lost["trace_id"]})
        assert slo(scrape()) == (1, 1)

    def test_of_several_lost_ones_the_latest_tells_when(self, scrape, rows, clock):
        clock.now = NOW + 60 * SECOND
        scrape()
        for seconds in (31, 33, 32):
            rows.open(start=NOW + 30 * SECOND, seen=NOW + seconds * SECOND)
        clock.now = NOW + 65 * SECOND
        at = "tokentrail_requests_last_lost_timestamp_seconds", "service_instance_id=i-1", "service_name=engine"
        assert scrape()[at] == NOW / SECOND + 63

    def test_an_end_that_arrives_in_two_payloads_is_counted_once(self, scrape, arrive, rows):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        end = CHAT | {"trace_id": hung["trace_id"], "ttft_ns": SECOND}
        arrive(end, end)
        arrive(end, CHAT)
        assert slo(scrape()) == (2, 1)

    def test_one_that_comes_back_late_stays_bad_when_its_end_does_not_say_so(self, scrape, arrive, rows, clock):
        clock.now = NOW + 60 * SECOND
        scrape()
        lost = rows.open(start=NOW + 30 * SECOND, seen=NOW + 30 * SECOND, slo_class="chat")
        clock.now = NOW + 65 * SECOND
        assert slo(scrape()) == (1, 0)
        rows.insert("open_requests", [lost | {"seen": clock.now}])
        assert slo(scrape()) == (1, 0)
        unknown = {"status": "cancelled", "ttft_ns": None, "tpot_ns": None, "output_tokens": None}
        arrive(CHAT | unknown | {"trace_id": lost["trace_id"]})
        assert slo(scrape()) == (1, 0)

    def test_one_that_comes_back_too_late_stays_bad(self, scrape, arrive, rows, clock):
        clock.now = NOW + 60 * SECOND
        scrape()
        lost = rows.open(start=NOW + 30 * SECOND, seen=NOW + 31 * SECOND, slo_class="chat", ttft_ns=MS, output_tokens=1)
        clock.now = NOW + 65 * SECOND
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": lost["trace_id"], "ttft_ns": SECOND})
        assert slo(scrape()) == (1, 0)

    def test_what_was_lost_before_the_counters_began_is_not_theirs(self, scrape, rows, clock):
        rows.open(start=NOW - 900 * SECOND, seen=NOW - 800 * SECOND)
        assert slo(scrape(), "all") == (0, 0)
        rows.open(start=NOW - 50 * SECOND, seen=NOW - 25 * SECOND)
        clock.now = NOW + 31 * SECOND
        assert slo(scrape(), "all") == (1, 0)

    def test_the_lost_are_neither_in_flight_nor_stuck(self, scrape, rows, clock):
        clock.now = NOW + 60 * SECOND
        scrape()
        rows.step(start=NOW - 60 * SECOND)
        rows.open(start=NOW - 40 * SECOND, seen=NOW + SECOND)
        rows.open(start=NOW, seen=NOW + 60 * SECOND)
        samples, process = scrape(), ("service_instance_id=i-1", "service_name=engine")
        assert [samples[f"tokentrail_requests_{kind}", *process] for kind in ("in_flight", "stuck", "lost_total")] == [
            1,
            1,
            1,
        ]

    def test_one_that_was_bad_in_flight_and_stands_for_several_is_not_counted_again(self, scrape, arrive, rows):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | {"trace_id": hung["trace_id"], "ttft_ns": SECOND, "weight": 10.0})
        assert slo(scrape()) == (1, 0)

    def test_a_clock_that_was_ahead_when_the_counters_began_hides_none(self, live, scrape, rows, clock):
        rows.open(start=NOW - 50 * SECOND, seen=NOW - SECOND, slo_class="chat")
        clock.now = NOW + 2 * 86_400 * SECOND
        live.counters._born_ns = clock.now
        assert slo(scrape()) == (0, 0)
        clock.now = NOW
        assert slo(scrape()) == (1, 0)


def test_histograms_hold_exactly_the_requests_that_ended_ok(scrape, arrive):
    made = [
        {"e2e": 80 * SECOND, "ttft_ns": int(t) * MS, "tpot_ns": float(t) * MS / 7}
        for t in (1, 2, 99, 100, 101, 499, 500, 501, 20_000)
    ]
    left = {"status": "cancelled", "ttft_ns": MS, "output_tokens": None}
    arrive(*made, {"status": "error", "ttft_ns": MS}, left, {"output_tokens": 1, "ttft_ns": MS})
    samples = scrape()

    def buckets(metric):
        return {
            float(next(x for x in key if x.startswith("le="))[3:]): value
            for key, value in samples.items()
            if key[0] == f"{metric}_bucket"
        }

    ttft = [r["ttft_ns"] / 1e9 for r in made] + [0.001]
    assert buckets("gen_ai_server_time_to_first_token_seconds") == {
        le: np.sum(np.array(ttft) <= le) for le in buckets("gen_ai_server_time_to_first_token_seconds")
    }
    assert {0.001, 0.5, 10.0, np.inf} <= buckets("gen_ai_server_time_to_first_token_seconds").keys()
    tpot = buckets("gen_ai_server_time_per_output_token_seconds")
    values = np.array([r["tpot_ns"] for r in made])
    assert tpot == {le: np.sum(values <= le * 1e9) for le in tpot}
    assert 60.0 in buckets("gen_ai_server_request_duration_seconds")  # an SLO's threshold, which no convention advises
    labels = [f"{name}={value}" for name, value in sorted(
        {"gen_ai_request_model": "m", "engine": "tokentrail", "service_name": "engine", "variant": "baseline",
         "tenant": "", "slo_class": "", "vantage": "server", "gen_ai_operation_name": "chat",
         "gen_ai_provider_name": "tokentrail"}.items())]  # fmt: skip
    assert samples["gen_ai_server_time_to_first_token_seconds_count", *labels] == 10
    assert samples["gen_ai_server_time_to_first_token_seconds_sum", *labels] == pytest.approx(sum(ttft))
    assert samples["tokentrail_requests_total", *sorted([*labels, "status=ok"])] == 10
    assert samples["tokentrail_tokens_total", *sorted([*labels, "gen_ai_token_type=output"])] == 101


@pytest.mark.parametrize("over", [0, 10, 20, 30])
def test_a_value_is_in_the_first_bucket_whose_edge_it_does_not_exceed(over):
    histogram = Histogram([10, 20, 30])
    histogram.add(over, 1, 5.0, Exemplar({"trace_id": "1"}, 5.0))
    assert histogram.counts.index(1) == over // 10


def test_requests_of_one_token_are_counted_as_an_engine_sends_them(rows):
    """No time passes between one token, and a division by no gap is below the NULL of such a TPOT."""
    spans = [("vllm.llm_engine", "llm_request"), ("sglang server", " Req 1"), ("other", "chat m"), ("tokentrail", "m")]
    bodies = []
    for trace, (scope, name) in enumerate(spans, start=1):
        request = Request(scope=scope)
        for first_s in (0.6, 0.2):
            said = dict.fromkeys(FIRST_TOKEN, first_s) | dict.fromkeys(ONE_TOKEN, 1) | OF_ENGINES
            request.span(name, trace=trace, span=int(first_s * 10), ns=600 * MS, kind=2, attributes=said)
        bodies.append(request.body())
    insert_otlp(rows.store, TRACES, b"".join(bodies), "one-token")
    join(rows.store)
    queries = Queries(rows.store)
    counters = StoreCounters(queries, FilledTables(queries), [], clock=time.time_ns)
    for (segment,) in rows.store.query("SELECT DISTINCT segment FROM requests").result_rows:
        counters.on_segment(segment)
    counters.count_segments()
    samples = [sample for family in counters.families()[0] for sample in family.samples]
    counted = {s.labels["engine"] for s in samples if s.name == "tokentrail_requests_total"}
    assert counted == {"vllm", "sglang", "genai", "tokentrail"}
    assert not [s for s in samples if s.name.startswith("gen_ai_server_time_per_output_token")]


FIRST_TOKEN = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
ONE_TOKEN = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
OF_ENGINES = {"gen_ai.latency.e2e": 0.6, "gen_ai.operation.name": "chat", "module": "sglang::request"}


def test_exemplars_lead_from_a_bucket_to_a_trace(client, arrive, rows):
    arrive({"trace_id": "ab" * 16, "ttft_ns": 123 * MS}, {"trace_id": "cd" * 16, "ttft_ns": 700 * MS})
    text = client.get("/metrics", headers=OPENMETRICS).text
    found = {
        (s.exemplar.labels["trace_id"], s.exemplar.value)
        for family in parse_openmetrics(text)
        for s in family.samples
        if s.exemplar and s.name == "gen_ai_server_time_to_first_token_seconds_bucket"
    }
    assert found == {("ab" * 16, 0.123), ("cd" * 16, 0.7)}


def test_the_exemplar_is_the_latest_of_its_bucket(client, arrive):
    times = [("aa" * 16, 3, SECOND), ("bb" * 16, 1, 20 * SECOND), ("cc" * 16, 2, 3 * SECOND)]
    arrive(*({"trace_id": t, "ttft_ns": 123 * MS, "ended": NOW - ago, "e2e": e2e} for t, ago, e2e in times))
    families = parse_openmetrics(client.get("/metrics", headers=OPENMETRICS).text)
    exemplars = [s.exemplar for family in families for s in family.samples if "first_token" in s.name and s.exemplar]
    assert [exemplar.labels["trace_id"] for exemplar in exemplars] == ["bb" * 16]


def test_a_sampled_request_adds_its_weight(scrape, arrive):
    arrive(CHAT | {"weight": 3.0, "output_tokens": 7}, CHAT | {"weight": 2.0, "output_tokens": 7})
    samples = scrape()
    assert slo(samples) == (5, 5)
    latencies = {"time_to_first_token": 0.1, "time_per_output_token": 0.01, "request_duration": 1.0}
    for name, seconds in latencies.items():
        found = [
            sum(n for key, n in samples.items() if key[0] == f"gen_ai_server_{name}_seconds_{of}")
            for of in ("count", "sum")
        ]
        assert found == [5, pytest.approx(5 * seconds)]
    tokens = [
        n for key, n in samples.items() if key[0] == "tokentrail_tokens_total" and "gen_ai_token_type=output" in key
    ]
    assert tokens == [35]


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


def test_burn_rates_are_those_of_the_api(api, arrive, scrape):
    for age_s, bad in ((60, 1), (1800, 3), (4 * 3600, 2), (20 * 3600, 5), (2 * 86_400, 0)):
        ended = NOW - age_s * SECOND
        arrive(*({"ended": ended, "status": "error" if n < bad else "ok"} for n in range(7)))
    samples, rules = scrape(), api("slos/all")["burn"]
    exposed = {key[-1]: n for key, n in samples.items() if key[:2] == ("tokentrail_slo_burn_rate", "slo=all")}
    told = {
        f"window={format_duration(round(rule[f'{length}_s']) * SECOND)}": rule[f"{length}_burn"]
        for rule in rules
        for length in ("short", "long")
    }
    assert exposed == told
    assert len(set(told.values())) > 3


def test_label_sets_are_bounded_and_what_is_idle_makes_room(arrive, clock, monkeypatch, rows, caplog):
    monkeypatch.setattr(store_counters, "MOST_LABEL_SETS", 3)
    queries = Queries(rows.store)
    fresh = store_counters.StoreCounters(queries, FilledTables(queries), [], clock=clock)
    nothing = InFlight.nothing()

    def add(*requests):
        fresh.on_segment(arrive(*requests))
        fresh.count_segments()
        fresh.count_in_flight(nothing, clock())

    def totals():
        counted = defaultdict(int)
        for labels, n in fresh._series.counters[metrics.REQUESTS].items():
            counted[labels[6]] += n
        return counted

    add(*({"tenant": f"t{i}"} for i in range(3)))
    assert not caplog.messages
    add(*({"tenant": f"t{i}"} for i in range(3, 5)), {"tenant": "t0"})
    add({"tenant": "t6"}, {"tenant": "t7"})
    (line,) = caplog.messages  # once, and not with each segment
    assert "counts requests as `other`: it has room for 3 combinations" in line
    assert sum(totals().values()) == 8
    assert totals()["other"] == 4
    assert fresh._series.counters[metrics.OVERFLOW][()] == totals()["other"]
    clock.now += store_counters.IDLE_NS + SECOND
    add()
    add({"tenant": "late"})
    assert totals()["late"] == 1


@pytest.mark.parametrize(
    ("idle_since", "unused_since", "gone"), [(9, 0, 1), (1, 0, 1), (0, 0, 0), (0, 3, 3), (9, 3, 3)]
)
def test_of_full_label_sets_those_that_were_idle_for_the_longest_time_go(idle_since, unused_since, gone):
    sets = LabelSets(("name",), 10, {(str(n),): n for n in range(10)})
    assert sets.forget(idle_since_ns=idle_since, unused_since_ns=unused_since) == [(str(n),) for n in range(gone)]


def test_requests_that_were_counted_early_are_forgotten_after_a_day_and_the_oldest_beyond_a_limit(monkeypatch):
    monkeypatch.setattr("collector.exposition.early.MOST", 2)
    found = EarlyRequests()
    for seen_ns, key in ((0, "old"), (1, "a day"), (3, "new"), (2, "older"), (4, "newest")):
        found.seen(key, seen_ns)
    assert found.forget(KEEP_NS + 1) == 2
    assert [key for key, _ in found.dump()] == ["new", "newest"]
    found.seen("newest", KEEP_NS)
    assert found.forget(KEEP_NS + 5) == 0
    assert [key for key, _ in found.dump()] == ["newest"]
    assert EarlyRequests([("a day", {"seen_ns": 1, "late": (), "lost": ()})]).forget(KEEP_NS + 1) == 0


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


def test_a_tenant_with_a_request_a_day_keeps_its_counter(arrive, clock, scrape):
    def of(tenant):
        return [n for key, n in scrape().items() if key[0] == "tokentrail_requests_total" and
                {f"tenant={tenant}", "status=ok"} <= {*key}]  # fmt: skip

    for n in range(1, 4):
        arrive({"tenant": "rare"})
        assert of("rare") == [n]
        clock.now += 43_200 * SECOND
        assert of("rare") == [n]
        clock.now += 43_200 * SECOND
    clock.now += 30 * 86_400 * SECOND
    assert of("rare") == []


def test_a_failure_has_a_duration_and_a_type(arrive, scrape):
    arrive({"status": "error", "error_type": "timeout", "e2e": SECOND}, {"status": "error"}, {})
    counts = {key: n for key, n in scrape().items() if key[0] == "gen_ai_server_request_duration_seconds_count"}
    by_type = {part[11:]: n for key, n in counts.items() for part in key if part.startswith("error_type=")}
    assert by_type == {"": 1, "_OTHER": 1, "timeout": 1}


def test_a_long_name_is_in_no_label(arrive, rows, scrape):
    """A name of 200,000 characters made a page of 70 MB."""
    long = {name: name * 1025 for name in ("model", "tenant", "service", "instance", "error_type")}
    segment = arrive(
        {"status": "error", **long}, {"status": "error", "error_type": long["error_type"]}, {"model": "m" * 1024}
    )
    process = {name: long[name] for name in ("service", "instance")}
    rows.kv_event(start=NOW - SECOND, segment=segment, blocks=7, reason="r" * 1025, **process)
    samples = scrape()
    assert max(len(part) for key in samples for part in key) == len("gen_ai_request_model=") + 1024
    assert samples["tokentrail_collector_label_overflow_total",] == 1
    assert [n for key, n in samples.items() if key[0] == "tokentrail_kv_evicted_blocks_total" and
            {"reason=other", "service_name=other"} <= {*key}] == [7]  # fmt: skip


def test_reasons_of_evictions_beyond_a_limit_count_as_other(live):
    row = {"service": "s", "instance": "i", "n": 1, "evicted": 2, "last_ns": NOW}
    live.counters._add_kv_events([row | {"reason": f"reason {n}"} for n in range(60)])
    counted = live.counters._series.counters[metrics.KV_EVICTED]
    assert (len(counted), counted["s", "i", "preemption"], counted["s", "i", "other"]) == (51, 0, 22)


def test_processes_beyond_the_limit_add_up(rows, scrape, monkeypatch, live):
    monkeypatch.setattr(live.counters._processes, "limit", 2)
    for i in range(5):
        blocks = {"kv_blocks_used": 90 - 10 * i, "kv_blocks_total": 100}
        rows.step(start=NOW - SECOND, instance=f"i-{i}", running=3, **blocks)
        rows.open(start=NOW - SECOND, seen=NOW, instance=f"i-{i}")
    samples = scrape()
    for name, n in (("running", 9), ("in_flight", 3)):
        assert samples[f"tokentrail_requests_{name}", "service_instance_id=other", "service_name=other"] == n
    fullest = samples["tokentrail_kv_usage_ratio", "service_instance_id=other", "service_name=other"]
    assert fullest == 0.7


@pytest.fixture
def busy(client, arrive, rows, ingest_status):
    """A client of a collector in which every metric has a value."""
    ingest_status.received("spans", count=5, size=100, duplicate=True, rejected={"too_large": 1})
    ingest_status.refused("malformed")
    ingest_status.limited("acme", "spans")
    ingest_status.api_refused("busy")
    ingest_status.expired("tokens", 7)
    ingest_status.received("data_points", count=5, size=100, duplicate=False, rejected={"unknown_name": 1})
    ingest_status.received("log_records", count=5, size=100, duplicate=False, rejected={"unread": 1})
    ingest_status.scraped("ok", series_dropped=0)
    process = {"service": "s", "instance": "i", "engine": "vllm", "time": (NOW - SECOND) // 10**6, "value": 1.0}
    gauges = ("up", "running", "waiting", "kv_usage")
    rows.insert("samples", [process | {"name": name, "kind": "gauge"} for name in gauges])
    rows.insert(
        "samples", [process | {"name": name, "kind": "counter"} for name in ("generation_tokens", "preemptions")]
    )
    rows.step(start=NOW - SECOND, kv_blocks_total=64)
    segment = arrive(CHAT, {"status": "error", "tenant": 'quo"te\\\n'})
    rows.kv_event(start=NOW - SECOND, segment=segment)
    rows.cold_start(start=NOW - SECOND, duration=SECOND, segment=segment)
    rows.open(start=NOW - 40 * SECOND, seen=NOW - 29 * SECOND)
    return client


def test_every_metric_is_exposed_and_documented(busy, clock):
    clock.now += 31 * SECOND
    exposed = {f.name: f for f in parse_openmetrics(busy.get("/metrics", headers=OPENMETRICS).text)}
    declared = {m.name.removesuffix("_total"): m for m in metrics.ALL}
    assert exposed.keys() == declared.keys()
    for name, metric in declared.items():
        assert (exposed[name].type, exposed[name].documentation) == (metric.kind, metric.help)
        labels = {label for s in exposed[name].samples for label in s.labels} - {"le"}
        assert labels == set(metric.labels), name
    documented = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", documented, re.MULTILINE))
    assert listed == {m.name for m in metrics.ALL}


def test_the_classic_format_is_what_promtool_accepts(busy):
    answer = busy.get("/metrics", headers={"accept": "text/plain;version=0.0.4"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert {f.name for f in parse_text(answer.text)} >= {"tokentrail_slo_requests", "tokentrail_collector_ready"}
    checked = subprocess.run(["promtool", "check", "metrics"], input=answer.text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout + checked.stderr == ""


def test_readiness_and_health(api, ingest_status):
    for path, status, key in (("/healthz", 200, "status"), ("/readyz", 503, "reason")):
        answer = api.client.get(path)
        assert (answer.status_code, key in answer.json()) == (status, True)
    ingest_status.set_ready("start")
    assert api.client.get("/readyz").status_code == 200
    ingest_status.set_not_ready("store", "the disk is full")
    assert api.client.get("/readyz").json()["reason"] == "the disk is full"
