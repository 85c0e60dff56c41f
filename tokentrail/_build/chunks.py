"""Columns from chunks: tokens that their requests recorded themselves, without an engine step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from tokentrail._build.slots import Slots, TokenRun
from tokentrail._record.recipient import ENDED_SLOT, FIRST_SLOT, FOREIGN_SLOT, Chunk


def chunk_columns(chunks: Sequence[Chunk], slots: Slots, refuse: Callable[[int, int], None]) -> TokenRun | None:
    """Gives the tokens of chunks to their requests.

    A token that was recorded after the end of its request is kept when its stamp is not after the end. `refuse` gets
    the others, as in `token_columns`.
    """
    if not chunks:
        return None
    lengths = [len(chunk.stamps) for chunk in chunks]
    owner, foreign = slots.rows(np.repeat(np.array([chunk.recipient.slot for chunk in chunks], np.int64), lengths))
    ended = np.repeat(np.array([chunk.ended for chunk in chunks]), lengths)
    ends = np.fromiter(chain.from_iterable(chunk.stamps for chunk in chunks), np.int64)
    alive = (owner >= FIRST_SLOT) & (~ended | (ends <= slots.end[owner]))
    refuse(FOREIGN_SLOT, int(np.count_nonzero(foreign)))
    refuse(ENDED_SLOT, int(np.count_nonzero(~alive & ~foreign)))
    owner, ends = owner[alive], ends[alive]
    if not len(owner):
        return None
    order = np.argsort(owner, kind="stable")
    return slots.advance(owner[order], ends[order])
