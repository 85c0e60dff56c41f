"""Makes the tables of a restored store, by this version's statements. An archive's are compared, and never run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from collector.keep.archive import BackupError, Manifest
from collector.store.definitions import read_migrations, read_schema, stored_tables
from collector.store.store import Store

VERSIONS: Final = "schema_version"
_STRING: Final = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_WORD: Final = re.compile(r"[^\W\d]\w*")
_COLUMN: Final = re.compile(r"`(\w+)` (.+)", re.ASCII)
_COLUMNS: Final = "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = {table:String}"
_HEAD: Final = re.compile(r"columns format version: 1\n\d+ columns:\n")
_PRINTED: Final = {"default", "toIntervalDay"}
"""Words that ClickHouse writes into a table's statement by itself."""
_MASK: Final = {"_row_exists": "UInt8"}
"""The column of a part in which a lightweight delete has masked rows."""


def check_tables(manifest: Manifest) -> None:
    """Raise `BackupError` for a table that this version does not have, and for a word in a table's statement that none
    of ours has, such as a column, a function or a setting: `restore` would lose it without a sign.
    """
    statements = stored_tables(read_schema())
    known = _words(*statements.values()) | _PRINTED
    known |= _words(*(statement for migration in read_migrations() for statement in migration.statements))
    for name, table in manifest.tables.items():
        if name not in statements:
            msg = f"the backup has the table {name}, and this version of tokentrail has no such table"
            raise BackupError(msg)
        if foreign := _words(table.create) - known:
            msg = f"the backup's table {name} has {', '.join(sorted(foreign)[:5])}, which no table of tokentrail has"
            raise BackupError(msg)
    if not (VERSIONS in manifest.tables and manifest.tables[VERSIONS].rows):
        msg = f"the backup has no rows of {VERSIONS}: nobody knows which version's tables it has"
        raise BackupError(msg)


def make_tables(store: Store, manifest: Manifest) -> dict[str, dict[str, str]]:
    """Make an archive's tables in an empty store; return the type of each column, by table and name.

    They get this version's columns, also when the archive is older: the migrations that it lacks run at the next start
    of a collector, and do nothing to what is there already.
    """
    statements = stored_tables(read_schema())
    columns: dict[str, dict[str, str]] = {}
    for name in manifest.tables:
        store.client().command(statements[name])
        rows = store.query(_COLUMNS, {"table": name}).result_rows
        columns[name] = {row[0]: row[1] for row in rows}
    return columns


def check_part(folder: Path, columns: Mapping[str, str]) -> None:
    """Raise `BackupError` for a part with a column that its table does not have, before ClickHouse reads it."""
    text = (folder / "columns.txt").read_text(errors="replace")
    head = _HEAD.match(text)
    lines = text[head.end() :].splitlines() if head else [text[:80]]
    for line in lines:
        column = _COLUMN.fullmatch(line)
        expected = {**columns, **_MASK}.get(column[1]) if column else None
        if column is None or expected != column[2]:
            part = f"{folder.parent.name}/{folder.name}"
            msg = f"the backup's part {part} has the column {line[:80]!a}, and its table has not"
            raise BackupError(msg)


def _words(*statements: str) -> set[str]:
    """Names, functions, types and key words; no literals."""
    return {word for statement in statements for word in _WORD.findall(_STRING.sub(" ", statement))}
