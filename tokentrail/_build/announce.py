"""Announces the requests under way, so that the collector knows of requests that are slow, stuck or lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tokentrail import semconv
from tokentrail._build.sampling import Sampling
from tokentrail._build.spans import announcement_tail
from tokentrail._build.workbench import Workbench
from tokentrail._encode.wire import I64, Block, Columns

ANNOUNCE_AFTER_NS: Final = 5_000_000_000
"""A request is announced on arrival, again after this time, and from then on after twice the time before …"""
ANNOUNCE_EVERY_NS: Final = 20_000_000_000
"""… but at least this often: the collector takes a request for lost that it has not heard of for 30 s."""
ANNOUNCED_AT_ONCE: Final = 500
"""Announcements that are built without a break."""


class Announcements:
    """Builds the spans of open requests: on arrival and again while they run."""

    def __init__(self, bench: Workbench, sampling: Sampling) -> None:
        self._bench = bench
        self._sampling = sampling

    def blocks(self, now: int) -> list[Block]:
        """The announcements that are due at `now` (unix ns): of requests with tokens, and of those without.

        A request that sampling may still leave out is not announced, since nobody would learn of its end.
        """
        slots = self._bench.slots
        due = np.flatnonzero(slots.announcement <= now)
        if not self._sampling.keeps_all:
            due = due[slots.are_certain(due, now)]
        slots.wait[due] = np.clip(2 * slots.wait[due], ANNOUNCE_AFTER_NS, ANNOUNCE_EVERY_NS)
        slots.announcement[due] = now + slots.wait[due]
        begun = slots.tokens[due] > 0
        return [
            self._block(some[done : done + ANNOUNCED_AT_ONCE], keys, now)
            for some, keys in ((due[begun], (semconv.TIME_TO_FIRST_TOKEN,)), (due[~begun], ()))
            for done in range(0, len(some), ANNOUNCED_AT_ONCE)
        ]

    def _block(self, due: I64, keys: Sequence[str], now: int) -> Block:
        bench, slots = self._bench, self._bench.slots
        bench.take_break()
        arrival = slots.arrival[due]
        columns = Columns(
            (slots.trace_high[due], slots.trace_low[due]),
            bench.span_ids(len(due)),
            slots.span[due],
            arrival,
            np.maximum(arrival, now),
            (slots.tokens[due],),
            ((slots.first[due] - arrival) / 1e9,) * len(keys),
        )
        tails = [self._identity(slot) for slot in due.tolist()]
        return bench.fill(columns, semconv.OPEN_SPAN, (semconv.OUTPUT_TOKENS,), (), keys, tails, slots.behind[due])

    def _identity(self, slot: int) -> bytes:
        """The kind and the attributes of a request's announcements that stay the same."""
        slots = self._bench.slots
        known = slots.identity.get(slot)
        if known is None:
            self._bench.take_break()
            request = slots.open[slot]()
            known = announcement_tail(request.started) if request else b""
            slots.identity[slot] = known
        return known
