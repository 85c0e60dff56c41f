"""Reads the SQL files of the schema, the engines and the migrations as statements."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from collector.sql.generated import generated
from tokentrail.semconv import LABEL_PREFIX

SQL_DIR: Final = Path(__file__).resolve().parent.parent / "sql"

_COMMENT: Final = re.compile(r"[ \t]*--\s.*$", re.MULTILINE)
_TABLE: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)\b")
_VIEW: Final = re.compile(r"CREATE OR REPLACE MATERIALIZED VIEW (\w+) TO ")
_NO_KEY: Final = "$."
"""A regular expression that matches nothing: a character behind the end."""
_STORED: Final = re.compile(r"^ENGINE = \w*MergeTree\b", re.MULTILINE)
_STATEMENT_END: Final = re.compile(r";\s*(?:\n|$)")


@dataclass(frozen=True)
class Migration:
    """One file of `migrations/`: 0003 brings a store from version 2 to version 3. The first one is the baseline."""

    version: int
    name: str
    statements: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A digest of the statements. Comments and white space do not change it."""
        words = " ".join(";".join(self.statements).split())
        return hashlib.sha256(words.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Schema:
    """The statement that creates each table and each view, by name, in the order in which they are created."""

    tables: dict[str, str]
    views: dict[str, str]


@dataclass(frozen=True)
class Decoding:
    """The settings of a collector that change the views of its store.

    With `keep_content`, no attribute counts as a prompt, an answer or a header, so all are stored. A request without a
    tenant or an SLO class gets the first value that its span or its resource has under one of these attributes' names.
    `label_attributes` are pairs of a label's name and the attribute that gives it.
    """

    keep_content: bool = False
    tenant_attributes: tuple[str, ...] = ()
    slo_class_attributes: tuple[str, ...] = ()
    label_attributes: tuple[tuple[str, str], ...] = ()


PLAIN: Final = Decoding()


def read_schema(sql_dir: Path = SQL_DIR, decoding: Decoding = PLAIN) -> Schema:
    """Read `schema/*.sql`, then `engines/*/views.sql`.

    `$name` in them is the text of `schema/parts/name.sql`, or one of `generated`; `$claims` is the text of all
    `engines/*/claim.sql`, in the order of the folders. Raises OSError when an engine's folder lacks one of its two
    files or a part is missing, and ValueError for a name that is used twice or a statement of another kind.
    """
    engines = sorted(folder for folder in (sql_dir / "engines").iterdir() if folder.is_dir())
    parts = _Parts(sql_dir / "schema" / "parts")
    parts.update(generated(sql_dir / "schema" / "genai_names.yaml"))
    if decoding.keep_content:
        parts["content_keys"] = _NO_KEY
    labels = {
        "tokentrail.tenant": decoding.tenant_attributes,
        "tokentrail.slo_class": decoding.slo_class_attributes,
    }
    if any(labels.values()):
        parts["text"] = _labelled(parts["text"], labels)
    if decoding.label_attributes:
        parts["labels_beside"] = _labels_beside(decoding.label_attributes, parts["value_as_text"])
    parts["claims"] = "\n".join(parts.fill(engine / "claim.sql") for engine in engines)
    schema = Schema({}, {})
    for file in [*sorted((sql_dir / "schema").glob("*.sql")), *(engine / "views.sql" for engine in engines)]:
        for statement in statements(parts.fill(file)):
            table, view = _TABLE.match(statement), _VIEW.match(statement)
            created = table or view
            if created is None or created[1] in schema.tables or created[1] in schema.views:
                msg = f"{file}: a statement must create a table or a view of a new name: {statement[:80]}"
                raise ValueError(msg)
            (schema.tables if table else schema.views)[created[1]] = statement
    return schema


def read_migrations(sql_dir: Path = SQL_DIR) -> tuple[Migration, ...]:
    """Return the baseline and the migrations after it; raises ValueError when a number is missing or used twice.

    The baseline is version 1: the tables of the first release. No collector runs its statements, which are in its
    digest. Until that release it has no file, and is the tables of `schema/` that keep rows.
    """
    migrations = tuple(
        Migration(int(file.name.split("_")[0]), file.stem, tuple(statements(without_comments(file.read_text()))))
        for file in sorted((sql_dir / "migrations").glob("*.sql"))
    ) or (Migration(1, "0001_baseline", tuple(stored_tables(read_schema(sql_dir)).values())),)
    versions = [migration.version for migration in migrations]
    if versions != list(range(1, 1 + len(migrations))):
        msg = f"the migrations in {sql_dir / 'migrations'} are not numbered one by one from 1: {versions}"
        raise ValueError(msg)
    return migrations


def stored_tables(schema: Schema) -> dict[str, str]:
    """The statement of each table that keeps rows, by name."""
    return {name: statement for name, statement in schema.tables.items() if _STORED.search(statement)}


def statements(sql: str) -> list[str]:
    """Split SQL into its statements. Each ends with a semicolon at the end of a line."""
    return [text for part in _STATEMENT_END.split(sql) if (text := part.strip())]


def without_comments(sql: str) -> str:
    """Remove `-- …` to the end of its line. No string of our SQL may contain two hyphens and a space."""
    return _COMMENT.sub("", sql).strip()


# tokentrail.slo_class of ("user.tier",):
#     mapUpdate(TEXT, map('tokentrail.slo_class', arrayFirst(value -> value != '',
#         [TEXT['tokentrail.slo_class'], …first of a list…, resource['tokentrail.slo_class'], TEXT['user.tier'], …])))
def _labelled(text: str, labels: Mapping[str, Sequence[str]]) -> str:
    """SQL of the span's text attributes `text`, each label filled from the first of its attributes with a value."""

    def values(name: str) -> str:
        listed = f"arrayFirst(a -> a.key = '{name}', span.attributes).value.array_value.values.string_value[1]"
        return f"{text}['{name}'], {listed}, resource['{name}']"

    filled = ", ".join(
        f"'{label}', arrayFirst(value -> value != '', [{', '.join(map(values, (label, *names)))}])"
        for label, names in labels.items()
        if names
    )
    return f"mapUpdate({text}, map({filled}))"


# (("region", "cloud.region"),):
#     mapUpdate(resource, mapFilter((_, value) -> value != '', map('tokentrail.label.region',
#         arrayFirst(value -> value != '', [TEXT of the span's, …first of a list…, resource['cloud.region']]))))
def _labels_beside(pairs: Sequence[tuple[str, str]], value_as_text: str) -> str:
    """SQL of the resource's attributes, with the labels that attributes of a span or its resource give."""

    def value_of(name: str) -> str:
        value = f"attributes.value[indexOf(attributes.key, '{name}')]"
        listed = f"attributes.value.array_value.values.string_value[indexOf(attributes.key, '{name}')][1]"
        as_text = f"arrayMap(v -> {value_as_text}, [{value}])[1]"
        return f"arrayFirst(value -> value != '', [{as_text}, {listed}, resource['{name}']])"

    listed = ", ".join(f"'{LABEL_PREFIX}{label}', {value_of(name)}" for label, name in pairs)
    return f"mapUpdate(resource, mapFilter((_, value) -> value != '', map({listed})))"


class _Parts(dict[str, str]):
    """SQL fragments by name, read from `folder` when first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, name: str) -> str:
        self[name] = self.fill(self._folder / f"{name}.sql")
        return self[name]

    def fill(self, file: Path) -> str:
        """Return the file's SQL without comments, each `$name` replaced by its fragment; `$$` is a dollar sign."""
        try:
            return Template(without_comments(file.read_text())).substitute(self)
        except ValueError as error:
            msg = f"{file}: {error}"
            raise ValueError(msg) from error
