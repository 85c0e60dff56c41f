"""SQL files: queries and their parts, put together to what the store is asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Final

from collector.sql.fragment import Fragment, Table, merged


class _Sql(Template):
    """`$parts.name` stands for the file parts/name.sql, `$name` for a fragment that the caller passes.

    A value is neither: it is a bound parameter, `{name:Type}`.

        queries/span_names.sql         SELECT name, count() … FROM spans WHERE $parts.started_in_window AND $filter …
        ask/sql/started_in_window.sql  start >= {start_ns:Int64} AND start < {end_ns:Int64}
        the caller                     queries.rows("span_names", {"filter": Fragment("x = 1")}, start_ns=1, end_ns=2)
        the store                      … WHERE start >= {start_ns:Int64} AND start < {end_ns:Int64} AND (x = 1) …
    """

    idpattern = r"(?-i:(?:parts\.)?[a-z][a-z0-9_]*)"


_COLLECTOR: Final = Path(__file__).parents[1]
PARTS: Final = _COLLECTOR / "ask" / "sql"
QUERIES: Final = {path.stem: path for path in sorted(_COLLECTOR.rglob("queries/*.sql"))}
"""The files of the queries, each in the room that asks it, by their names, of which no two are alike."""


def _file(name: str) -> Path:
    """The file of a query, or of a path within `collector/`, such as `causes/stage/due`."""
    return _COLLECTOR / f"{name}.sql" if "/" in name else QUERIES[name]


def _lines(name: str) -> list[str]:
    return _file(name).read_text(encoding="utf-8").splitlines()


@cache
def _with_parts(path: str) -> _Sql:
    """A file without its comments, with the text of its parts. Fragments that callers pass still stand by name."""
    template = _Sql("\n".join(line for line in _lines(path) if not line.startswith("--")))
    parts = [name for name in template.get_identifiers() if name.startswith("parts.")]
    return _Sql(
        template.safe_substitute(
            {name: _with_parts(f"ask/sql/{name.removeprefix('parts.')}").template for name in parts}
        )
    )


def render(path: str, fragments: Mapping[str, Fragment]) -> str:
    """The SQL of a query (`itl`) or a file (`causes/stage/due`). Raises TypeError unless it has these fragments."""
    template = _with_parts(path)
    named = set(template.get_identifiers())
    if named != fragments.keys():
        msg = f"{path}.sql takes the fragments {sorted(named)}, not {sorted(fragments)}"
        raise TypeError(msg)
    return template.substitute({name: _placed(fragment) for name, fragment in fragments.items()})


def _placed(fragment: Fragment) -> str:
    """A fragment as it stands in a query: in parentheses, but for the name of a table."""
    return fragment.sql if isinstance(fragment, Table) else f"({fragment.sql})"


def part(name: str, fragments: Mapping[str, Fragment]) -> Fragment:
    """A file of `ask/sql/` as a fragment, for a part that only some callers need."""
    return Fragment(render(f"ask/sql/{name}", fragments), merged([*fragments.values()]))


@cache
def no_rows_without(query: str) -> tuple[str, ...]:
    """The tables that a query's file names in a line `-- no rows without: kv_events, cold_starts`.

    The query has no rows while all of them are empty: not all engines fill every table. Other files name none.
    """
    named = (line.partition("-- no rows without: ")[2] for line in _lines(query))
    return tuple(table for tables in named if tables for table in tables.split(", "))
