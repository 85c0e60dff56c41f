"""SQL files: queries and their parts, put together to what the store is asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from string import Template

from collector.sql.fragment import Fragment, merged


class _Sql(Template):
    """`$parts.name` stands for the file parts/name.sql, `$name` for a fragment that the caller passes.

    A value is neither: it is a bound parameter, `{name:Type}`.

        queries/spans_count.sql      SELECT count() AS total FROM spans WHERE $parts.started_in_window AND $filter
        parts/started_in_window.sql  start >= {start_ns:Int64} AND start < {end_ns:Int64}
        the caller                   queries.row("spans_count", {"filter": Fragment("x = 1")}, start_ns=1, end_ns=2)
        the store                    … WHERE start >= {start_ns:Int64} AND start < {end_ns:Int64} AND (x = 1)
    """

    idpattern = r"(?-i:(?:parts\.)?[a-z][a-z0-9_]*)"


def _lines(path: str) -> list[str]:
    return resources.files("collector.sql").joinpath(f"{path}.sql").read_text(encoding="utf-8").splitlines()


@cache
def _with_parts(path: str) -> _Sql:
    """A file without its comments, with the text of its parts. Fragments that callers pass still stand by name."""
    template = _Sql("\n".join(line for line in _lines(path) if not line.startswith("--")))
    parts = [name for name in template.get_identifiers() if name.startswith("parts.")]
    return _Sql(template.safe_substitute({name: _with_parts(name.replace(".", "/")).template for name in parts}))


def render(path: str, fragments: Mapping[str, Fragment]) -> str:
    """The SQL of a file, such as `queries/itl`. Raises TypeError unless the fragments are those that it names."""
    template = _with_parts(path)
    named = set(template.get_identifiers())
    if named != fragments.keys():
        msg = f"{path}.sql takes the fragments {sorted(named)}, not {sorted(fragments)}"
        raise TypeError(msg)
    return template.substitute({name: f"({fragment.sql})" for name, fragment in fragments.items()})


def part(name: str, fragments: Mapping[str, Fragment]) -> Fragment:
    """A file of `parts/` as a fragment, for a part that only some callers need."""
    return Fragment(render(f"parts/{name}", fragments), merged([*fragments.values()]))


@cache
def no_rows_without(query: str) -> tuple[str, ...]:
    """The tables that a query's file names in a line `-- no rows without: kv_events, cold_starts`.

    The query has no rows while all of them are empty: not all engines fill every table. Other files name none.
    """
    named = (line.partition("-- no rows without: ")[2] for line in _lines(f"queries/{query}"))
    return tuple(table for tables in named if tables for table in tables.split(", "))
