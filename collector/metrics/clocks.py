"""Services whose clock differs from the collector's: their requests end in the future, or long before they arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Final

from collector.base.process import Process
from collector.metrics import metrics
from collector.metrics.series import SECOND_NS, Labels, LabelSets, printable

MOST: Final = 100
"""Most services that are told apart as ahead, and most processes as behind."""
KEEP_MINUTES: Final = 15
"""A service is ahead or behind for so long after its last request that was. The minute that began is one of them."""
LEAST_BEHIND_NS: Final = 30 * SECOND_NS
"""A sender's batches and its first attempts to send again take less."""
_MINUTE_NS: Final = 60 * SECOND_NS


class _Minutes:
    """The largest, or the smallest, value of each label set and minute, of the last 15 minutes. Any thread may call."""

    def __init__(self, names: Labels, best: Callable[[int, int], int]) -> None:
        self._best = best
        self._lock = threading.Lock()
        self._found: dict[Labels, dict[int, int]] = {}
        self._admitted = LabelSets(names, MOST, gone=self._forget)

    def __contains__(self, labels: Labels) -> bool:
        return labels in self._found

    def note(self, labels: Labels, value: int, now_ns: int) -> None:
        """Keep a value of now."""
        with self._lock:
            minutes = self._found.setdefault(self._admitted.admit(labels, now_ns), {})
            minute = now_ns // _MINUTE_NS
            minutes[minute] = self._best(value, minutes.get(minute, value))

    def read(self, now_ns: int, least: int) -> Mapping[Labels, int]:
        """The best value of each label set. Those that are less than `least` are forgotten."""
        since, values = now_ns // _MINUTE_NS - KEEP_MINUTES, {}
        with self._lock:
            for labels, minutes in [*self._found.items()]:
                kept = self._found[labels] = {minute: value for minute, value in minutes.items() if minute > since}
                if not kept or (best := reduce(self._best, kept.values())) < least:
                    self._forget(labels)
                else:
                    values[labels] = best
        return values

    def _forget(self, labels: Labels) -> None:
        self._found.pop(labels, None)
        self._admitted.used_ns.pop(labels, None)


class Clocks:
    """How far each service's clock differs, in the last 15 minutes. A service is told apart by its tenant, too.

    Transport and batches only make a lead look smaller, so the largest one of a service counts. They make a lag look
    larger, so the smallest one of a process counts, and of its processes the one that is farthest behind:

        requests of process 1 arrive 601 s and 640 s after their end, of process 2 1 s and 90 s    behind by 601 s
    """

    def __init__(self) -> None:
        self._ahead, self._behind = _Minutes(metrics.CLOCK, max), _Minutes(metrics.PROCESS, min)

    def note_end(self, service: tuple[str, str], end_ns: int, now_ns: int) -> None:
        """A request of a service and its tenant ended at `end_ns` and is counted now. Less than a second is no lead."""
        if end_ns - now_ns >= SECOND_NS:
            self._ahead.note(service, end_ns - now_ns, now_ns)

    def note_lag(self, process: Process, lag_ns: int, now_ns: int) -> None:
        """A request of a process arrived `lag_ns` after its end or later. A short lag only ends a long one."""
        if lag_ns >= LEAST_BEHIND_NS or tuple(map(printable, process)) in self._behind:
            self._behind.note(process, lag_ns, now_ns)

    def ahead_s(self, now_ns: int) -> Mapping[Labels, float]:
        """By service and tenant: the seconds by which it is ahead."""
        return {service: ns / SECOND_NS for service, ns in self._ahead.read(now_ns, SECOND_NS).items()}

    def behind_s(self, now_ns: int) -> Mapping[Labels, float]:
        """By service and tenant: the seconds by which it is behind, or sends late."""
        behind: dict[Labels, float] = {}
        for (service, _, tenant), ns in self._behind.read(now_ns, LEAST_BEHIND_NS).items():
            behind[service, tenant] = max(ns / SECOND_NS, behind.get((service, tenant), 0.0))
        return behind
