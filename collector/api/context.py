"""The objects that every handler of the API works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from collector.slo.burn import Windows
from collector.slo.model import Slo
from collector.sql.queries import Queries


@dataclass(frozen=True)
class Context:
    """The store's queries and the configuration that answers depend on."""

    queries: Queries
    slos: tuple[Slo, ...]
    windows: Windows
    lost_after_ns: int
    clock: Callable[[], int] = field(repr=False)
    """Unix nanoseconds."""
