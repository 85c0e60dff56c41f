"""The least that `benchmarks.sdk_span_cost` could measure: calls that record nothing or next to nothing, and bytes of
token spans from columns that lie ready.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from tokentrail import RequestTrail, semconv
from tokentrail._encode.wire import Buffer, Columns, fill

_pack: Final = struct.Struct("12n").pack
_keep: Final = deque[bytes](maxlen=65_536).append


def no_step(
    step: int,
    start_ns: int,
    end_ns: int,
    emitted: Sequence[RequestTrail],
    counts: Sequence[int] | None = None,
    prefill_tokens: int | None = None,
    decode_tokens: int | None = None,
    running: int | None = None,
    waiting: int | None = None,
    preempted: int | None = None,
    kv_used: int | None = None,
    kv_total: int | None = None,
    kv_evicted: int | None = None,
) -> None:
    """A `Trail.step` that does nothing: the engine's own work and the call remain of the engine thread's share."""


def packed_step(
    step: int,
    start_ns: int,
    end_ns: int,
    emitted: Sequence[RequestTrail],
    counts: Sequence[int] | None = None,
    prefill_tokens: int = -1,
    decode_tokens: int = -1,
    running: int = -1,
    waiting: int = -1,
    preempted: int = -1,
    kv_used: int = -1,
    kv_total: int = -1,
    kv_evicted: int = -1,
) -> None:
    """A `Trail.step` that keeps its numbers without a check, and not their requests: the least that recording costs."""
    _keep(
        _pack(
            start_ns, end_ns, step, prefill_tokens, decode_tokens, running, waiting, preempted, kv_used, kv_total,
            kv_evicted, end_ns,
        )
    )  # fmt: skip


def fill_ns() -> float:
    """Writing the bytes of token spans of 64 requests, with all columns at hand and everything in the CPU's cache."""
    each, requests = 128, 64
    ids, numbers = np.arange(requests, dtype=np.uint64), np.arange(requests * each)
    columns = Columns(
        (ids, ids), numbers.astype(np.uint64), ids, numbers, numbers, (numbers,),
        lengths=np.full(requests, each),
    )  # fmt: skip
    buffer = Buffer()
    keys = (semconv.STEP,)

    def fill_all() -> None:
        for _ in range(20):
            buffer.reset()
            fill(columns, semconv.TOKEN_SPAN, keys, buffer=buffer)

    fill_all()
    before = time.process_time_ns()
    fill_all()
    return (time.process_time_ns() - before) / (20 * len(numbers))
