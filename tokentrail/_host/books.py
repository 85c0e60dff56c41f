"""The books of a trail: how many spans were accepted, sent and lost, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# Reasons of drops; docs/sdk.md defines them.
BUFFER_FULL: Final = "buffer_full"
DISPLACED: Final = "displaced"
EXPIRED: Final = "expired"
REFUSED: Final = "refused"
REJECTED: Final = "rejected"
SHUTDOWN: Final = "shutdown"
MALFORMED: Final = "malformed"
"""Reason of a drop: the record cannot become a span, for wrong types or counts that do not match."""

SAMPLED_OUT: Final = "sampled_out"
"""The reason of spans that sampling left out. They are no drops: `TrailStats.sampled_out` counts them."""


@dataclass(frozen=True, slots=True)
class TrailStats:
    """Counts of spans: `accepted = exported + dropped + queued + pending + sampled_out`, at all times. `drops` splits
    `dropped` by reason.

    `pending` are the spans of records that wait for the next build or are in it: those of tokens, steps, events and
    ended requests. Phases and announcements are counted when they are built. `abandoned` counts requests that nobody
    ended: their object is gone, they are too old, or the trail was shut down. `errors` counts failures of the SDK
    itself and wrong calls of it. `left_out` counts requests that `Sampling` left out, `sampled_out` the spans of those
    requests and of tokens.
    """

    accepted: int = 0
    exported: int = 0
    queued: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    abandoned: int = 0
    errors: int = 0
    left_out: int = 0
    sampled_out: int = 0

    @property
    def dropped(self) -> int:
        """Spans that are lost."""
        return sum(self.drops.values())
