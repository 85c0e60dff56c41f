"""A store of an older version is brought forward, once, whatever interrupts it; an unreleased version's is refused."""

import re
import threading
import time
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

import collector
from collector.base.store_errors import StoreError
from collector.otlp.signals import TRACES
from collector.store import part_folders
from collector.store.definitions import SQL_DIR, read_migrations
from collector.store.insert import insert_otlp
from collector.store.lock import SchemaLock
from collector.store.schema import LANDING_TABLES, OLDEST_SERVER, TIME_COLUMNS, apply_schema
from collector.store.store import Store
from tests.collector.store.migrating import (
    MIGRATION,
    NEXT,
    created_tables,
    current,
    definitions,
    later_sql,
    recorded,
    rows,
    sql_dir,
    write_baseline,
)
from tests.support.otlp import token_body
from tests.support.stores import drop_everything

__all__ = ["current", "sql_dir"]
COLLECTOR = Path(collector.__file__).parent
ROOT = COLLECTOR.parent
SEGMENT = token_body(count=3)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    store = Store.open(f"chdb://{tmp_path_factory.mktemp('migrations')}/db")
    yield store
    store.close()


@pytest.fixture
def store(opened):
    """An empty store."""
    drop_everything(opened)
    return opened


@pytest.mark.parametrize(
    ("version", "is_taken"), [("25.8.3.66", False), ("26.1.9.1", False), ("26.2.1.1", True), ("27.1", True)]
)
def test_a_server_that_lacks_settings_is_refused_before_it_has_a_table(store, current, version, is_taken, monkeypatch):
    client = store.client()
    query = client.query

    def of_version(sql, *args, **kwargs):
        return query(sql.replace("version()", f"'{version}'"), *args, **kwargs)

    monkeypatch.setattr(client, "query", of_version)
    monkeypatch.setattr(store, "client", lambda: client)
    if is_taken:
        apply_schema(store, sql_dir=current)
    else:
        with pytest.raises(StoreError, match=rf"is ClickHouse {version}; tokentrail needs 26\.2 or newer"):
            apply_schema(store, sql_dir=current)
    monkeypatch.undo()
    assert (store.query("EXISTS requests").result_rows == [(1,)]) is is_taken


def test_the_oldest_server_that_is_taken_has_every_setting(store):
    """By ClickHouse's own list of the versions in which a setting came."""
    files = [path for suffix in ("py", "sql") for path in COLLECTOR.rglob(f"*.{suffix}")]
    named = set(re.findall(r"\w+_\w+", "".join(path.read_text() for path in files)))
    changed = "SELECT version, arrayJoin(changes) AS change FROM system.settings_changes"
    is_new = (
        "change.4 ILIKE '%new setting%' OR change.1 = 'deduplicate_insert'"  # the list gives a default as its reason
    )
    sql = f"SELECT change.1, version FROM ({changed}) WHERE {is_new}"
    since = {
        name: tuple(map(int, version.split("."))) for name, version in store.query(sql).result_rows if name in named
    }
    assert len(since) > 5
    assert max(since.values()) == OLDEST_SERVER, since


def everything(store):
    """Definitions and rows; a view's columns are in its definition."""
    tables = [*TIME_COLUMNS, *(["totals"] if store.query("EXISTS totals").result_rows == [(1,)] else [])]
    return definitions(store), {table: rows(store, table) for table in tables}, recorded(store)


def test_before_the_first_release_there_is_no_migration():
    """The first release has 0001_baseline.sql, and a change of a table has a migration from then on."""
    is_released = re.search(r"^## \[\S+\] - \d", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    files = sorted(file.name for file in (SQL_DIR / "migrations").glob("*.sql"))
    assert files[:1] == (["0001_baseline.sql"] if is_released else [])


def test_the_baseline_as_a_file_is_the_one_that_collectors_had_before(current, tmp_path):
    later = later_sql(tmp_path / "sql")
    assert read_migrations(later)[0].digest == read_migrations(current)[0].digest == read_migrations()[0].digest
    (later / "migrations" / "0001_baseline.sql").unlink()
    (later / "migrations" / f"{NEXT:04}_later.sql").unlink()
    assert read_migrations(later)[0].digest != read_migrations(current)[0].digest


class Later:
    """A store and the SQL of ever later versions: a migration costs a third of what an empty store's tables cost."""

    def __init__(self, store, sql_dir):
        self.store, self.sql_dir, self.version = store, sql_dir, NEXT

    def add(self, sql):
        """The file of the next version's migration."""
        self.version += 1
        file = self.sql_dir / "migrations" / f"{self.version:04}_later.sql"
        file.write_text(sql)
        return file

    def apply(self):
        apply_schema(self.store, sql_dir=self.sql_dir)


@pytest.fixture(scope="module")
def later(opened, tmp_path_factory):
    """A store of a version later than this one. Tests bring it forward, and leave it as they find it but for that."""
    drop_everything(opened)
    later = Later(opened, later_sql(tmp_path_factory.mktemp("ever_later") / "sql"))
    later.apply()
    return later


def test_a_store_one_version_newer_is_refused(later):
    """The first test of a store that others bring forward."""
    assert later.version == NEXT
    with pytest.raises(StoreError, match=f"version {NEXT}, newer than this collector's version 1: .*another store"):
        apply_schema(later.store)


def test_a_segment_that_was_stored_before_a_migration_is_not_stored_again(later):
    insert_otlp(later.store, TRACES, token_body(count=3), "a segment")
    later.add("ALTER TABLE tokens ADD COLUMN IF NOT EXISTS weight Float64 DEFAULT 1;\n")
    later.apply()
    insert_otlp(later.store, TRACES, token_body(count=3), "a segment")
    assert len(rows(later.store, "tokens")) == 3


def test_a_second_start_creates_only_the_tables_that_are_missing(later, monkeypatch):
    later.store.client().command("DROP TABLE samples SYNC")
    created = created_tables(monkeypatch, later.store)
    later.apply()
    assert created == ["schema_version", "samples"]


def test_migrations_run_in_order_and_once(later):
    later.store.client().command("TRUNCATE TABLE totals")
    later.add("INSERT INTO totals VALUES ('first', 1);\n")
    later.add("INSERT INTO totals SELECT 'second', count() FROM totals;\n")
    for _ in range(3):
        later.apply()
    assert rows(later.store, "totals") == [("first", 1), ("second", 1)]
    assert [version for version, _ in recorded(later.store)] == list(range(1, later.version + 1))


def test_no_view_but_the_closing_one_exists_while_a_migration_runs(later):
    views = "SELECT arraySort(groupArray(name)) FROM system.tables WHERE engine = 'MaterializedView'"
    closing = sorted(f"{table}_closed" for table in LANDING_TABLES)
    later.add(f"SELECT throwIf(({views}) != {closing}, 'another view exists');\n")
    later.apply()
    assert later.version in dict(recorded(later.store))


def test_a_failed_statement_is_named_and_tried_again_at_the_next_start(later):
    file = later.add(
        "ALTER TABLE requests ADD COLUMN IF NOT EXISTS heavy Float64;\nALTER TABLE nowhere DELETE WHERE 1;\n"
    )
    with pytest.raises(StoreError, match=rf"{later.version:04}_later failed at statement 2.*nowhere"):
        later.apply()
    assert later.version not in dict(recorded(later.store))
    file.write_text(MIGRATION)
    later.apply()
    assert later.version in dict(recorded(later.store))
    assert not [name for name in definitions(later.store) if name.startswith("schema_lock") or name.endswith("_closed")]


def test_a_migration_is_on_the_disk_before_it_is_recorded_and_its_record_before_tables_are_made(later, monkeypatch):
    store = later.store
    store.client().command("TRUNCATE TABLE totals")
    later.add("INSERT INTO totals VALUES ('model', 1);\n")
    folders, synced = {store.table_folder(table): table for table in ("schema_version", "totals")}, []

    def sync(folder):
        rows_now = [len(rows(store, table)) for table in sorted(folders.values())]
        synced.append((folders.get(folder), *rows_now))

    recorded_before = len(recorded(store))
    monkeypatch.setattr(part_folders, "sync_folder", sync)
    later.apply()
    assert ("totals", recorded_before, 1) in synced
    assert ("schema_version", recorded_before + 1, 1) in synced


def test_a_table_without_rows_gets_the_columns_of_this_version(later):
    store, tables = later.store, ("new_requests", "flat_spans")
    columns = f"SELECT table, name, type FROM system.columns WHERE table IN {tables} ORDER BY table, position"
    whole = store.query(columns).result_rows
    for table in tables:
        store.client().command(f"ALTER TABLE {table} ADD COLUMN of_an_older_version UInt8 FIRST")
    later.add("SELECT 1;\n")
    later.apply()
    assert store.query(columns).result_rows == whole
    insert_otlp(store, TRACES, SEGMENT, "the segment")


def test_a_start_waits_for_the_drop_of_a_column_in_which_the_one_before_died(later):
    """ClickHouse goes on with a drop by itself, and refuses another one until then."""
    store, client = later.store, later.store.client()
    client.command("ALTER TABLE tokens ADD COLUMN old UInt8 DEFAULT 7")
    insert_otlp(store, TRACES, token_body(trace=9), "another segment")
    client.command("SYSTEM STOP MERGES tokens")
    client.command("ALTER TABLE tokens DROP COLUMN old SETTINGS alter_sync = 0, mutations_sync = 0")
    assert store.query("SELECT count() FROM system.mutations WHERE NOT is_done").result_rows == [(1,)]
    later.add("ALTER TABLE tokens DROP COLUMN IF EXISTS old;\n")
    starts = threading.Timer(1.0, lambda: store.client().command("SYSTEM START MERGES tokens"))
    starts.start()
    later.apply()
    starts.join()
    assert recorded(store)[-1][0] == later.version


def test_a_store_that_had_another_migration_of_the_number_is_refused(later):
    file = later.add(MIGRATION)
    later.apply()
    file.write_text(MIGRATION + "-- a comment\n")
    later.apply()
    other = file.rename(file.with_name(f"{later.version:04}_other.sql"))
    other.write_text("SELECT 1;\n")
    with pytest.raises(
        StoreError, match=rf"migration {later.version:04}_later with other statements.*{later.version:04}_other"
    ):
        later.apply()
    other.unlink()
    file.write_text(MIGRATION)


def test_a_store_that_has_lost_its_version_is_refused_and_goes_on_when_somebody_says_it(later):
    store, tokens = later.store, rows(later.store, "tokens")
    assert tokens
    store.client().command("TRUNCATE TABLE schema_version")
    before = definitions(store)
    with pytest.raises(StoreError, match=r"version is not known: restore a backup, or .* another store") as refused:
        later.apply()
    assert definitions(store) == before
    assert recorded(store) == []
    (statement,) = re.findall("INSERT INTO .*", str(refused.value))
    store.client().command(statement)
    known = later.version
    later.add("SELECT 1;\n")
    for _ in range(2):
        later.apply()
    assert recorded(store) == [(known, ""), (known + 1, f"{known + 1:04}_later")]
    assert rows(store, "tokens") == tokens


UNRELEASED = [
    "CREATE TABLE schema_version (version UInt32) ENGINE = MergeTree ORDER BY version",
    "INSERT INTO schema_version SELECT arrayJoin([2, 3, 30])",
    "ALTER TABLE schema_version ADD COLUMN name String, ADD COLUMN digest String DEFAULT 'abc'",
    "INSERT INTO schema_version VALUES (1, '0001_baseline', '0123456789abcdef')",
]
"""Statements after each of which, but for the first, the store is one that an unreleased version made."""


def test_a_store_that_an_unreleased_version_made_is_refused_and_left_as_it_is(store):
    for number, statement in enumerate(UNRELEASED):
        store.client().command(statement)
        if number:
            before = definitions(store)
            with pytest.raises(StoreError, match=r"never released, .*: give .* --data-dir or --store"):
                apply_schema(store)
            assert definitions(store) == before


class KilledError(BaseException):
    pass


class DyingStore(Store):
    """A store whose process dies at a command: neither this nor any later one reaches ClickHouse."""

    def __init__(self, dsn, last_words):
        super().__init__(dsn)
        self.last_words, self.dead = last_words, threading.Event()

    def client(self):
        return DyingClient(super().client(), self.last_words, self.dead)

    def with_timeout(self, send_receive_timeout_s):
        store = DyingStore(self._dsn, self.last_words)
        store.dead = self.dead
        return store


class DyingClient:
    def __init__(self, client, last_words, dead):
        self._client, self._last_words, self._dead = client, last_words, dead

    def __getattr__(self, name):
        return getattr(self._client, name)

    def command(self, sql, **kwargs):
        if re.match(self._last_words, f"{sql.strip()} {kwargs.get('parameters', '')}", re.DOTALL):
            self._dead.set()
        if self._dead.is_set():
            raise KilledError
        return self._client.command(sql, **kwargs)


@pytest.fixture(scope="module")
def migrated(opened, current, tmp_path_factory):
    """Everything in a store that was migrated without an interruption, and that then took a segment."""
    drop_everything(opened)
    write_baseline(opened, current)
    apply_schema(opened, sql_dir=later_sql(tmp_path_factory.mktemp("later") / "sql"))
    insert_otlp(opened, TRACES, SEGMENT, "the segment")
    return everything(opened)


def test_a_migration_changes_what_it_says_and_keeps_every_row(opened, migrated):
    _, found, versions = migrated
    columns = "engine, late, perplexity, output_tokens"
    assert rows(opened, "requests", columns) == [("genai", 3, None, 7), ("vllm", 3, 2.5, 9)]
    assert found["totals"] == [("m", 16)]
    assert len(found["tokens"]) == 5
    assert versions == [(1, "0001_baseline"), (NEXT, f"{NEXT:04}_later")]


def test_a_migrated_store_has_the_tables_and_views_of_a_new_one(store, migrated, sql_dir):
    apply_schema(store, sql_dir=sql_dir)
    assert migrated[0] == definitions(store)


LAST_WORDS = [
    ("CREATE TABLE IF NOT EXISTS schema_version", False),
    ("CREATE TABLE IF NOT EXISTS totals", False),
    ("CREATE MATERIALIZED VIEW IF NOT EXISTS otlp_traces_closed", False),
    ("DROP VIEW IF EXISTS flatten_spans", True),
    ("ALTER TABLE requests ADD COLUMN", True),
    ("ALTER TABLE requests UPDATE perplexity", True),
    ("INSERT INTO totals", True),
    (rf"INSERT INTO schema_version .*\({NEXT},", True),
    ("CREATE OR REPLACE MATERIALIZED VIEW flatten_spans", True),
    ("DROP VIEW IF EXISTS otlp_traces_closed", True),
    ("DROP TABLE IF EXISTS schema_lock_1", False),
]
"""Commands of each kind in the order of a migration, and whether inserts fail when a collector died at one."""


def test_a_collector_that_dies_at_a_command_is_continued_by_the_next(opened, migrated, store, current, sql_dir):
    """Each collector comes one command further than the one before it."""
    write_baseline(store, current)
    for command, inserts_fail in LAST_WORDS:
        dying = DyingStore(opened._dsn, command)
        with pytest.raises(KilledError):
            apply_schema(dying, sql_dir=sql_dir)
        dying.close()
        if inserts_fail:
            with pytest.raises(DatabaseError, match="a collector changes the schema"):
                insert_otlp(store, TRACES, SEGMENT, "a segment that waits")
        else:
            insert_otlp(store, TRACES, SEGMENT, "the segment")
    apply_schema(store, sql_dir=sql_dir)
    insert_otlp(store, TRACES, SEGMENT, "the segment")
    assert everything(store) == migrated


def test_a_new_store_takes_nothing_before_it_has_all_views(opened, store, current):
    """Collectors that run insert as soon as there is a table, when a server has lost its disk."""
    for command in (
        "CREATE MATERIALIZED VIEW IF NOT EXISTS otlp_traces_closed",
        "CREATE OR REPLACE MATERIALIZED VIEW vllm_route",
        "ALTER TABLE otlp_traces DROP COLUMN closed",
    ):
        dying = DyingStore(opened._dsn, command)
        with pytest.raises(KilledError):
            apply_schema(dying, sql_dir=current)
        dying.close()
        with pytest.raises(DatabaseError, match="a collector changes the schema"):
            insert_otlp(store, TRACES, token_body(count=3), "a segment")
    apply_schema(store, sql_dir=current)
    insert_otlp(store, TRACES, token_body(count=3), "a segment")
    assert len(rows(store, "tokens")) == 3


def test_the_lock_of_a_process_that_died_holds_up_no_embedded_store(store, monkeypatch):
    def wait(_):
        raise AssertionError("nobody else can have the store")

    SchemaLock(store).__enter__()
    monkeypatch.setattr(time, "sleep", wait)
    with SchemaLock(store) as lock:
        lock.renew()
    assert definitions(store) == {}
