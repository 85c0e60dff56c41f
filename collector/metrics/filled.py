"""Tells which tables have rows, so that `/metrics` asks the others for nothing."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from collector.ask.queries import Queries

_TABLES: Final = frozenset({"requests", "open_requests", "steps", "kv_events", "cold_starts", "causes"})


class FilledTables:
    """Remembers the tables that had rows. A query that finds nothing costs 5 ms, and few engines fill all tables."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._empty: Set[str] = _TABLES

    def look(self) -> Set[str]:
        """The tables that may have rows by now. On a cluster they are all, since one replica cannot tell."""
        if not self._queries.remembers:
            return _TABLES
        if self._empty:
            self._empty -= {row["name"] for row in self._queries.rows("filled_tables", tables=[*self._empty])}
        return _TABLES - self._empty
