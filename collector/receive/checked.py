"""The result of checking a request, for any signal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ItemLimits:
    """Largest size of a single item of a request: of a span, for traces."""

    max_bytes: int = 256 * 1024
    max_attributes: int = 1024


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
