"""Step records to token and step columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from numbers import Integral
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokentrail.clock import STAMP_NS
from tokentrail.request import NO_SLOT, Record, RequestTrail
from tokentrail.slots import Slots, TokenRun

I64 = npt.NDArray[np.int64]

STEP_INTS: Final = 11
"""Integers at the head of a step record: start, end, then the values of `semconv.STEP_ATTRIBUTES`."""
MAX_TOKENS_PER_STEP: Final = 1 << 16
"""Tokens that one request can get in one step; a larger count is a mistake of the caller."""

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


def well_formed(record: Record) -> bool:
    """Whether a step record can become columns; asked only after a batch of them could not."""
    _kind, *ints, emitted, counts = record
    return (
        all(_whole(value, -(2**63), 2**63 - 1) for value in ints)
        and all(isinstance(request, RequestTrail) for request in emitted)
        and (counts is None or _counts_fit(emitted, counts))
    )


def _counts_fit(emitted: Sequence[Any], counts: Sequence[Any]) -> bool:
    return len(counts) == len(emitted) and all(_whole(count, 0, MAX_TOKENS_PER_STEP) for count in counts)


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, Integral) and low <= int(value) <= high


def step_columns(records: Sequence[Record]) -> StepColumns:
    """The steps' own numbers. Raises `TypeError`, `ValueError` or `OverflowError` for a malformed record."""
    table = np.array([record[1 : 1 + STEP_INTS] for record in records], dtype=np.int64)
    stamps = np.maximum(table[:, :2], 0) // STAMP_NS * STAMP_NS
    return StepColumns(stamps[:, 0], np.maximum(stamps[:, 0], stamps[:, 1]), table[:, 2:])


def token_columns(
    records: Sequence[Record], steps: StepColumns, slots: Slots, late: Callable[[int], None]
) -> TokenColumns | None:
    """The steps' tokens, and their requests' state moved on. `late` gets the number of tokens whose request had ended.

    Raises what `step_columns` does, before any state has changed.
    """
    emitted = [record[-2] for record in records]
    lengths = np.fromiter(map(len, emitted), np.int64, len(emitted))
    owner = np.fromiter(map(_slot_of, chain.from_iterable(emitted)), np.int64, int(lengths.sum()))
    step = np.repeat(np.arange(len(records)), lengths)
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


def _counts(records: Sequence[Record]) -> I64 | None:
    """Tokens per (step, request) in order, or None when each got one."""
    if all(record[-1] is None for record in records):
        return None
    for record in records:
        if record[-1] is not None and not _counts_fit(record[-2], record[-1]):
            raise ValueError(f"step {record[3]} emitted to {len(record[-2])} requests with counts {record[-1]!r}")
    parts = (record[-1] if record[-1] is not None else (1,) * len(record[-2]) for record in records)
    return np.fromiter(chain.from_iterable(parts), np.int64)


def spans_in(record: Record) -> int:
    """Spans that a step record stands for: the step, and a token for each count of a sampled request."""
    emitted, counts = record[-2], record[-1]
    sampled = [isinstance(request, RequestTrail) and request.sampled for request in emitted]
    if counts is None or len(counts) != len(emitted):
        return 1 + sum(sampled)
    fitting = (int(count) if _whole(count, 0, MAX_TOKENS_PER_STEP) else 1 for count in counts)
    return 1 + sum(count for count, wanted in zip(fitting, sampled, strict=True) if wanted)
