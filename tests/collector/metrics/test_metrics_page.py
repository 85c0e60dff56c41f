"""`/metrics` writes each number of the collector itself under its own name."""

from collections import defaultdict
from unittest.mock import Mock

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from collector.access.validity import Validity
from collector.base.status import ApiRefusal, IngestStatus
from collector.keep.usage import Disk
from collector.metrics import MetricsPage, metrics
from collector.metrics.page import router
from tests.collector.rows import SECOND

EXPECTED = {
    "payloads_received_total": 4, "payloads_duplicate_total": 1, "received_bytes_total": 777,
    "spans_received_total": 50, "data_points_received_total": 8, "spans_rejected_total too_large": 2,
    "data_points_dropped_total unknown_name": 6, "log_records_dropped_total unread": 7,
    "payloads_repeated_total": 3, "payloads_dead_lettered_total": 5, "segments_not_joined_total": 9,
    "segments_inserted_total": 10, "last_insert_timestamp_seconds": 1234, "payloads_rejected_total malformed": 11,
    "payloads_limited_total spans acme": 12, "api_requests_refused_total busy": 13, "scrapes_total ok": 14,
    "scrape_series_dropped_total": 28, "scrape_targets": 15, "scrape_targets_dropped": 16, "wal_segments": 37,
    "wal_bytes": 48, "retention_rows_total tokens": 19, "retention_failures_total": 21,
    "retention_last_timestamp_seconds": 2222, "ready": 1, "store_up": 0, "state_timestamp_seconds": 33,
    "names_cut_total": 29, "heard_until_timestamp_seconds": 44, "dead_letter_bytes": 55, "disk_free_bytes": 66,
    "disk_total_bytes": 88,
}  # fmt: skip
"""By name without its prefix, and the values of labels."""


USAGE = Mock(**{"dead_letters.return_value.size": 55, "data_disk.return_value": Disk(free=66, total=88)})
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
CLASSIC = "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", CLASSIC),
        ("*/*", CLASSIC),
        ("text/plain; version=1.0.0", CLASSIC),
        ("application/openmetrics-text", OPEN),
        ("application/OpenMetrics-text ; version=1.0.1;q=0.5, text/plain", OPEN),
        ("application/openmetrics-text;version=0.0.1,text/plain;q=0.5", CLASSIC),
        ("application/openmetrics-text;version=2.0.0,application/openmetrics-text;version=1.0.0;q=0.5", OPEN),
        ("application/openmetrics-text;version=abc", CLASSIC),
        ("application/openmetrics-text;version=1..0;escaping=allow-utf-8", OPEN),
        (",;,=;q=", CLASSIC),
    ],
)
def test_a_scraper_gets_one_of_two_formats_whatever_it_accepts(accept, content_type):
    page = Mock(**{"text.return_value": b""})
    app = FastAPI()
    app.include_router(router(page))
    answer = TestClient(app).get("/metrics", headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, content_type)
    assert page.text.call_args.args[1] == content_type  # the page keeps a text for each


def test_a_tenants_first_refusal_shows_after_a_minute_in_which_it_is_0():
    """Each Prometheus that scrapes once a minute sees the 0 before the count."""
    now = [100.0]
    status = IngestStatus(lambda: now[0])
    page = MetricsPage(Mock(families=([], []), store_up=False, state_at_s=0.0), status, USAGE, heard_until=int)

    def seen():
        families = parse(page.text(generate_latest, "text").decode())
        return [s.value for f in families for s in f.samples if s.name == f"{metrics.LIMITED.name}"]

    assert seen() == []
    status.limited("acme", "spans")
    assert seen() == [0]
    now[0] += 59.9
    status.limited("acme", "spans")
    assert seen() == [0]
    now[0] += 0.1
    assert seen() == [2]


@pytest.mark.parametrize("usable", [False, True])
def test_a_certificate_that_cannot_be_used_is_told_and_without_tls_nothing_is(usable):
    def told(tls):
        live = Mock(families=([], []), store_up=False, state_at_s=0.0)
        page = MetricsPage(live, IngestStatus(), USAGE, heard_until=int, tls=tls)
        samples = [s for family in parse(page.text(generate_latest, "text").decode()) for s in family.samples]
        prefix = "tokentrail_collector_certificate_"
        return {s.name.removeprefix(prefix): s.value for s in samples if s.name.startswith(prefix)}

    assert told(None) == {}
    assert told(Mock(is_usable=usable, validity=None)) == {"usable": usable}
    times = {"not_before_timestamp_seconds": 1, "not_after_timestamp_seconds": 2}
    assert told(Mock(is_usable=usable, validity=Validity(1, 2))) == {"usable": usable, **times}


def test_each_number_has_its_own_name():
    now = [0.0]
    status = IngestStatus(lambda: now[0])
    status.received("spans", count=40, size=700, duplicate=False, rejected={"too_large": 2})
    status.received("spans", count=10, size=70, duplicate=True, rejected={})
    status.received("data_points", count=8, size=7, duplicate=False, rejected={"unknown_name": 6})
    status.received("log_records", count=9, size=0, duplicate=False, rejected={"unread": 7})
    for times, count in (
        (5, status.dead_lettered), (9, status.not_joined), (10, lambda: status.inserted(1234.0)),
        (11, lambda: status.refused("malformed")), (12, lambda: status.limited("acme", "spans")),
        (13, lambda: status.api_refused(ApiRefusal.BUSY)), (14, lambda: status.scraped("ok", series_dropped=2)),
        (21, status.retention_failed),
    ):  # fmt: skip
        for _ in range(times):
            count()
    status.repeated(3)
    status.names_cut(29)
    status.scrape_targets(15, dropped=16)
    status.wal_pending("traces", 17, 18)
    status.wal_pending("metrics", 20, 30)
    status.expired("tokens", 19)
    status.retention_done(2222.0)
    status.set_ready("start")
    now[0] = 60.0
    live = Mock(families=([], []), store_up=False, state_at_s=33.0)
    page = MetricsPage(live, status, USAGE, heard_until=lambda: 44 * SECOND)
    found = {
        " ".join([sample.name.removeprefix("tokentrail_collector_"), *sample.labels.values()]): sample.value
        for family in parse(page.text(generate_latest, "text").decode())
        for sample in family.samples
    }
    assert {name: value for name, value in found.items() if value or name in EXPECTED} == EXPECTED


def test_a_counter_has_each_reason_before_its_first_event():
    page = MetricsPage(Mock(families=([], []), store_up=False, state_at_s=0.0), IngestStatus(), USAGE, heard_until=int)
    reasons = defaultdict(set)
    for family in parse(page.text(generate_latest, "text").decode()):
        for sample in family.samples:
            if sample.labels:
                assert sample.value == 0
                reasons[family.name.removeprefix("tokentrail_collector_")].add(*sample.labels.values())
    assert {name: len(some) for name, some in reasons.items()} == {
        "payloads_rejected": 13, "spans_rejected": 10, "data_points_dropped": 10, "log_records_dropped": 6,
        "api_requests_refused": 8, "scrapes": 12, "retention_rows": 13, "requests_explained": 4,
    }  # fmt: skip
    assert {"malformed", "limited"} <= reasons["payloads_rejected"]
    assert {"busy", "too_long", "client_left"} <= reasons["api_requests_refused"]
    assert {"unclaimed", "too_large"} <= reasons["log_records_dropped"]
    assert {"ok", "timeout", "no_metrics", "log"} <= reasons["scrapes"]
    assert {"tokens", "held_spans"} <= reasons["retention_rows"]
