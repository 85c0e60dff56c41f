"""Drafts tokens with a second, smaller model that has the same tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch

from instrumented_engine.core.block_manager import hash_block
from instrumented_engine.core.sequence import Sequence
from instrumented_engine.model.batch import Rows
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.sampler import Row, sample

logger = logging.getLogger(__name__)


class DraftModel:
    """A model that samples each token of a draft as the other model would, with the same random number.

    Its cache has blocks with the same numbers as the other model's, and a sequence has one block table for both.
    At most `max_rows` tokens are computed at once: a sequence with a longer prompt gets drafts some steps later.
    """

    def __init__(self, model: Llama, *, kv_blocks: int, block_size: int, eos_ids: Seq[int], max_rows: int) -> None:
        self._model = model
        self._cache = model.new_cache(kv_blocks, block_size)
        self._contents = Contents(block_size)
        self._packer = model.packer(block_size)
        self._eos_ids = list(eos_ids)
        self._max_rows = max_rows

    @torch.inference_mode()
    def propose(self, limits: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """The drafts, one token of each in a pass. A pass that fails ends them all."""
        drafts: dict[Sequence, list[int]] = {sequence: [] for sequence in limits}
        growing = [*limits]
        try:
            while growing:
                grown = self._extend(growing, drafts)
                growing = [sequence for sequence in grown if len(drafts[sequence]) < limits[sequence]]
        except (MemoryError, RuntimeError, ArithmeticError) as error:
            self._contents.forget()
            logger.warning("the draft model failed, and this step has shorter drafts: %s", error)
        return drafts

    def _extend(self, growing: Seq[Sequence], drafts: Mapping[Sequence, list[int]]) -> list[Sequence]:
        """Append a token to the drafts of the sequences that are returned; the others have more tokens to compute."""
        room = self._max_rows
        batch: list[tuple[Sequence, Rows]] = []
        for sequence in growing:
            context = sequence.token_ids + drafts[sequence]
            hashes = self._contents.hashes(sequence, context)
            start = min(self._contents.held(sequence.block_table, context, hashes), len(context) - 1)
            stop = min(len(context), start + room)
            if start < stop:
                room -= stop - start
                last = [stop - start - 1] if stop == len(context) else []
                batch.append((sequence, Rows(context[start:stop], start, sequence.block_table, last)))
                self._contents.replace(sequence.block_table, context[:stop], hashes, start)
        batch.sort(key=lambda item: len(item[1].token_ids) > 1)
        states = self._model.forward(self._packer.pack([rows for _, rows in batch]), self._cache)
        grown = [sequence for sequence, rows in batch if rows.sampled]
        places = [Row.after(sequence, drafts[sequence]) for sequence in grown]
        tokens = sample(self._model.logits(states), places, self._eos_ids) if grown else []
        for sequence, token in zip(grown, tokens, strict=True):
            drafts[sequence].append(token)
        return grown


# Blocks of 4 tokens. Block 7 holds "a b c d", block 9 behind it "e x", of which "x" was a wrong draft.
#   a sequence "a b c d e f" with the blocks 7, 9 finds 5 tokens; it computes "f" in the place of "x"
#   another with the same beginning, also later, finds 4 or 5
#   after block 9 was given to "q r s t u", whose block before it has another hash, the first sequence finds 4
class Contents:
    """The tokens of each block of a cache. Wrong drafts, moved blocks and shared ones are seen.

    A block remembers its tokens, and the hash of all tokens before them.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[int, tuple[bytes, list[int]]] = {}

    def forget(self) -> None:
        """Take all blocks for empty."""
        self._blocks.clear()

    def hashes(self, sequence: Sequence, context: Seq[int]) -> list[bytes]:
        """The hash before each block of a context, which is a sequence and a draft behind it."""
        size = self._block_size
        hashes = [b"", *sequence.block_hashes(size)]
        for start in range((len(hashes) - 1) * size, len(context) - size + 1, size):
            hashes.append(hash_block(hashes[-1], context[start : start + size]))
        return hashes

    def held(self, block_table: Seq[int], context: Seq[int], hashes: Seq[bytes]) -> int:
        """The number of leading tokens of a context that its blocks have the keys and values of."""
        size, count = self._block_size, 0
        for block, before in zip(block_table, hashes, strict=False):
            known_before, known = self._blocks.get(block, (None, []))
            wanted = context[count : count + size]
            same = matching(known, wanted) if known_before == before else 0
            count += same
            if same < size:
                break
        return count

    def replace(self, block_table: Seq[int], context: Seq[int], hashes: Seq[bytes], start: int) -> None:
        """The blocks hold the context now; the tokens from `start` on are new."""
        size = self._block_size
        for index in range(start // size, -(-len(context) // size)):
            self._blocks[block_table[index]] = (hashes[index], list(context[index * size : (index + 1) * size]))


def matching(draft: Seq[int], tokens: Seq[int]) -> int:
    """The number of leading tokens that two lists share."""
    pairs = enumerate(zip(draft, tokens, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(draft), len(tokens)))
