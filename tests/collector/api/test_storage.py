"""`/api/v1/storage` against rows and files written by hand."""

import errno
import os
import shutil
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.keep.usage import Disk, Usage
from collector.store.retention import parse_retention
from collector.store.schema import TIME_COLUMNS
from tests.collector.rows import NOW, SECOND

DAY = 86400 * SECOND


@pytest.fixture
def data_dir(tmp_path):
    (tmp_path / "dead_letters").mkdir()
    (tmp_path / "dead_letters" / "a.bin").write_bytes(b"x" * 100)
    (tmp_path / "dead_letters" / "a.json").write_bytes(b"{}")
    return tmp_path


@pytest.fixture
def app_and_live(rows, ingest_status, clock, data_dir):
    retention = parse_retention("90d,tokens=7d,acme/requests=30d")
    return build_api(
        rows.store, (), ingest_status, lost_after_s=30.0, retention=retention, data_dir=data_dir, clock=clock
    )


@pytest.fixture
def client(app):
    return TestClient(app)


def test_tables_have_rows_bytes_age_and_retention(client, rows):
    for days in (3, 1):
        rows.tokens(rows.request(ended=NOW - days * DAY), [1000] * 1000)
    answer = client.get("/api/v1/storage").json()
    tables = {table.pop("name"): table for table in answer["tables"]}
    assert tables.keys() == TIME_COLUMNS.keys()
    tokens, requests, empty = tables["tokens"], tables["requests"], tables["steps"]
    assert (tokens["rows"], tokens["parts"], requests["rows"]) == (2000, 2, 2)
    assert 0 < tokens["disk_bytes"] < 2000 * 40
    assert requests["oldest"] == "2026-11-18T10:00:00Z"
    assert tokens["oldest"].startswith("2026-11-18T09:59:00")
    assert (tokens["retention_s"], requests["retention_s"]) == (7 * 86400, 90 * 86400)
    assert empty == {
        "rows": 0, "parts": 0, "broken_parts": 0, "disk_bytes": 0,
        "oldest": None, "retention_s": 90 * 86400,
    }  # fmt: skip
    assert answer["tenants"] == [{"tenant": "acme", "table": "requests", "retention_s": 30 * 86400}]


def test_the_log_the_dead_letters_and_the_disks(client, ingest_status, data_dir):
    ingest_status.wal_pending("traces", 3, 4096)
    answer = client.get("/api/v1/storage").json()
    assert answer["log"] == {"segments": 3, "bytes": 4096}
    assert answer["dead_letters"] == {"files": 2, "bytes": 102}
    usage = shutil.disk_usage(data_dir)
    assert abs(answer["data_dir_free_bytes"] - usage.free) < 2**30
    assert answer["data_dir_total_bytes"] == usage.total
    (disk,) = answer["disks"]
    assert (disk["host"], disk["name"]) == ("", "default")
    assert 0 < disk["free_bytes"] < disk["total_bytes"]


def test_a_folder_that_is_not_there_yet_has_no_dead_letters(client, data_dir):
    shutil.rmtree(data_dir / "dead_letters")
    assert client.get("/api/v1/storage").json()["dead_letters"] == {"files": 0, "bytes": 0}


def test_without_a_setting_rows_are_kept_for_ever_and_unknown_is_null(rows, ingest_status):
    app, _ = build_api(rows.store, (), ingest_status, lost_after_s=30.0)
    answer = TestClient(app).get("/api/v1/storage").json()
    assert {table["retention_s"] for table in answer["tables"]} == {None}
    assert (answer["tenants"], answer["dead_letters"]) == ([], None)
    assert (answer["data_dir_free_bytes"], answer["data_dir_total_bytes"]) == (None, None)


def test_metrics_have_rows_bytes_and_the_retentions_work(client, live, rows, ingest_status):
    rows.request()
    ingest_status.expired("tokens", 7)
    ingest_status.retention_failed()
    ingest_status.retention_done(12.5)
    live.refresh()
    page = client.get("/metrics").text
    assert 'tokentrail_store_rows{table="requests"} 1.0' in page
    assert 'tokentrail_store_rows{table="steps"} 0.0' in page
    assert 'tokentrail_store_bytes{table="steps"} 0.0' in page
    for what in ("free", "total"):
        assert f'tokentrail_store_disk_{what}_bytes{{disk="default",host="",path="' in page
    assert 'tokentrail_collector_retention_rows_total{table="tokens"} 7.0' in page
    assert "tokentrail_collector_retention_failures_total 1.0" in page
    assert "tokentrail_collector_retention_last_timestamp_seconds 12.5" in page
    assert "tokentrail_collector_dead_letter_bytes 102.0" in page
    assert "tokentrail_collector_disk_free_bytes " in page
    assert "tokentrail_collector_disk_total_bytes " in page


def test_of_several_disks_in_the_data_folder_the_one_with_the_least_room_is_told(data_dir, monkeypatch):
    (data_dir / "wal").mkdir()
    free = {data_dir: 900, data_dir / "wal": 40, data_dir / "dead_letters": 50}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Mock(free=free[folder], total=1000 - free[folder]))
    usage = Usage(Mock(), data_dir)
    assert usage.data_disk() == Disk(40, 960)
    free[data_dir / "dead_letters"] = 30
    assert usage.data_disk() == Disk(30, 970)
    free[data_dir] = 20
    assert usage.data_disk() == Disk(20, 980)


def test_a_disk_that_does_not_answer_is_unknown_and_keeps_nothing_from_metrics(client, data_dir, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(shutil, "disk_usage", fail)
    monkeypatch.setattr(os, "scandir", fail)
    answer = client.get("/api/v1/storage").json()
    assert [answer[name] for name in ("dead_letters", "data_dir_free_bytes", "data_dir_total_bytes")] == [None] * 3
    page = client.get("/metrics")
    assert page.status_code == 200
    assert "tokentrail_collector_ready" in page.text
    assert "tokentrail_collector_disk" not in page.text
    assert "tokentrail_collector_dead_letter_bytes" not in page.text
