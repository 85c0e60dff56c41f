"""A client that scrapes what is stored, and segments in which rows arrive."""

from itertools import count

import pytest
from fastapi.testclient import TestClient

from collector.base.status import ApiRefusal
from tests.collector.metrics.scraped import CHAT, OPENMETRICS, samples_of
from tests.collector.rows import NOW, SECOND


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


@pytest.fixture
def no_evaluation(monkeypatch):
    """Without the gauges of SLOs, which ask the store more than all else, for tests of counters."""
    monkeypatch.setattr("collector.app.service.evaluate", lambda *_: [])


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


@pytest.fixture
def busy(client, live, arrive, rows, on_segment, ingest_status):
    """A client of a collector in which every metric has a value."""
    ingest_status.received("spans", count=5, size=100, duplicate=True, rejected={"too_large": 1})
    ingest_status.refused("malformed")
    ingest_status.limited("acme", "spans")
    ingest_status.api_refused(ApiRefusal.BUSY)
    ingest_status.expired("tokens", 7)
    ingest_status.explain_waiting(3.0)
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
    segment = arrive(CHAT, {"status": "error", "tenant": 'quo"te\\\n', "ended": NOW + 60 * SECOND})
    rows.kv_event(start=NOW - SECOND, segment=segment)
    rows.cold_start(start=NOW - SECOND, duration=SECOND, segment=segment)
    rows.open(start=NOW - 40 * SECOND, seen=NOW - 29 * SECOND)
    late = f"{NOW:020d}-a"
    slow = CHAT | {"ttft_ns": SECOND, "e2e": 2 * SECOND}
    told = {"segment": "explained", "queue_ns": 0, "ended": NOW - 2}
    good, bad = rows.requests([CHAT | told, slow | told])
    rows.causes([(good, {}), (bad, {"ttft_wait_kv_us": 10**6})])
    on_segment("explained")
    live.counters.on_explained("explained")
    rows.request(**CHAT, service="late", ended=NOW - 60 * SECOND, segment=late)
    on_segment(late)
    return client
