"""Rows go when their time is over: partitions of tables, days of tenants, counted, and nothing else."""

import logging
import time

import pytest

from collector.app.service import Service
from collector.base.status import IngestStatus
from collector.keep import expiry
from collector.keep.expiry import Expiry, partition_end_s
from collector.pipeline.settings import Settings
from collector.slo.model import load_slos
from collector.store.retention import FOR_EVER, Retention, check_windows, parse_retention
from collector.store.schema import TIME_COLUMNS
from collector.store.store import Store
from tests.collector.rows import NOW, SECOND

DAY = 86400 * SECOND
HOUR = 3600 * SECOND
SECONDS_OF_DAY = DAY // SECOND
MIDNIGHT = NOW // DAY * DAY
"""NOW is 10:00, so MIDNIGHT is ten hours ago."""


@pytest.fixture
def status():
    return IngestStatus()


@pytest.fixture
def expire(rows, clock, status):
    """One round with a setting; the rows that it removed, by table."""

    def run(setting):
        Expiry(rows.store, parse_retention(setting), status, clock=clock).run_once()
        return dict(status.snapshot().rows_expired)

    return run


@pytest.fixture
def count(rows):
    def count(table, where="1"):
        return rows.store.query(f"SELECT count() FROM {table} WHERE {where}").result_rows[0][0]

    return count


def served(rows, *, ended, tenant="", tokens=3):
    """A request with tokens and phases, all within a second before its end."""
    request = rows.request(ended=ended, tenant=tenant)
    rows.tokens(request, [1000] * tokens)
    rows.phases(request, [("queued", SECOND // 2), ("decode", SECOND // 2)])
    return request


@pytest.mark.parametrize(
    ("setting", "tables", "tenants"),
    [
        ("", {}, {}),
        ("90d", dict.fromkeys(TIME_COLUMNS, 90 * SECONDS_OF_DAY), {}),
        ("tokens=7d", {"tokens": 7 * SECONDS_OF_DAY}, {}),
        ("90d, tokens=36h", dict.fromkeys(TIME_COLUMNS, 90 * SECONDS_OF_DAY) | {"tokens": 36 * 3600}, {}),
        ("tokens=36h,90d", dict.fromkeys(TIME_COLUMNS, 90 * SECONDS_OF_DAY) | {"tokens": 36 * 3600}, {}),
        ("a/b/requests=1d,x/tokens=1h", {}, {("a/b", "requests"): SECONDS_OF_DAY, ("x", "tokens"): 3600}),
        ("tokens=1d,x/tokens=1d", {"tokens": SECONDS_OF_DAY}, {("x", "tokens"): SECONDS_OF_DAY}),
    ],
)
def test_a_setting_names_tables_and_tenants(setting, tables, tenants):
    assert parse_retention(setting) == Retention(tables, tenants)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("90", "not a duration"),
        ("59m", "shorter than 1h"),
        ("token=7d", "'token=7d' names no table; write one of requests, tokens"),
        ("x/steps=7d", "names no table; write one of requests, tokens$"),
        ("7d,8d", "second time"),
        ("tokens=7d,tokens=8d", "second time"),
        ("x/tokens=7d,x/tokens=8d", "second time"),
        ("tokens=7d,x/tokens=8d", "x/tokens is kept longer"),
        ("7d,x/requests=8d", "x/requests is kept longer"),
    ],
)
def test_a_wrong_setting_names_its_part(setting, message):
    with pytest.raises(ValueError, match=message):
        parse_retention(setting)


def test_an_slo_over_more_days_than_are_kept_is_refused(slos_file, caplog):
    slos = load_slos(slos_file)
    with pytest.raises(ValueError, match=r"window of 30d, and requests are kept for 29d"):
        check_windows(slos, parse_retention("29d"))
    for setting in ("", "30d", "tokens=1d"):
        check_windows(slos, parse_retention(setting))
    check_windows([], parse_retention("1d"))
    assert caplog.text == ""
    check_windows(slos, parse_retention("30d,acme/requests=7d,acme/tokens=1d"))
    assert caplog.text.count("removes requests of the tenant acme before") == 1


def test_a_collector_does_not_start_with_such_an_slo(slos_file, tmp_path):
    free = dict.fromkeys(("otlp_http", "otlp_grpc", "api"), "127.0.0.1:0")
    with pytest.raises(ValueError, match="requests are kept for 29d"):
        Service(Settings(data_dir=tmp_path, slos=slos_file, retention="29d", **free))


@pytest.mark.parametrize(
    ("partition", "end"),
    [
        ("20261121", "2026-11-22"),
        ("20261231", "2027-01-01"),
        ("20280228", "2028-02-29"),
        ("202611", "2026-12-01"),
        ("202612", "2027-01-01"),
    ],
)
def test_a_partition_ends_with_its_day_or_month(rows, partition, end):
    expected = rows.store.query(f"SELECT toUnixTimestamp(toDateTime('{end} 00:00:00', 'UTC'))").result_rows[0][0]
    assert partition_end_s(partition) == expected


def test_a_day_goes_when_its_last_moment_is_too_old(rows, expire, count):
    """NOW is 10:00. Two days are kept: the day that ended 34 h ago stays, the one that ended 58 h ago goes."""
    rows.open(start=NOW, seen=NOW)  # ends are stored beside announcements
    for midnight in (MIDNIGHT - 3 * DAY, MIDNIGHT - 2 * DAY, MIDNIGHT - DAY):
        served(rows, ended=midnight + HOUR)
        rows.step(start=midnight + HOUR)
    assert expire("2d,steps=3d") == {"requests": 1, "tokens": 3, "phases": 2, "open_requests": 1}
    assert (count("requests"), count("tokens"), count("phases"), count("steps")) == (2, 6, 4, 3)
    expire("34h")
    assert (count("requests"), count("steps")) == (1, 1)
    expire("33h")
    assert count("requests") == 1
    expire("9h")
    assert count("requests") == 0


def test_a_day_whose_end_is_exactly_so_long_ago_goes(rows, expire, count):
    served(rows, ended=MIDNIGHT - HOUR)
    expire("10h1m")
    assert count("requests") == 1
    expire("10h")
    assert count("requests") == 0


def test_what_is_kept_for_ever_stays(rows, expire, count):
    served(rows, ended=NOW - 1000 * DAY)
    assert expire("") == {}
    assert expire("steps=1d") == {}
    assert count("requests") == 1


def test_a_month_of_cold_starts_goes_as_a_whole(rows, expire, count):
    rows.cold_start(start=NOW - 22 * DAY, duration=SECOND)  # 2026-10-30
    rows.cold_start(start=NOW - 20 * DAY, duration=SECOND)  # 2026-11-01
    expire("21d")
    assert count("cold_starts") == 2
    assert expire("20d") == {"cold_starts": 1}
    assert count("cold_starts", "start >= '2026-11-01'") == 1


@pytest.fixture
def profile(rows, monkeypatch):
    """Switch a setting on for the stage, whose client has a session of its own."""
    with_timeout = rows.store.with_timeout

    def switch(setting):
        def switched(seconds):
            store = with_timeout(seconds)
            store.client().command(f"SET {setting}")
            return store

        monkeypatch.setattr(rows.store, "with_timeout", switched)

    return switch


def test_a_partition_of_any_size_is_dropped(rows, expire, count, profile):
    served(rows, ended=NOW - 3 * DAY)
    profile("max_partition_size_to_drop = 1")
    expire("1d")
    assert count("requests") == 0


def test_a_tenants_tokens_are_gone_before_its_requests_whatever_the_profile(rows, expire, count, profile):
    served(rows, ended=NOW - 3 * DAY, tenant="acme")
    profile("lightweight_deletes_sync = 0")
    expire("acme/requests=1d")
    assert (count("requests"), count("tokens"), count("phases")) == (0, 0, 0)


def test_a_tenants_requests_go_with_all_their_rows_and_only_they(rows, expire, count):
    ends = (NOW - 9 * DAY, NOW - 8 * DAY, NOW - 6 * DAY)
    rows.causes([(served(rows, ended=at, tenant=tenant), {}) for at in ends for tenant in ("acme", "other")])
    rows.open(start=NOW - 9 * DAY, seen=NOW - 9 * DAY, tenant="acme")
    assert expire("acme/requests=7d") == {"requests": 2, "tokens": 6, "phases": 4, "causes": 2, "open_requests": 3}
    assert (count("requests"), count("tokens"), count("phases"), count("causes")) == (4, 12, 8, 4)
    assert count("requests", "tenant = 'other'") == 3
    assert count("open_requests", "tenant = 'acme'") == 1
    kept = "SELECT trace_id FROM requests"
    assert count("tokens", f"trace_id NOT IN ({kept})") == count("phases", f"trace_id NOT IN ({kept})") == 0


def test_what_waits_for_the_rest_of_a_tenants_request_goes_with_its_requests(rows, expire, count):
    client = rows.store.client()
    for table in ("held_requests", "held_spans"):
        client.command(f"ALTER TABLE {table} REMOVE TTL")  # real time is past these days
        for tenant, ago in (("acme", 9), ("acme", 7), ("other", 9)):
            arrived = (NOW - ago * DAY) // SECOND
            client.command(f"INSERT INTO {table} (tenant, arrived) VALUES ('{tenant}', {arrived})")
    assert expire("acme/requests=7d") == {"held_requests": 1, "held_spans": 1}
    for table in ("held_requests", "held_spans"):
        assert count(table, "tenant = 'acme'") == count(table, "tenant = 'other'") == 1


def test_a_tenants_day_goes_when_all_of_it_is_too_old(rows, expire, count):
    """NOW is 10:00 on the 21st. Seven days back is 10:00 on the 14th, so the 13th is the last day that goes."""
    for ended in (MIDNIGHT - 7 * DAY - SECOND, MIDNIGHT - 7 * DAY + 2 * SECOND):
        served(rows, ended=ended, tenant="acme")
    assert expire("acme/requests=7d")["requests"] == 1
    assert count("requests", "end >= '2026-11-14'") == 1


def test_tokens_of_a_request_that_ran_over_midnight_go_too(rows, expire, count):
    rows.open(start=NOW, seen=NOW)  # ends are stored beside announcements
    request = rows.request(ended=MIDNIGHT - 9 * DAY + HOUR, e2e=4 * HOUR, tenant="acme")
    rows.tokens(request, [HOUR // 1000, 2 * HOUR // 1000])
    assert count("tokens", "minute < '2026-11-12'") == 1
    assert expire("acme/requests=7d") == {"requests": 1, "tokens": 2, "open_requests": 1}
    assert count("tokens") == 0


def test_a_tenants_tokens_may_go_alone(rows, expire, count):
    for ended in (NOW - 3 * DAY, NOW):
        served(rows, ended=ended, tenant="acme")
        served(rows, ended=ended, tenant="other")
    assert expire("acme/tokens=1d") == {"tokens": 3}
    assert (count("requests"), count("tokens"), count("phases")) == (4, 9, 8)


def test_a_round_is_bounded_and_the_next_one_goes_on(rows, clock, status, count, monkeypatch):
    monkeypatch.setattr(expiry, "MOST_DAYS", 2)
    for days in range(2, 6):
        served(rows, ended=NOW - days * DAY, tenant="acme")
    stage = Expiry(rows.store, parse_retention("acme/tokens=1d"), status, clock=clock)
    left = []
    for _ in range(3):
        stage.run_once()
        left.append(count("tokens"))
    assert left == [6, 0, 0]
    requests = Expiry(rows.store, parse_retention("acme/requests=1d"), status, clock=clock)
    requests.run_once()
    assert sorted(rows.store.query("SELECT DISTINCT toDayOfMonth(end) FROM requests").result_rows) == [
        (18,), (19,)
    ]  # fmt: skip


def test_a_day_without_tokens_is_not_read_again_until_a_request_comes_late(rows, clock, status, count, monkeypatch):
    served(rows, ended=NOW - 3 * DAY, tenant="acme")
    stage = Expiry(rows.store, parse_retention("acme/tokens=1d"), status, clock=clock)
    stage.run_once()
    deleted = []
    monkeypatch.setattr(expiry._Round, "_delete", lambda *arguments, **_: deleted.append(arguments[1]))
    stage.run_once()
    assert deleted == []
    monkeypatch.undo()
    served(rows, ended=NOW - 3 * DAY, tenant="acme")
    stage.run_once()
    assert count("tokens") == 0


def test_a_tenants_name_is_a_value_and_not_sql(rows, expire, count):
    name = "o'neil \\ -- x"
    served(rows, ended=NOW - 3 * DAY, tenant=name)
    served(rows, ended=NOW - 3 * DAY, tenant="other")
    assert expire(f"{name}/requests=1d")["requests"] == 1
    assert (count("requests"), count("tokens")) == (1, 3)


def test_a_projection_does_not_stop_a_delete(rows, expire, count):
    client = rows.store.client()
    client.command("ALTER TABLE requests ADD PROJECTION p (SELECT e2e_ns ORDER BY e2e_ns)")
    try:
        served(rows, ended=NOW - 3 * DAY, tenant="acme")
        served(rows, ended=NOW - 3 * DAY, tenant="other")
        expire("acme/requests=1d")
        assert count("requests") == 1
    finally:
        client.command("ALTER TABLE requests DROP PROJECTION p")


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def test_the_stage_begins_at_once_and_again_after_its_time(rows, clock, status, count):
    served(rows, ended=NOW - 3 * DAY)
    stage = Expiry(rows.store, parse_retention("2d"), status, clock=clock, round_s=0.05)
    stage.start()
    wait_for(lambda: status.snapshot().last_retention_unix_s == NOW / SECOND)
    assert count("requests") == 0
    served(rows, ended=NOW - 2 * DAY)
    clock.now += 3 * DAY
    wait_for(lambda: count("requests") == 0)
    assert stage.stop(120)


def test_a_round_ends_when_the_stage_stops_and_leaves_no_client_open(rows, clock, status, count, monkeypatch):
    served(rows, ended=NOW - 3 * DAY)
    served(rows, ended=NOW - 3 * DAY, tenant="acme")
    stage = Expiry(rows.store, parse_retention("cold_starts=2d,requests=2d,acme/requests=1d"), status, clock=clock)
    stage._stopping.set()
    made = []
    with_timeout = rows.store.with_timeout
    monkeypatch.setattr(rows.store, "with_timeout", lambda s: made.append(with_timeout(s)) or made[-1])
    stage.run_once()
    assert (count("requests"), status.snapshot().rows_expired) == (2, {})
    assert [(store._clients, store._send_receive_timeout_s) for store in made] == [([], 3600.0)]


def test_a_failure_is_counted_and_a_store_that_is_away_is_waited_for(clock, status, rows, caplog, monkeypatch):
    monkeypatch.setattr(expiry, "_AFTER_A_FAILURE_S", 0.01)
    monkeypatch.setattr(expiry, "_UNTIL_OPEN_S", 0.01)
    store = Store("http://127.0.0.1:1/default", connect_timeout_s=1.0)
    store.refuse("not yet")
    stage = Expiry(store, parse_retention("2d"), status, clock=clock)
    stage.start()
    assert not stage._stopping.wait(0.1)
    assert status.snapshot().retention_failures == 0
    with caplog.at_level(logging.WARNING):
        store.admit()
        wait_for(lambda: status.snapshot().retention_failures > 1)
    assert "old rows cannot be removed from http://127.0.0.1:1/default" in caplog.text
    assert status.snapshot().last_retention_unix_s == 0.0
    assert stage.stop(30)


def test_without_a_setting_there_is_no_work(rows, status):
    stage = Expiry(rows.store, FOR_EVER, status)
    stage.start()
    assert not stage._thread.is_alive()
    assert stage.stop(0)
