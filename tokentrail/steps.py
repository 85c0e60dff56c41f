"""Columns from step records: the steps' own numbers, and one row for each token that they emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from tokentrail.clock import STAMP_NS
from tokentrail.records import Record, emitted_of, step_ints, token_counts
from tokentrail.request import ENDED_SLOT, FOREIGN_SLOT, NO_SLOT, RequestTrail
from tokentrail.slots import Slots, TokenRun
from tokentrail.wire import I64

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


def step_columns(records: Sequence[Record]) -> StepColumns:
    """The steps' own numbers. Raises `TypeError`, `ValueError` or `OverflowError` for a malformed record."""
    table = step_ints(records)
    stamps = np.maximum(table[:, :2], 0) // STAMP_NS * STAMP_NS
    return StepColumns(stamps[:, 0], np.maximum(stamps[:, 0], stamps[:, 1]), table[:, 2:])


def token_owners(records: Sequence[Record]) -> tuple[I64, I64]:
    """Slot and step position of each token, in order of emission.

    Raises `TypeError`, `ValueError`, `OverflowError` or `AttributeError` for a malformed record.
    """
    owner, step = _owners(map(emitted_of, records))
    counts = token_counts(records)
    return (owner, step) if counts is None else (np.repeat(owner, counts), np.repeat(step, counts))


def token_columns(
    owner: I64, step: I64, steps: StepColumns, slots: Slots, refuse: Callable[[int, int], None]
) -> TokenColumns | None:
    """Gives the steps' tokens to their requests. `refuse` gets the slot that tells why tokens are refused, and their
    number: `ENDED_SLOT` where the step was over after the end of the request, `FOREIGN_SLOT` for a request of no or
    another trail.

    step 0 emits to slots (7, 2), step 1 to (7,); every request gets one token
    owner = [7, 2, 7], step = [0, 0, 1]      one entry per token, in order of emission
    the request in slot 7 ended after step 0: its second token is late, owner = [7, 2], step = [0, 0]
    sorted by slot: owner = [2, 7], step = [0, 0], ready for `Slots.advance`
    """
    owner, foreign = slots.rows(owner)
    alive = (step < slots.last_step[owner]) | (steps.end[step] <= slots.end[owner])
    if not alive.all():
        refuse(FOREIGN_SLOT, int(np.count_nonzero(foreign)))
        refuse(ENDED_SLOT, int(np.count_nonzero(owner[~alive & ~foreign] != NO_SLOT)))
        owner, step = owner[alive], step[alive]
    if not len(owner):
        return None
    order = np.argsort(owner.astype(np.uint16) if slots.capacity <= 1 << 16 else owner, kind="stable")
    owner, step = owner[order], step[order]
    return TokenColumns(owner, slots.advance(owner, steps.end[step]), steps.values[:, 0][step])


def _owners(emitted: Iterable[tuple[RequestTrail, ...]]) -> tuple[I64, I64]:
    """Slot and step position of each (step, request), in order.

    Decoding repeats itself, so equal tuples in a row are read once: a repeated step costs a comparison of two tuples
    instead of a look at every request.

        emitted = (a, b), (a, b), (c,)           a, b, c have the slots 5, 6, 9
        runs    = (a, b), (c,); repeats = 2, 1   slots = [5, 6, 9], read once per run
        step    = [0, 0, 1, 1, 2]                shift = [0, -2, -2] moves the tokens of a step to the slots of its run
        result  = slots[[0, 1, 2, 3, 4] + shift[step]] = slots[[0, 1, 0, 1, 2]] = [5, 6, 5, 6, 9]
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
