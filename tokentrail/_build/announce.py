"""Announces the requests under way, so that the collector knows of requests that are slow, stuck or lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tokentrail import semconv
from tokentrail._build.sampling import NEVER, Sampling
from tokentrail._build.slots import SETTLED_NS
from tokentrail._build.spans import announcement_tail
from tokentrail._build.workbench import Mask, Workbench
from tokentrail._encode.wire import I64, Block, Columns

ANNOUNCE_AFTER_NS: Final = 5_000_000_000
"""A request is announced on arrival, again after this time, and from then on after twice the time before …"""
ANNOUNCE_EVERY_NS: Final = 20_000_000_000
"""… but at least this often: the collector takes a request for lost that it has not heard of for 30 s."""
_NEWS: Final = 8
"""A request is announced out of turn when its longest wait between two tokens, the one that lasts among them, is at least
`SETTLED_NS` and by an eighth longer than it told before. So a stream that stands still is known at once, and a slow one
tells it once."""
_TOLD: Final = (semconv.TIME_TO_FIRST_TOKEN, semconv.TIME_TO_LAST_TOKEN, semconv.LONGEST_GAP)
ANNOUNCED_AT_ONCE: Final = 500
"""Announcements that are built without a break."""


class Announcements:
    """Builds the spans of open requests: on arrival and again while they run."""

    def __init__(self, bench: Workbench, sampling: Sampling) -> None:
        self._bench = bench
        self._sampling = sampling

    def blocks(self, now: int, *, is_behind: bool = False) -> list[Block]:
        """The announcements that are due at `now` (unix ns): of requests with tokens, and of those without.

        `is_behind`: tokens from before wait in the records, so nobody knows who waits for one. A request that sampling may still leave out is not announced, since nobody would learn of its end.
        """
        slots = self._bench.slots
        is_due = slots.announcement <= now
        due = np.flatnonzero(is_due if is_behind else is_due | self._grown(now))
        if not self._sampling.keeps_all:
            due = due[slots.are_certain(due, now)]
        lacks = np.array([is_behind or self._lost_tokens(slot) for slot in due.tolist()], bool)
        slots.told_gap[due] = slots.longest_gap(due, now)
        regular = due[slots.announcement[due] <= now]
        slots.wait[regular] = np.clip(2 * slots.wait[regular], ANNOUNCE_AFTER_NS, ANNOUNCE_EVERY_NS)
        slots.announcement[regular] = now + slots.wait[regular]
        begun = slots.tokens[due] > 0
        groups = ((due[begun & ~lacks], _TOLD), (due[begun & lacks], _TOLD[:1]), (due[~begun], ()))
        return [
            self._block(some[done : done + ANNOUNCED_AT_ONCE], keys, now)
            for some, keys in groups
            for done in range(0, len(some), ANNOUNCED_AT_ONCE)
        ]

    def _grown(self, now: int) -> Mask:
        """Which requests under way wait for a token, or waited, for longer than they have told."""
        slots = self._bench.slots
        longest = slots.longest_gap(np.arange(slots.capacity), now)
        is_news = (longest >= SETTLED_NS) & (longest > slots.told_gap + slots.told_gap // _NEWS)
        return is_news & (slots.announcement < NEVER)

    def _lost_tokens(self, slot: int) -> bool:
        """Whether records of the request's tokens are lost, so that its waits are not known."""
        request = self._bench.slots.open[slot]()
        return request is not None and request.lost > 0

    def _block(self, due: I64, keys: Sequence[str], now: int) -> Block:
        bench, slots = self._bench, self._bench.slots
        bench.take_break()
        arrival = slots.arrival[due]
        told = slots.first[due] - arrival, slots.last_told(due, now) - arrival, slots.gap[due]
        columns = Columns(
            (slots.trace_high[due], slots.trace_low[due]),
            bench.span_ids(len(due)),
            slots.span[due],
            arrival,
            np.maximum(arrival, now),
            (slots.tokens[due],),
            tuple(ns / 1e9 for ns in told)[: len(keys)],
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
