"""Packs the tokens of sequences into the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from instrumented_engine.model.attention import Batch, Prefill


class Rows(NamedTuple):
    """Tokens of one sequence that are computed, from position `start` on.

    States are returned of those at the indexes `sampled`, and behind those of all sequences, at `prompt`.
    """

    token_ids: Seq[int]
    start: int
    block_table: Seq[int]
    sampled: Seq[int]
    prompt: Seq[int] = ()


class Packer:
    """Makes batches for a cache with blocks of `block_size` tokens on a device, and for queries of `dtype`.

    `paged` ones have no mask: the Triton kernel computes their attention.
    """

    def __init__(self, block_size: int, device: torch.device, dtype: torch.dtype, *, paged: bool = False) -> None:
        self._block_size = block_size
        self._device = device
        self._dtype = dtype
        self._paged = paged

    # Two sequences that decode, and one that computes the five tokens of its prompt:
    #   tokens    7 9 | 3 1 4 1 5        rows 0 and 1, then rows 2 to 6
    #   sampled   0 1 | 6                the last row of each
    # All these lists lie behind each other in one tensor, so that a step copies its numbers to the device once.
    def pack(self, sequences: Seq[Rows]) -> Batch:
        """The batch of some sequences; those that compute one token come first."""
        size = self._block_size
        tokens: list[int] = []
        positions: list[int] = []
        sampled: list[int] = []
        prompt: list[int] = []
        slots: list[int] = []
        prefills: list[tuple[int, range, Seq[int]]] = []
        decodes = [rows for rows in sequences if len(rows.token_ids) == 1]
        for rows in sequences:
            first, new = len(tokens), range(rows.start, rows.start + len(rows.token_ids))
            if len(new) > 1:
                prefills.append((first, new, rows.block_table if new.start else []))
            sampled += [first + index for index in rows.sampled]
            prompt += [first + index for index in rows.prompt]
            tokens += rows.token_ids
            positions += new
            slots += [rows.block_table[p // size] * size + p % size for p in new]
        lengths = [rows.start + 1 for rows in decodes]
        used = [rows.block_table[: -(-length // size)] for rows, length in zip(decodes, lengths, strict=True)]
        widest = max(map(len, used), default=0)
        padded = [block for table in used for block in [*table, *[table[0]] * (widest - len(table))]]
        tables = [table for _, _, table in prefills]
        parts = self.copied(tokens, positions, slots, sampled + prompt, lengths, padded, *tables)
        return Batch(
            tokens=parts[0],
            positions=parts[1],
            slots=parts[2],
            sampled=parts[3],
            decodes=len(decodes),
            lengths=parts[4],
            block_table=parts[5].view(len(decodes), widest),
            mask=None if self._paged else self._mask(decode_mask(parts[4], widest * size)),
            prefills=tuple(
                self._prefill(row, new, table) for (row, new, _), table in zip(prefills, parts[6:], strict=True)
            ),
            fresh=() if self._paged else tuple(self._fresh(sequences)),
        )

    def _fresh(self, sequences: Seq[Rows]) -> Iterator[int]:
        """The block of each sequence's last token, if no token was there before and it stays unfilled."""
        for rows in sequences:
            stop = rows.start + len(rows.token_ids)
            block, filled = divmod(stop, self._block_size)
            if filled and block * self._block_size >= rows.start:
                yield rows.block_table[block]

    def copied(self, *lists: Seq[int]) -> list[torch.Tensor]:
        """The lists on the device, by one copy."""
        packed = torch.tensor([number for numbers in lists for number in numbers], dtype=torch.long)
        if self._device.type == "cuda":
            packed = packed.pin_memory()  # from other memory, the copy would wait for the device
        packed = packed.to(self._device, non_blocking=True)
        return [packed[start:stop] for start, stop in pairwise([0, *accumulate(map(len, lists))])]

    def _prefill(self, row: int, new: range, block_table: torch.Tensor) -> Prefill:
        """The part of a batch that computes `new` positions of a sequence, from `row` on."""
        if not new.start:
            return Prefill(row, row + len(new))
        seen = torch.arange(new.stop, device=self._device)
        mask = self._mask(seen <= torch.arange(new.start, new.stop, device=self._device).unsqueeze(1))
        return Prefill(row, row + len(new), block_table=block_table, mask=mask)

    def _mask(self, seen: torch.Tensor) -> torch.Tensor:
        """0 where a position is seen and -∞ where it is not. From booleans, torch would make this in each layer."""
        return torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(~seen, -torch.inf)


def decode_mask(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """Which of `width` positions each sequence sees that computes one token, (sequences, 1, 1, width)."""
    return (torch.arange(width, device=lengths.device) < lengths.unsqueeze(1))[:, None, None, :]
