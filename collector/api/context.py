"""The objects that every handler of the API works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collector.api.session import visible_slos
from collector.slo.burn import Windows
from collector.slo.model import Slo
from collector.sql.queries import Queries

if TYPE_CHECKING:
    from collector.exposition.clocks import Clocks


@dataclass(frozen=True)
class Context:
    """The store's queries and the configuration that answers depend on."""

    queries: Queries
    all_slos: tuple[Slo, ...]
    """The SLOs of the SLO file."""
    windows: Windows
    lost_after_ns: int
    clock: Callable[[], int] = field(repr=False)
    """Unix nanoseconds."""
    heard_until: Callable[[], int] = field(repr=False)
    """Unix nanoseconds up to which the store has everything that was received (collector.watermark)."""
    complete_until: Callable[[], int] = field(repr=False)
    """Unix nanoseconds up to which the store has the requests that ended (collector.watermark). Read it before rows."""
    given_up_ns: Callable[[str], int] = field(repr=False)
    """When the request of a key was counted as lost; 0 for one that was not."""
    clocks: Clocks = field(repr=False)
    """The services whose clock is ahead or behind."""

    @property
    def slos(self) -> tuple[Slo, ...]:
        """The SLOs that the caller may see, without the names of other tenants in them."""
        return visible_slos(self.all_slos)
