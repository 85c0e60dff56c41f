"""A backup of an embedded store becomes the store of a server: all of its rows, or no table."""

import pytest

from collector.base.store_errors import StoreError
from collector.keep import to_server
from collector.keep.archive import BackupError
from collector.store.store import Store
from tests.collector.keep.archives import run_restore
from tests.collector.rows import NOW, SECOND
from tests.support.clickhouse_server import Server
from tests.support.collector import Collector

AT_ONCE = "mutations_sync = 2, lightweight_deletes_sync = 2"
TOKENS = "SELECT arraySort(groupArray((toString(minute), token_index, hex(request_key)))) FROM tokens"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def address(server):
    """A database without tables: the server of the tests knows only one."""
    yield f"{server.url}/default"
    store = Store.open(f"{server.url}/default")
    for name in tables(store):
        store.client().command(f"DROP TABLE IF EXISTS `{name}` SYNC")
    store.close()


def tables(store):
    return [name for (name,) in store.query("SHOW TABLES").result_rows]


def backed_up(backups, path):
    path.write_bytes(b"".join(backups.make()))
    return path


def test_a_collector_goes_on_with_the_rows_on_the_server(rows, store, backups, address, tmp_path):
    for ended in (NOW - 2 * SECOND, NOW - SECOND):
        rows.request(ended=ended, trace_id="ab" * 16)
    again = "INSERT INTO tokens (minute, trace_id, request_span_id, token_index, duration_us, step) SELECT minute, "
    again += "trace_id, request_span_id, token_index, duration_us, step FROM tokens WHERE token_index = 2"
    store.client().command(again)  # a part with the rows of another one
    store.client().command("DELETE FROM tokens WHERE token_index = 1 SETTINGS lightweight_deletes_sync = 2")
    had = store.query(TOKENS).result_rows
    copied = run_restore(backed_up(backups, tmp_path / "b.tar"), address)
    assert copied.returncode == 0, copied.stderr
    assert f"before 2026-11-21T09:59:55Z is in {address}" in copied.stdout
    on_server = Store.open(address)
    assert on_server.query(TOKENS).result_rows == had
    assert len(had[0][0]) == 3, "two equal tokens, and none of the one that was deleted"
    versions = "SELECT version, digest FROM schema_version"
    assert on_server.query(versions).result_rows == store.query(versions).result_rows
    again = run_restore(tmp_path / "b.tar", address)
    assert again.returncode == 1
    assert "has tables of tokentrail already (" in again.stderr
    assert on_server.query(TOKENS).result_rows == had, "the store is left as it was"
    on_server.close()
    with Collector(tmp_path / "data", store=address) as collector:
        found = collector.get("/api/v1/summary?start=2026-11-21T09:00:00Z&end=2026-11-21T10:00:00Z").json()
    assert found["requests"]["total"] == 2


@pytest.mark.parametrize("fault", ["before", "rows", "content", "taken"])
def test_a_copy_that_fails_leaves_no_table_but_what_a_collector_took_over(fault, store, archive, address, monkeypatch):
    """The tables' rows are in this process's store, as a backup's would be."""
    manifest = type("", (), {"tables": dict.fromkeys(["schema_version", "tokens"])})
    on_server = Store.open(address)
    copied = to_server._copied

    begun = []

    def lost(embedded, server, name):
        begun.append(name)
        assert "schema_lock_1" in tables(server), "a collector that starts meanwhile waits"
        if fault == "before":
            raise OSError("the server is gone")
        if fault == "taken" and name == "tokens":
            server.client().command("CREATE TABLE schema_lock_2 (nothing UInt8) ENGINE = Null")
        yield from copied(embedded, server, name)
        if name == "tokens" and fault != "taken":
            change = "DELETE FROM tokens" if fault == "rows" else "ALTER TABLE tokens UPDATE duration_us = 8"
            server.client().command(f"{change} WHERE token_index = 1 SETTINGS {AT_ONCE}")

    monkeypatch.setattr(to_server, "_copied", lost)
    words = {"before": "is gone", "rows": "has 3 rows in the backup and 2 on", "content": "which are not the same"}
    with pytest.raises((BackupError, StoreError, OSError), match=words.get(fault, "another collector took over")):
        to_server._copy(store, on_server, manifest)
    assert ("tokens" in tables(on_server)) is bool(tables(on_server)) is (fault == "taken")
    assert begun == ["tokens"], "the versions come last: with them, all is there"
    on_server.close()


def test_a_table_is_the_same_when_the_server_has_merged_what_replaces_each_other(store, address, monkeypatch):
    for version in (1, 2):
        store.client().command(f"INSERT INTO step_models (at, service, version) VALUES (1763719200, 'a', {version})")
    on_server, copied = Store.open(address), to_server._copied

    def merged(embedded, server, name):
        yield from copied(embedded, server, name)
        server.client().command(f"OPTIMIZE TABLE {name} FINAL")

    monkeypatch.setattr(to_server, "_copied", merged)
    to_server._copy(store, on_server, type("", (), {"tables": dict.fromkeys(["schema_version", "step_models"])}))
    assert on_server.query("SELECT version FROM step_models").result_rows == [(2,)]
    on_server.close()


def test_a_server_that_is_too_old_is_left_as_it_is(store, address, monkeypatch):
    monkeypatch.setattr("collector.store.schema.OLDEST_SERVER", (999, 1))
    on_server = Store.open(address)
    with pytest.raises(StoreError, match=r"needs 999\.1 or newer"):
        to_server._copy(store, on_server, type("", (), {"tables": {}}))
    assert tables(on_server) == []
    on_server.close()


def test_parts_are_copied_in_pieces(store, address, monkeypatch):
    monkeypatch.setattr(to_server, "_ROWS", 2)
    store.client().command(
        "INSERT INTO tokens (minute, trace_id, request_span_id, token_index, duration_us, step)"
        " SELECT '2026-11-20 10:00:00', unhex(repeat('cd', 16)), 'abcdefgh', number, 7, 1 FROM numbers(5)"
    )
    store.client().command("DELETE FROM tokens WHERE token_index IN (2, 3) SETTINGS lightweight_deletes_sync = 2")
    on_server = Store.open(address)
    insert = type(on_server.client()).raw_insert

    def refusing(client, name, *, insert_block, **others):
        assert insert_block, "a server refuses an insert without rows; the one of the tests does not"
        return insert(client, name, insert_block=insert_block, **others)

    monkeypatch.setattr(type(on_server.client()), "raw_insert", refusing)
    to_server._copy(store, on_server, type("", (), {"tables": dict.fromkeys(["schema_version", "tokens"])}))
    assert on_server.query(TOKENS).result_rows == store.query(TOKENS).result_rows
    on_server.close()


def test_a_server_that_is_away_is_named_without_its_password(tmp_path):
    with pytest.raises(BackupError, match=r"cannot open the store http://name:…@127\.0\.0\.1:9/default"):
        to_server.to_server(tmp_path / "b.tar", "http://name:secret@127.0.0.1:9/default")


def test_a_backup_that_cannot_be_read_is_named_with_the_server(address, tmp_path):
    with pytest.raises(BackupError, match=rf"b\.tar cannot be copied to {address}: .*No such file"):
        to_server.to_server(tmp_path / "b.tar", address)
