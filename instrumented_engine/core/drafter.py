"""Proposes tokens for speculative decoding. Prompt lookup needs no second model: it finds the tokens that came
behind the same tokens before.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from instrumented_engine.core.sequence import Sequence


class Drafter(Protocol):
    """Guesses the next tokens of sequences. A wrong guess costs time and changes no output."""

    def propose(self, limits: Mapping[Sequence, int]) -> Mapping[Sequence, Seq[int]]:
        """At most so many tokens for each sequence. Its blocks have room for them. Does not raise."""
        ...


class PromptLookup:
    """Drafts the tokens that followed the last `ngram` tokens of a sequence before."""

    def __init__(self, ngram: int = 2) -> None:
        self._ngram = ngram

    def propose(self, limits: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """The drafts."""
        drafts = {}
        for sequence, limit in limits.items():
            if sequence.ngrams is None:
                sequence.ngrams = NgramIndex(self._ngram)
            drafts[sequence] = sequence.ngrams.draft(sequence.token_ids, limit)
        return drafts


class NgramIndex:
    """The n-grams of one sequence, prompt and output.

    With n-grams of 2, after "a b c d a b" the draft is "c d a", the tokens behind the last earlier "a b".
    """

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram
        self._behind: dict[tuple[int, ...], int] = {}  # n-gram → the position behind it, the last one that is known
        self._known = ngram

    def draft(self, token_ids: Seq[int], limit: int) -> list[int]:
        """At most `limit` tokens that may come next. `token_ids` are those of the call before, and more."""
        size = self._ngram
        for end in range(self._known, len(token_ids)):
            self._behind[tuple(token_ids[end - size : end])] = end
        self._known = max(self._known, len(token_ids))
        behind = self._behind.get(tuple(token_ids[-size:]))
        return [] if behind is None else list(token_ids[behind : behind + limit])
