"""Proposes tokens for speculative decoding without a second model: what followed the same tokens before."""

from __future__ import annotations

from collections.abc import Sequence


class PromptLookup:
    """Prompt lookup for one sequence, over its prompt and its output.

    With n-grams of 2, after "a b c d a b" the draft is "c d a", the tokens behind the last earlier "a b".
    """

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram
        self._behind: dict[tuple[int, ...], int] = {}  # n-gram → the position behind it, the last one that is known
        self._known = ngram

    def draft(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """At most `limit` tokens that may come next. `token_ids` are those of the call before, and more."""
        size = self._ngram
        for end in range(self._known, len(token_ids)):
            self._behind[tuple(token_ids[end - size : end])] = end
        self._known = max(self._known, len(token_ids))
        found = self._behind.get(tuple(token_ids[-size:]))
        return [] if found is None else list(token_ids[found : found + limit])
