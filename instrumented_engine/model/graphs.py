"""CUDA graphs: one call launches all kernels of a forward pass.

A pass for few sequences takes less time on the device than the CPU takes to launch its kernels one by one. A graph has
them recorded with their addresses, so its inputs and its result always lie in the same places.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from instrumented_engine.model.attention import Batch
from instrumented_engine.model.batch import Packer, Rows
from instrumented_engine.model.llama import Llama

logger = logging.getLogger(__name__)

STEP = 8
"""Above this number of sequences, there is a graph for each of its multiples."""
MOST = 256
"""Sequences of the largest graph. A pass for more keeps the device busy while the CPU launches it."""


class Graph(NamedTuple):
    """A captured pass: `replay` computes `states` (sequences, hidden size) of the numbers in `batch`."""

    batch: Batch
    replay: Callable[[], None]
    states: Tensor


def sizes(max_seqs: int) -> list[int]:
    """The numbers of sequences that graphs are captured for: a step of 5 of at most 20 is padded to 8."""
    most = min(max_seqs, MOST)
    return sorted({*(1 << shift for shift in range(3) if 1 << shift <= most), *range(STEP, most + 1, STEP), most})


class DecodeGraphs:
    """The forward passes of batches in which each sequence computes one token, and has it sampled.

    `packer` makes paged batches. Sequences have at most `width` blocks; `padding` is a block that none of them has.
    """

    def __init__(self, model: Llama, cache: Tensor, packer: Packer, *, max_seqs: int, width: int, padding: int) -> None:
        self._packer = packer
        self._pad = Rows([0], 0, [padding], [0])
        self._graphs: dict[int, Graph] = {}
        pool = None
        for size in reversed(sizes(max_seqs)):  # the largest first: the others then fit into its memory
            few = packer.pack([self._pad] * size)
            batch = replace(few, block_table=few.block_table.expand(size, width).clone())

            def forward(batch: Batch = batch) -> Tensor:
                return model.forward(batch, cache)

            replay, states, pool = capture(forward, pool)
            self._graphs[size] = Graph(batch, replay, states)

    def __iter__(self) -> Iterator[int]:
        """The sizes, the smallest first."""
        return iter(sorted(self._graphs))

    def size(self, rows: Seq[Rows]) -> int | None:
        """The size of the graph that computes these rows; None if there is none."""
        if all(len(one.token_ids) == len(one.sampled) == 1 and not one.prompt for one in rows):
            return next((size for size in self if size >= len(rows)), None)
        return None

    def run(self, rows: Seq[Rows], size: int) -> Tensor:
        """The states (sequences, hidden size) of the rows. They are overwritten by the next call."""
        batch, replay, states = self._graphs[size]
        new = self._packer.pack([*rows, *[self._pad] * (size - len(rows))])
        for name in ("tokens", "positions", "slots", "lengths"):
            getattr(batch, name).copy_(getattr(new, name))
        batch.block_table[:, : new.block_table.shape[1]].copy_(new.block_table)
        replay()
        return states[: len(rows)]


def capture(forward: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor, Any]:
    """Record a pass in CUDA's current device: its replay, its result, and the memory that its successors may share."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        forward()  # kernels are compiled and libraries opened now, which a capture would not survive
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        states = forward()
    return graph.replay, states, graph.pool()
