"""Builds the spans of KV events and of cold starts. They are rare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokentrail import semconv
from tokentrail._build.slots import trace_columns
from tokentrail._build.spans import cold_start_span
from tokentrail._build.workbench import Workbench
from tokentrail._encode.encode import span_bytes
from tokentrail._encode.wire import U64, Block, Columns, joined
from tokentrail._host.books import MALFORMED
from tokentrail._record.coldstart import ColdStartSpan
from tokentrail._record.request import RequestTrail
from tokentrail.semconv import KvEvent


class KvSpan(NamedTuple):
    """A recorded KV event; stamps in unix ns."""

    kind: KvEvent
    blocks: int
    reason: str
    step: int
    start: int
    end: int
    request: RequestTrail | None
    bytes: int | None = None
    beneficiary: str = ""


def kv_blocks(bench: Workbench, events: Sequence[KvSpan]) -> list[Block]:
    """The spans of KV events. An event of a request is in the request's trace; the others share a trace."""
    alike: defaultdict[tuple[object, ...], list[KvSpan]] = defaultdict(list)
    for event in events:
        key = event.kind, event.reason, event.beneficiary, event.request is None, event.bytes is None
        alike[key].append(event)
    return [_kv_block(bench, group) for group in alike.values()]


def cold_start_blocks(bench: Workbench, starts: Sequence[ColdStartSpan]) -> list[Block]:
    """The spans of cold starts, one by one. A span that fails is dropped alone."""
    spans = []
    for start in starts:
        try:
            behind = int(bench.behind_by(np.array(start.start)))
            spans.append(
                span_bytes(cold_start_span(start._replace(start=start.start + behind, end=start.end + behind)))
            )
        except Exception as error:
            bench.lost[MALFORMED] += 1
            bench.guard.failed("building a span", error)
    return joined(spans)


def own_trace(bench: Workbench, count: int) -> tuple[U64, U64]:
    """A new trace for each batch of the engine's own spans. Trace backends refuse one that grows for days."""
    high, low = bench.span_ids(2)
    return np.full(count, high), np.full(count, low)


def _kv_block(bench: Workbench, events: list[KvSpan]) -> Block:
    """The spans of events that differ in numbers only."""
    first = events[0]
    ints = {
        semconv.KV_BLOCKS: [event.blocks for event in events],
        semconv.STEP: [event.step for event in events],
    }
    moved = [event.bytes for event in events if event.bytes is not None]
    if moved:
        ints[semconv.KV_BYTES] = moved
    texts = {semconv.KV_REASON: first.reason}
    if first.beneficiary:
        texts[semconv.KV_BENEFICIARY] = first.beneficiary
    victims = [event.request for event in events if event.request is not None]
    columns = Columns(
        trace_columns(victims) if victims else own_trace(bench, len(events)),
        bench.span_ids(len(events)),
        np.array([victim.span_id for victim in victims], np.uint64) if victims else None,
        np.array([event.start for event in events], np.int64),
        np.array([event.end for event in events], np.int64),
        list(np.array([*ints.values()], np.int64)),
    )
    return bench.fill(
        columns,
        semconv.KV_SPAN_PREFIX + first.kind,
        [*ints],
        tuple(texts.items()),
        behind=bench.behind_by(columns.start),
    )
