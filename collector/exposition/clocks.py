"""Services whose clock is ahead of the collector's: their requests end in the future."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from collector.exposition.series import LONGEST, OTHER, SECOND_NS

MOST: Final = 100
"""Most services that are told apart."""
KEEP_MINUTES: Final = 15
"""A service is ahead for so long after its last request that was. The minute that has begun is one of them."""
_MINUTE_NS: Final = 60 * SECOND_NS


class ClocksAhead:
    """The largest lead of each service in the last 15 minutes. Transport and batches only make a lead look smaller."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, int]] = defaultdict(dict)
        """By service and minute: the largest lead in nanoseconds."""

    def note(self, service: str, end_ns: int, now_ns: int) -> None:
        """A request that ended at `end_ns` is counted now. Less than a second is no lead."""
        ahead_ns = end_ns - now_ns
        if ahead_ns < SECOND_NS:
            return
        has_room = service in self._found or (len(self._found) < MOST and len(service) <= LONGEST)
        minutes, minute = self._found[service if has_room else OTHER], now_ns // _MINUTE_NS
        minutes[minute] = max(ahead_ns, minutes.get(minute, 0))

    def seconds(self, now_ns: int) -> Mapping[str, float]:
        """The seconds by which each service is ahead."""
        since = now_ns // _MINUTE_NS - KEEP_MINUTES
        for service, minutes in [*self._found.items()]:
            kept = self._found[service] = {minute: ahead_ns for minute, ahead_ns in minutes.items() if minute > since}
            if not kept:
                del self._found[service]
        return {service: max(minutes.values()) / SECOND_NS for service, minutes in self._found.items()}
