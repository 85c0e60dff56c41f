"""Step records to token and step columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from numbers import Integral
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokentrail.clock import STAMP_NS
from tokentrail.request import NO_SLOT, Kind, Record, RequestTrail
from tokentrail.slots import Slots, TokenRun

I64 = npt.NDArray[np.int64]

STEP_INTS: Final = 11
"""Integers at the head of a step record: start, end, then the values of `semconv.STEP_ATTRIBUTES`."""
MAX_TOKENS_PER_STEP: Final = 1 << 12
"""Tokens that one request can get in one step; a larger count is a mistake of the caller."""

_ints_of = itemgetter(slice(1, 1 + STEP_INTS))
_emitted_of = itemgetter(-2)
_counts_of = itemgetter(-1)
_slot_of = attrgetter("slot")


class StepColumns(NamedTuple):
    """S steps: `values` is (S, 9) in the order of `semconv.STEP_ATTRIBUTES`; stamps in unix ns."""

    start: I64
    end: I64
    values: I64


class TokenColumns(NamedTuple):
    """Tokens sorted by the slot of their request; `step` is the engine's step number."""

    slots: I64
    run: TokenRun
    step: I64


def well_formed(record: Record, slots: Slots) -> bool:
    """Whether a step record can become columns; asked only after a batch of them could not."""
    _kind, *ints, emitted, counts = record
    return (
        all(_whole(value, -(2**63), 2**63 - 1) for value in ints)
        and all(isinstance(request, RequestTrail) and request.slot < slots.capacity for request in emitted)
        and (counts is None or _counts_fit(emitted, counts))
    )


def _counts_fit(emitted: Sequence[Any], counts: Sequence[Any]) -> bool:
    return len(counts) == len(emitted) and all(_whole(count, 0, MAX_TOKENS_PER_STEP) for count in counts)


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, Integral) and low <= int(value) <= high


def step_columns(records: Sequence[Record]) -> StepColumns:
    """The steps' own numbers. Raises `TypeError`, `ValueError` or `OverflowError` for a malformed record."""
    flat = np.fromiter(chain.from_iterable(map(_ints_of, records)), np.int64, len(records) * STEP_INTS)
    table = flat.reshape(-1, STEP_INTS)
    stamps = np.maximum(table[:, :2], 0) // STAMP_NS * STAMP_NS
    return StepColumns(stamps[:, 0], np.maximum(stamps[:, 0], stamps[:, 1]), table[:, 2:])


def token_columns(
    records: Sequence[Record], steps: StepColumns, slots: Slots, late: Callable[[int], None]
) -> TokenColumns | None:
    """The steps' tokens, and their requests' state moved on. `late` gets the number of tokens whose request had ended.

    Raises what `step_columns` does, before any state has changed.
    """
    owner, step = _owners(map(_emitted_of, records))
    if owner.max(initial=0) >= slots.capacity:
        raise ValueError("a step emitted to a request of another trail")
    counts = _counts(records)
    if counts is not None:
        owner, step = np.repeat(owner, counts), np.repeat(step, counts)
    alive = step < slots.last_step[owner]
    if not alive.all():
        late(int(np.count_nonzero(owner[~alive] != NO_SLOT)))
        owner, step = owner[alive], step[alive]
    if not len(owner):
        return None
    order = np.argsort(owner.astype(np.uint16) if slots.capacity <= 1 << 16 else owner, kind="stable")
    owner, step = owner[order], step[order]
    return TokenColumns(owner, slots.advance(owner, steps.end[step]), steps.values[:, 0][step])


def _owners(emitted: Iterable[tuple[RequestTrail, ...]]) -> tuple[I64, I64]:
    """Slot and step position of each (step, request), in order. Decoding repeats itself: a step that emits to the same
    requests as the one before costs a comparison of two tuples, not a look at every request.
    """
    runs: list[tuple[RequestTrail, ...]] = []
    repeats: list[int] = []
    for requests in emitted:
        if runs and requests == runs[-1]:
            repeats[-1] += 1
        else:
            runs.append(requests)
            repeats.append(1)
    slots = np.fromiter(map(_slot_of, chain.from_iterable(runs)), np.int64)
    sizes = np.fromiter(map(len, runs), np.int64, len(runs))
    run = np.repeat(np.arange(len(runs)), repeats)
    lengths = sizes[run]
    shift = (np.cumsum(sizes) - sizes)[run] - (np.cumsum(lengths) - lengths)
    step = np.repeat(np.arange(len(run)), lengths)
    return slots[np.arange(len(step)) + shift[step]], step


def _counts(records: Sequence[Record]) -> I64 | None:
    """Tokens per (step, request) in order, or None when each got one."""
    given = list(map(_counts_of, records))
    if given.count(None) == len(given):
        return None
    parts = []
    for record, counts in zip(records, given, strict=True):
        emitted = record[-2]
        if counts is not None and not _counts_fit(emitted, counts):
            raise ValueError(f"step {record[3]} emitted to {len(emitted)} requests with counts {counts!r}")
        parts.append((1,) * len(emitted) if counts is None else counts)
    return np.fromiter(chain.from_iterable(parts), np.int64)


def spans_in(record: Record) -> int:
    """Spans that a record stands for; of a step: itself, and a token for each count of a sampled request."""
    if record[0] is not Kind.STEP:
        return 1
    emitted, counts = record[-2], record[-1]
    sampled = [isinstance(request, RequestTrail) and request.sampled for request in emitted]
    if counts is None or len(counts) != len(emitted):
        return 1 + sum(sampled)
    fitting = (int(count) if _whole(count, 0, MAX_TOKENS_PER_STEP) else 1 for count in counts)
    return 1 + sum(count for count, wanted in zip(fitting, sampled, strict=True) if wanted)
