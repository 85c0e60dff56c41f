"""The KV cache as the scheduler sees it: numbered blocks, each free or owned by one sequence."""

from __future__ import annotations


class BlockPool:
    """`total` blocks of `block_size` tokens each. Owners keep their blocks in their own list, in token order."""

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._free = list(range(total - 1, -1, -1))

    @property
    def used(self) -> int:
        """Blocks that are owned."""
        return self.total - len(self._free)

    @property
    def capacity(self) -> int:
        """Tokens that fit when one sequence owns everything."""
        return self.total * self.block_size

    def grow(self, blocks: list[int], tokens: int) -> bool:
        """Extend `blocks` in place until they hold `tokens`; all or nothing, False when too few are free."""
        missing = -(-tokens // self.block_size) - len(blocks)
        if missing > len(self._free):
            return False
        blocks.extend(self._free.pop() for _ in range(missing))
        return True

    def release(self, blocks: list[int]) -> int:
        """Take all `blocks` back, emptying the owner's list; return how many they were."""
        count = len(blocks)
        self._free.extend(reversed(blocks))
        blocks.clear()
        return count
