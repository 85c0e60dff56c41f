"""Columns from step records: the steps' own numbers, and one row for each token that they emitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import pack
from typing import NamedTuple

import numpy as np

from tokentrail._build.slots import Slots, TokenRun
from tokentrail._encode.wire import I64
from tokentrail._host.clock import STAMP_NS
from tokentrail._record.recipient import ENDED_SLOT, FOREIGN_SLOT, NO_SLOT
from tokentrail._record.records import Rows, step_ints, token_counts


class StepColumns(NamedTuple):
    """S steps: `values` has a row for each, the first values of `records.STEP_NAMES`, negative where one is not known;
    stamps in unix ns. `emitted`: when the tokens of a step were.
    """

    start: I64
    end: I64
    emitted: I64
    values: I64


class TokenOwners(NamedTuple):
    """Tokens in order of emission: the slot of each one's request, and the position of its step."""

    slots: I64
    step: I64


def step_columns(steps: Sequence[Rows]) -> StepColumns:
    """The steps' own numbers."""
    table = step_ints(steps)
    start, end, emitted = np.maximum(table[:, :3], 0).T // STAMP_NS * STAMP_NS
    return StepColumns(start, np.maximum(start, end), np.maximum(start, emitted), table[:, 3:])


def token_owners(steps: Sequence[Rows]) -> TokenOwners:
    """The owners of the tokens of steps.

    Raises `AttributeError` for a step of an object that is no request, and `struct.error` if its slot is no number.
    """
    owners = _owners(steps)
    counts = token_counts(steps)
    return owners if counts is None else TokenOwners(*(np.repeat(column, counts) for column in owners))


def token_columns(
    owners: TokenOwners, steps: StepColumns, slots: Slots, refuse: Callable[[int, int], None]
) -> tuple[TokenRun, I64] | None:
    """Gives the steps' tokens to their requests: the tokens, and the step number of each. `refuse` gets the slot that
    tells why tokens are refused, and their number: `ENDED_SLOT` where a token was emitted after the end of its request,
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
        alive[late] = steps.emitted[step[late]] <= slots.end[owner[late]]
        refuse(FOREIGN_SLOT, int(np.count_nonzero(foreign)))
        refuse(ENDED_SLOT, int(np.count_nonzero(owner[~alive & ~foreign] != NO_SLOT)))
        owner, step = owner[alive], step[alive]
    if not len(owner):
        return None
    order = np.argsort(owner.astype(np.uint16) if slots.capacity <= 1 << 16 else owner, kind="stable")
    step = step[order]
    return slots.advance(owner[order], steps.emitted[step]), steps.values[:, 0][step]


def _owners(steps: Sequence[Rows]) -> TokenOwners:
    """The owners of the tokens of steps that emit one token to each of their requests.

    Decoding repeats itself, so the slots of a run's requests are read once, and their bytes are repeated.

        runs   = 2 steps of (a, b), 1 step of (c,)     a, b, c have the slots 5, 6, 9
        packed = [5, 6, 9]                             the runs end at bytes 16 and 24
        slots  = [5, 6] * 2 + [9] = [5, 6, 5, 6, 9]
        step   = [0, 0, 1, 1, 2]
    """
    of_requests = [request.slot for rows in steps for request in rows.emitted]
    packed = pack(f"{len(of_requests)}n", *of_requests)  # twice as fast as `np.array`
    sizes, repeats = [len(rows.emitted) for rows in steps], [rows.steps for rows in steps]
    runs = zip(accumulate(8 * size for size in sizes), sizes, repeats, strict=True)
    slots = b"".join([packed[end - 8 * size : end] * times for end, size, times in runs])
    lengths = np.repeat(np.array(sizes, np.int64), repeats)
    return TokenOwners(np.frombuffer(slots, np.int64), np.repeat(np.arange(len(lengths)), lengths))
