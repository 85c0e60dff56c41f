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


TRUE = Fragment("true")
FALSE = Fragment("false")


def all_of(*predicates: Fragment) -> Fragment:
    """Every predicate holds; true without any."""
    return _joined(" AND ", predicates) if predicates else TRUE


def any_of(*predicates: Fragment) -> Fragment:
    """At least one predicate holds; false without any."""
    return _joined(" OR ", predicates) if predicates else FALSE


def negated(predicate: Fragment) -> Fragment:
    """The predicate does not hold."""
    return Fragment(f"NOT ({predicate.sql})", predicate.parameters)


def _joined(word: str, predicates: Sequence[Fragment]) -> Fragment:
    return Fragment(word.join(f"({p.sql})" for p in predicates), merged(predicates))


def merged(fragments: Sequence[Fragment]) -> dict[str, Any]:
    """The parameters of all fragments together."""
    return {name: value for fragment in fragments for name, value in fragment.parameters.items()}
