"""Pieces of SQL that queries are put together from, and how predicates are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fragment:
    """A piece of SQL (a predicate, a column, …), and the values of the `{name:Type}` parameters that it binds."""

    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Table(Fragment):
    """The name of a table, which stands in a query without parentheses."""


TRUE = Fragment("true")
FALSE = Fragment("false")


def all_of(*predicates: Fragment) -> Fragment:
    """Every predicate holds; true without any."""
    return _joined(" AND ", predicates, neutral=TRUE, decisive=FALSE)


def any_of(*predicates: Fragment) -> Fragment:
    """At least one predicate holds; false without any."""
    return _joined(" OR ", predicates, neutral=FALSE, decisive=TRUE)


def negated(predicate: Fragment) -> Fragment:
    """The predicate does not hold."""
    if predicate in (TRUE, FALSE):
        return FALSE if predicate == TRUE else TRUE
    return Fragment(f"NOT ({predicate.sql})", predicate.parameters)


def _joined(word: str, predicates: Sequence[Fragment], *, neutral: Fragment, decisive: Fragment) -> Fragment:
    """Constants are worked out here: each function in a query costs the store 0.1 ms before it reads a row."""
    if decisive in predicates:
        return decisive
    parts = [predicate for predicate in predicates if predicate != neutral]
    if len(parts) <= 1:
        return parts[0] if parts else neutral
    return Fragment(word.join(f"({p.sql})" for p in parts), merged(parts))


def merged(fragments: Sequence[Fragment]) -> dict[str, Any]:
    """The parameters of all fragments together."""
    return {name: value for fragment in fragments for name, value in fragment.parameters.items()}
