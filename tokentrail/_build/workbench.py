"""The state that all builders of spans share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tokentrail._build.slots import Slots
from tokentrail._encode.wire import I64, U64, Block, Buffer, Columns, fill
from tokentrail._host.guard import Guard

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Workbench:
    """The columns of the requests under way, memory for blocks, new span ids, and the spans lost by reason.

    `take_break` is called between two pieces of work, so that other threads get their turn.
    """

    guard: Guard
    ids: np.random.Generator
    take_break: Callable[[], object]
    slots: Slots = field(default_factory=Slots)
    buffer: Buffer = field(default_factory=Buffer)
    lost: Counter[str] = field(default_factory=Counter)
    behind_ns: int = 0
    """So far is the wall clock ahead of `now_ns()`, since somebody set it (ns)."""
    batch_ns: int = 0
    """When the batch was taken, by `now_ns()`."""

    def span_ids(self, count: int) -> U64:
        """New span ids."""
        return np.maximum(np.frombuffer(self.ids.bytes(8 * count), np.uint64), 1)  # an id is not 0

    def behind_by(self, stamps: I64) -> I64 | int:
        """How far each stamp is behind the wall clock; 0 where a caller took it from the wall clock itself (ns)."""
        if not self.behind_ns:
            return 0
        age = self.batch_ns - stamps
        return np.where(abs(age) <= abs(age + self.behind_ns), self.behind_ns, 0)

    def fill(
        self,
        columns: Columns,
        name: str,
        ints: Sequence[str] = (),
        texts: tuple[tuple[str, str], ...] = (),
        doubles: Sequence[str] = (),
        tails: Sequence[bytes] = (),
        behind: I64 | int = 0,
    ) -> Block:
        """A block of spans in the memory of this batch. Their times are `behind` the wall clock (ns)."""
        if np.any(behind):
            columns = columns._replace(start=columns.start + behind, end=columns.end + behind)
        return fill(columns, name, ints, texts, doubles, tails, buffer=self.buffer)


def alike(known: Mask) -> Iterator[tuple[Mask, I64 | slice]]:
    """Groups rows with the same known columns, in order of appearance: the columns, and the rows.

    known = [[1, 1], [1, 0], [1, 1]]    gives [1, 1] with rows 0 and 2, then [1, 0] with row 1
    """
    if (known == known[0]).all():
        yield known[0], slice(None)
        return
    pattern = known @ (1 << np.arange(known.shape[1]))
    _, first = np.unique(pattern, return_index=True)
    for row in np.sort(first):
        rows = np.flatnonzero(pattern == pattern[row])
        yield known[rows[0]], rows
