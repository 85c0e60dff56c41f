"""The SQL files: a folder per engine, fragments by name, numbered migrations."""

import re
import shutil

import pytest

from collector.otlp.signals import TRACES
from collector.store.definitions import SQL_DIR, read_migrations, read_schema, statements
from collector.store.insert import insert_otlp
from collector.store.schema import LANDING_TABLES, apply_schema
from tests.support.otlp import MS, Request
from tokentrail import semconv

CLAIM = "WHEN scope = 'acme' AND span.name = 'generate' THEN 'acme.request'\n"
VIEWS = """
-- A made-up engine.
CREATE TABLE IF NOT EXISTS acme_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW acme_route TO acme_spans AS SELECT * FROM flat_spans WHERE claim = 'acme.request';

CREATE OR REPLACE MATERIALIZED VIEW acme_requests TO requests AS
WITH $nanoseconds AS nanoseconds, $reported AS reported
SELECT
    end, start, trace_id, span_id, 'acme' AS engine, service, text['acme.model'] AS model, 'ok' AS status,
    accurateCastOrNull(reported('acme.tokens'), 'UInt32') AS output_tokens,
    nanoseconds(reported('acme.first_s'), duration_ns) AS ttft_ns,
    duration_ns AS e2e_ns
FROM acme_spans;
"""


@pytest.fixture
def sql_dir(tmp_path):
    """A copy of the SQL that a test may change."""
    return shutil.copytree(SQL_DIR, tmp_path / "sql")


@pytest.fixture
def store(module_store):
    yield module_store
    apply_schema(module_store)
    for table in ("requests", "spans"):
        module_store.client().command(f"TRUNCATE TABLE {table}")


def add_engine(sql_dir, folder, claim=CLAIM, views=VIEWS):
    engine = sql_dir / "engines" / folder
    engine.mkdir()
    (engine / "claim.sql").write_text(claim)
    (engine / "views.sql").write_text(views)


def acme_span():
    request = Request(scope="acme")
    attributes = {"acme.model": "m", "acme.tokens": 7, "acme.first_s": 0.25, semconv.REQUEST_MODEL: "g"}
    request.span("generate", trace=3, ns=600 * MS, kind=2, attributes=attributes | {semconv.OPERATION_NAME: "chat"})
    return request.body()


def rows_of(store):
    return store.query("SELECT engine, model, output_tokens, ttft_ns, e2e_ns FROM requests").result_rows


def test_a_new_engine_is_one_folder(store, sql_dir):
    add_engine(sql_dir, "30_acme")
    apply_schema(store, sql_dir=sql_dir)
    insert_otlp(store, TRACES, acme_span(), "new-engine")
    assert rows_of(store) == [("acme", "m", 7, 250 * MS, 600 * MS)]
    assert store.query("SELECT count() FROM spans").result_rows == [(0,)]


def test_a_folder_behind_the_one_that_claims_a_span_does_not_get_it(store, sql_dir):
    add_engine(sql_dir, "95_acme")
    apply_schema(store, sql_dir=sql_dir)
    insert_otlp(store, TRACES, acme_span(), "behind-genai")
    assert rows_of(store) == [("genai", "g", None, None, 600 * MS)]


def test_the_first_of_two_folders_that_claim_a_span_gets_it(store, sql_dir):
    add_engine(sql_dir, "31_acme")
    add_engine(sql_dir, "30_first", CLAIM.replace("acme.request", "first.request"), VIEWS.replace("acme", "first"))
    apply_schema(store, sql_dir=sql_dir)
    insert_otlp(store, TRACES, acme_span(), "both")
    assert [row[0] for row in rows_of(store)] == ["first"]


def test_an_engine_that_is_gone_leaves_no_view_and_a_view_of_somebody_else_stays(store, sql_dir):
    add_engine(sql_dir, "30_acme")
    apply_schema(store, sql_dir=sql_dir)
    store.client().command("CREATE MATERIALIZED VIEW theirs ENGINE = Null AS SELECT model FROM requests")
    apply_schema(store)
    views = store.query("SELECT name FROM system.tables WHERE engine = 'MaterializedView'").result_rows
    assert ("theirs",) in views
    assert not [name for (name,) in views if name.startswith("acme")]
    insert_otlp(store, TRACES, acme_span(), "engine-is-gone")
    assert [row[0] for row in rows_of(store)] == ["genai"]
    store.client().command("DROP VIEW theirs")


@pytest.mark.parametrize("file", ["claim.sql", "views.sql"])
def test_a_folder_without_one_of_its_files_is_an_error_that_names_the_file(sql_dir, file):
    add_engine(sql_dir, "30_acme")
    (sql_dir / "engines" / "30_acme" / file).unlink()
    with pytest.raises(FileNotFoundError, match=rf"30_acme/{file}"):
        read_schema(sql_dir)


def test_two_engines_cannot_have_a_view_of_the_same_name(sql_dir):
    add_engine(sql_dir, "30_acme")
    add_engine(sql_dir, "31_copy", views="CREATE OR REPLACE MATERIALIZED VIEW acme_route TO requests AS SELECT 1;")
    with pytest.raises(ValueError, match=r"31_copy/views.sql.*new name: .*acme_route"):
        read_schema(sql_dir)


def test_the_schema_only_creates(sql_dir):
    add_engine(sql_dir, "30_acme", views="DROP TABLE requests;")
    with pytest.raises(ValueError, match=r"30_acme/views.sql.*DROP TABLE requests"):
        read_schema(sql_dir)


def test_a_fragment_that_is_missing_is_named(sql_dir):
    add_engine(sql_dir, "30_acme", claim="WHEN $no_such_fragment THEN 'acme'")
    with pytest.raises(FileNotFoundError, match=r"parts/no_such_fragment.sql"):
        read_schema(sql_dir)


def test_a_lone_dollar_sign_is_an_error_that_names_the_file(sql_dir):
    add_engine(sql_dir, "30_acme", claim="WHEN match(span.name, '^a$') THEN 'acme'")
    with pytest.raises(ValueError, match=r"30_acme/claim.sql: Invalid placeholder"):
        read_schema(sql_dir)


def test_fragments_stand_in_the_sql_and_comments_do_not(sql_dir):
    add_engine(sql_dir, "30_acme", claim="-- costs $5\nWHEN match(span.name, '^a$$') THEN 'acme' -- why\n")
    flatten = read_schema(sql_dir).views["flatten_spans"]
    assert "WHEN match(span.name, '^a$') THEN 'acme'\n" in flatten
    assert "--" not in flatten
    assert "Enum8('none' = 0" in read_schema(sql_dir).tables["otlp_traces"]


def test_folders_of_engines_are_numbered_and_their_views_carry_their_name():
    for folder in (SQL_DIR / "engines").iterdir():
        number_and_name = re.fullmatch(r"\d\d_(\w+)", folder.name)
        assert number_and_name, folder
        created = re.findall(r"(?:EXISTS|VIEW) (\w+)", (folder / "views.sql").read_text())
        assert created
        assert all(name.startswith(f"{number_and_name[1]}_") for name in created)
        claims = re.findall(r"THEN '([^']+)'", (folder / "claim.sql").read_text())
        assert claims
        assert all(re.fullmatch(rf"{number_and_name[1]}(?:_\w+)?\..+", claim) for claim in claims)


def test_the_landing_tables_are_those_of_the_schema():
    landing = read_schema().tables.keys() & set(
        re.findall(r"EXISTS (\w+)", (SQL_DIR / "schema" / "00_landing.sql").read_text())
    )
    assert landing == set(LANDING_TABLES)


@pytest.mark.parametrize(
    "names",
    [["0002_a.sql"], ["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"]],
)
def test_migrations_are_numbered_one_by_one(sql_dir, names):
    for name in names:
        (sql_dir / "migrations" / name).write_text("SELECT 1;\n")
    with pytest.raises(ValueError, match="not numbered one by one"):
        read_migrations(sql_dir)


def test_statements_end_with_a_semicolon_at_the_end_of_a_line():
    assert statements("SELECT ';' AS a;\nSELECT 2 ;\n\n;\nSELECT 3") == ["SELECT ';' AS a", "SELECT 2", "SELECT 3"]


def test_comments_and_white_space_are_not_in_a_migrations_digest(sql_dir):
    def digest(text):
        file = sql_dir / "migrations" / "0001_x.sql"
        file.write_text(text)
        return read_migrations(sql_dir)[-1].digest

    assert digest("SELECT 1;\nSELECT 2;\n") == digest("-- why\nSELECT\n    1;  -- one\n\nSELECT 2;")
    assert digest("SELECT 1;\n") != digest("SELECT 2;\n")


def test_a_route_reads_a_table_that_gets_its_spans():
    """An engine behind `rare_spans` whose claims do not get there would lose all of its spans."""
    views = read_schema().views
    frequent = set(re.findall(r"'(\w*)'", views["route_rare"].split("NOT IN")[1]))
    assert frequent == {"", "tokentrail", "vllm", "genai"}
    readers = {name.removesuffix("_route") for name, sql in views.items() if "FROM rare_spans" in sql}
    behind = {name if name.startswith(("vllm", "ai_sdk")) else name.split("_")[0] for name in readers}
    assert behind == {
        "route",
        "vllm_disaggregated",
        "tgi",
        "litellm",
        "openinference",
        "langfuse",
        "traceloop",
        "ai_sdk",
        "claude",
    }
    assert not behind & frequent


@pytest.mark.parametrize("table", ["requests", "tokens"])
def test_one_view_alone_stores_these_rows_because_it_leaves_out_those_that_are_stored(table):
    views = [name for name, sql in read_schema().views.items() if f" TO {table} AS" in sql]
    assert views == [f"store_{table}"]
