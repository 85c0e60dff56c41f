"""Hands out the numbered blocks of the KV cache; each is free or belongs to one sequence."""

from __future__ import annotations


class BlockManager:
    """`num_blocks` blocks of `block_size` tokens each. A sequence lists its blocks in its block table."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free_blocks = list(range(num_blocks - 1, -1, -1))

    @property
    def num_used_blocks(self) -> int:
        """Blocks that belong to a sequence."""
        return self.num_blocks - len(self._free_blocks)

    @property
    def capacity(self) -> int:
        """Tokens that fit into all blocks together."""
        return self.num_blocks * self.block_size

    def allocate(self, block_table: list[int], num_tokens: int) -> bool:
        """Extend `block_table` in place until it holds `num_tokens`; with too few free blocks change nothing: False."""
        missing = -(-num_tokens // self.block_size) - len(block_table)
        if missing > len(self._free_blocks):
            return False
        block_table.extend(self._free_blocks.pop() for _ in range(missing))
        return True

    def free(self, block_table: list[int]) -> int:
        """Take all blocks back and empty `block_table`; return how many blocks it held."""
        count = len(block_table)
        self._free_blocks.extend(reversed(block_table))
        block_table.clear()
        return count
