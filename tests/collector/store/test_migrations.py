"""A store of an older version is brought forward, once, whatever interrupts it and however many start at once."""

import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

import collector
from collector.base.store_errors import StoreError
from collector.otlp.signals import TRACES
from collector.store import part_folders
from collector.store.definitions import read_migrations
from collector.store.insert import insert_otlp
from collector.store.lock import STATEMENT_SETTINGS, SchemaLock
from collector.store.schema import LANDING_TABLES, OLDEST_SERVER, TIME_COLUMNS, apply_schema
from collector.store.store import Store
from tests.collector.store.migrating import (
    CURRENT,
    MIGRATION,
    NEXT,
    created_tables,
    current,
    definitions,
    later_sql,
    recorded,
    rows,
    sql_dir,
)
from tests.support.otlp import token_body
from tests.support.stores import VERSION_2, drop_everything, write_version_2
from tokentrail import semconv

__all__ = ["current", "sql_dir"]
COLLECTOR = Path(collector.__file__).parent
OF_VERSION_2 = token_body(count=3, index_key=semconv.OLD_TOKEN_INDEX)
ROWS_OF_VERSION_2 = {
    "cold_starts": 26, "kv_events": 1, "open_requests": 14, "phases": 188, "requests": 71, "spans": 5, "steps": 12,
    "tokens": 72,
}  # fmt: skip


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


COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "preemptions")


CONVERTED = {"requests": {*COUNTS, "ttft_ns", "tpot_ns"}}
"""Columns of version 2 whose values a migration may change."""


def contents(store):
    """Table → its rows as dictionaries."""
    found = {table: store.query(f"SELECT * FROM {table} ORDER BY ALL") for table in ROWS_OF_VERSION_2}
    return {table: list(result.named_results()) for table, result in found.items()}


@pytest.fixture(scope="module")
def forward(opened, current):
    """A store of version 2, some of whose requests have a TTFT of 0, before and after it is brought forward."""
    drop_everything(opened)
    write_version_2(opened)
    opened.client().command(
        "ALTER TABLE requests UPDATE ttft_ns = 0, tpot_ns = 7 WHERE engine = 'vllm' AND cityHash64(trace_id) % 2",
        settings=STATEMENT_SETTINGS,
    )
    before = contents(opened)
    apply_schema(opened, sql_dir=current)
    after, tables, versions = contents(opened), definitions(opened), recorded(opened)
    for _ in range(2):
        insert_otlp(opened, TRACES, token_body(trace=5, count=3), "after the migration")
    return SimpleNamespace(
        before=before, after=after, definitions=tables, versions=versions, tokens=len(rows(opened, "tokens"))
    )


def of_requests(found, *columns):
    """(trace, span) → the values of these columns."""
    return {(row["trace_id"], row["span_id"]): tuple(row[name] for name in columns) for row in found["requests"]}


def test_a_store_of_version_2_keeps_every_row(forward):
    assert {table: len(found) for table, found in forward.before.items()} == ROWS_OF_VERSION_2
    for table, before in forward.before.items():
        kept = before[0].keys() - CONVERTED.get(table, set())
        after = [{name: row[name] for name in kept} for row in forward.after[table]]
        for row in ({name: row[name] for name in kept} for row in before):
            after.remove(row)
        assert after == []
    assert forward.versions == [(2, ""), *((migration.version, migration.name) for migration in read_migrations())]


def test_counts_of_version_2_are_kept_and_zeros_of_other_engines_become_unknown(forward):
    before, after = (of_requests(found, *COUNTS) for found in (forward.before, forward.after))
    ours = {(row["trace_id"], row["span_id"]) for row in forward.before["requests"] if row["engine"] == "tokentrail"}
    assert len(ours) == 6
    assert sum(counts.count(0) for key, counts in before.items() if key not in ours) == 195
    unknown = {key: tuple(count or None for count in counts) for key, counts in before.items()}
    assert after == {key: before[key] if key in ours else unknown[key] for key in before}


def test_requests_that_version_2_announced_were_measured_at_the_server(forward):
    assert {row["vantage"] for row in forward.after["open_requests"]} == {"server"}


def test_a_ttft_of_0_in_version_2_was_not_a_number_and_becomes_unknown(forward):
    before, after = (of_requests(found, "ttft_ns", "tpot_ns") for found in (forward.before, forward.after))
    converted = {key for key, (ttft, _) in before.items() if ttft == 0}
    assert 0 < len(converted) < len(before)
    assert after == {key: (None, None) if key in converted else before[key] for key in before}


def test_gaps_of_version_2_are_not_known_although_its_tokens_are(forward):
    gaps = of_requests(forward.after, "gap_ns", "gap_index")
    assert {*gaps.values()} == {(None, None)}
    assert len(gaps) == ROWS_OF_VERSION_2["requests"]


def test_a_migrated_store_has_the_tables_and_views_of_a_new_one(store, forward, current):
    apply_schema(store, sql_dir=current)
    assert forward.definitions == definitions(store)


def test_a_migrated_store_takes_spans(forward):
    assert forward.tokens == ROWS_OF_VERSION_2["tokens"] + 3


def test_a_new_store_is_current_and_runs_no_migration(store, sql_dir):
    (sql_dir / "migrations" / f"{NEXT:04}_later.sql").write_text("SELECT throwIf(1, 'a migration ran');\n")
    apply_schema(store, sql_dir=sql_dir)
    assert [version for version, _ in recorded(store)] == list(range(3, NEXT + 1))


class Later:
    """A store and the SQL of ever later versions: a migration costs a third of what an empty store's tables cost."""

    def __init__(self, store, sql_dir):
        self.store, self.sql_dir, self.version = store, sql_dir, NEXT - 1

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
    later.add(MIGRATION)
    later.apply()
    return later


def test_a_store_one_version_newer_is_refused(later):
    """The first test of a store that others bring forward."""
    assert later.version == NEXT
    with pytest.raises(StoreError, match=f"version {NEXT}, newer than"):
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
    assert [version for version, _ in recorded(later.store)] == list(range(3, later.version + 1))


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
    insert_otlp(store, TRACES, OF_VERSION_2, "the segment")


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


def set_version(store, version):
    store.client().command("CREATE TABLE schema_version (version UInt32) ENGINE = MergeTree ORDER BY version")
    store.client().command(f"INSERT INTO schema_version VALUES ({version})")


@pytest.mark.parametrize(
    ("version", "reason"),
    [(99, f"version 99, newer than .* version {CURRENT}: .*another store"), (1, "version 1, .* begin at version 2")],
)
def test_a_store_that_is_newer_or_too_old_is_refused_and_left_as_it_is(store, version, reason):
    set_version(store, version)
    before = definitions(store)
    with pytest.raises(StoreError, match=reason):
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
def migrated(opened, tmp_path_factory):
    """Everything in a store that was migrated without an interruption, and that then took a segment.

    Its first migration fails unless every table is synced by then.
    """
    folder = later_sql(tmp_path_factory.mktemp("later") / "sql")
    file = folder / "migrations" / "0003_migrations_are_recorded.sql"
    settings = ("fsync_after_insert", "min_rows_to_fsync_after_merge")
    unlike = " OR ".join(f"engine_full NOT LIKE '%{name} = 1%'" for name in settings)
    tables = f"system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree' AND ({unlike})"
    file.write_text(f"SELECT throwIf(count() > 0, 'a table is not synced') FROM {tables};\n{file.read_text()}")
    drop_everything(opened)
    write_version_2(opened)
    assert opened.query(f"SELECT name FROM {tables}").result_rows
    apply_schema(opened, sql_dir=folder)
    insert_otlp(opened, TRACES, OF_VERSION_2, "the segment")
    return everything(opened)


def test_the_migration_of_these_tests_does_something(migrated):
    tables, found, _ = migrated
    assert sum(tokens for _, tokens in found["totals"]) > 100
    assert "`weight` Float64 DEFAULT 1" in tables["requests"]
    assert "`e2e_ns` Nullable(UInt64)" in tables["requests"]


LAST_WORDS = [
    ("CREATE TABLE IF NOT EXISTS schema_version", False),
    ("CREATE TABLE IF NOT EXISTS totals", False),
    ("CREATE MATERIALIZED VIEW IF NOT EXISTS otlp_traces_closed", False),
    ("DROP VIEW IF EXISTS flatten_spans", True),
    ("ALTER TABLE schema_version", True),
    (r"ALTER TABLE requests\s+MODIFY COLUMN input_tokens", True),
    (r"ALTER TABLE requests UPDATE\s+input_tokens", True),
    (rf"INSERT INTO schema_version .*\({CURRENT},", True),
    ("ALTER TABLE requests ADD COLUMN", True),
    ("ALTER TABLE requests UPDATE e2e_ns", True),
    ("INSERT INTO totals", True),
    (rf"INSERT INTO schema_version .*\({NEXT},", True),
    ("CREATE OR REPLACE MATERIALIZED VIEW flatten_spans", True),
    ("DROP VIEW IF EXISTS otlp_traces_closed", True),
    ("DROP TABLE IF EXISTS schema_lock_1", False),
]
"""Commands of each kind in the order of a migration, and whether inserts fail when a collector died at one."""


def test_a_collector_that_dies_at_a_command_is_continued_by_the_next(opened, migrated, store, sql_dir):
    """Each collector comes one command further than the one before it."""
    write_version_2(store)
    for command, inserts_fail in LAST_WORDS:
        dying = DyingStore(opened._dsn, command)
        with pytest.raises(KilledError):
            apply_schema(dying, sql_dir=sql_dir)
        dying.close()
        if inserts_fail:
            with pytest.raises(DatabaseError, match="a collector changes the schema"):
                insert_otlp(store, TRACES, OF_VERSION_2, "a segment that waits")
        else:
            insert_otlp(store, TRACES, OF_VERSION_2, "the segment")
    apply_schema(store, sql_dir=sql_dir)
    insert_otlp(store, TRACES, OF_VERSION_2, "the segment")
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


def test_the_kept_store_is_of_version_2():
    schema = (VERSION_2 / "schema.sql").read_text()
    assert len(re.findall(r"^CREATE ", schema, re.MULTILINE)) == 32
    assert "CREATE TABLE schema_version\n(\n    `version` UInt32\n)" in schema


def test_the_lock_of_a_process_that_died_holds_up_no_embedded_store(store, monkeypatch):
    def wait(_):
        raise AssertionError("nobody else can have the store")

    SchemaLock(store).__enter__()
    monkeypatch.setattr(time, "sleep", wait)
    with SchemaLock(store) as lock:
        lock.renew()
    assert definitions(store) == {}
