"""Claims of requests in flight: a request that is bad before it ends is counted by one collector of a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from collector.base.process import Process
from collector.store.claims import ContendedError
from collector.store.order import Order
from collector.store.store import Store

_COLUMNS: Final = ("claim", "collector", "segment", "key", "slo", "tenant", "is_late", "process", "at_ns")
_TRIES: Final = 20
_KEYS_AT_ONCE: Final = 5000
_RETENTION_S: Final = 2 * 86400
"""Counters forget a request a day after they heard of it last."""

_ENDS: Final = """
    SELECT concat(lower(hex(trace_id)), lower(hex(span_id)), process_tenant) AS key, segment
    FROM requests
    WHERE ingested_at >= least(fromUnixTimestamp64Nano({since_ns:Int64}), now64(9) - INTERVAL 1 DAY)
        AND (trace_id, span_id, process_tenant) IN
    (
        SELECT
            (toFixedString(unhex(substring(k, 1, 32)), 16), toFixedString(unhex(substring(k, 33, 16)), 8),
            substring(k, 49))
        FROM (SELECT arrayJoin({keys:Array(String)}) AS k)
    )
"""
_ENTERED: Final = """
    SELECT segment, min(claim) FROM early_claims WHERE segment IN {segments:Array(String)} GROUP BY segment
"""
_FIRST: Final = """
    SELECT segment, argMin(collector, claim)
    FROM early_claims
    WHERE segment IN {segments:Array(String)}
    GROUP BY segment
"""


@dataclass(frozen=True)
class EarlyCount:
    """A request in flight that is to be counted as bad for one SLO; without an SLO, as lost."""

    key: str
    """Trace id and span id, as 48 hex digits, and the tenant of its process."""
    slo: str
    tenant: str
    """'' unless the SLO is a promise to each tenant."""
    is_late: bool
    """It is past a threshold; False: nothing is heard of it."""
    process: Process
    at_ns: int
    """When it was given up. After an outage that is long after its silence began, and the alert asks for news."""


class EarlyClaims:
    """One order of all early counts and of all segments that are counted, which every collector reads alike.

    The first claim of a request and an SLO counts it. A segment is entered after its rows are stored and before they
    are counted, so an end is either counted by its segment, or left out because an earlier claim counted the request:

        claim 7   A   request r is late for "chat"     A counts r
        claim 8   B   segment s, with the end of r     B counts s without r
        claim 9   A   request q is late for "chat"     void when q ended in s: B has counted it
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._order = Order(store, "early_claims")

    def enter(self, collector: str, segments: Sequence[str] = (), counts: Sequence[EarlyCount] = ()) -> int:
        """Make the next claim and return its number. A second entry of the same changes nothing.

        Raises `ContendedError`.
        """
        marks = [("", "", "", 0, ["", "", ""], 0)] * len(segments)
        of_counts = [(c.key, c.slo, c.tenant, int(c.is_late), list(c.process), c.at_ns) for c in counts]
        rows = [*zip(segments, marks, strict=True), *(("", row) for row in of_counts)]
        for _ in range(_TRIES):
            number = self._order.next_number()
            block = [(number, collector, segment, *row) for segment, row in rows]
            settings = self._order.settings(f"claim {number}")
            self._store.client().insert("early_claims", block, column_names=_COLUMNS, settings=settings)
            if self._claimant(number) == collector:
                self._order.forget(number, retention_s=_RETENTION_S)
                return number
        msg = "requests in flight are not counted yet, because other collectors claim theirs all the time"
        raise ContendedError(msg)

    def read(self, after: int, *, since_ns: int) -> tuple[int, list[tuple[str, EarlyCount]]]:
        """The number of the newest claim, and the early counts after `after` with their collectors, in order.

        Counts of a request are left out when a segment that was entered before has its end. `since_ns` keeps the query
        from reading requests that were stored before. After 0, it reads the claims of the last day, which counters
        remember.
        """
        columns = "claim, collector, key, slo, tenant, is_late, process, at_ns"
        new = "claim > {after:UInt64}" if after else "claimed_at > now() - INTERVAL 1 DAY"
        sql = f"SELECT {columns} FROM early_claims WHERE {new} ORDER BY claim"
        rows = self._store.query(sql, {"after": after}, self._order.read_settings).result_rows
        counted_from = self._counted_from([row[2] for row in rows if row[2]], since_ns)
        return max([after, *(row[0] for row in rows)]), [
            (collector, EarlyCount(key, slo, tenant, bool(is_late), Process(*process), at_ns))
            for claim, collector, key, slo, tenant, is_late, process, at_ns in rows
            if key and claim < counted_from.get(key, claim + 1)
        ]

    def first_to_enter(self, segments: Sequence[str]) -> dict[str, str]:
        """By segment: the collector that entered it first. Requests that are joined may be announced to several."""
        rows = self._store.query(_FIRST, {"segments": list(segments)}, self._order.read_settings).result_rows
        return dict(cast("list[tuple[str, str]]", rows))

    def _claimant(self, number: int) -> str | None:
        sql = "SELECT collector FROM early_claims WHERE claim = {number:UInt64} LIMIT 1"
        rows = self._store.query(sql, {"number": number}, self._order.read_settings).result_rows
        return rows[0][0] if rows else None

    def _counted_from(self, keys: Sequence[str], since_ns: int) -> dict[str, int]:
        """By request that has ended: the first claim that entered a segment with its end."""
        entered: dict[str, int] = {}
        for i in range(0, len(keys), _KEYS_AT_ONCE):
            bounds = {"keys": keys[i : i + _KEYS_AT_ONCE], "since_ns": since_ns}
            keys_of = defaultdict(list)
            for key, segment in self._store.query(_ENDS, bounds).result_rows:
                keys_of[segment].append(key)
            if not keys_of:
                continue
            marks = self._store.query(_ENTERED, {"segments": [*keys_of]}, self._order.read_settings)
            for segment, claim in marks.result_rows:
                for key in keys_of[segment]:
                    entered[key] = min(claim, entered.get(key, claim))
        return entered
