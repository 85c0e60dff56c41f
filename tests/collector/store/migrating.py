"""The SQL of this version and of one that comes after it, and questions about a store that is brought forward."""

import re
import shutil

import pytest

from collector.otlp.signals import TRACES
from collector.store.definitions import SQL_DIR, read_migrations, statements, without_comments
from collector.store.insert import insert_otlp
from collector.store.schema import apply_schema
from tests.support.otlp import token_body

NEXT = 2
TOTALS = """
CREATE TABLE IF NOT EXISTS totals (model String, tokens UInt64) ENGINE = MergeTree ORDER BY model;
"""
MIGRATION = """
-- What the coming migrations do: a column more, a type changed, values filled in, a new table filled from an old one.
ALTER TABLE requests ADD COLUMN IF NOT EXISTS late UInt8 DEFAULT 3 FIRST;
ALTER TABLE requests MODIFY COLUMN perplexity Nullable(Float32);
ALTER TABLE requests UPDATE perplexity = NULL WHERE engine = 'genai';
TRUNCATE TABLE totals;
INSERT INTO totals SELECT model, sum(output_tokens) FROM requests GROUP BY model;
"""
CHANGED = {
    "10_tables.sql": ("requests\n(\n", "requests\n(\n    late UInt8 DEFAULT 3,\n"),
    "parts/request_columns.sql": ("perplexity        Nullable(Float64)", "perplexity        Nullable(Float32)"),
}
"""Changes of the files of `schema`: a text, and the text that replaces it."""
ENGINES = {"10_tokentrail": "tokentrail_tokens|tokentrail_route", "20_vllm": "vllm_route", "90_genai": "none"}
"""Names of views by engine. The others have no folder."""


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
    """The SQL of a later version: the baseline in a file, one migration, and one table more."""
    few_engines(folder)
    (baseline,) = read_migrations(folder)
    (folder / "migrations" / f"{baseline.name}.sql").write_text(";\n".join([*baseline.statements, ""]))
    for name, (old, new) in CHANGED.items():
        file = folder / "schema" / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))
    (folder / "schema" / "30_totals.sql").write_text(TOTALS)
    (folder / "migrations" / f"{NEXT:04}_later.sql").write_text(MIGRATION)
    return folder


@pytest.fixture(scope="module")
def current(tmp_path_factory):
    return few_engines(tmp_path_factory.mktemp("current") / "sql")


@pytest.fixture
def sql_dir(tmp_path):
    return later_sql(tmp_path / "sql")


def write_baseline(store, current):
    """Fill an empty store with the tables, the views and some rows of the version `current`."""
    apply_schema(store, sql_dir=current)
    store.client().command(
        "INSERT INTO requests (engine, model, output_tokens, perplexity)"
        " VALUES ('vllm', 'm', 9, 2.5), ('genai', 'm', 7, 4)"
    )
    insert_otlp(store, TRACES, token_body(trace=7, count=2), "a segment of the baseline")


def rows(store, table, columns="*"):
    return store.query(f"SELECT {columns} FROM {table} ORDER BY ALL").result_rows


def recorded(store):
    return store.query("SELECT version, name FROM schema_version ORDER BY ALL").result_rows


def definitions(store):
    """Every table and view as ClickHouse writes it, with its settings in the order of their names."""
    found = store.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
    return {name: _in_order(store.query(f"SHOW CREATE TABLE `{name}`").result_rows[0][0]) for (name,) in found}


def _in_order(sql):
    """ALTER TABLE adds a setting behind the others."""
    table, mark, settings = sql.rpartition("\nSETTINGS ")
    return table + mark + ", ".join(sorted(settings.split(", ")))


def created_tables(monkeypatch, store):
    """A list that gets the name of each table that a client of the store is told to create from now on."""
    client, created = type(store.client()), []
    command = client.command

    def noted(self, sql, *arguments, **options):
        created.extend(re.findall(r"^CREATE TABLE IF NOT EXISTS (\w+)", sql))
        return command(self, sql, *arguments, **options)

    monkeypatch.setattr(client, "command", noted)
    return created
