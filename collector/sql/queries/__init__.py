"""The questions that are asked of the store, one file each, and how they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from collector.slo.judge import Condition
from collector.store import Store


@cache
def _template(name: str) -> Template:
    return Template(resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8"))


class Queries:
    """Asks a store the questions in this folder.

    `$name` in a file stands for a condition (`collector.slo.judge`) or for another file of the folder; every value is a
    bound parameter.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def ask(
        self, name: str, conditions: Mapping[str, Condition] | None = None, /, **parameters: Any
    ) -> list[dict[str, Any]]:
        """The rows of the answer, by column name."""
        conditions = conditions or {}
        for condition in conditions.values():
            parameters |= condition.parameters
        sql = _render(name, {key: f"({condition.sql})" for key, condition in conditions.items()})
        result = self._store.query(sql, parameters)
        return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]

    def ask_one(
        self, name: str, conditions: Mapping[str, Condition] | None = None, /, **parameters: Any
    ) -> dict[str, Any]:
        """The only row of the answer, for questions that always have one."""
        (row,) = self.ask(name, conditions, **parameters)
        return row


def _render(name: str, fragments: Mapping[str, str]) -> str:
    template = _template(name)
    files = {key for key in template.get_identifiers() if key not in fragments}
    return template.substitute(fragments, **{key: _render(key, fragments) for key in files})
