"""The result of checking a request, for any signal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from collector.otlp.names import COLUMNS


@dataclass(frozen=True)
class ItemLimits:
    """Limits of the items of a request: of the spans, for traces."""

    max_bytes: int = 256 * 1024
    """Largest single item."""
    max_attributes: int = 1024
    max_days: int = 31
    """Most days on which the items of one request may start or end. The store's partitions are days."""
    max_future_s: float = 86400.0
    """An item may end at most so far after `unix_ns`."""
    max_repeated_bytes: int = 1024**3
    """Most bytes of resources and scopes in a request, repeated for each of their items, as the store does."""
    all_names: bool = False
    """For metrics: those without a common name are kept too."""
    names: frozenset[str] = COLUMNS
    """The attributes whose text becomes a column. Longer texts than a name may have are cut."""
    unix_ns: Callable[[], int] = field(default=time.time_ns, repr=False)

    def latest_ns(self) -> int:
        """Return the latest time at which an item may end."""
        return self.unix_ns() + round(self.max_future_s * 1e9)


@dataclass(frozen=True)
class Checked:
    """The part of a request that may be stored."""

    payload: bytes
    """The request without its rejected items, encoded; empty when no item is left."""
    items: int
    """Items in the request, the rejected ones included."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Rejected items by reason."""
    message: str = ""
    """Tells the sender how many items were rejected and why; empty when none was."""
    days: tuple[int, int] = (0, 0)
    """The first and the last day, from 1970-01-01, on which an item of the payload starts or ends."""
    unwanted: Counter[str] = field(default_factory=Counter)
    """Items, by reason, that the collector leaves out by choice. They are counted, and the sender is not told."""
    cut: Counter[str] = field(default_factory=Counter)
    """Names that were too long and are cut in the payload, by attribute."""
