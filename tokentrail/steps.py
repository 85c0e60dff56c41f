"""Columns from step records: the steps' own numbers, and one row for each token that they emitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """S steps: `values` is (S, 9) in the order of `semconv.STEP_ATTRIBUTES`, negative where one is not known; stamps in
    unix ns.
    """

    start: I64
    end: I64
    values: I64


class TokenOwners(NamedTuple):
    """Tokens in order of emission: the slot of each one's request, and the position of its step."""

    slots: I64
    step: I64


def step_columns(steps: Sequence[Record]) -> StepColumns:
    """The steps' own numbers."""
    table = step_ints(steps)
    stamps = np.maximum(table[:, :2], 0) // STAMP_NS * STAMP_NS
    return StepColumns(stamps[:, 0], np.maximum(stamps[:, 0], stamps[:, 1]), table[:, 2:])


def token_owners(steps: Sequence[Record]) -> TokenOwners:
    """The owners of the tokens of steps.

    Raises `TypeError`, `ValueError`, `OverflowError` or `AttributeError` for a malformed step.
    """
    owners = _owners(list(map(emitted_of, steps)))
    counts = token_counts(steps)
    return owners if counts is None else TokenOwners(*(np.repeat(column, counts) for column in owners))


def token_columns(
    owners: TokenOwners, steps: StepColumns, slots: Slots, refuse: Callable[[int, int], None]
) -> tuple[TokenRun, I64] | None:
    """Gives the steps' tokens to their requests: the tokens, and the step number of each. `refuse` gets the slot that
    tells why tokens are refused, and their number: `ENDED_SLOT` where the step was over after the end of the request,
    `FOREIGN_SLOT` for a request of no or another trail.

    step 0 emits to slots (7, 2), step 1 to (7,); every request gets one token
    owner = [7, 2, 7], step = [0, 0, 1]      one entry per token, in order of emission
    the request in slot 7 ended after step 0: its second token is late, owner = [7, 2], step = [0, 0]
    sorted by slot: owner = [2, 7], step = [0, 0], ready for `Slots.advance`
    """
    step = owners.step
    owner, foreign = slots.rows(owners.slots)
    alive = step < slots.last_step[owner]
    late = np.flatnonzero(~alive)
    if len(late):
        alive[late] = steps.end[step[late]] <= slots.end[owner[late]]
        refuse(FOREIGN_SLOT, int(np.count_nonzero(foreign)))
        refuse(ENDED_SLOT, int(np.count_nonzero(owner[~alive & ~foreign] != NO_SLOT)))
        owner, step = owner[alive], step[alive]
    if not len(owner):
        return None
    order = np.argsort(owner.astype(np.uint16) if slots.capacity <= 1 << 16 else owner, kind="stable")
    step = step[order]
    return slots.advance(owner[order], steps.end[step]), steps.values[:, 0][step]


def _owners(emitted: Sequence[Sequence[RequestTrail]]) -> TokenOwners:
    """The owners of tokens of steps that emit one token to each of these requests.

    Decoding repeats itself: steps in a row that share their requests are a run, whose slots are read once.

        emitted = x, x, (c,) with x = (a, b)     a, b, c have the slots 5, 6, 9
        runs    = x, (c,); repeats = 2, 1        slots = [5, 6, 9], read once per run
        step    = [0, 0, 1, 1, 2]                shift = [0, -2, -2] moves the tokens of a step to the slots of its run
        result  = slots[[0, 1, 2, 3, 4] + shift[step]] = slots[[0, 1, 0, 1, 2]] = [5, 6, 5, 6, 9]
    """
    runs: list[Sequence[RequestTrail]] = []
    repeats: list[int] = []
    last = None
    for requests in emitted:
        if requests is last:
            repeats[-1] += 1
        else:
            runs.append(requests)
            repeats.append(1)
            last = requests
    slots = np.fromiter(map(_slot_of, chain.from_iterable(runs)), np.int64)
    sizes = np.fromiter(map(len, runs), np.int64, len(runs))
    run = np.repeat(np.arange(len(runs)), repeats)
    lengths = sizes[run]
    shift = (np.cumsum(sizes) - sizes)[run] - (np.cumsum(lengths) - lengths)
    step = np.repeat(np.arange(len(run)), lengths)
    return TokenOwners(slots[np.arange(len(step)) + shift[step]], step)
