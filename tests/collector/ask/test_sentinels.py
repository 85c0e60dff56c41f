"""No query names a column in which a number stands for what is not known: one part does, and gives NULL or NaN."""

import re

from collector.ask.template import PARTS, QUERIES
from collector.store.definitions import SQL_DIR

SCHEMA = [SQL_DIR / "schema" / name for name in ("10_tables.sql", "50_causes.sql", "parts/request_columns.sql")]
VIEWS = {"known_latencies.sql", "error_share.sql", "is_unmeasured.sql"}
"""Parts that turn such a column into NULL or NaN."""
COPIES = {"rows_of_requests.sql"}
"""A row as it is stored, whose latencies judge.py reads."""
FILES = [*QUERIES.values(), *sorted(PARTS.glob("*.sql"))]


def sentinel_columns():
    """Columns whose definition has the number of the largest UInt32 or UInt16, and that are no Nullable."""
    columns = set()
    for text in (file.read_text() for file in SCHEMA if file.exists()):
        for name, kind, definition in re.findall(r"^    (\w+) +(\S+)((?:.*\n)(?:        .*\n)*)", text, re.MULTILINE):
            if re.search(r"\b(4294967295|65535)\b", definition) and not kind.startswith("Nullable"):
                columns.add(name)
    return columns


def test_the_schema_has_such_columns():
    assert sentinel_columns() == {"ttft_us", "tpot_us", "queue_us", "gap_us", "first_visible_us", "error_permille"}


def test_no_query_names_one():
    wrong = {}
    for file in FILES:
        sql = re.sub(r"--.*", "", file.read_text())
        named = {*re.findall(r"\w+", sql)} & {*sentinel_columns(), "4294967295", "65535"}
        if named and file.name not in VIEWS | COPIES:
            wrong[file.name] = named
    assert wrong == {}
