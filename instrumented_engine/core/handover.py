"""Keys and values of a prompt that one engine computes for another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Keys and values of the first `num_tokens` tokens of a prompt: `contents` holds their blocks, in order.

    An engine computed them from `started_ns` to `computed_ns`, and the other one had them at `received_ns` (unix ns).
    Of the tokens, `cached_tokens` were in the first engine's prefix cache; None without one.
    """

    num_tokens: int
    contents: bytes
    started_ns: int
    computed_ns: int
    received_ns: int = 0
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The form of an engine's blocks. Two engines understand each other's blocks if their fingerprints are equal."""

    fingerprint: str
    block_size: int
    block_bytes: int

    def nbytes(self, num_tokens: int) -> int:
        """Bytes of the blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size) * self.block_bytes
