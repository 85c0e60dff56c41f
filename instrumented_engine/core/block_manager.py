"""Hands out the numbered blocks of the KV cache. A block may belong to several sequences, and counts them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b


class BlockManager:
    """`num_blocks` blocks of `block_size` tokens each. A sequence lists its blocks in its block table.

    A block without an owner is free. A published block is found by the hash of all tokens up to its end, also while it
    is free, until another sequence needs the space: the least recently used goes first.

        "a" owns 3, 4 (published) and 5     free: 0 1 2             cached: 3 4
        "a" ends                            free: 0 1 2 5 4 3       cached: 3 4     a text's end goes first
        "b" starts with the same tokens     free: 0 1 2 5           cached: 3 4     "b" owns 3, 4
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_dropped_blocks = 0
        """Cached blocks that were given to other tokens since the start."""
        self._owners = [0] * num_blocks
        self._free: dict[int, None] = dict.fromkeys(
            range(num_blocks)
        )  # in order of use: the next one to be taken is the first
        self._cached: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_used_blocks(self) -> int:
        """Blocks that belong to at least one sequence."""
        return self.num_blocks - len(self._free)

    @property
    def capacity(self) -> int:
        """Tokens that fit into all blocks together."""
        return self.num_blocks * self.block_size

    def allocate(self, block_table: list[int], num_tokens: int, *, reserve: int = 0) -> bool:
        """Extend `block_table` in place until it holds `num_tokens`.

        When fewer than `reserve` free blocks would be left, change nothing and return False.
        """
        missing = -(-num_tokens // self.block_size) - len(block_table)
        if missing > 0 and missing + reserve > len(self._free):
            return False
        block_table.extend(self._take() for _ in range(missing))
        return True

    def share(self, block_table: list[int], blocks: Iterable[int]) -> None:
        """Append blocks that have contents already: those of another sequence, or cached ones."""
        for block in blocks:
            self._free.pop(block, None)
            self._owners[block] += 1
            block_table.append(block)

    def unshare(self, block_table: list[int], position: int) -> tuple[int, int] | None:
        """Replace a block of a sequence by one that it does not share; return (old, new), None if it owned it alone.

        Raises IndexError when no block is free. The contents are still to be copied.
        """
        shared = block_table[position]
        if self._owners[shared] == 1:
            return None
        if not self._free:
            raise IndexError("no block is free")
        block_table[position] = self._take()
        self._owners[shared] -= 1
        return shared, block_table[position]

    def free(self, block_table: list[int]) -> int:
        """Give up all blocks of a sequence and empty its table; return how many of them are free now."""
        before = len(self._free)
        for block in reversed(block_table):
            self._owners[block] -= 1
            if not self._owners[block]:
                self._free[block] = None
        block_table.clear()
        return len(self._free) - before

    def publish(self, block: int, block_hash: bytes) -> None:
        """Cache the contents of a full block, unless another block has the same."""
        if self._cached.setdefault(block_hash, block) == block:
            self._hash_of[block] = block_hash

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The cached blocks of the longest prefix that is cached."""
        blocks = []
        for block_hash in hashes:
            if (block := self._cached.get(block_hash)) is None:
                break
            blocks.append(block)
        return blocks

    def _take(self) -> int:
        block = next(iter(self._free))
        del self._free[block]
        self._owners[block] = 1
        if (block_hash := self._hash_of.pop(block, None)) is not None:
            del self._cached[block_hash]
            self.num_dropped_blocks += 1
        return block


class NoBlocks(BlockManager):
    """For encoders, which keep no keys and values: every sequence fits."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def allocate(self, block_table: list[int], num_tokens: int, *, reserve: int = 0) -> bool:
        """True: nothing is needed."""
        return True


def hash_block(previous: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a block's tokens and of all tokens before them, where `previous` is the hash of the block before."""
    return blake2b(previous + array("q", token_ids).tobytes(), digest_size=16).digest()
