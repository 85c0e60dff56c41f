"""Several collectors bring a store of a server forward at once: one does it, and the others wait for its lock."""

import threading
import time

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.base.store_errors import StoreError
from collector.otlp.signals import TRACES
from collector.store.definitions import read_migrations, read_schema
from collector.store.insert import insert_otlp
from collector.store.lock import STATEMENT_SETTINGS, SchemaLock
from collector.store.schema import apply_schema
from collector.store.store import Store
from tests.collector.store.migrating import MIGRATION, NEXT, current, definitions, recorded, rows, sql_dir
from tests.support.clickhouse_server import Server
from tests.support.otlp import token_body
from tests.support.stores import drop_everything

__all__ = ["current", "sql_dir"]


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(process):
    """A server with an empty database."""
    store = Store.open(f"{process.url}/default")
    drop_everything(store)
    store.close()
    return process


def at_once(server, *actions):
    """Run each action with a store of its own, all at once; raise the first error."""
    errors = []

    def run(action):
        store = Store.open(f"{server.url}/default")
        try:
            action(store)
        except Exception as error:
            errors.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]


def test_several_collectors_that_start_at_once_make_the_tables_of_a_new_store_and_later_migrate_it_once(
    server, current, sql_dir
):
    at_once(server, *[lambda store: apply_schema(store, sql_dir=current)] * 3)
    store = Store.open(f"{server.url}/default")
    assert recorded(store) == [(migration.version, migration.name) for migration in read_migrations()]
    insert_otlp(store, TRACES, token_body(count=3), "a segment")
    assert len(rows(store, "tokens")) == 3
    store.client().command("INSERT INTO requests (model, output_tokens) VALUES ('m', 7)")

    slow = MIGRATION.replace("TRUNCATE TABLE totals;\n", "SELECT sleep(1);\n")
    (sql_dir / "migrations" / f"{NEXT:04}_later.sql").write_text(slow)
    at_once(server, *[lambda store: apply_schema(store, sql_dir=sql_dir)] * 3)
    assert recorded(store) == [(migration.version, migration.name) for migration in read_migrations(sql_dir)]
    assert rows(store, "totals") == [("m", 7)]
    assert set(definitions(store)) == {*read_schema(sql_dir).tables, *read_schema(sql_dir).views}
    store.close()


def test_the_lock_of_a_collector_that_died_is_taken_over_and_lost(server):
    store = Store.open(f"{server.url}/default")
    died = SchemaLock(store)
    died.__enter__()
    died.renew()
    with SchemaLock(store, stale_after_s=1.0) as lock:
        lock.renew()
        with pytest.raises(StoreError, match="another collector took over"):
            died.renew()
        died.__exit__()
        lock.renew()
    assert definitions(store) == {}
    store.close()


class WaitsError(Exception):
    """The lock is held, so the collector would sleep."""


def test_a_lock_that_is_renewed_is_not_taken_over(server, monkeypatch):
    def wait(_):
        raise WaitsError

    store = Store.open(f"{server.url}/default")
    with SchemaLock(store) as lock:
        an_hour_ago = store.query("SELECT toUnixTimestamp(now()) - 3600").result_rows[0][0]
        store.client().command(f"ALTER TABLE schema_lock_1 MODIFY COMMENT '{an_hour_ago} host process'")
        lock.renew()
        monkeypatch.setattr(time, "sleep", wait)
        with pytest.raises(WaitsError):
            SchemaLock(store, stale_after_s=1800).__enter__()
        monkeypatch.undo()
        lock.renew()
    store.close()


def test_a_lock_that_the_server_lets_nobody_take_is_not_waited_for(server, monkeypatch):
    def wait(_):
        raise WaitsError

    def refuse(*_, **__):
        raise DatabaseError("Not enough privileges", code=497)

    store = Store.open(f"{server.url}/default")
    lock = SchemaLock(store)
    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(store.client(), "command", refuse)
    with pytest.raises(DatabaseError, match="privileges"):
        lock.__enter__()
    store.close()


def test_the_lock_waits_for_a_statement_that_its_holder_left_running(server):
    seen = threading.Event()

    def running(store):
        return store.query("SELECT count() FROM system.processes WHERE query LIKE 'SELECT sleep(%'").result_rows[0][0]

    def leave_running(store):
        while not seen.is_set():
            store.client().command("SELECT sleep(1)", settings=STATEMENT_SETTINGS)

    def take(store):
        while not running(store):
            time.sleep(0.1)
        seen.set()
        with SchemaLock(store):
            assert not running(store)

    at_once(server, leave_running, take)
