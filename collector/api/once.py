"""An answer of many parts: one clock for all of them, and each question to the store once.

/summary        asks which requests are in flight at 10:00:00
/incidents      asks the same, and gets the first one's rows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from collector.api.context import Context
from collector.api.session import CURRENT
from collector.sql.fragment import Fragment
from collector.sql.past_days import Versions
from collector.sql.queries import Queries


def asked_once(ctx: Context) -> Context:
    """A context that remembers for as long as its session does (`Session.remember`)."""
    return replace(
        ctx,
        queries=_Remembering(ctx.queries),
        clock=lambda: CURRENT.get().now(ctx.clock),
        complete_until=lambda: CURRENT.get().complete(ctx.complete_until),
    )


class _Remembering(Queries):
    """The store's queries. In a session that remembers, equal ones are run once; callers may change the rows."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def rows(
        self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any
    ) -> list[dict[str, Any]]:
        """The rows of the result, by column name."""
        found = _once(
            ("rows", query, fragments, parameters), lambda: self._queries.rows(query, fragments, **parameters)
        )
        return [dict(row) for row in found]

    def columns(
        self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any
    ) -> dict[str, Sequence[Any]]:
        """The columns of the result, by name."""
        found: dict[str, Sequence[Any]] = _once(
            ("columns", query, fragments, parameters), lambda: self._queries.columns(query, fragments, **parameters)
        )
        return found.copy()

    @property
    def remembers(self) -> bool:
        """Answers about whole days are remembered."""
        return self._queries.remembers

    def versions(self) -> Versions:
        """The versions of all days."""
        return self._queries.versions()

    def may_have_rows(self, *tables: str) -> bool:
        """Tell whether one of these tables has rows, or had some earlier."""
        return self._queries.may_have_rows(*tables)

    def remembered(self, *question: Any) -> Any:
        """The answer to a question, read again when a row of the days that it reads has changed."""
        return self._queries.remembered(*question)

    def array(
        self, query: str, fragments: Mapping[str, Fragment], row: npt.DTypeLike, /, **parameters: Any
    ) -> npt.NDArray[Any]:
        """The rows of the result as an array."""
        found: npt.NDArray[Any] = _once(
            ("array", query, fragments, row, parameters),
            lambda: self._queries.array(query, fragments, row, **parameters),
        )
        return found


def _once(question: tuple[Any, ...], ask: Callable[[], Any]) -> Any:
    found = CURRENT.get().found
    if found is None:
        return ask()
    key = repr(question)
    if key not in found:
        found[key] = ask()
    return found[key]
