"""One request that several reported: its client, the gateways on its way, and the server that answered it.

    app        client  E2E 1.00 s   0.05 s on top of the gateway
    litellm    client  E2E 0.95 s   0.15 s on top of the server: the gateway's own time, and the network behind it
    vllm       server  E2E 0.80 s

Durations are compared, and never clocks: each machine has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

from collector.ask.slices import slices
from collector.ask.template import part
from collector.ask.times import HOUR_NS, SECOND_NS
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import seconds
from collector.count.reader import Reader
from collector.sql.fragment import Fragment, all_of

Row = Mapping[str, Any]
_MOST_ROWS = 10_000
MOST_OF_A_TRACE = 1000
"""The newest requests of a trace that one answer lists."""
_END_MARGIN_NS = HOUR_NS
"""As ask/sql/end_margin.sql has it."""


class Hop(Answer):
    """A request as one of those on its way reported it."""

    trace_id: str
    span_id: str
    engine: str
    service: str
    instance: str
    vantage: str
    status: str
    ttft_s: float | None
    e2e_s: float
    added_ttft_s: float | None
    """By how much its TTFT is longer than that of the next hop; null: not known, or not longer."""
    added_e2e_s: float | None
    """By how much its E2E is longer than that of the next hop: network, and this hop's own work."""


def counted_once(window: Window) -> Window:
    """The window in which each request counts once: by the row of its server, if the filter keeps one."""
    once = part("reported_once", {"filter": window.filter})
    bounded = Fragment(once.sql, {**once.parameters, **window.bounds})  # a query of whole days has no bounds of its own
    return replace(window, filter=all_of(window.filter, bounded))


def without_doubles(reader: Reader, window: Window, vantage: Sequence[str]) -> Window:
    """The window in which each request counts once, if its requests have several vantages: the filter is costly.

    A caller that asks for a vantage gets its rows as they are.
    """
    if vantage:
        return window
    vantages = [
        one.columns(reader.queries, "vantages", {}, window.filter)["vantage"]
        for one in slices([window.end_ns, window.start_ns])
    ]
    return counted_once(window) if len(set(chain(*vantages))) > 1 else window


def read_hops(reader: Reader, rows: Sequence[Row]) -> list[list[Hop]]:
    """The hops of each ended request, outermost first; none for a request that nobody else reported."""
    if not rows:
        return []
    others = reader.queries.rows(
        "linked_requests",
        {"filter": reader.tenant_filter},
        hours=_hours_about([row["ended_ns"] for row in rows]),
        request_ids=sorted({row["request_id"] for row in rows} - {""}),
        trace_ids=sorted({row["trace_id_hex"] for row in rows}),
        limit=_MOST_ROWS,
    )
    by_key: dict[str, list[Row]] = {}
    for other in others:
        for key in {other["request_id"], other["trace_id_hex"]} - {""}:
            by_key.setdefault(key, []).append(other)
    return [
        hops(row, (other for key in (row["request_id"], row["trace_id_hex"]) for other in by_key.get(key, ())))
        for row in rows
    ]


def _hours_about(ended_ns: Iterable[int]) -> list[int]:
    """The hours since 1970 in which something ended that ended at most a margin from one of these moments."""
    bounds = [((at - _END_MARGIN_NS) // HOUR_NS, (at + _END_MARGIN_NS) // HOUR_NS) for at in ended_ns]
    return sorted({hour for first, last in bounds for hour in range(first, last + 1)})


def hops_of(reader: Reader, row: Row, of_trace: Sequence[Row]) -> list[Hop]:
    """The hops of one ended request. `of_trace`: the newest requests of its trace. Its response id finds others."""
    if row["request_id"] or len(of_trace) >= MOST_OF_A_TRACE:
        return read_hops(reader, [row])[0]
    return hops(row, (other for other in of_trace if "ended_ns" in other))


def hops(row: Row, others: Iterable[Row]) -> list[Hop]:
    """The hops of a request among rows that have its response id or its trace.

    Of the answers to one request (n > 1), which its server reports one by one, the longest is the hop.
    """
    by_reporter = {_reporter(row): row}
    for other in others:
        known = by_reporter.setdefault(_reporter(other), other) if _same(row, other) else row
        if known is not row and known["e2e_ns"] < other["e2e_ns"]:
            by_reporter[_reporter(other)] = other
    if len(by_reporter) < 2:
        return []
    path = sorted(by_reporter.values(), key=lambda hop: (hop["vantage"] == "server", -hop["e2e_ns"]))
    return [_hop(hop, after) for hop, after in pairwise([*path, None]) if hop is not None]


def _same(row: Row, other: Row) -> bool:
    """They have one response id, or one is the other's parent. More than a margin apart they are two requests."""
    if abs(other["ended_ns"] - row["ended_ns"]) > _END_MARGIN_NS:
        return False
    if row["request_id"] and row["request_id"] == other["request_id"]:
        return True
    is_parent = row["span_id_hex"] == other["parent_hex"] or other["span_id_hex"] == row["parent_hex"]
    return is_parent and bool(row["trace_id_hex"] == other["trace_id_hex"])


def _reporter(row: Row) -> tuple[str, ...]:
    return (row["vantage"], row["engine"], row["service"])


def _hop(row: Row, after: Row | None) -> Hop:
    return Hop(
        **{name: row[name] for name in ("engine", "service", "instance", "vantage", "status")},
        trace_id=row["trace_id_hex"],
        span_id=row["span_id_hex"],
        ttft_s=seconds(row["ttft_ns"]),
        e2e_s=row["e2e_ns"] / SECOND_NS,
        added_ttft_s=_added(row["ttft_ns"], after["ttft_ns"] if after else None),
        added_e2e_s=_added(row["e2e_ns"], after["e2e_ns"] if after else None),
    )


def _added(outer_ns: int | None, inner_ns: int | None) -> float | None:
    if outer_ns is None or inner_ns is None or outer_ns < inner_ns:
        return None
    return seconds(outer_ns - inner_ns)
