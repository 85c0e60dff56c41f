"""The queries that the API and `/metrics` run, one file each, and the class that runs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from clickhouse_connect.driver.query import QueryResult

from collector.sql.fragment import Fragment, merged
from collector.store import Store


class _Sql(Template):
    """`$parts.name` stands for the file parts/name.sql, `$name` for a fragment that the caller passes.

    A value is neither: it is a bound parameter, `{name:Type}`.

        queries/requests_count.sql SELECT count() AS total FROM requests WHERE $parts.ended_in_window AND $filter
        parts/ended_in_window.sql  end >= {start_ns:Int64} AND end < {end_ns:Int64}
        the caller                 queries.row("requests_count", {"filter": Fragment("x = 1")}, start_ns=1, end_ns=2)
        the store                  … WHERE end >= {start_ns:Int64} AND end < {end_ns:Int64} AND (x = 1)
    """

    idpattern = r"(?-i:(?:parts\.)?[a-z][a-z0-9_]*)"


@cache
def _with_parts(path: str) -> _Sql:
    """A file without its comments, with the text of its parts. Fragments that callers pass still stand by name."""
    text = resources.files("collector.sql").joinpath(f"{path}.sql").read_text(encoding="utf-8")
    template = _Sql("\n".join(line for line in text.splitlines() if not line.startswith("--")))
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


class Queries:
    """Runs the queries of this folder on a store. `fragments` stand in the SQL by name, `parameters` are bound."""

    def __init__(self, store: Store, settings: Callable[[], Mapping[str, Any]] = dict) -> None:
        """`settings` is called for the store's settings of each query."""
        self._store = store
        self._settings = settings

    def rows(
        self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any
    ) -> list[dict[str, Any]]:
        """The rows of the result, by column name."""
        result = self._result(query, fragments, parameters)
        return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]

    def row(self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any) -> dict[str, Any]:
        """The only row of the result, for queries that always have one."""
        (row,) = self.rows(query, fragments, **parameters)
        return row

    def columns(
        self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any
    ) -> dict[str, Sequence[Any]]:
        """The columns of the result, by name. A result without rows may come without names: every column is empty."""
        result = self._result(query, fragments, parameters)
        return defaultdict(list, zip(result.column_names, result.result_columns, strict=True))

    def _result(
        self, query: str, fragments: Mapping[str, Fragment] | None, parameters: Mapping[str, Any]
    ) -> QueryResult:
        fragments = fragments or {}
        sql = render(f"queries/{query}", fragments)
        return self._store.query(sql, {**parameters, **merged([*fragments.values()])}, self._settings())
