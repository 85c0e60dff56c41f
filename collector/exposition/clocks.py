"""Services whose clock is ahead of the collector's: their requests end in the future."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from collector.exposition.series import LONGEST, OTHER, SECOND_NS

KEEP_NS: Final = 15 * 60 * SECOND_NS
"""A service is ahead for so long after its last request that was."""
MOST: Final = 100
"""Most services that are told apart."""


class ClocksAhead:
    """The largest lead of each service in the last 15 minutes. Transport and batches only make a lead look smaller."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int]] = {}
        """By service: nanoseconds ahead, and when that was."""

    def note(self, service: str, end_ns: int, now_ns: int) -> None:
        """A request that ended at `end_ns` is counted now. Less than a second is no lead."""
        ahead_ns = end_ns - now_ns
        if ahead_ns < SECOND_NS:
            return
        has_room = service in self._found or (len(self._found) < MOST and len(service) <= LONGEST)
        name = service if has_room else OTHER
        before_ns, at_ns = self._found.get(name, (0, 0))
        if ahead_ns >= before_ns or at_ns <= now_ns - KEEP_NS:
            self._found[name] = ahead_ns, now_ns

    def seconds(self, now_ns: int) -> Mapping[str, float]:
        """The seconds by which each service is ahead."""
        self._found = {name: found for name, found in self._found.items() if found[1] > now_ns - KEEP_NS}
        return {name: ahead_ns / SECOND_NS for name, (ahead_ns, _) in self._found.items()}
