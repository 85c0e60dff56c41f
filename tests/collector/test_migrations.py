"""A store of an older version is brought forward, once, whatever interrupts it and however many start at once."""

import re
import shutil
import threading
import time
from types import SimpleNamespace

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.signals import TRACES
from collector.store.definitions import SQL_DIR, read_migrations, read_schema, statements, without_comments
from collector.store.insert import insert_otlp
from collector.store.lock import STATEMENT_SETTINGS, SchemaLock
from collector.store.schema import LANDING_TABLES, TIME_COLUMNS, apply_schema
from collector.store.store import Store, StoreError
from tests.support.clickhouse_server import Server
from tests.support.otlp import token_body
from tests.support.stores import VERSION_2, drop_everything, write_version_2
from tokentrail import semconv

OF_VERSION_2 = token_body(count=3, index_key=semconv.OLD_TOKEN_INDEX)
ROWS_OF_VERSION_2 = {
    "cold_starts": 26, "kv_events": 1, "open_requests": 14, "phases": 188, "requests": 71, "spans": 5, "steps": 12,
    "tokens": 72,
}  # fmt: skip

CURRENT = read_migrations()[-1].version
NEXT = CURRENT + 1
TOTALS = """
CREATE TABLE IF NOT EXISTS totals (model String, tokens UInt64) ENGINE = MergeTree ORDER BY model;
"""
MIGRATION = """
-- What the coming migrations do: a column more, a type changed, values filled in, a new table filled from an old one.
ALTER TABLE requests ADD COLUMN IF NOT EXISTS weight Float64 DEFAULT 1;
ALTER TABLE requests MODIFY COLUMN e2e_ns Nullable(UInt64);
ALTER TABLE requests UPDATE e2e_ns = NULL WHERE engine = 'genai';
TRUNCATE TABLE totals;
INSERT INTO totals SELECT model, sum(output_tokens) FROM requests GROUP BY model;
"""


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


ENGINES = {"10_tokentrail": "tokentrail_tokens|tokentrail_route", "20_vllm": "vllm_route", "90_genai": "none"}
"""Names of views. Version 2 had the tables of these engines."""


def few_engines(folder):
    """The SQL of this version with three views of engines: each view costs 20 ms of CPU."""
    shutil.copytree(SQL_DIR, folder)
    for engine in (folder / "engines").iterdir():
        if engine.name not in ENGINES:
            shutil.rmtree(engine)
            continue
        views = engine / "views.sql"
        few = re.compile(rf"CREATE TABLE |[^;]*VIEW ({ENGINES[engine.name]}) TO ")
        kept = [statement for statement in statements(without_comments(views.read_text())) if few.match(statement)]
        views.write_text(";\n".join([*kept, ""]))
    return folder


def later_sql(folder):
    """The SQL of a later version: one migration and one table more."""
    few_engines(folder)
    (folder / "schema" / "30_totals.sql").write_text(TOTALS)
    (folder / "migrations" / f"{NEXT:04}_later.sql").write_text(MIGRATION)
    return folder


@pytest.fixture(scope="module")
def current(tmp_path_factory):
    return few_engines(tmp_path_factory.mktemp("current") / "sql")


@pytest.fixture
def sql_dir(tmp_path):
    return later_sql(tmp_path / "sql")


def rows(store, table, columns="*"):
    return store.query(f"SELECT {columns} FROM {table} ORDER BY ALL").result_rows


def recorded(store):
    return store.query("SELECT version, name FROM schema_version ORDER BY ALL").result_rows


def definitions(store):
    """Every table and view as ClickHouse writes it; two of them are of the version table before and after ALTER."""
    found = store.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
    return {name: store.query(f"SHOW CREATE TABLE `{name}`").result_rows[0][0] for (name,) in found}


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
def forward(opened):
    """A store of version 2, some of whose requests have a TTFT of 0, before and after it is brought forward."""
    drop_everything(opened)
    write_version_2(opened)
    opened.client().command(
        "ALTER TABLE requests UPDATE ttft_ns = 0, tpot_ns = 7 WHERE engine = 'vllm' AND cityHash64(trace_id) % 2",
        settings=STATEMENT_SETTINGS,
    )
    before = contents(opened)
    apply_schema(opened)
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


def test_a_migrated_store_has_the_tables_and_views_of_a_new_one(store, forward):
    apply_schema(store)
    assert forward.definitions == definitions(store)


def test_a_migrated_store_takes_spans(forward):
    assert forward.tokens == ROWS_OF_VERSION_2["tokens"] + 3


def test_a_segment_that_was_stored_before_a_migration_is_not_stored_again(store, current, sql_dir):
    apply_schema(store, sql_dir=current)
    insert_otlp(store, TRACES, token_body(count=3), "a segment")
    apply_schema(store, sql_dir=sql_dir)
    insert_otlp(store, TRACES, token_body(count=3), "a segment")
    assert len(rows(store, "tokens")) == 3


def test_a_new_store_is_current_and_runs_no_migration(store, sql_dir):
    (sql_dir / "migrations" / f"{NEXT:04}_later.sql").write_text("SELECT throwIf(1, 'a migration ran');\n")
    apply_schema(store, sql_dir=sql_dir)
    assert [version for version, _ in recorded(store)] == list(range(3, NEXT + 1))


def created_tables(monkeypatch, store):
    """A list that gets the name of each table that a client of the store is told to create from now on."""
    client, created = type(store.client()), []
    command = client.command

    def noted(self, sql, *arguments, **options):
        created.extend(re.findall(r"^CREATE TABLE IF NOT EXISTS (\w+)", sql))
        return command(self, sql, *arguments, **options)

    monkeypatch.setattr(client, "command", noted)
    return created


def test_a_second_start_creates_only_the_tables_that_are_missing(store, current, monkeypatch):
    apply_schema(store, sql_dir=current)
    store.client().command("DROP TABLE samples SYNC")
    created = created_tables(monkeypatch, store)
    apply_schema(store, sql_dir=current)
    assert created == ["schema_version", "samples"]


def test_migrations_run_in_order_and_once(store, current, sql_dir):
    apply_schema(store, sql_dir=current)
    later = sql_dir / "migrations"
    (later / f"{NEXT:04}_later.sql").write_text("INSERT INTO totals VALUES ('first', 1);\n")
    (later / f"{NEXT + 1:04}_last.sql").write_text("INSERT INTO totals SELECT 'second', count() FROM totals;\n")
    for _ in range(3):
        apply_schema(store, sql_dir=sql_dir)
    assert rows(store, "totals") == [("first", 1), ("second", 1)]
    assert [version for version, _ in recorded(store)] == list(range(3, NEXT + 2))


def test_no_view_but_the_closing_one_exists_while_a_migration_runs(store, sql_dir):
    views = "SELECT arraySort(groupArray(name)) FROM system.tables WHERE engine = 'MaterializedView'"
    closing = sorted(f"{table}_closed" for table in LANDING_TABLES)
    check = f"SELECT throwIf(({views}) != {closing}, 'another view exists');\n"
    (sql_dir / "migrations" / f"{NEXT:04}_later.sql").write_text(check)
    write_version_2(store)
    apply_schema(store, sql_dir=sql_dir)
    assert NEXT in dict(recorded(store))


def test_a_failed_statement_is_named_and_tried_again_at_the_next_start(store, sql_dir):
    file = sql_dir / "migrations" / f"{NEXT:04}_later.sql"
    write_version_2(store)
    file.write_text(
        "ALTER TABLE requests ADD COLUMN IF NOT EXISTS weight Float64;\nALTER TABLE nowhere DELETE WHERE 1;\n"
    )
    with pytest.raises(StoreError, match=rf"{NEXT:04}_later failed at statement 2.*nowhere"):
        apply_schema(store, sql_dir=sql_dir)
    assert NEXT not in dict(recorded(store))
    file.write_text(MIGRATION)
    apply_schema(store, sql_dir=sql_dir)
    assert NEXT in dict(recorded(store))
    assert not [name for name in definitions(store) if name.startswith("schema_lock") or name.endswith("_closed")]


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


def test_a_store_one_version_newer_is_refused(store, sql_dir):
    apply_schema(store, sql_dir=sql_dir)
    with pytest.raises(StoreError, match=f"version {NEXT}, newer than"):
        apply_schema(store)


def test_a_store_that_had_another_migration_of_the_number_is_refused(store, sql_dir):
    file = sql_dir / "migrations" / f"{NEXT:04}_later.sql"
    apply_schema(store, sql_dir=sql_dir)
    file.write_text(MIGRATION + "-- a comment\n")
    apply_schema(store, sql_dir=sql_dir)
    file.rename(file.with_name(f"{NEXT:04}_other.sql")).write_text("SELECT 1;\n")
    with pytest.raises(StoreError, match=rf"migration {NEXT:04}_later with other statements.*{NEXT:04}_other"):
        apply_schema(store, sql_dir=sql_dir)


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
    """Everything in a store that was migrated without an interruption, and that then took a segment."""
    drop_everything(opened)
    write_version_2(opened)
    apply_schema(opened, sql_dir=later_sql(tmp_path_factory.mktemp("later") / "sql"))
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
    (r"ALTER TABLE open_requests\s+MODIFY COLUMN", True),
    (r"ALTER TABLE requests UPDATE\s+input_tokens", True),
    ("ALTER TABLE requests UPDATE ttft_ns", True),
    (rf"INSERT INTO schema_version .*\({CURRENT},", True),
    ("ALTER TABLE requests ADD COLUMN", True),
    ("ALTER TABLE requests MODIFY COLUMN e2e_ns", True),
    ("ALTER TABLE requests UPDATE e2e_ns", True),
    ("TRUNCATE TABLE totals", True),
    ("INSERT INTO totals", True),
    (rf"INSERT INTO schema_version .*\({NEXT},", True),
    ("CREATE OR REPLACE MATERIALIZED VIEW flatten_spans", True),
    ("CREATE OR REPLACE MATERIALIZED VIEW vllm_route", True),
    ("DROP VIEW IF EXISTS otlp_traces_closed", True),
    ("DROP TABLE IF EXISTS schema_lock_1", False),
]
"""Commands in the order in which a migration sends them, and whether inserts fail when a collector died at one."""


@pytest.mark.parametrize("deaths", [LAST_WORDS, *([LAST_WORDS[number]] for number in (3, 7, 16))], ids=len)
def test_a_collector_that_dies_at_a_command_is_continued_by_the_next(opened, migrated, store, sql_dir, deaths):
    """Each collector comes one command further than the one before it."""
    write_version_2(store)
    for command, inserts_fail in deaths:
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


def test_several_collectors_that_start_at_once_migrate_once(server, sql_dir):
    store = Store.open(f"{server.url}/default")
    write_version_2(store)
    slow = MIGRATION.replace("TRUNCATE TABLE totals;\n", "SELECT sleep(1);\n")
    (sql_dir / "migrations" / f"{NEXT:04}_later.sql").write_text(slow)
    at_once(server, *[lambda store: apply_schema(store, sql_dir=sql_dir)] * 3)
    assert recorded(store) == [
        (2, ""),
        *((migration.version, migration.name) for migration in read_migrations(sql_dir)),
    ]
    assert rows(store, "totals") == rows(store, "requests GROUP BY model", "model, sum(output_tokens)")
    assert set(definitions(store)) == {*read_schema(sql_dir).tables, *read_schema(sql_dir).views}
    store.close()


def test_several_collectors_that_start_at_once_on_a_new_store(server, current):
    at_once(server, *[lambda store: apply_schema(store, sql_dir=current)] * 3)
    store = Store.open(f"{server.url}/default")
    assert recorded(store) == [(migration.version, migration.name) for migration in read_migrations()]
    insert_otlp(store, TRACES, token_body(count=3), "a segment")
    assert len(rows(store, "tokens")) == 3
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


def test_the_lock_waits_for_a_statement_that_its_holder_left_running(server):
    seen = threading.Event()

    def running(store):
        return store.query("SELECT count() FROM system.processes WHERE query LIKE 'SELECT sleep(%'").result_rows[0][0]

    def leave_running(store):
        while not seen.is_set():
            store.client().command("SELECT sleep(2)", settings=STATEMENT_SETTINGS)

    def take(store):
        while not running(store):
            time.sleep(0.01)
        seen.set()
        with SchemaLock(store):
            assert not running(store)

    at_once(server, leave_running, take)


def test_the_kept_store_is_of_version_2():
    schema = (VERSION_2 / "schema.sql").read_text()
    assert len(re.findall(r"^CREATE ", schema, re.MULTILINE)) == 32
    assert "CREATE TABLE schema_version\n(\n    `version` UInt32\n)" in schema
